"""Send a request to an app of either protocol, and learn what the app finds and answers."""

import asyncio
import json
from collections.abc import Callable, Coroutine, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from wsgiref.util import setup_testing_defaults

from presence_middleware import Identity, Settings, asgi, wsgi
from presence_middleware.recorder import Recorder, Visit
from presence_middleware.request import AsgiRequest, WsgiRequest

State = MutableMapping[str, Any]
Inner = Callable[[State], object]


@dataclass
class Answer:
    """What the app found, and what the client receives."""

    state: State
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


def plain_environ(**given: Any) -> dict[str, Any]:
    """Return what a server says of a request at least, and what is given."""
    setup_testing_defaults(given)
    return given


def exchange_wsgi(app: Any, environ: dict[str, Any]) -> Answer:
    """Send a request to a WSGI app as a server does."""
    answer = Answer(environ)

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[..., object]:
        answer.status = int(status[:3])
        answer.headers = {name.lower(): value for name, value in headers}
        return print

    body = app(environ, start)
    try:
        answer.body = b"".join(body)
    finally:
        getattr(body, "close", lambda: None)()
    return answer


def exchange_asgi(app: Any, scope: State) -> Answer:
    """Send a request to an ASGI app, in an event loop of its own."""

    return asyncio.run(exchange(app, scope))


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine, in an event loop of its own."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


async def exchange(app: Any, scope: State) -> Answer:
    """Send a request to an ASGI app as a server does. Header names keep their case."""
    answer = Answer(scope)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        answer.status = message.get("status", answer.status)
        headers = message.get("headers", ())
        answer.headers |= {name.decode(): value.decode() for name, value in headers}
        answer.body += message.get("body", b"")

    await app(scope, receive, send)
    return answer


@dataclass
class Request:
    """A request in no protocol yet."""

    headers: list[tuple[str, bytes]] = field(default_factory=list)
    user: object = None
    peer: str | None = "192.0.2.7"
    session: object = None
    state: dict[str, object] = field(default_factory=dict)
    path: str = "/a"
    """Bytes that are not UTF-8 are surrogates in it."""
    mount: str = "/at"
    method: str = "GET"
    query: bytes | None = None

    def environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = {"REQUEST_METHOD": self.method, "SCRIPT_NAME": self.mount}
        environ["PATH_INFO"] = self.path.encode(errors="surrogateescape").decode("latin-1")
        for name, value in self.headers:
            key = "HTTP_" + name.upper().replace("-", "_")
            key = key.replace("HTTP_CONTENT_TYPE", "CONTENT_TYPE")
            joint = "; " if key == "HTTP_COOKIE" else ","
            said = value.decode("latin-1")
            environ[key] = f"{environ[key]}{joint}{said}" if key in environ else said
        given: dict[str, object] = {"REMOTE_USER": self.user, "REMOTE_ADDR": self.peer}
        given["QUERY_STRING"] = None if self.query is None else self.query.decode("latin-1")
        given |= {"beaker.session": self.session, **self.state}
        return environ | {key: value for key, value in given.items() if value is not None}

    def scope(self) -> asgi.Scope:
        headers = [(name.lower().encode(), value) for name, value in self.headers]
        scope: asgi.Scope = {"type": "http", "method": self.method, "headers": headers}
        path = self.path.encode(errors="surrogateescape").decode(errors="replace")
        scope.update(path=self.mount + path, root_path=self.mount)
        client = self.peer if self.peer is None else (self.peer, 1)
        given = {"user": self.user, "client": client, "session": self.session, **self.state}
        given["query_string"] = self.query
        scope.update((key, value) for key, value in given.items() if value is not None)
        return scope

    def views(self, locate: Any = None) -> tuple[WsgiRequest, AsgiRequest]:
        """Return what sources read of it in either protocol, as `locate` finds its address."""
        return WsgiRequest(self.environ(), locate), AsgiRequest(self.scope(), locate)


def nothing(_: State) -> None:
    """An inner layer that does nothing."""


def names(id: object, kind: str | None = None) -> Inner:
    return lambda state: state["presence_middleware.visit"].identify(id, kind)


async def never(*_: object) -> Any:
    """An app that is never asked, or what it never receives or sends."""
    raise AssertionError


def ask_wsgi(settings: Settings, request: Request, inner: Inner = nothing) -> Identity | None:
    """Return the identity that a WSGI app receives after an inner layer changed the environ."""

    def app(environ: State, _: object) -> list[bytes]:
        inner(environ)
        seen.append(environ["presence_middleware.visit"].identity)
        return []

    seen: list[Identity | None] = []
    site = wsgi.PresenceMiddleware(app, settings=settings)
    site(request.environ(), lambda *_: list[bytes]().append)
    return seen[0]


def ask_asgi(settings: Settings, request: Request, inner: Inner = nothing) -> Identity | None:
    """The same, of an ASGI app and its scope."""

    async def app(scope: asgi.Scope, *_: object) -> None:
        inner(scope)
        seen.append(scope["presence_middleware.visit"].identity)

    seen: list[Identity | None] = []
    call = asgi.PresenceMiddleware(app, settings=settings)(request.scope(), never, never)
    with suppress(StopIteration):
        call.send(None)  # it waits for nothing, so needs no loop
    return seen[0]


def ids(settings: Settings, request: Request) -> str | None:
    found = ask_wsgi(settings, request)
    assert ask_asgi(settings, request) == found
    return found and found.id


def opened(recorder: Recorder, request: WsgiRequest | AsgiRequest) -> Visit:
    """A visit that has just arrived, as the wrapper of its protocol opens it."""
    if isinstance(request, WsgiRequest):
        return wsgi.WsgiVisit(recorder, {**request.state})
    return asgi.AsgiVisit(recorder, {**request.state})
