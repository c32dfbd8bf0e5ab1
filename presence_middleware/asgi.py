"""The ASGI wrapper (ASGI 3.0).

The app gets the server's own scope and receive. A WebSocket also gets the server's own send. The
send of an HTTP request passes every message on unchanged and ends the visit after the last one.
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
        if scope["type"] == "http":
            send = _send_and_end(send, visit)
        try:
            await self.app(scope, receive, send)
        finally:
            if not visit.is_over:  # else its response was complete before the app's call ended
                visit.end()

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
