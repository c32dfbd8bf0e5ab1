"""Bottle with Beaker's sessions, in files; the cookie holds no more than their key."""

from typing import Any
from wsgiref.types import WSGIApplication

import bottle
from beaker.middleware import SessionMiddleware

from . import answer, pages, setting


def session() -> Any:
    return bottle.request.environ["beaker.session"]


def login(request: Any) -> None:
    session()["user"] = request.query["user"]
    session().save()


def create_app() -> WSGIApplication:
    app = bottle.Bottle()
    views = pages(lambda _: session().get("user"), login, lambda _: session().delete())
    for path, method, view in views:
        app.route(path, method, callback=lambda view=view: answer(view(bottle.request)))
    options = {"session.type": "file", "session.data_dir": setting("FOLDER", "")}
    wrapped: WSGIApplication = SessionMiddleware(app, options)
    return wrapped
