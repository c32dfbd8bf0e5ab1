"""The ASGI wrapper (ASGI 3.0).

The app gets the server's own scope and receive. A WebSocket also gets the server's own send. The
send of an HTTP request passes every message on unchanged and ends the visit after the last message.

If the site's settings depend on the status of the response, send also reports the status to the
visit, for WebSockets as well. A request for a path of `PRESENCE_LOGOUT` gets a copy of the scope,
which remembers the user before the app clears the login.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeVar

from .board import raw_headers
from .board.asgi import AsgiBoard
from .connections import Clock
from .connections.drivers import run_in_thread
from .connections.loops import in_thread, is_in_loop, require_asyncio
from .errors import SettingsError
from .identity.ids import Id
from .loading import check_app
from .presence import AsyncPresence
from .pulse import EMPTY, Pulse
from .recorder import Visit, recorder_for
from .recorder.visit import NO_VISIT, Unrecorded
from .request import READER, VISIT, AsgiRequest, below_root
from .rooms import Signal
from .settings import Settings
from .stores import Act, Plan

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# Any types of arguments: those of Django and of Channels differ from those of Starlette.
ASGIApplication = Callable[[Any, Any, Any], Awaitable[None]]

SEQUENCE = (list, tuple)

# Messages with content of a response. The last has no `more_body`, and a pathsend is always the
# last. Trailers follow at once, so they need not keep the visit open.
CONTENT = frozenset(f"http.response.{name}" for name in ("body", "zerocopysend", "pathsend"))


class PresenceMiddleware:
    """Wraps an ASGI app and records its visitors, over HTTP and WebSocket.

    The attribute `presence` is an asynchronous reader for use outside of requests, and `recorder`
    is the recorder of this process. In a request, the scope has the visit as
    `presence_middleware.visit` and a reader as `presence_middleware.presence`.
    """

    def __init__(
        self,
        app: ASGIApplication,
        *,
        settings: Settings | None = None,
        client: Any = None,
        clock: Clock | None = None,
    ) -> None:
        """Wrap `app`. This opens no connection.

        `settings` are by default those of the environment. `client` is a `redis.Redis` to use
        instead of `PRESENCE_REDIS_URL`. `clock` returns seconds since the epoch and replaces the
        time of the server.

        Raises `SettingsError` with all problems if a setting is invalid or `app` is not an ASGI
        app. Inside a running event loop, the error is reported when the server starts the app, so
        that the server exits. Frameworks that build their layers at that moment would otherwise
        begin to serve and fail with each request.
        """
        self.app = app
        self._problem: SettingsError | None = None
        try:
            check_app(app, "asgi")
            self.recorder = recorder_for(settings, client, clock)
            self.presence = AsyncPresence(backend=self.recorder.backend)
            settings = self.recorder.settings
            self._visit_class = AsgiVisit if settings.enabled else UnrecordedAsgiVisit
            pulse = Pulse(settings) if settings.pulse_path else None
            board = AsgiBoard(self.presence) if settings.board_path else None
            self._responders: list[Pulse | AsgiBoard] = [each for each in (pulse, board) if each]
        except SettingsError as error:
            if not is_in_loop():
                raise
            self._problem = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._problem or scope["type"] not in ("http", "websocket"):
            await self._pass_on(scope, receive, send)
            return
        outer: Visit | None = scope.get(VISIT)
        if outer is not None and outer.recorder is self.recorder and not outer.is_over:
            await self.app(scope, receive, send)
            return
        scope, signal, is_http = _readable(scope), None, scope["type"] == "http"
        for responder in self._responders if is_http else ():
            received = responder.receive(below_root(scope), scope)
            if isinstance(received, Signal):
                signal = received
            elif received is not None:
                await received.asgi(scope, receive, send)
                return
        visit = scope[VISIT] = scope[READER] = self._visit_class(self.recorder, scope, signal)
        if signal is not None and signal.is_own:
            await self._take_pulse(scope, receive, send, visit)
            return
        inner = scope
        if not visit.is_usual and visit.needs_status:
            send = _noting(send, visit)
            if visit.is_logout:
                inner = visit.state = _LogoutScope(scope)
        if is_http and visit.purpose is not NO_VISIT:
            send = _send_and_end(send, visit)
        try:
            await self.app(inner, receive, send)
        finally:
            if inner is not scope:
                scope.update(inner)  # outer layers may read keys that inner layers set
            visit.end()

    async def _take_pulse(self, scope: Scope, receive: Receive, send: Send, visit: Visit) -> None:
        """Record a request to the pulse's path, and respond that all is well.

        If only layers of the app may know the user, the app runs. Of its response, nothing is sent
        but its cookies: a session may have a new key, and the old one would log the user out.
        """
        cookies: list[tuple[bytes, bytes]] = []

        async def send_nothing(message: Message) -> None:
            if message.get("type") == "http.response.start":
                headers = message.get("headers", ())
                cookies[:] = [pair for pair in headers if pair[0].lower() == b"set-cookie"]

        try:
            if self.recorder.resolver.needs_app:
                inner = _noting(send_nothing, visit) if visit.needs_status else send_nothing
                await self.app(scope, receive, _send_and_end(inner, visit))
        finally:
            visit.end()
        headers = raw_headers(EMPTY) + cookies
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body"})

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is no visit, such as the lifespan of the server.

        At its shutdown, the recorder is closed before the app receives the message: a server may
        exit right after it. A problem is reported to the server at its startup, so that it exits
        (ASGI lifespan protocol). Raises the problem for any request.
        """
        is_lifespan = scope["type"] == "lifespan"
        if self._problem:
            if not is_lifespan:
                raise self._problem
            message = f"presence: {self._problem}"
            await send({"type": "lifespan.startup.failed", "message": message})
            return

        async def receive_and_close() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.recorder.backend.close_events()
                self.recorder.close()
                await self.presence.aclose()
            return message

        await self.app(scope, receive_and_close if is_lifespan else receive, send)


class AsgiVisit(Visit, AsgiRequest, AsyncPresence):
    """The visit in the scope, which is also a reader. Its results include the visit itself."""

    async def run(self, plan: Plan[T]) -> T:
        """Write the sightings of this process, including this visit, and return a plan's result.

        Raises `PresenceUnavailable` if Redis does not answer.
        """
        self.note()
        with self.asking:
            return await run_in_thread(self.backend.driver, plan, self.recorder.read)

    async def leave(self, id: Id | None, kind: str | None = None) -> None:
        await self._depart(id, kind, Act.LEFT)

    async def forget(self, id: Id | None, kind: str | None = None) -> None:
        await self._depart(id, kind, Act.ERASED)

    async def _depart(self, id: Id | None, kind: str | None, act: Act) -> None:
        if (who := self.backend.queries.departing(id, kind, act)) is not None:
            require_asyncio()
            # Before the thread, because a handler may be cancelled while it waits for one.
            self.recorder.depart(who, act)
            await in_thread(self.recorder.write_for_reader)


class UnrecordedAsgiVisit(Unrecorded, AsgiVisit):
    """The visit in the scope of a site that records nothing."""


def _send_and_end(send: Callable[[Message], Awaitable[Any]], visit: Visit) -> Send:
    """Return a `send` that ends the visit after the last message of the response.

    The app's call may continue after that with background tasks, for which no user is waiting.
    """

    # A coroutine function, because asgiref warns about any other `send`.
    async def send_and_end(message: Message) -> Any:
        result = await send(message)
        if message.get("type") in CONTENT and not message.get("more_body"):
            visit.end()
        return result

    return send_and_end


def _noting(send: Callable[[Message], Awaitable[Any]], visit: Visit) -> Send:
    """Return a `send` that also reports the status of the response to the visit."""

    async def send_and_note(message: Message) -> Any:
        status = _status(message)
        if status is not None:
            visit.answered(status)
        return await send(message)

    return send_and_note


def _status(message: Message) -> int | None:
    """Return the status that a message sets, or None.

    Accepting a WebSocket counts as 101. Closing it instead, also with a response, sets none: that
    accepts no login either.
    """
    if message.get("type") == "websocket.accept":
        return 101
    status = message.get("status") if message.get("type") == "http.response.start" else None
    return status if isinstance(status, int) else None


class _LogoutScope(dict[str, Any]):
    """The scope of a request that may log its user out.

    Inner layers load the session or the user, and the app then clears them. So the visit reads
    them as soon as they are set.
    """

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if key in ("session", "user"):
            self[VISIT].note_login()


def _readable(scope: Scope) -> Scope:
    """Return the scope, or a copy with lists in place of iterables that can be read only once.

    Only the first header is examined, because a server makes all headers in the same way.
    """
    headers, client = scope.get("headers"), scope.get("client")
    if type(headers) is list and type(client) is tuple and headers and type(headers[0]) is tuple:
        return scope  # as nearly all servers have it
    lists: Scope = {}
    if headers and not (isinstance(headers, SEQUENCE) and isinstance(headers[0], SEQUENCE)):
        lists["headers"] = [tuple(header) for header in headers]
    if isinstance(client, Iterable) and not isinstance(client, SEQUENCE):
        lists["client"] = list(client)
    return {**scope, **lists} if lists else scope
