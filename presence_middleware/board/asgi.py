"""The board under ASGI."""

from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any

import anyio
from starlette.responses import Response, StreamingResponse

from .. import sse
from ..connections.drivers import at_once
from ..connections.loops import is_trio
from ..presence import AsyncPresence
from ..request import AsgiRequest
from . import problem
from .routes import Board

# Each stream holds a connection of the web server. Further readers poll.
MAX_STREAMS = 100  # of a process
# A reader that takes nothing for so long loses its stream, so that it delays no shutdown for long.
SEND_SECONDS = 3.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class App(Board):
    """An ASGI app that answers requests below the board's path without blocking the loop."""

    def __init__(self, presence: AsyncPresence) -> None:
        """Serve the board of a site, and read through `presence`."""
        backend = presence.backend
        super().__init__(backend.queries, lambda kind: backend.feed(kind).streams)
        self._presence, self._open_streams = presence, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The request of Starlette is not used: its URL is built from the Host header, which may be
        # anything.
        request = AsgiRequest(scope)
        if is_trio():
            run = self._presence.backend.driver.run
            answer = await anyio.to_thread.run_sync(lambda: at_once(self.respond(request, run)))
        else:
            answer = await self.respond(request, self._presence.run, is_async=True)
        if answer.follows is not None and is_trio():
            answer = problem(503, "no events are sent under trio; ask online instead").to(request)
        elif answer.follows is not None and self._open_streams >= MAX_STREAMS:
            reason = f"{MAX_STREAMS} readers follow the events of this process; ask online instead"
            answer = problem(503, reason, ("Retry-After", "60")).to(request)
        headers = dict(answer.headers)
        if answer.follows is None:
            await Response(answer.body, answer.status, headers)(scope, receive, send)
            return

        async def send_soon(message: MutableMapping[str, Any]) -> None:
            with anyio.fail_after(SEND_SECONDS):
                await send(message)

        self._open_streams += 1
        try:
            async with aclosing(self._parts(answer.body, *answer.follows)) as parts:
                response = StreamingResponse(parts, answer.status, headers)
                # By an older version, it also notices at once that an idle reader has gone.
                await response({**scope, "asgi": {"spec_version": "2.3"}}, receive, send_soon)
        except (OSError, ExceptionGroup) as error:  # some versions group the error of a server
            cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            if not isinstance(cause, OSError):  # else the reader has gone, or takes nothing
                raise cause from None
        finally:
            self._open_streams -= 1

    async def _parts(self, body: bytes, kind: str, after: str) -> AsyncGenerator[bytes | str, None]:
        """Yield the body of an answer and the events after it, until the server ends.

        After `lost` the reader has to begin again, so the stream ends there.
        """
        yield body
        events = self._presence.events(kind, after=after)
        async with aclosing(sse.server_sent_events(events)) as messages:
            async for message in messages:
                yield message
                if message == sse.LOST:
                    break
