"""The event loop that runs the caller, and the end of its server."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from typing import Any, TypeVar

from ..errors import WouldBlock
from .limits import CONNECTIONS

T = TypeVar("T")


def is_trio() -> bool:
    """Return whether trio runs the caller. This never imports trio."""
    with suppress(KeyError, RuntimeError):
        sys.modules["trio"].lowlevel.current_trio_token()
        return True
    return False


def is_in_loop() -> bool:
    """Return whether an event loop runs the caller."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    return is_trio()


def require_asyncio() -> None:
    """Raise `WouldBlock` if trio runs the caller: redis-py has no client for it."""
    if is_trio():
        raise WouldBlock(
            "AsyncPresence requires asyncio, and this is trio: use Presence in a thread, as in "
            "await trio.to_thread.run_sync(presence.count)"
        )


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking function in a thread; return its result. Raises `WouldBlock` under trio."""
    require_asyncio()
    return await outside_loop(function, *arguments)


async def outside_loop(
    function: Callable[..., T], *arguments: Any, use: str = "reader", most: int = CONNECTIONS
) -> T:
    """Run a blocking function in a thread, also under trio; return its result.

    It is one of `most` threads for a `use`: what many wait for delays no other use.
    """
    if is_trio():
        import trio

        return await trio.to_thread.run_sync(function, *arguments)
    work = partial(copy_context().run, function, *arguments)
    if not threading.main_thread().is_alive():  # Python has ended all executors
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads(os.getpid(), use, most), work)


@cache
def _threads(process: int, use: str, most: int) -> ThreadPoolExecutor:
    """Return the threads of a process, for all its loops: a loop's own may be busy with the app."""
    return ThreadPoolExecutor(most, f"presence-{use}")


def is_server_stopping() -> bool:
    """Return whether uvicorn runs this process and was asked to exit.

    uvicorn waits for every response to end, and reports its shutdown to the app only after that. So
    this looks at its server, whose method handles the signals. For any thread.
    """
    handlers = map(signal.getsignal, (signal.SIGTERM, signal.SIGINT))
    servers = [getattr(handler, "__self__", None) for handler in handlers]
    return any(getattr(server, "should_exit", False) is True for server in servers)
