"""The event loop that runs the caller, of asyncio or trio, and the end of its server."""

import asyncio
import math
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
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


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for no event loop, and return its result.

    So what threads and coroutines do alike is written once.
    """
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking function in a thread of the running event loop; return its result."""
    if not is_trio():
        return await asyncio.to_thread(function, *arguments)
    import trio

    return await trio.to_thread.run_sync(function, *arguments)


def is_server_stopping() -> bool:
    """Return whether uvicorn runs this process and was asked to exit.

    uvicorn waits for every response to end, and reports its shutdown to the app only after that. So
    this looks at its server, whose method handles the signals. For any thread.
    """
    handlers = map(signal.getsignal, (signal.SIGTERM, signal.SIGINT))
    servers = [getattr(handler, "__self__", None) for handler in handlers]
    return any(getattr(server, "should_exit", False) is True for server in servers)


class Waiter:
    """Lets a coroutine wait until a thread wakes it. Of asyncio or trio, and used once."""

    def __init__(self) -> None:
        """Create a waiter in the running event loop."""
        self._event: Any
        self._call_soon: Callable[..., object]
        if is_trio():
            import trio

            self._event = trio.Event()
            self._call_soon = trio.lowlevel.current_trio_token().run_sync_soon
        else:
            self._event = asyncio.Event()
            self._call_soon = asyncio.get_running_loop().call_soon_threadsafe

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until `wake` is called, at most `seconds`; None for as long as it takes."""
        if is_trio():
            import trio

            with trio.move_on_after(math.inf if seconds is None else seconds):
                await self._event.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

    def wake(self) -> None:
        """Wake the coroutine. Does nothing if its event loop has ended. For any thread."""
        with suppress(RuntimeError):
            self._call_soon(self._event.set)
