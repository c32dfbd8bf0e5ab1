"""Starlette: uvicorn starlette_site:app"""

from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Route, WebSocketRoute

from presence_middleware import PresenceUnavailable
from presence_middleware.asgi import PresenceMiddleware


async def ask(reading):
    """Return what Redis answers, or None while it cannot: pages then do without."""
    try:
        return await reading
    except PresenceUnavailable:
        return None


class SessionBackend(AuthenticationBackend):
    async def authenticate(self, conn):
        name = conn.session.get("user")
        return (AuthCredentials(["authenticated"]), SimpleUser(name)) if name else None


async def home(request):
    presence = request.scope["presence_middleware.presence"]
    who = [seen.id for seen in await ask(presence.online(limit=50)) or []]
    return JSONResponse({"online": await ask(presence.counts()), "who": who})


async def login(request):
    request.session["user"] = request.path_params["name"]
    request.scope["presence_middleware.visit"].identify(request.session["user"])
    return RedirectResponse("/")


async def logout(request):
    await request.scope["presence_middleware.presence"].leave(request.session.pop("user", None))
    return PlainTextResponse("bye")


async def live(websocket):
    """Whoever has this socket open is online, however long; asked anything, it says who is."""
    presence = websocket.scope["presence_middleware.presence"]
    await websocket.accept()
    async for _ in websocket.iter_text():
        await websocket.send_json([seen.id for seen in await ask(presence.online()) or []])


app = Starlette(
    routes=[
        Route("/", home),
        Route("/login/{name}", login),
        Route("/logout", logout),
        WebSocketRoute("/live", live),
    ],
    middleware=[
        Middleware(PresenceMiddleware),
        Middleware(SessionMiddleware, secret_key="change me"),
        Middleware(AuthenticationMiddleware, backend=SessionBackend()),
    ],
)
