"""Send a request through both wrappers and return the identity that the app receives."""

from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from presence_middleware import Identity, Settings, asgi, wsgi
from presence_middleware.recorder import Recorder, Visit
from presence_middleware.request import AsgiRequest, WsgiRequest

State = MutableMapping[str, Any]
Inner = Callable[[State], object]


@dataclass
class Request:
    """A request in no protocol yet."""

    headers: list[tuple[str, bytes]] = field(default_factory=list)
    user: object = None
    peer: str | None = "192.0.2.7"
    session: object = None
    state: dict[str, object] = field(default_factory=dict)


def nothing(_: State) -> None:
    """An inner layer that does nothing."""


def ask_wsgi(settings: Settings, request: Request, inner: Inner = nothing) -> Identity | None:
    """Return the identity that a WSGI app receives after an inner layer changed the environ."""

    def app(environ: State, _: object) -> list[bytes]:
        inner(environ)
        seen.append(environ["presence_middleware.visit"].identity)
        return []

    seen: list[Identity | None] = []
    environ: dict[str, Any] = {"REQUEST_METHOD": "GET", "SCRIPT_NAME": "/at", "PATH_INFO": "/a"}
    for name, value in request.headers:
        key, joint = "HTTP_" + name.upper().replace("-", "_"), "; " if name == "Cookie" else ","
        said = value.decode("latin-1")
        environ[key] = f"{environ[key]}{joint}{said}" if key in environ else said
    given: dict[str, object] = {"REMOTE_USER": request.user, "REMOTE_ADDR": request.peer}
    given |= {"beaker.session": request.session, **request.state}
    environ |= {key: value for key, value in given.items() if value is not None}
    wsgi.PresenceMiddleware(app, settings=settings)(environ, lambda *_: list[bytes]().append)
    return seen[0]


def ask_asgi(settings: Settings, request: Request, inner: Inner = nothing) -> Identity | None:
    """The same, of an ASGI app and its scope."""

    async def app(scope: asgi.Scope, *_: object) -> None:
        inner(scope)
        seen.append(scope["presence_middleware.visit"].identity)

    async def never(*_: object) -> Any:
        raise AssertionError

    seen: list[Identity | None] = []
    headers = [(name.lower().encode(), value) for name, value in request.headers]
    scope: asgi.Scope = {"type": "http", "method": "GET", "path": "/at/a", "headers": headers}
    client = request.peer and (request.peer, 1)
    given = {"user": request.user, "client": client, "session": request.session, **request.state}
    scope.update((key, value) for key, value in given.items() if value is not None)
    call = asgi.PresenceMiddleware(app, settings=settings)(scope, never, never)
    with suppress(StopIteration):
        call.send(None)  # it waits for nothing, so needs no loop
    return seen[0]


def ids(settings: Settings, request: Request, inner: Inner = nothing) -> str | None:
    """The id that WSGI and ASGI agree on."""
    found = ask_wsgi(settings, request, inner)
    assert ask_asgi(settings, request, inner) == found
    return found and found.id


def opened(recorder: Recorder, request: WsgiRequest | AsgiRequest) -> Visit:
    """A visit that has just arrived, as the wrapper of its protocol opens it."""
    if isinstance(request, WsgiRequest):
        return wsgi.WsgiVisit(recorder, {**request.state})
    return asgi.AsgiVisit(recorder, {**request.state})
