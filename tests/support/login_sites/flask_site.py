"""Flask alone: the id stands in its signed session, once by itself and once within mappings."""

from flask import Flask, request, session

from . import answer, names, secret, setting


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

    return app
