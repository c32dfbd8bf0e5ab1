"""The board under ASGI."""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from anyio.lowlevel import RunVar
from starlette.requests import Request as Asked
from starlette.responses import Response as Answered

from ..presence import AsyncPresence
from ..request import AsgiRequest
from ..settings import Settings
from .answers import Answer, Board
from .messages import Request, Response
from .reads import Read
from .shared import Clock, Slot, Slots

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AsgiBoard:
    """Answers what is below the board's path; no task blocks the loop."""

    def __init__(self, settings: Settings, presence: AsyncPresence) -> None:
        self._board, self._read = Board(settings), AsyncShared(presence)

    def serves(self, scope: Scope) -> bool:
        """Whether a request is for the board."""
        return scope["type"] == "http" and self._board.below(_path(scope)) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = self._board.below(_path(scope)) or ""
        asked = Asked(scope, receive)
        request = Request(asked.method, path, asked.url.query, AsgiRequest(scope).header)
        found = await self._run(self._board.answer(request))
        response = Answered(found.body, found.status)
        response.raw_headers = [
            (name.lower().encode(), value.encode()) for name, value in found.headers
        ]
        await response(scope, receive, send)

    async def _run(self, answer: Answer) -> Response:
        try:
            read = next(answer)
            while True:
                read = answer.send(await self._read(read))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def _path(scope: Scope) -> str:
    """The path below where the app is mounted, as PATH_INFO is: not every layer takes that off."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


class AsyncShared:
    """Reads for the tasks of an event loop; each loop has answers of its own."""

    def __init__(self, presence: AsyncPresence, clock: Clock = time.monotonic) -> None:
        self._presence, self._clock = presence, clock
        self._of_loop: RunVar[Slots] = RunVar("presence_board")

    async def __call__(self, read: Read) -> Slot:
        """The answer to a question, a second old at most."""
        slot, is_mine = self._slots().claim(read, anyio.Event)
        if is_mine:
            with slot.filled(self._clock):
                slot.answer = await self._presence.run(read.plan(self._presence.backend.queries))
        else:
            await slot.ready.wait()
        return slot

    def _slots(self) -> Slots:
        slots = self._of_loop.get(None)
        if slots is None:
            self._of_loop.set(slots := Slots(self._clock))
        return slots
