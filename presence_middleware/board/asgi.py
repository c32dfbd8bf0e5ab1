"""The board under ASGI, whose streams stay open for events."""

import asyncio
from contextlib import aclosing
from typing import Any

from .. import sse
from ..connections.loops import is_trio
from ..presence import AsyncPresence
from ..request import AsgiRequest
from . import problem
from .routes import Board

# Each stream holds a connection of the web server. Further readers poll.
MAX_STREAMS = 100  # of a process
# A reader that takes nothing for so long loses its stream, so that it delays no shutdown for long.
SEND_SECONDS = 3.0


class AsgiBoard(Board):
    """A board that answers requests without blocking the loop."""

    def __init__(self, presence: AsyncPresence) -> None:
        """Serve the board of a site, with events that are read through `presence`."""
        super().__init__(presence.backend, can_follow=True)
        self._presence, self._open_streams = presence, 0

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, as an ASGI app. Events follow until the reader or the server ends."""
        request = AsgiRequest(scope)
        answer = await self.respond_beside_loop(request)
        if answer.follows is not None and is_trio():
            answer = problem(503, "no events are sent under trio; ask online instead").to(request)
        elif answer.follows is not None and self._open_streams >= MAX_STREAMS:
            reason = f"{MAX_STREAMS} readers follow the events of this process; ask online instead"
            answer = problem(503, reason, ("Retry-After", "60")).to(request)
        if answer.follows is None:
            await answer.asgi(scope, receive, send)
            return
        kind, after = answer.follows
        events = self._presence.events(kind, after=after)

        async def end_with_the_reader() -> None:
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            finally:
                await events.aclose()

        async def send_soon(message: Any) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        self._open_streams += 1
        reader = asyncio.create_task(end_with_the_reader())
        part = {"type": "http.response.body", "more_body": True}
        try:
            await answer.asgi(scope, receive, send_soon)
            async with aclosing(sse.server_sent_events(events)) as messages:
                async for message in messages:
                    await send_soon({**part, "body": message.encode()})
                    if message == sse.LOST:
                        break  # the reader has to begin again
            await send_soon({**part, "body": b"", "more_body": False})
        except OSError:
            pass  # the reader has gone, or takes nothing
        finally:
            reader.cancel()
            self._open_streams -= 1
