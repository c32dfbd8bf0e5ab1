"""A site with a pulse, asked over WSGI and ASGI alike."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment
from wsgiref.validate import validator

from presence_middleware import Settings, asgi, wsgi
from presence_middleware.people import Person
from presence_middleware.recorder import Recorder
from tests.support.asking import Answer, State, exchange_asgi, exchange_wsgi, plain_environ
from tests.support.statuses import Call

Headers = list[tuple[str, str]]
SAME = {"Sec-Fetch-Site": "same-origin"}
PROTOCOLS = ("wsgi", "asgi")


@dataclass
class App:
    """An app in no protocol yet: it answers 404, as most do to the path of the pulse."""

    status: int = 404
    headers: Headers = field(default_factory=lambda: [("Content-Type", "text/plain")])
    body: bytes = b"there is no such page"
    layer: Callable[[State], object] = lambda state: None
    """What an inner layer does with the environ or scope."""
    calls: list[str] = field(default_factory=list)
    """The methods and paths that it was asked for."""

    def wsgi(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        self.calls.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        self.layer(environ)
        start_response(f"{self.status} Said", self.headers)
        return [self.body]

    async def asgi(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        self.calls.append(f"{scope['method']} {scope['path']}")
        self.layer(scope)
        headers = [(name.lower().encode(), value.encode()) for name, value in self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": self.body[5:]})


class PulsingSite:
    """A wrapped app whose recorder writes nothing by itself."""

    def __init__(self, protocol: str, settings: Settings, app: App | None = None) -> None:
        self.app = App() if app is None else app
        self.protocol = protocol
        self.wsgi = wsgi.PresenceMiddleware(self.app.wsgi, settings=settings)
        self.asgi = asgi.PresenceMiddleware(self.app.asgi, settings=settings)
        self.recorder: Recorder = (self.wsgi if protocol == "wsgi" else self.asgi).recorder
        self.recorder.background = False

    @property
    def seen(self) -> list[tuple[str, Any]]:
        """The kinds and ids that wait to be written."""
        return [who for who, _, _ in self.recorder.people.waiting()]

    @property
    def gone(self) -> list[tuple[str, Any]]:
        """The kinds and ids whose goodbyes wait to be written."""
        return [each.who for each in self.people if not each.goodbye.is_sent]

    @property
    def people(self) -> list[Person]:
        return list(self.recorder.people.recent.values())

    def pulse(self, query: str = "presence=here:/", **more: Any) -> Answer:
        """Send a pulse as pulse.js does."""
        return self.ask("POST", "/pulse", query, **more)

    def ask(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: dict[str, str] = SAME,
        *,
        root: str = "",
        user: str | None = None,
    ) -> Answer:
        """Send a request; `root` is where the app is mounted, `user` whom the server logs in."""
        headers = {"Host": "shop.example:8000", **headers}
        request = replace(Call(headers, f"{path}?{query}", method, mount=root).request, user=user)
        if self.protocol == "wsgi":
            environ = plain_environ(**request.environ(), CONTENT_LENGTH="0")
            return exchange_wsgi(validator(self.wsgi), environ)
        return exchange_asgi(self.asgi, {**request.scope(), "asgi": {"version": "3.0"}})
