"""The event loop that runs the caller: that of asyncio or that of trio."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def is_trio() -> bool:
    """Return whether trio runs the caller. This never imports trio."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True


def is_in_loop() -> bool:
    """Return whether an event loop runs the caller."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return is_trio()
    return True


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking function in a thread of the running event loop; return its result."""
    if not is_trio():
        return await asyncio.to_thread(function, *arguments)
    import trio

    return await trio.to_thread.run_sync(function, *arguments)


class Waiter:
    """Lets a coroutine wait until a thread wakes it. Of asyncio or trio, and used once."""

    def __init__(self) -> None:
        """Create a waiter in the running event loop."""
        self._wait: Callable[[], Awaitable[object]]
        self._wake: Callable[[], object]
        if is_trio():
            import trio

            awaited = trio.Event()
            token = trio.lowlevel.current_trio_token()
            self._wait, self._wake = awaited.wait, partial(token.run_sync_soon, awaited.set)
        else:
            event, loop = asyncio.Event(), asyncio.get_running_loop()
            self._wait, self._wake = event.wait, partial(loop.call_soon_threadsafe, event.set)

    async def wait(self) -> None:
        """Wait until `wake` is called."""
        await self._wait()

    def wake(self) -> None:
        """Wake the coroutine. Does nothing if its event loop has ended. For any thread."""
        with suppress(RuntimeError):
            self._wake()
