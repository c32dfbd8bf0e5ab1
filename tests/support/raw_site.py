"""The sites of test_raw_answers.py: whatever an app may answer, in WSGI and in ASGI.

The user agent of a request names the wrapper that it goes through; by default none.
`python -m tests.support.raw_site PORT MODULE:APP` serves a WSGI app with the standard library.
"""

import io
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from wsgiref.simple_server import make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from presence_middleware import asgi, wsgi
from tests.support import broken_wrappers

WRAPPED = "Netscape"  # the browser whose requests go through the middleware
FILE = Path(socket.__file__)  # longer than servers send at once
HEADERS = [("Content-Type", "text/plain"), ("X-Own", "1")]
Respond = Callable[[WSGIEnvironment, Callable[..., Any]], Any]


class OneAndSized:
    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"sized"])


def generated(*_: object) -> Iterator[bytes]:
    yield b"one"
    yield b"two"


def half_way(*_: object) -> Iterator[bytes]:
    yield b"one"
    raise OSError("half way")


class Closing:
    """A body that records its `close`, which `/closed` reports."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"open"])

    def close(self) -> None:
        closed.append(b"closed")


closed: list[bytes] = []


def wrapped_file(environ: WSGIEnvironment, _: object) -> Any:
    return environ["wsgi.file_wrapper"](io.BytesIO(b"file" * 9000))


def real_file(environ: WSGIEnvironment, _: object) -> Any:
    return environ["wsgi.file_wrapper"](FILE.open("rb"))


def echo(environ: WSGIEnvironment, _: object) -> Any:
    return [environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))]


def in_place_of(_: object, start: Callable[..., Any]) -> Any:
    try:
        int("none")
    except ValueError:
        start("503 Sorry", [("X-Own", "2")], sys.exc_info())
    return [b"sorry"]


def written(_: object, start: Callable[..., Any]) -> Any:
    start("200 OK", [*HEADERS])(b"written")
    return [b"returned"]


RESPONSES: dict[str, Respond] = {
    "/list": lambda *_: [b"only"],
    "/lists": lambda *_: [b"one", b"two"],
    "/tuple": lambda *_: (b"only",),
    "/empty": lambda *_: [],
    "/sized": lambda *_: OneAndSized(),
    "/generated": generated,
    "/half-way": half_way,
    "/closing": lambda *_: Closing(),
    "/closed": lambda *_: [closed.pop()] if closed else [b"nothing"],
    "/file": wrapped_file,
    "/real-file": real_file,
    "/echo": echo,
    "/in-place-of": in_place_of,
    "/raise": lambda *_: 1 / 0,
}
UNSTARTED: dict[str, Respond] = {"/write": written, "/before": lambda *_: 1 / 0}


def wsgi_app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    path = environ["PATH_INFO"]
    if path in UNSTARTED:
        return UNSTARTED[path](environ, start_response)
    start_response("200 OK", [*HEADERS])
    return RESPONSES[path](environ, start_response)


async def streams(request: Request) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        for line in generated():
            yield line

    return StreamingResponse(lines())


async def breaks_off(request: Request) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        for line in half_way():
            yield line

    return StreamingResponse(lines())


async def sends_file(request: Request) -> Response:
    return FileResponse(FILE)


async def echoes(request: Request) -> Response:
    return PlainTextResponse(await request.body())


async def fails(request: Request) -> Response:
    raise ZeroDivisionError


async def chats(websocket: WebSocket) -> None:
    await websocket.accept(subprotocol="chat", headers=[(b"x-own", b"1")])
    await websocket.send_text("hello")
    await websocket.close(4000, "that was all")


async def rejects(websocket: WebSocket) -> None:
    await websocket.close()


async def denies(websocket: WebSocket) -> None:
    await websocket.send_denial_response(PlainTextResponse("no", 418))


PAGES = [streams, breaks_off, sends_file, echoes, fails]
SOCKETS = [chats, rejects, denies]
asgi_app = Starlette(
    routes=[
        *(Route(f"/{page.__name__}", page, methods=["GET", "POST"]) for page in PAGES),
        *(WebSocketRoute(f"/{socket.__name__}", socket) for socket in SOCKETS),
    ]
)


@cache
def through(wrapper: str, app: Any) -> Any:
    if wrapper == WRAPPED:
        return (asgi if app is asgi_app else wsgi).PresenceMiddleware(app)
    return getattr(broken_wrappers, wrapper)(app) if hasattr(broken_wrappers, wrapper) else app


def wsgi_site(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    return through(environ.get("HTTP_USER_AGENT", ""), wsgi_app)(environ, start_response)


async def asgi_site(scope: Any, receive: Any, send: Any) -> None:
    headers = dict(scope.get("headers", [(b"user-agent", WRAPPED.encode())]))
    wrapper = headers.get(b"user-agent", b"").decode()
    await through(wrapper, asgi_app)(scope, receive, send)


if __name__ == "__main__":
    module, _, attribute = sys.argv[2].partition(":")
    with make_server("127.0.0.1", int(sys.argv[1]), getattr(import_module(module), attribute)) as s:
        s.serve_forever()
