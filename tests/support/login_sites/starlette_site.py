"""Starlette's SessionMiddleware, alone or with its AuthenticationMiddleware over that session."""

from typing import Any

from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    BaseUser,
    SimpleUser,
)
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from . import View, answered, async_pages, secret


class SessionBackend(AuthenticationBackend):
    """Logs in the user of the session at every request."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.session.get("member")
        return (AuthCredentials(["authenticated"]), SimpleUser(name)) if name else None


def me(request: Request) -> object:
    if "user" in request.scope:
        return request.user.display_name
    return request.session.get("member")


def login(request: Request) -> None:
    request.session["member"] = request.query_params["user"]


def page(view: View) -> Any:
    async def respond(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await answered(view(request)))

    return respond


def _site(*middleware: Middleware) -> Starlette:
    views = async_pages(me, login, lambda request: request.session.clear())
    return Starlette(
        routes=[Route(path, page(view), methods=[method]) for path, method, view in views],
        middleware=[Middleware(SessionMiddleware, secret_key=secret()), *middleware],
    )


def with_sessions() -> Starlette:
    """The pages that need the session read it themselves."""
    return _site()


def with_authentication() -> Starlette:
    """Its pages ask `request.user`."""
    return _site(Middleware(AuthenticationMiddleware, backend=SessionBackend()))
