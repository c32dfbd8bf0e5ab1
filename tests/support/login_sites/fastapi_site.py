"""FastAPI with a JWT in the Authorization header: HS256."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import jwt
from fastapi import Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from . import View, answered, async_pages, secret

Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def me(request: Request) -> object:
    credentials = request.state.credentials
    return credentials and jwt.decode(credentials.credentials, secret(), ["HS256"])["sub"]


def login(request: Request) -> str:
    expires = datetime.now(UTC) + timedelta(hours=1)
    return jwt.encode({"sub": request.query_params["user"], "exp": expires}, secret(), "HS256")


def create_app() -> FastAPI:
    app = FastAPI(default_response_class=PlainTextResponse)

    def add(path: str, method: str, view: View) -> None:
        async def page(request: Request, credentials: Credentials) -> str:
            request.state.credentials = credentials
            return await answered(view(request))

        app.add_api_route(path, page, methods=[method])

    # A logout has nothing to do: the token is the client's to throw away.
    for each in async_pages(me, login, lambda _: None):
        add(*each)
    return app
