"""How many readers may use a client at once. The next ones wait; they are no outage.

The library's pools raise where all connections are in use, and each of its sorts does so in its own
way. The thread that writes takes no slot: readers never keep it waiting.
"""

import asyncio
import math
import os
import threading
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import ConnectionsBusy
from .deadline import remaining

CONNECTIONS = 16
"""Readers that use a client at once; a round trip takes well under a millisecond of each."""
RESERVED = 4
"""Connections of a pool that are left for whatever writes."""

_slots: "WeakKeyDictionary[Any, Slots]" = WeakKeyDictionary()
_async_slots: "WeakKeyDictionary[Any, AsyncSlots]" = WeakKeyDictionary()


class Slots:
    """The slots of a client that threads or greenlets use."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._pid, self._lock_type = os.getpid(), threading.Lock
        self._free = threading.Semaphore(self._most)

    def __enter__(self) -> None:
        """Wait for a slot, and hold it for the block. Raises `ConnectionsBusy`."""
        # The slots that threads of a parent process held are never given back in its child, and
        # gevent may have replaced the locks since.
        if self._pid != os.getpid() or self._lock_type is not threading.Lock:
            self._begin()
        free = self._free
        if not free.acquire(blocking=False) and not free.acquire(timeout=longest_wait()):
            raise ConnectionsBusy

    def __exit__(self, *_: object) -> None:
        self._free.release()


class AsyncSlots:
    """The slots of a client that the tasks of an event loop use."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None

    async def acquire(self, seconds: float) -> asyncio.Semaphore:
        """Wait for a slot, so many seconds at most; return what to release afterwards.

        Raises `ConnectionsBusy`.
        """
        if self._loop is not (running := asyncio.get_running_loop()):
            self._loop, self._free = running, asyncio.Semaphore(self._most)
        free = self._free
        try:
            if free.locked():
                await asyncio.wait_for(free.acquire(), seconds)
            else:
                await free.acquire()
        except TimeoutError:
            raise ConnectionsBusy from None
        return free


def slots_of(client: Any, most: int | None) -> Slots:
    """Return the slots of a client; `most` is how many, by default as its pool has room for."""
    slots = _slots.get(client)
    return slots or _slots.setdefault(client, Slots(most or _room(client)))


def async_slots_of(client: Any, most: int | None) -> AsyncSlots:
    """Return the same for an async client."""
    slots = _async_slots.get(client)
    return slots or _async_slots.setdefault(client, AsyncSlots(most or _room(client)))


def longest_wait() -> float:
    """Return how many seconds to wait for a slot: half of what is left, the rest is for Redis."""
    return min(max(remaining(), 0.0) / 2, threading.TIMEOUT_MAX)


def _room(client: Any) -> int:
    pool = getattr(client, "connection_pool", None)
    room = getattr(pool, "max_connections", None) or math.inf
    return int(max(1, min(CONNECTIONS, room - 1)))


def is_pool_full(error: BaseException) -> bool:
    """Return whether an error is a client's own pool that has no connection left."""
    return str(error) in {"Too many connections", "No connection available."}
