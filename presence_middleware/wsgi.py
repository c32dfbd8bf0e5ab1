"""The WSGI wrapper (PEP 3333): the app gets the very same environ and start_response.

With one exception: where what is recorded depends on the status of the response, start_response is
wrapped. It passes all of its arguments on, and returns what the server's returns.
"""

from collections.abc import Iterator
from typing import Any, TypeVar
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from .board import wsgi_board
from .connections import Clock
from .loading import check_app
from .presence import Presence
from .queries import Id
from .recorder import Recorder, Visit, recorder_for
from .request import READER, USER, VISIT, WsgiRequest
from .settings import Settings
from .stores import Plan

T = TypeVar("T")


class PresenceMiddleware:
    """Wraps a WSGI app and records who asks it."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        settings: Settings | None = None,
        client: Any = None,
        clock: Clock | None = None,
    ) -> None:
        """Wrap `app`, with the environment's settings by default; `client` and `clock` as for
        `Presence`.

        Raises `SettingsError` with everything that is wrong; never connects.
        """
        check_app(app, "wsgi")
        self.app = app
        self.recorder = recorder_for(settings, client, clock)
        self.presence = Presence(backend=self.recorder.backend)
        self._board = wsgi_board(self.recorder.settings, self.presence)
        self._checks_status = self.recorder.resolver.checks_status

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if self._board is not None and self._board.serves(environ):
            return self._board(environ, start_response)
        outer: Visit | None = environ.get(VISIT)
        if outer is not None:
            if outer.recorder is self.recorder and not outer.is_over:
                return self.app(environ, start_response)
            environ.pop(USER, None)  # of a request before, where a server serves an environ again
        visit = WsgiVisit(self.recorder, environ)
        environ[VISIT] = environ[READER] = visit
        if self._checks_status or visit.is_logout:
            start_response = _noting(start_response, visit)
        try:
            body = self.app(environ, start_response)
        except BaseException:
            visit.end()
            raise
        if isinstance(body, (list, tuple)) or _is_file(body, environ):
            visit.end()
            return body
        return (SizedBody if hasattr(body, "__len__") else Body)(body, visit)


class WsgiVisit(WsgiRequest, Visit, Presence):
    """The visit in the environ, which is also a reader: whoever asks is counted."""

    recorder: Recorder

    def __init__(self, recorder: Recorder, environ: WSGIEnvironment) -> None:
        WsgiRequest.__init__(self, environ)
        Visit.__init__(self, recorder)

    def run(self, plan: Plan[T]) -> T:
        """Write what this process holds, this visit included, and run the plan."""
        self.record()
        return self.recorder.read(plan)

    def leave(self, id: Id | None, kind: str | None = None) -> None:
        """Take `id` offline: at once, or as soon as Redis answers again."""
        if (who := self.backend.queries.departing(id, kind)) is not None:
            self.recorder.depart(who)

    def forget(self, id: Id | None, kind: str | None = None) -> None:
        """Erase `id`: at once, or as soon as Redis answers again."""
        if (who := self.backend.queries.departing(id, kind, erase=True)) is not None:
            self.recorder.depart(who, erase=True)


def _noting(start_response: StartResponse, visit: Visit) -> StartResponse:
    """Return a `start_response` that also has the visit take the status."""

    def start_and_note(*args: Any, **options: Any) -> Any:
        # The server's may raise: where headers were sent, it raises what the app passes as the
        # third argument, and the status is not replaced.
        write = start_response(*args, **options)
        visit.answered(_status(args[0] if args else options.get("status")))
        return write

    return start_and_note


def _status(line: object) -> int | None:
    """Return the number that a status line such as `200 OK` begins with, or None."""
    number = line[:3] if isinstance(line, str) else ""
    return int(number) if number.isascii() and number.isdigit() else None


def _is_file(body: Any, environ: WSGIEnvironment) -> bool:
    """Whether a server may send this body in a way of its own (`wsgi.file_wrapper`)."""
    wrapper = environ.get("wsgi.file_wrapper")
    return hasattr(body, "read") or (isinstance(wrapper, type) and isinstance(body, wrapper))


class Body:
    """An app's iterable, handed to the server as it is; its `close` also ends the visit."""

    def __init__(self, body: Any, visit: Visit) -> None:
        self._body, self._visit = body, visit

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """What the server must call when it is done, however the request ended (PEP 3333)."""
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._visit.end()

    def __del__(self) -> None:
        self._visit.abandon()  # unless it ended: not everything that serves calls close


class SizedBody(Body):
    """One whose length servers may ask: of length 1, it gets its Content-Length from them."""

    def __len__(self) -> int:
        return len(self._body)
