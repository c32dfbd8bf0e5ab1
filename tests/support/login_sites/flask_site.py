"""Flask alone: the id stands in its session, once by itself and once within mappings."""

from cachelib import FileSystemCache
from flask import Flask, request, session
from flask_session import Session  # type: ignore[import-untyped]

from presence_middleware.flask import init_app

from . import answer, names, secret, setting


def with_presence(app: Flask) -> Flask:
    """Call `init_app` where the site is to do it itself."""
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


def create_app() -> Flask:
    """The site."""
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

    @app.post("/goodbye")
    def goodbye() -> str:
        request.environ["presence_middleware.presence"].leave(session["user"])
        return logout()

    @app.get("/online")
    def online() -> str:
        return names(seen.id for seen in request.environ["presence_middleware.presence"].online())

    return with_presence(app)
