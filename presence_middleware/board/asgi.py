"""The board under ASGI."""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing, suppress
from typing import Any

import anyio
from starlette.responses import Response as StarletteResponse

from .. import sse
from ..connections.loops import is_trio
from ..presence import AsyncPresence
from ..request import AsgiRequest, below_root, text
from ..settings import Settings
from .messages import Request, Response, problem, raw_headers
from .routes import Board

# Each stream holds a connection of the web server. Further readers poll.
MAX_STREAMS = 100  # of a process
# A reader that takes nothing for so long loses its stream, so that it delays no shutdown for long.
SEND_SECONDS = 3.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AsgiBoard(Board):
    """An ASGI app that answers requests below the board's path without blocking the loop."""

    def __init__(self, settings: Settings, presence: AsyncPresence) -> None:
        """Serve the board of `settings`, and read through `presence`."""
        backend = presence.backend
        super().__init__(settings, backend.queries, lambda kind: backend.feed(kind).streams)
        self._presence, self._open_streams = presence, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Request.url of Starlette is not used: it is built from the Host header, which may be
        # anything.
        path = self.below(below_root(scope)) or ""
        query = text(scope.get("query_string", b"").decode("latin-1"))
        request = Request(scope["method"], path, query, AsgiRequest(scope).header)
        if is_trio():
            run = self._presence.backend.driver.run
            answer = await anyio.to_thread.run_sync(self.respond, request, run)
        else:
            answer = await self.respond_async(request, self._presence.run)
        if answer.follows is not None and is_trio():
            answer = problem(503, "no events are sent under trio; ask online instead").to(request)
        if answer.follows is not None:
            if self._open_streams < MAX_STREAMS:
                await self._stream(answer, *answer.follows, receive, send)
                return
            reason = f"{MAX_STREAMS} readers follow the events of this process; ask online instead"
            answer = problem(503, reason, ("Retry-After", "60")).to(request)
        response = StarletteResponse(answer.body, answer.status)
        response.raw_headers = raw_headers(answer.headers)
        await response(scope, receive, send)

    async def _stream(
        self, answer: Response, kind: str, after: str, receive: Receive, send: Send
    ) -> None:
        """Send the body of an answer and the events after it, until the reader or the server ends.

        After `lost` the reader has to begin again, so the stream ends there.
        """

        async def close_at_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            await events.aclose()

        async def send_part(body: bytes, *, is_last: bool = False) -> None:
            part = {"type": "http.response.body", "body": body, "more_body": not is_last}
            with anyio.fail_after(SEND_SECONDS):
                await send(part)

        self._open_streams += 1
        try:
            events = self._presence.events(kind, after=after)
            start = {"status": answer.status, "headers": raw_headers(answer.headers)}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(close_at_disconnect)
                with suppress(OSError):  # some servers raise it if the reader is gone
                    await send({"type": "http.response.start", **start})
                    await send_part(answer.body)
                    async with aclosing(sse.server_sent_events(events)) as messages:
                        async for message in messages:
                            await send_part(message.encode())
                            if message == sse.LOST:
                                break
                    await send_part(b"", is_last=True)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # an error of the server, as it raised it
        finally:
            self._open_streams -= 1
