"""Starlette: uvicorn starlette_site:app"""

from jinja2 import DictLoader, Environment
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Route, WebSocketRoute
from starlette.templating import Jinja2Templates

from presence_middleware import PresenceUnavailable, presence_of, visit_of
from presence_middleware.asgi import PresenceMiddleware
from presence_middleware.starlette import presence_context

PAGE = """<title>Starlette</title>
{% set n = presence.count() %}
{% if n is not none %}<p>{{ n }} online</p>{% endif %}
{% for seen in presence.online(limit=50) or [] %}<li>{{ seen.id }}</li>{% endfor %}
"""

templates = Jinja2Templates(
    env=Environment(loader=DictLoader({"page.html": PAGE}), autoescape=True),
    context_processors=[presence_context],
)


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
    presence = presence_of(request)
    who = [seen.id for seen in await ask(presence.online(limit=50)) or []]
    return JSONResponse({"online": await ask(presence.counts()), "who": who})


def page(request):
    """Render in a thread, where a template can wait for Redis. An outage is None in templates."""
    return templates.TemplateResponse(request, "page.html")


async def login(request):
    request.session["user"] = request.path_params["name"]
    visit_of(request).identify(request.session["user"])
    return RedirectResponse("/")


async def logout(request):
    await presence_of(request).leave(request.session.pop("user", None))
    return PlainTextResponse("bye")


async def live(websocket):
    """Keep the user of an open socket online, and answer each message with who is online."""
    presence = presence_of(websocket)
    await websocket.accept()
    async for _ in websocket.iter_text():
        await websocket.send_json([seen.id for seen in await ask(presence.online()) or []])


app = Starlette(
    routes=[
        Route("/", home),
        Route("/page", page),
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
