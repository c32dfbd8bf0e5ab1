"""Bottle with Beaker's sessions, in files; the cookie holds no more than their key."""

from typing import Any
from wsgiref.types import WSGIApplication

import bottle
from beaker.middleware import SessionMiddleware

from . import answer, names, setting


def create_app() -> WSGIApplication:
    app, key = bottle.Bottle(), "user"

    def session() -> Any:
        return bottle.request.environ["beaker.session"]

    def login() -> str:
        session()[key] = bottle.request.query["user"]
        session().save()
        return answer("welcome")

    def logout() -> str:
        session().delete()
        return answer("bye")

    def online() -> str:
        found = bottle.request.environ["presence_middleware.presence"].online()
        return names(seen.id for seen in found)

    app.route("/", callback=lambda: answer("hello"))
    app.route("/me", callback=lambda: answer(session().get(key)))
    app.route("/online", callback=online)
    app.route("/login", "POST", callback=login)
    app.route("/logout", "POST", callback=logout)
    options = {"session.type": "file", "session.data_dir": setting("FOLDER", "")}
    wrapped: WSGIApplication = SessionMiddleware(app, options)
    return wrapped
