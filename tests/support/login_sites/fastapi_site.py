"""FastAPI with a JWT in the Authorization header: HS256, or RS256 where there is a private key."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import jwt
from fastapi import Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from . import answer, names, secret, setting

Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def create_app() -> FastAPI:
    """The site."""
    app = FastAPI(default_response_class=PlainTextResponse)
    private, public = setting("PRIVATE_KEY", ""), setting("PUBLIC_KEY", "")
    algorithm = "RS256" if private else "HS256"

    def user_of(credentials: HTTPAuthorizationCredentials | None) -> str | None:
        if credentials is None:
            return None
        claims = jwt.decode(credentials.credentials, public or secret(), [algorithm])
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
        return answer(jwt.encode(claims, private or secret(), algorithm))

    @app.post("/logout")
    async def logout() -> str:
        return answer("bye")  # the token is the client's to throw away

    @app.post("/goodbye")
    async def goodbye(request: Request, credentials: Credentials) -> str:
        await request.scope["presence_middleware.presence"].leave(user_of(credentials))
        return answer("bye")

    @app.get("/online")
    async def online(request: Request) -> str:
        return names(
            seen.id for seen in await request.scope["presence_middleware.presence"].online()
        )

    return app
