"""Flask alone: the id stands in its session, once by itself and once within mappings."""

from cachelib import FileSystemCache
from flask import Flask, request, session
from flask_login import LoginManager, UserMixin, current_user, login_user, logout_user
from flask_session import Session  # type: ignore[import-untyped]

from presence_middleware.flask import init_app

from . import answer, names, secret, setting


def with_presence(app: Flask) -> Flask:
    if setting("INIT", "") and not setting("BARE", ""):
        init_app(app)
    return app


def with_sessions_on_the_server() -> Flask:
    """The site, of whose sessions a cookie holds no more than the key."""
    app = create_app()
    app.config["SESSION_TYPE"] = "cachelib"
    app.config["SESSION_CACHELIB"] = FileSystemCache(setting("FOLDER", ""))
    Session(app)
    return app


def with_flask_login() -> Flask:
    """The site with Flask-Login, which keeps the id in the session as `_user_id`."""
    app = create_app()

    def me() -> str:
        return answer(current_user.get_id())

    def login() -> str:
        login_user(User(request.args["user"]))
        return answer("welcome")

    def logout() -> str:
        logout_user()
        return answer("bye")

    LoginManager(app).user_loader(User)
    app.view_functions |= {"me": me, "login": login, "logout": logout}
    return app


class User(UserMixin):  # type: ignore[misc]  # Flask-Login has no types
    """A user with an id."""

    def __init__(self, id: str) -> None:
        self.id = id


def create_app() -> Flask:
    app = Flask(__name__)
    app.secret_key = secret()
    app.config["SESSION_COOKIE_NAME"] = setting("COOKIE", "session")

    @app.get("/")
    def home() -> str:
        return answer("hello")

    @app.get("/me")
    def me() -> str:
        return answer(session.get("user"))

    @app.post("/login")
    def login() -> str:
        session["user"] = request.args["user"]
        session["account"] = {"user": {"id": int(request.args["user"])}}
        return answer("welcome")

    @app.post("/logout")
    def logout() -> str:
        session.clear()
        return answer("bye")

    @app.get("/online")
    def online() -> str:
        return names(seen.id for seen in request.environ["presence_middleware.presence"].online())

    return with_presence(app)
