"""The board under ASGI."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

from starlette.responses import Response as StarletteResponse

from ..connections.loops import is_trio
from ..presence import AsyncPresence
from ..request import AsgiRequest, below_root, text
from ..settings import Settings
from .cache import Clock, Slot, Slots
from .messages import Request, Response
from .reads import Read
from .routes import Answer, Board

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AsgiBoard:
    """An ASGI app that answers requests below the board's path without blocking the loop."""

    def __init__(self, settings: Settings, presence: AsyncPresence) -> None:
        """Serve the board of `settings`, and read through `presence`."""

        async def run(read: Read) -> Any:
            return await presence.run(read.plan(presence.backend.queries))

        self._board, self._read = Board(settings), AsyncSharedReads(run)

    def serves(self, scope: Scope) -> bool:
        """Return whether a request is for the board."""
        return scope["type"] == "http" and self._board.below(below_root(scope)) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Request.url of Starlette is not used: it is built from the Host header, which may be
        # anything.
        path = self._board.below(below_root(scope)) or ""
        query = text(scope.get("query_string", b"").decode("latin-1"))
        request = Request(scope["method"], path, query, AsgiRequest(scope).header)
        answer = await self._run(self._board.answer(request))
        response = StarletteResponse(answer.body, answer.status)
        response.raw_headers = [
            (name.lower().encode(), value.encode()) for name, value in answer.headers
        ]
        await response(scope, receive, send)

    async def _run(self, answer: Answer) -> Response:
        try:
            read = next(answer)
            while True:
                read = answer.send(await self._read(read))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class AsyncSharedReads:
    """Reads whose results the tasks of an event loop share; each loop has its own slots."""

    def __init__(
        self, run: Callable[[Read], Awaitable[Any]], clock: Clock = time.monotonic
    ) -> None:
        """`run` reads from Redis and returns the result; `clock` returns seconds."""
        self._run, self._clock = run, clock
        self._slots: WeakKeyDictionary[Any, Slots] = WeakKeyDictionary()

    async def __call__(self, read: Read) -> Slot:
        """Return the slot of a read, once it has a result or an error."""
        loop, event = _running()
        slots = self._slots.get(loop)
        if slots is None:
            slots = self._slots[loop] = Slots(self._clock)
        while True:
            slot, is_mine = slots.claim(read, event)
            if is_mine:
                with slot.reading(self._clock):
                    slot.fill(await self._run(read))
            elif (ready := slot.ready) is not None:
                await ready.wait()
            if not slot.is_abandoned:
                return slot


def _running() -> tuple[Any, Callable[[], Any]]:
    """Return the event loop that runs the caller, and its class of events."""
    if not is_trio():
        return asyncio.get_running_loop(), asyncio.Event
    import trio

    return trio.lowlevel.current_trio_token(), trio.Event
