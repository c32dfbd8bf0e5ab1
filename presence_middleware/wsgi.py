"""The WSGI wrapper (PEP 3333). The app gets the server's own environ and start_response.

If the site's settings depend on the status of the response, start_response is wrapped. The wrapper
passes all arguments on and returns the result of the server's start_response.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from .board.routes import Board
from .connections import Clock
from .identity.ids import Id
from .loading import check_app
from .presence import Presence
from .pulse import EMPTY, Pulse
from .recorder import Visit, recorder_for
from .recorder.visit import Unrecorded
from .request import READER, SESSION, USER, VISIT, WsgiRequest
from .rooms import Signal
from .settings import Settings
from .stores import Act

WHOLE = (list, tuple, bytes)
"""Bodies that are complete when the app returns them."""


class PresenceMiddleware:
    """Wraps a WSGI app and records its visitors.

    The attribute `presence` is a reader for use outside of requests, and `recorder` is the recorder
    of this process. In a request, the environ has the visit as `presence_middleware.visit` and a
    reader as `presence_middleware.presence`.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        settings: Settings | None = None,
        client: Any = None,
        clock: Clock | None = None,
    ) -> None:
        """Wrap `app`. This opens no connection.

        `settings` are by default those of the environment. `client` is a `redis.Redis` to use
        instead of `PRESENCE_REDIS_URL`. `clock` returns seconds since the epoch and replaces the
        time of the server.

        Raises `SettingsError` with all problems if a setting is invalid or `app` is not a WSGI app.
        """
        check_app(app, "wsgi")
        self.app = app
        self.recorder = recorder_for(settings, client, clock)
        self.presence = Presence(backend=self.recorder.backend)
        settings = self.recorder.settings
        self._visit_class = WsgiVisit if settings.enabled else UnrecordedWsgiVisit
        pulse = Pulse(settings) if settings.pulse_path else None
        board = Board(self.recorder.backend) if settings.board_path else None
        self._responders: list[Pulse | Board] = [each for each in (pulse, board) if each]

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        outer: Visit | None = environ.get(VISIT)
        if outer is not None:
            if outer.recorder is self.recorder and not outer.is_over:
                return self.app(environ, start_response)
            environ.pop(USER, None)  # of an earlier request, if the server uses an environ again
            environ.pop(SESSION, None)
        signal: Signal | None = None
        for responder in self._responders:
            received = responder.receive(environ.get("PATH_INFO", ""), environ)
            if isinstance(received, Signal):
                signal = received
            elif received is not None:
                return received.wsgi(environ, start_response)
        visit = environ[VISIT] = environ[READER] = self._visit_class(self.recorder, environ, signal)
        if signal is not None and signal.is_own:
            return self._take_pulse(environ, start_response, visit)
        if not visit.is_usual and visit.needs_status:
            start_response = _noting(start_response, visit)
        try:
            body = self.app(environ, start_response)
            if not isinstance(body, WHOLE) and not _is_file(body, environ):
                return (SizedBody if hasattr(body, "__len__") else Body)(body, visit)
            visit.end()
        except BaseException:
            visit.end()
            raise
        return body

    def _take_pulse(
        self, environ: WSGIEnvironment, start_response: StartResponse, visit: Visit
    ) -> list[bytes]:
        """Record a request to the pulse's path, and respond that all is well.

        If only layers of the app may know the user, the app runs. Of its response, nothing is sent
        but its cookies: a session may have a new key, and the old one would log the user out.
        """
        cookies: list[tuple[str, str]] = []

        def start_nothing(
            status: str, response_headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            cookies[:] = [pair for pair in response_headers if pair[0].lower() == "set-cookie"]
            return lambda _: None

        try:
            if self.recorder.resolver.needs_app:
                start: Any = _noting(start_nothing, visit) if visit.needs_status else start_nothing
                body = self.app(environ, start)
                try:
                    next(iter(body), b"")  # a generator runs no earlier
                finally:
                    if hasattr(body, "close"):
                        body.close()
        finally:
            visit.end()
        start_response("204 No Content", [*EMPTY, *cookies])
        return []


class WsgiVisit(Visit, WsgiRequest, Presence):
    """The visit in the environ, which is also a reader. Its results include the visit itself."""

    run = Visit.read

    def leave(self, id: Id | None, kind: str | None = None) -> None:
        self._depart(id, kind, Act.LEFT)

    def forget(self, id: Id | None, kind: str | None = None) -> None:
        self._depart(id, kind, Act.ERASED)

    def _depart(self, id: Id | None, kind: str | None, act: Act) -> None:
        if (who := self.backend.queries.departing(id, kind, act)) is not None:
            self.recorder.depart(who, act)
            self.recorder.write_for_reader()


class UnrecordedWsgiVisit(Unrecorded, WsgiVisit):
    """The visit in the environ of a site that records nothing."""


def _noting(start_response: StartResponse, visit: Visit) -> StartResponse:
    """Return a `start_response` that also reports the status to the visit."""

    def start_and_note(status: Any, *others: Any, **options: Any) -> Any:
        # The server's start_response may raise. If headers were sent, it raises the exception of
        # the third argument, and the status must not be replaced.
        write = start_response(status, *others, **options)
        visit.answered(_status(status))
        return write

    return start_and_note


def _status(line: object) -> int | None:
    """Return the number that a status line such as `200 OK` begins with, or None."""
    number = line[:3] if isinstance(line, str) else ""
    return int(number) if number.isascii() and number.isdigit() else None


def _is_file(body: Any, environ: WSGIEnvironment) -> bool:
    """Return whether the server may send this body as a file (`wsgi.file_wrapper`)."""
    wrapper = environ.get("wsgi.file_wrapper")
    return hasattr(body, "read") or (isinstance(wrapper, type) and isinstance(body, wrapper))


class Body:
    """Wraps the iterable of an app without changing it. Its `close` also ends the visit."""

    def __init__(self, body: Any, visit: Visit) -> None:
        self._body, self._visit = body, visit

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Close the app's iterable and end the visit. Servers call it after each request."""
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._visit.end()

    def __del__(self) -> None:
        self._visit.abandon()  # does nothing after `close`, which some servers never call


class SizedBody(Body):
    """A body with a length. For a body of length 1, servers add a Content-Length."""

    def __len__(self) -> int:
        return len(self._body)
