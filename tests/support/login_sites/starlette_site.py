"""Starlette's SessionMiddleware, alone or with its AuthenticationMiddleware over that session."""

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

from . import answer, names, secret


class SessionBackend(AuthenticationBackend):
    """Logs in the user of the session at every request."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.session.get("member")
        return (AuthCredentials(["authenticated"]), SimpleUser(name)) if name else None


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse(answer("hello"))


async def me(request: Request) -> PlainTextResponse:
    if "user" not in request.scope:
        return PlainTextResponse(answer(request.session.get("member")))
    return PlainTextResponse(answer(request.user.display_name))


async def login(request: Request) -> PlainTextResponse:
    request.session["member"] = request.query_params["user"]
    return PlainTextResponse(answer("welcome"))


async def logout(request: Request) -> PlainTextResponse:
    request.session.clear()
    return PlainTextResponse(answer("bye"))


async def online(request: Request) -> PlainTextResponse:
    found = await request.scope["presence_middleware.presence"].online()
    return PlainTextResponse(names(seen.id for seen in found))


def _site(*middleware: Middleware) -> Starlette:
    routes = [
        Route("/", home),
        Route("/me", me),
        Route("/login", login, methods=["POST"]),
        Route("/logout", logout, methods=["POST"]),
        Route("/online", online),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(SessionMiddleware, secret_key=secret()), *middleware],
    )


def with_sessions() -> Starlette:
    """The pages that need the session read it themselves."""
    return _site()


def with_authentication() -> Starlette:
    """Its pages ask `request.user`."""
    return _site(Middleware(AuthenticationMiddleware, backend=SessionBackend()))
