"""FastAPI: uvicorn fastapi_site:app"""

from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates
from jinja2 import DictLoader, Environment
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import HTTPConnection

from presence_middleware import PresenceUnavailable, visit_of
from presence_middleware.asgi import PresenceMiddleware
from presence_middleware.starlette import Here, presence_context

PAGE = """<title>FastAPI</title>
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


async def identify(connection: HTTPConnection) -> None:
    visit_of(connection).identify(connection.session.get("user"))


app = FastAPI(dependencies=[Depends(identify)])
app.add_middleware(SessionMiddleware, secret_key="change me")
app.add_middleware(PresenceMiddleware)


@app.get("/")
async def home(presence: Here):
    who = [seen.id for seen in await ask(presence.online(limit=50)) or []]
    return {"online": await ask(presence.counts()), "who": who}


@app.get("/page")
def page(request: Request):
    """Render in a thread, where a template can wait for Redis. An outage is None in templates."""
    return templates.TemplateResponse(request, "page.html")


@app.websocket("/live")
async def live(websocket: WebSocket, presence: Here):
    """Keep the user of an open socket online, and answer each message with who is online."""
    await websocket.accept()
    async for _ in websocket.iter_text():
        await websocket.send_json([seen.id for seen in await ask(presence.online()) or []])


@app.get("/login/{name}")
async def login(name: str, request: Request):
    request.session["user"] = name
    await identify(request)
    return RedirectResponse("/")


@app.get("/logout")
async def logout(request: Request, presence: Here):
    await presence.leave(request.session.pop("user", None))
    return "bye"
