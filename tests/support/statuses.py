"""Send a request to an app with a given status, over WSGI and ASGI, and return the identity."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from presence_middleware import Presence, Settings, asgi, wsgi
from presence_middleware.recorder import recorder_for
from tests.support.asking import Inner, State, exchange_asgi, exchange_wsgi, nothing

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def basic(credentials: str | bytes) -> str:
    """The value of the Authorization header with these credentials."""
    raw = credentials.encode() if isinstance(credentials, str) else credentials
    return f"Basic {b64encode(raw).decode()}"


@dataclass
class Call:
    """A request, the change an inner layer makes during it, and the statuses of the response."""

    headers: Mapping[str, str] = field(default_factory=dict)
    path: str = "/"
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
    """Raised in place of a response."""


Ask = Callable[[Settings, Call], object]


def over_wsgi(settings: Settings, call: Call) -> None:
    """Have a WSGI app answer."""

    def answer(environ: State, start_response: Any) -> Iterator[bytes]:
        call.before(environ)
        if call.failure:
            raise call.failure
        for number, status in enumerate(call.statuses):
            error = (ValueError("no"),) * 3 if number else None
            start_response(f"{status} x", [], *([error] if error else []))
        call.after(environ)
        yield b"a"

    def app(environ: State, start_response: Any) -> Any:
        lines = answer(environ, start_response)
        return lines if call.is_streaming else list(lines)

    environ: dict[str, Any] = {"REQUEST_METHOD": call.method, "SCRIPT_NAME": "", **call.state}
    environ |= {"PATH_INFO": call.path, "REMOTE_ADDR": "192.0.2.7", "HTTP_USER_AGENT": FIREFOX}
    for name, value in call.headers.items():
        environ["HTTP_" + name.upper().replace("-", "_")] = value
    exchange_wsgi(wsgi.PresenceMiddleware(app, settings=settings), environ)


def over_asgi(settings: Settings, call: Call) -> None:
    """Have an ASGI app answer."""

    async def app(scope: State, receive: Any, send: Any) -> None:
        call.before(scope)
        if call.failure:
            raise call.failure
        start = {"type": "http.response.start", "status": call.statuses[-1], "headers": []}
        await send(start)
        call.after(scope)
        if call.is_streaming:
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    given = {"User-Agent": FIREFOX, **call.headers}
    headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    scope: State = {
        **{"type": "http", "method": call.method, "path": call.path, "headers": headers},
        **{"client": ("192.0.2.7", 1), **call.state},
    }
    exchange_asgi(asgi.PresenceMiddleware(app, settings=settings), scope)


def online(settings: Settings) -> list[tuple[str, str]]:
    """Each kind and id that is online by now, and every guest as `guest`."""
    assert recorder_for(settings).flush()
    presence = Presence(settings)
    guests = presence.count("guest") if "guest" in settings.kinds else 0
    users = [("user", seen.id) for seen in presence.online("user")]
    return sorted([*users, *([("guest", "")] * guests)])
