"""The site of test_open_servers.py: connections that stay open and obey commands.

`/open` says how many visits are open, that one included.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIEnvironment

from presence_middleware import asgi, wsgi
from presence_middleware.asgi import Receive, Scope, Send

logins: dict[str, str] = {}
"""Who has logged in on a stream of this process, by the name of the stream."""


async def asgi_site(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    elif scope["type"] == "websocket":
        await _socket(scope, receive, send)
    elif scope["path"] == "/stream":
        await _stream(receive, send)
    else:
        body = str(len(asgi_wrapped.recorder.open_visits)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


async def _socket(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        command, _, name = message["text"].partition(" ")
        if command == "return":
            return
        if command == "fail":
            raise RuntimeError("as it was told")
        if command == "cancel":
            task: Any = asyncio.current_task()
            task.cancel()
        elif command == "identify":
            scope["presence_middleware.visit"].identify(name)
        elif command == "session":
            scope["session"] = {"user_id": name}
        elif command == "leave":
            await scope["presence_middleware.presence"].leave(name)
        await send({"type": "websocket.send", "text": "done"})


async def _stream(receive: Receive, send: Send) -> None:
    """Until the client goes away."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    gone = asyncio.ensure_future(_disconnected(receive))
    while not gone.done():
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await asyncio.wait([gone], timeout=0.05)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def wsgi_site(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"] == "/stream":
        return _lines(environ, query)
    logins.update(query)
    return [json.dumps(len(wsgi_wrapped.recorder.open_visits)).encode()]


def _lines(environ: WSGIEnvironment, query: dict[str, str]) -> Iterator[bytes]:
    """Yield lines until the client disconnects or the stream is ended."""
    said, stream = "", query.get("name", "")
    while True:
        yield b"line\n"
        time.sleep(0.05)
        told = logins.get(stream, "")
        if told == "return":
            return
        if told == "fail":
            raise RuntimeError("as it was told")
        if told != said:
            said = told
            environ["presence_middleware.visit"].identify(told)


asgi_wrapped = asgi.PresenceMiddleware(asgi_site)
wsgi_wrapped = wsgi.PresenceMiddleware(wsgi_site)
