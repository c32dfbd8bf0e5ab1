"""Send a request to an app that answers as it is told, over WSGI, ASGI and a WebSocket."""

import inspect
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from presence_middleware import Presence, Settings, asgi, wsgi
from presence_middleware.recorder import recorder_for
from tests.support.asking import (
    Answer,
    Inner,
    Request,
    State,
    exchange_asgi,
    exchange_wsgi,
    nothing,
)

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
GOOGLEBOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
OWN = b"the app's own"


def basic(credentials: str | bytes) -> str:
    raw = credentials.encode() if isinstance(credentials, str) else credentials
    return f"Basic {b64encode(raw).decode()}"


@dataclass
class Call:
    """A request, the change an inner layer makes during it, and the statuses of the response."""

    headers: Mapping[str, str] = field(default_factory=dict)
    path: str | bytes = "/"
    """Escaped as in a URL, perhaps with a query."""
    method: str = "GET"
    statuses: tuple[int, ...] = (200,)
    """Each in place of the one before, as far as the protocol has that."""
    before: Inner = nothing
    """Called before the response has a status."""
    after: Inner = nothing
    """Called when it has one."""
    is_streaming: bool = False
    state: Mapping[str, object] = field(default_factory=dict)
    failure: Exception | None = None
    mount: str = ""
    messages: Sequence[str] = ("websocket.accept",)
    """The types of what an app sends to a WebSocket."""

    @property
    def request(self) -> Request:
        url = self.path.encode() if isinstance(self.path, str) else self.path
        path, _, query = url.partition(b"?")
        given = {"user-agent": FIREFOX, "host": "site"}
        given |= {name.lower(): value for name, value in self.headers.items()}
        return Request(
            [(name.title(), value.encode()) for name, value in given.items()],
            state={**self.state},
            path=unquote_to_bytes(path).decode(errors="surrogateescape"),
            mount=self.mount,
            method=self.method,
            query=query,
        )


Ask = Callable[[Settings, Call], Answer]
"""Has an app answer a request, over one protocol or another."""


def over_wsgi(settings: Settings, call: Call) -> Answer:
    def answer(environ: State, start_response: Any) -> Iterator[bytes]:
        call.before(environ)
        if call.failure:
            raise call.failure
        for number, status in enumerate(call.statuses):
            error = (ValueError("no"),) * 3 if number else None
            start_response(f"{status} x", [], *([error] if error else []))
        call.after(environ)
        yield OWN

    def app(environ: State, start_response: Any) -> Any:
        lines = answer(environ, start_response)
        return lines if call.is_streaming else list(lines)

    environ = {**call.request.environ(), "wsgi.url_scheme": "http"}
    return exchange_wsgi(wsgi.PresenceMiddleware(app, settings=settings), environ)


def over_asgi(settings: Settings, call: Call, type: str = "http") -> Answer:
    async def app(scope: State, receive: Any, send: Any) -> None:
        found = call.before(scope)
        if inspect.isawaitable(found):
            await found
        if call.failure:
            raise call.failure
        if type == "websocket":
            for each in call.messages:
                await send({"type": each, "status": 200})
            return
        await send({"type": "http.response.start", "status": call.statuses[-1], "headers": []})
        call.after(scope)
        body = {"type": "http.response.body", "body": OWN}
        if call.is_streaming:
            await send({**body, "more_body": True})
        await send({**body, "body": b""} if call.is_streaming else body)

    scope = {**call.request.scope(), "type": type}
    return exchange_asgi(asgi.PresenceMiddleware(app, settings=settings), scope)


def over_websocket(settings: Settings, call: Call) -> Answer:
    return over_asgi(settings, call, "websocket")


def online(settings: Settings) -> list[tuple[str, str]]:
    """Each kind and id that is online by now, but every guest and crawler as its kind alone."""
    assert recorder_for(settings).flush()
    presence = Presence(settings)
    users = [("user", seen.id) for seen in presence.online("user")]
    counts = {kind: n for kind, n in presence.counts().items() if kind != "user"}
    return sorted([*users, *((kind, "") for kind, n in counts.items() for _ in range(n))])
