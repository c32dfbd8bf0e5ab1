"""Flask with Flask-Login, which keeps the id in Flask's signed session as `_user_id`."""

from flask import Flask, request
from flask_login import LoginManager, UserMixin, current_user, login_user, logout_user

from . import answer, names, secret
from .flask_site import with_presence


class User(UserMixin):  # type: ignore[misc]  # Flask-Login has no types
    """A user with an id."""

    def __init__(self, id: str) -> None:
        self.id = id


def create_app() -> Flask:
    """The site."""
    app = Flask(__name__)
    app.secret_key = secret()
    LoginManager(app).user_loader(User)

    @app.get("/")
    def home() -> str:
        return answer("hello")

    @app.get("/me")
    def me() -> str:
        return answer(current_user.get_id())

    @app.post("/login")
    def login() -> str:
        login_user(User(request.args["user"]))
        return answer("welcome")

    @app.post("/logout")
    def logout() -> str:
        logout_user()
        return answer("bye")

    @app.post("/goodbye")
    def goodbye() -> str:
        request.environ["presence_middleware.presence"].leave(current_user.get_id())
        return logout()

    @app.get("/online")
    def online() -> str:
        return names(seen.id for seen in request.environ["presence_middleware.presence"].online())

    return with_presence(app)
