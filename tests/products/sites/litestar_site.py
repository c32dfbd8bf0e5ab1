"""Litestar's own logins: `jwt_app` keeps a JWT in a cookie, `session_app` a session."""

import os
from dataclasses import dataclass
from typing import Any

from litestar import Litestar, Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.middleware.session.server_side import (
    ServerSideSessionBackend,
    ServerSideSessionConfig,
)
from litestar.security.jwt import JWTCookieAuth, Token
from litestar.security.session_auth import SessionAuth

PASSWORD = os.environ["SITE_PASSWORD"]


@dataclass
class User:
    id: int
    name: str


USERS = {"ada": User(42, "ada")}


@dataclass
class Login:
    name: str
    password: str

    def check(self) -> User:
        user = USERS.get(self.name)
        if user is None or self.password != PASSWORD:
            raise NotAuthorizedException("wrong name or password")
        return user


@get("/", sync_to_thread=False)
def home() -> str:
    return "hello"


@get("/me", sync_to_thread=False)
def me(request: Request[User, Any, Any]) -> str:
    user: User = request.user
    return user.name


async def user_of_token(token: Token, _: ASGIConnection[Any, Any, Any, Any]) -> User | None:
    return USERS.get(token.sub)


async def user_of_session(
    session: dict[str, Any], _: ASGIConnection[Any, Any, Any, Any]
) -> User | None:
    return USERS.get(session.get("name", ""))


jwt_auth = JWTCookieAuth[User](
    retrieve_user_handler=user_of_token,
    token_secret=os.environ["SITE_SECRET"],
    exclude=["^/$", "^/login$", "^/logout$"],
)
session_auth = SessionAuth[User, ServerSideSessionBackend](
    retrieve_user_handler=user_of_session,
    session_backend_config=ServerSideSessionConfig(),
    exclude=["^/$", "^/login$"],
)


@post("/login", sync_to_thread=False)
def jwt_login(data: Login) -> Response[User]:
    return jwt_auth.login(identifier=data.check().name)


@post("/logout", sync_to_thread=False)
def jwt_logout() -> Response[None]:
    response = Response(None)
    response.delete_cookie(jwt_auth.key)
    return response


@post("/login", sync_to_thread=False)
def session_login(data: Login, request: Request[Any, Any, Any]) -> None:
    request.set_session({"name": data.check().name})


@post("/logout", sync_to_thread=False)
def session_logout(request: Request[Any, Any, Any]) -> None:
    request.clear_session()


jwt_app = Litestar([home, me, jwt_login, jwt_logout], on_app_init=[jwt_auth.on_app_init])
session_app = Litestar(
    [home, me, session_login, session_logout], on_app_init=[session_auth.on_app_init]
)
