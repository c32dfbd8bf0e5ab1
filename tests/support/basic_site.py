"""The site of test_basic_servers.py, which checks HTTP Basic itself over WSGI and ASGI.

`/stream` answers in several parts, and `/logout` says goodbye.
"""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from presence_middleware import asgi, wsgi
from presence_middleware.asgi import Receive, Scope, Send

RIGHT = "Basic " + b64encode(b"ann:opensesame").decode()
NO = [("WWW-Authenticate", 'Basic realm="site"'), ("Content-Length", "2")]
YES = [("Content-Type", "text/plain")]


def wsgi_site(environ: dict[str, Any], start_response: Any) -> Any:
    if environ.get("HTTP_AUTHORIZATION") != RIGHT:
        start_response("401 Unauthorized", NO)
        return [b"no"]
    if environ["PATH_INFO"] == "/stream":
        return _parts(start_response)
    start_response("200 OK", [*YES, ("Content-Length", "3")])
    return [b"yes"]


def _parts(start_response: Any) -> Iterator[bytes]:
    write = start_response("200 OK", YES)
    write(b"written, ")
    yield b"y"
    yield b"es"


async def asgi_site(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    is_right = dict(scope["headers"]).get(b"authorization") == RIGHT.encode()
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept" if is_right else "websocket.close"})
        if is_right:
            await receive()
        return
    headers = [(name.lower().encode(), value.encode()) for name, value in YES if is_right]
    start = {"type": "http.response.start", "status": 200 if is_right else 401}
    await send({**start, "headers": headers})
    for part in (b"y", b"es") if is_right else (b"no",):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


asgi_wrapped = asgi.PresenceMiddleware(asgi_site)
wsgi_wrapped = wsgi.PresenceMiddleware(wsgi_site)
