"""The ASGI wrapper (ASGI 3.0).

The app gets the server's own scope and receive. A WebSocket also gets the server's own send. The
send of an HTTP request passes every message on unchanged and ends the visit after the last one.

Where what is recorded depends on the status of the response, send also notes that one, of
WebSockets as well; and a request for a path of `PRESENCE_LOGOUT` gets a copy of the scope, which
shows who was logged in before the app forgets them.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, TypeVar

from .board import asgi_board
from .connections import Clock, in_thread, is_in_loop
from .errors import SettingsError
from .loading import check_app
from .presence import AsyncPresence
from .queries import Id
from .recorder import Recorder, Visit, recorder_for
from .request import READER, VISIT, AsgiRequest
from .settings import Settings
from .stores import Plan

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

SEQUENCE = (list, tuple)

# Messages with content of a response, the last of which has no `more_body`. A pathsend is always
# the last. Trailers come after it, but follow at once: they need not keep the visit open.
CONTENT = frozenset(f"http.response.{name}" for name in ("body", "zerocopysend", "pathsend"))


class PresenceMiddleware:
    """Wraps an ASGI app and records who asks it, over HTTP and WebSocket."""

    def __init__(
        self,
        app: ASGIApplication,
        *,
        settings: Settings | None = None,
        client: Any = None,
        clock: Clock | None = None,
    ) -> None:
        """Settings are the environment's by default; `client` is a `redis.Redis`, `clock` as for
        `Presence`.

        Raises `SettingsError` with everything that is wrong; never connects. In a running loop it
        does so when it is called, and refuses to start: frameworks that build their layers then
        would otherwise begin to serve, and fail with each request.
        """
        self.app = app
        self._problem: SettingsError | None = None
        try:
            check_app(app, "asgi")
            self.recorder = recorder_for(settings, client, clock)
            self.presence = AsyncPresence(backend=self.recorder.backend)
            self._board = asgi_board(self.recorder.settings, self.presence)
            self._checks_status = self.recorder.resolver.checks_status
        except SettingsError as error:
            if not is_in_loop():
                raise
            self._problem = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._problem:
            await _refuse(self._problem, scope, send)
            return
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, self._closing(receive, scope), send)
            return
        outer: Visit | None = scope.get(VISIT)
        if outer is not None and outer.recorder is self.recorder and not outer.is_over:
            await self.app(scope, receive, send)
            return
        scope = _readable(scope)
        if self._board is not None and self._board.serves(scope):
            await self._board(scope, receive, send)
            return
        visit = AsgiVisit(self.recorder, scope)
        scope[VISIT] = scope[READER] = visit
        if self._checks_status or visit.is_logout:
            send = _noting(send, visit)
        if scope["type"] == "http":
            send = _send_and_end(send, visit)
        try:
            if visit.is_logout:
                await self._log_out(scope, receive, send, visit)
            else:
                await self.app(scope, receive, send)
        finally:
            if not visit.is_over:  # else its response was complete before the app's call ended
                visit.end()

    async def _log_out(self, scope: Scope, receive: Receive, send: Send, visit: Visit) -> None:
        """Call the app with a scope that has the visit note who is logged in."""
        watched = visit.state = _LogoutScope(scope)
        try:
            await self.app(watched, receive, send)
        finally:
            scope.update(watched)  # outer layers may look at what inner ones put there

    def _closing(self, receive: Receive, scope: Scope) -> Receive:
        """Writes what waits before the app hears of the shutdown: a server may exit right after."""
        if scope["type"] != "lifespan":
            return receive

        async def receive_and_close() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.recorder.close()
                await self.presence.aclose()
            return message

        return receive_and_close


class AsgiVisit(AsgiRequest, Visit, AsyncPresence):
    """The visit in the scope, which is also a reader: whoever asks is counted."""

    recorder: Recorder

    def __init__(self, recorder: Recorder, scope: Scope) -> None:
        AsgiRequest.__init__(self, scope)
        Visit.__init__(self, recorder)

    async def run(self, plan: Plan[T]) -> T:
        """Write what this process holds, this visit included, and run the plan."""
        self.record()
        if self.recorder.has_pending:
            return await in_thread(self.recorder.read, plan)
        return await self.backend.async_driver.run(plan)

    async def leave(self, id: Id | None, kind: str | None = None) -> None:
        """Take `id` offline: at once, or as soon as Redis answers again."""
        if (who := self.backend.queries.departing(id, kind)) is not None:
            await in_thread(self.recorder.depart, who)

    async def forget(self, id: Id | None, kind: str | None = None) -> None:
        """Erase `id`: at once, or as soon as Redis answers again."""
        if (who := self.backend.queries.departing(id, kind, erase=True)) is not None:
            await in_thread(partial(self.recorder.depart, who, erase=True))


def _send_and_end(send: Callable[[Message], Awaitable[Any]], visit: Visit) -> Send:
    """Return a `send` that ends the visit after the last message of the response.

    The app's call may go on after that, with background tasks in which nobody is waiting.
    """

    # A coroutine function, because asgiref warns of a `send` that is none.
    async def send_and_end(message: Message) -> Any:
        result = await send(message)
        if message.get("type") in CONTENT and not message.get("more_body"):
            visit.end()
        return result

    return send_and_end


def _noting(send: Callable[[Message], Awaitable[Any]], visit: Visit) -> Send:
    """Return a `send` that also has the visit take the status of the response."""

    async def send_and_note(message: Message) -> Any:
        status = _status(message, visit.status)
        if status is not None:
            visit.answered(status)
        return await send(message)

    return send_and_note


def _status(message: Message, before: int | None) -> int | None:
    """Return the status that a message gives a response; None if it gives none.

    A WebSocket that is accepted is answered with 101, and one that is closed before with 403. A
    refusal may have a response of its own: whatever its status is, it refuses.
    """
    kind = message.get("type")
    if kind == "http.response.start":
        status = message.get("status")
        return status if isinstance(status, int) else None
    if kind == "websocket.accept":
        return 101
    if before is None and kind in ("websocket.close", "websocket.http.response.start"):
        return 403
    return None


class _LogoutScope(dict[str, Any]):
    """The scope of a request that may log somebody out.

    Layers within load the session or the user, and the app then clears them. So the visit looks
    at them as soon as they are there.
    """

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if key in ("session", "user"):
            self[VISIT].note_login()


async def _refuse(problem: SettingsError, scope: Scope, send: Send) -> None:
    """Has the server end at start-up (ASGI lifespan protocol); a request raises what is wrong."""
    if scope["type"] != "lifespan":
        raise problem
    await send({"type": "lifespan.startup.failed", "message": f"presence: {problem}"})


def _readable(scope: Scope) -> Scope:
    """Return the scope, or a copy with lists in place of what can be read only once.

    Only the first header is looked at: a server makes all of them in the same way.
    """
    headers, client = scope.get("headers"), scope.get("client")
    lists: Scope = {}
    if headers and not (isinstance(headers, SEQUENCE) and isinstance(headers[0], SEQUENCE)):
        lists["headers"] = [tuple(header) for header in headers]
    if client and not isinstance(client, SEQUENCE):
        lists["client"] = list(client)
    return {**scope, **lists} if lists else scope
