"""The site of test_sites.py, without a framework, once for WSGI and once for ASGI.

It says who is online as the worker that was asked sees it. Requests that name a meeting wait for
each other, each in a worker of its own: that worker takes no other meanwhile.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from wsgiref.types import StartResponse, WSGIEnvironment

from presence_middleware import asgi, wsgi
from presence_middleware.asgi import Message, Receive, Scope, Send

JSON = "application/json"


def meet(folder: str | None, workers: str | None) -> None:
    """Return when `workers` processes have reached `folder`. This blocks the worker on purpose."""
    if not folder or not workers:
        return
    (Path(folder) / str(os.getpid())).touch()
    deadline = time.monotonic() + 20
    while len(list(Path(folder).iterdir())) < int(workers):
        assert time.monotonic() < deadline, "not everybody came"
        time.sleep(0.005)


def wsgi_site(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    presence, user = environ["presence_middleware.presence"], environ.get("HTTP_X_USER")
    environ["presence_middleware.visit"].identify(user)
    meet(environ.get("HTTP_X_MEETING"), environ.get("HTTP_X_WORKERS"))
    answer: object = None
    if environ["PATH_INFO"] == "/logout":
        presence.leave(user)
    elif environ["PATH_INFO"] == "/who":
        answer = [presence.counts(), sorted(seen.id for seen in presence.online())]
    start_response("200 OK", [("Content-Type", JSON)])
    return [json.dumps(answer).encode()]


async def asgi_site(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await live(receive, send)
        return
    presence, headers = scope["presence_middleware.presence"], dict(scope["headers"])
    user = headers.get(b"x-user", b"").decode()
    scope["presence_middleware.visit"].identify(user)
    meet(headers.get(b"x-meeting", b"").decode(), headers.get(b"x-workers", b"").decode())
    answer: object = None
    if scope["path"] == "/logout":
        await presence.leave(user)
    elif scope["path"] == "/who":
        answer = [await presence.counts(), sorted(seen.id for seen in await presence.online())]
    await respond(send, json.dumps(answer).encode())


async def live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def respond(send: Send, body: bytes) -> None:
    headers = [(b"content-type", JSON.encode())]
    start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def wsgi_plain(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Knows nothing of presence."""
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Site", "plain")])
    return [b"hello ", environ["PATH_INFO"].encode()]


async def asgi_plain(scope: Scope, receive: Receive, send: Send) -> None:
    """Knows nothing of presence."""
    if scope["type"] == "lifespan":
        await live(receive, send)
    else:
        await respond(send, b"hello " + scope["path"].encode())


wsgi_wrapped = wsgi.PresenceMiddleware(wsgi_site)
asgi_wrapped = asgi.PresenceMiddleware(asgi_site)
