"""FastAPI: uvicorn fastapi_site:app"""

from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import RedirectResponse
from starlette.middleware.sessions import SessionMiddleware

from presence_middleware import AsyncPresence, PresenceUnavailable
from presence_middleware.asgi import PresenceMiddleware


async def ask(reading):
    """Return what Redis answers, or None while it cannot: pages then do without."""
    try:
        return await reading
    except PresenceUnavailable:
        return None


async def identify(request: Request) -> None:
    request.scope["presence_middleware.visit"].identify(request.session.get("user"))


async def presence_of(request: Request) -> AsyncPresence:
    return request.scope["presence_middleware.presence"]


Presence = Annotated[AsyncPresence, Depends(presence_of)]

app = FastAPI(dependencies=[Depends(identify)])
app.add_middleware(SessionMiddleware, secret_key="change me")
app.add_middleware(PresenceMiddleware)


@app.get("/")
async def home(presence: Presence):
    who = [seen.id for seen in await ask(presence.online(limit=50)) or []]
    return {"online": await ask(presence.counts()), "who": who}


@app.get("/login/{name}")
async def login(name: str, request: Request):
    request.session["user"] = name
    await identify(request)
    return RedirectResponse("/")


@app.get("/logout")
async def logout(request: Request, presence: Presence):
    await presence.leave(request.session.pop("user", None))
    return "bye"
