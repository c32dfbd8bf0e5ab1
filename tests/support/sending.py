"""Send a request of any bytes through the wrapper of a protocol, to an app that says hello."""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from presence_middleware import Settings, asgi, wsgi
from presence_middleware.connections.clients import close_async_clients
from tests.support.asking import Inner, State, nothing

OWN = b"the app's own"


@dataclass
class Answer:
    """What the app found, and what the client receives."""

    state: State
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


Send = Callable[..., Answer]
NO_HEADERS: Mapping[str, str] = {}


def over_wsgi(
    settings: Settings,
    url: str | bytes = "/",
    method: str = "GET",
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    root: str = "",
    inner: Inner = nothing,
) -> Answer:
    """Send a request to an app mounted at `root`, which calls `inner` with the environ."""
    path, query = _split(url)
    environ = {
        **{"REQUEST_METHOD": method, "SCRIPT_NAME": root, "PATH_INFO": path.decode("latin-1")},
        **{"QUERY_STRING": query.decode("latin-1"), "REMOTE_ADDR": "192.0.2.7"},
        **{"HTTP_HOST": "site", "wsgi.url_scheme": "http"},
        **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
    }
    answer = Answer(environ)

    def app(environ: State, start_response: Any) -> list[bytes]:
        inner(environ)
        start_response("200 OK", [])
        return [OWN]

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[..., object]:
        answer.status = int(status[:3])
        answer.headers = [(name.lower(), value) for name, value in headers]
        return print

    wrapped: Any = wsgi.PresenceMiddleware(app, settings=settings)
    answer.body = b"".join(wrapped(environ, start))
    return answer


def over_asgi(
    settings: Settings,
    url: str | bytes = "/",
    method: str = "GET",
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    root: str = "",
    inner: Inner = nothing,
    type: str = "http",
) -> Answer:
    """The same, with the scope. Header names keep their case."""
    path, query = _split(url)
    given = {"host": "site", **headers}
    scope: Any = {
        **{"type": type, "method": method, "query_string": query, "root_path": root},
        **{"path": root + path.decode(errors="replace"), "client": ("192.0.2.7", 1)},
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    answer = Answer(scope)

    async def app(scope: Any, _: Any, send: Any) -> None:
        found = inner(scope)
        if inspect.isawaitable(found):
            await found
        if type == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": OWN})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        answer.status = message.get("status", answer.status)
        for name, value in message.get("headers", ()):
            answer.headers.append((name.decode(), value.decode()))
        answer.body += message.get("body", b"")

    async def ask() -> None:
        await asgi.PresenceMiddleware(app, settings=settings)(scope, receive, send)
        await close_async_clients()

    asyncio.run(ask())
    return answer


def over_websocket(*args: Any, **given: Any) -> Answer:
    return over_asgi(*args, **given, type="websocket")


def _split(url: str | bytes) -> tuple[bytes, bytes]:
    path, _, query = (url.encode() if isinstance(url, str) else url).partition(b"?")
    return unquote_to_bytes(path), query
