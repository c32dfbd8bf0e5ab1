"""The event loop that runs the caller: that of asyncio or that of trio."""

import asyncio
import sys
from collections.abc import Callable
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
