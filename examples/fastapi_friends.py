"""FastAPI, a list of friends who light up when they come online.

PRESENCE_EVENTS=user PRESENCE_EXCLUDE=+/friends/events uvicorn fastapi_friends:app

Without PRESENCE_EXCLUDE, the stream that an open page reads would keep its reader online.
"""

import json

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import HTTPConnection

from presence_middleware import PresenceUnavailable, visit_of
from presence_middleware.asgi import PresenceMiddleware
from presence_middleware.sse import HEADERS, server_sent_events
from presence_middleware.starlette import Here

FRIENDS = {"ann": ["bob", "eve"], "bob": ["ann"], "eve": ["ann"]}
PAGE = """<!doctype html><title>Friends</title>
<style>.online { color: green; font-weight: bold }</style>
<ul id="friends"></ul>
<script>
const list = document.getElementById("friends");

function show(friends) {
  list.replaceChildren(...Object.entries(friends).map(([id, online]) => {
    const item = document.createElement("li");
    item.id = id;
    item.textContent = id;
    item.className = online ? "online" : "";
    return item;
  }));
}

function connect() {
  const events = new EventSource("/friends/events");
  const again = () => { events.close(); setTimeout(connect, 3000); };
  events.addEventListener("friends", ({ data }) => show(JSON.parse(data)));
  events.onmessage = ({ data }) => {
    const { id, online } = JSON.parse(data);
    document.getElementById(id).className = online ? "online" : "";
  };
  events.addEventListener("lost", again);
  events.onerror = again;
}

connect();
</script>"""


async def identify(connection: HTTPConnection) -> None:
    visit_of(connection).identify(connection.session.get("user"))


app = FastAPI(dependencies=[Depends(identify)])
app.add_middleware(SessionMiddleware, secret_key="change me")
app.add_middleware(PresenceMiddleware)


@app.get("/")
async def page():
    return HTMLResponse(PAGE)


@app.get("/friends/events")
async def friend_events(request: Request, presence: Here):
    friends = FRIENDS.get(request.session.get("user"), [])
    events = presence.events(among=friends)  # before the question, so that nothing is missed
    try:
        online = await presence.online_among(friends)
    except PresenceUnavailable:
        return Response(status_code=503)

    async def messages():
        yield f"event: friends\ndata: {json.dumps({id: id in online for id in friends})}\n\n"
        async for message in server_sent_events(events):
            yield message

    return StreamingResponse(messages(), headers=HEADERS)


@app.get("/login/{name}")
async def login(name: str, request: Request):
    request.session["user"] = name
    await identify(request)
    return RedirectResponse("/")


@app.get("/logout")
async def logout(request: Request, presence: Here):
    await presence.leave(request.session.pop("user", None))
    return "bye"
