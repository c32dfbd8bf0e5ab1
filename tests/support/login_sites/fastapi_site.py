"""FastAPI with a JWT in the Authorization header: HS256."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import jwt
from fastapi import Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from . import answer, names, secret

Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def create_app() -> FastAPI:
    app = FastAPI(default_response_class=PlainTextResponse)

    def user_of(credentials: HTTPAuthorizationCredentials | None) -> str | None:
        if credentials is None:
            return None
        claims = jwt.decode(credentials.credentials, secret(), ["HS256"])
        return str(claims["sub"])

    @app.get("/")
    async def home() -> str:
        return answer("hello")

    @app.get("/me")
    async def me(credentials: Credentials) -> str:
        return answer(user_of(credentials))

    @app.post("/login")
    async def login(user: str) -> str:
        claims = {"sub": user, "exp": datetime.now(UTC) + timedelta(hours=1)}
        return answer(jwt.encode(claims, secret(), "HS256"))

    @app.post("/logout")
    async def logout() -> str:
        return answer("bye")  # the token is the client's to throw away

    @app.get("/online")
    async def online(request: Request) -> str:
        return names(
            seen.id for seen in await request.scope["presence_middleware.presence"].online()
        )

    return app
