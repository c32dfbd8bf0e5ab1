"""Flask alone: the id stands in its session, once by itself and once within mappings."""

from typing import Any

from cachelib import FileSystemCache
from flask import Flask, request, session
from flask_login import LoginManager, UserMixin, current_user, login_user, logout_user
from flask_session import Session  # type: ignore[import-untyped]

from . import View, answer, pages, secret, setting


class User(UserMixin):  # type: ignore[misc]  # Flask-Login has no types
    """A user with an id."""

    def __init__(self, id: str) -> None:
        self.id = id


def login(request: Any) -> None:
    session["user"] = request.args["user"]
    session["account"] = {"user": {"id": int(request.args["user"])}}


def create_app() -> Flask:
    return _site(lambda _: session.get("user"), login, lambda _: session.clear())


def with_sessions_on_the_server() -> Flask:
    """The site, of whose sessions a cookie holds no more than the key."""
    app = create_app()
    app.config["SESSION_TYPE"] = "cachelib"
    app.config["SESSION_CACHELIB"] = FileSystemCache(setting("FOLDER", ""))
    Session(app)
    return app


def with_flask_login() -> Flask:
    """The site with Flask-Login, which keeps the id in the session as `_user_id`."""
    app = _site(
        lambda _: current_user.get_id(),
        lambda request: login_user(User(request.args["user"])),
        lambda _: logout_user(),
    )
    LoginManager(app).user_loader(User)
    return app


def _site(*views: View) -> Flask:
    app = Flask(__name__)
    app.secret_key = secret()
    app.config["SESSION_COOKIE_NAME"] = setting("COOKIE", "session")
    for path, method, view in pages(*views):
        app.add_url_rule(path, path, lambda view=view: answer(view(request)), methods=[method])
    return app
