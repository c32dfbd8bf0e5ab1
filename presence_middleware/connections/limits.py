"""Limits on reads: how long a read may take, and how many may use a client at once.

The timeouts of a client bound a single packet and start again with the next one, so a read needs a
deadline of its own. The pools of redis-py raise an error when all connections are in use, so
readers wait for a slot instead. The thread that writes takes no slot and never waits for readers.
"""

import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import ConnectionsBusy, PresenceUnavailable, is_silence

# How many readers use a client at once. A round trip occupies each for less than a millisecond.
CONNECTIONS = 16
# How many connections of a pool are reserved for whatever writes.
RESERVED = 4

# For how long a request that has met an outage asks nothing.
OUTAGE_PAUSE = 5.0

DEADLINE: ContextVar[float] = ContextVar("presence_deadline", default=math.inf)
"""When a round trip must have ended, by `time.monotonic()`."""


def remaining() -> float:
    """Return the seconds until the deadline: negative after it, infinite without a deadline."""
    return DEADLINE.get() - time.monotonic()


def _until_deadline(name: str) -> Any:
    """Return a method of sockets that raises `TimeoutError` at the deadline."""

    def method(self: "TimedSocket", *arguments: Any) -> Any:
        seconds = DEADLINE.get() - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        timeout = seconds if self._timeout is None else min(self._timeout, seconds)
        # Setting a timeout is a system call, so do it only for a change.
        if timeout != self._applied_timeout:
            self._sock.settimeout(None if timeout == math.inf else timeout)
            self._applied_timeout = timeout
        return getattr(self._sock, name)(*arguments)

    return method


class TimedSocket:
    """A socket that waits until the deadline at most; its own timeout may be shorter."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # redis-py reads these two before each command, and `__getattr__` would be slow.
        self.fileno = sock.fileno
        self.pending = getattr(sock, "pending", int)  # a socket without TLS buffers no bytes
        self._timeout = self._applied_timeout = sock.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = self._applied_timeout = timeout
        self._sock.settimeout(timeout)

    recv, recv_into, sendall = map(_until_deadline, ("recv", "recv_into", "sendall"))


class Patience:
    """Lets a request wait for an outage once, however often it asks: a context manager.

    Raises `PresenceUnavailable` at once if Redis did not answer in the block a moment ago.
    """

    _asks_after = -math.inf

    def __enter__(self) -> None:
        if time.monotonic() < self._asks_after:
            raise PresenceUnavailable("Redis did not answer this request a moment ago")

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if is_silence(error):
            self._asks_after = time.monotonic() + OUTAGE_PAUSE


# By client, and by process and type of locks. Slots that threads of a parent process held are never
# released in its child, and gevent may have replaced the locks since.
_slots: WeakKeyDictionary[Any, dict[Any, threading.Semaphore]] = WeakKeyDictionary()


@contextmanager
def slot(client: Any, max_readers: int | None) -> Iterator[None]:
    """Use a client in the block, as one of `free_slots`.

    Raises `ConnectionsBusy` if none gets free in half of the time until the deadline: the rest is
    for Redis.
    """
    free = free_slots(client, max_readers)
    if not free.acquire(timeout=min(max(remaining(), 0.0) / 2, threading.TIMEOUT_MAX)):
        raise ConnectionsBusy
    try:
        yield
    finally:
        try:
            free.release()
        except BaseException:  # gevent killed the greenlet that waited to return its slot
            free.release()
            raise


def free_slots(client: Any, max_readers: int | None) -> threading.Semaphore:
    """Return the semaphore of a client's slots.

    `max_readers` is how many may use the client at once, by default the room in its pool.
    """
    user = os.getpid(), threading.Lock
    semaphores = _slots.setdefault(client, {})
    free = semaphores.get(user)
    if free is None:
        pool = getattr(client, "connection_pool", None)
        size = getattr(pool, "max_connections", None) or math.inf
        room = max_readers or int(max(1, min(CONNECTIONS, size - 1)))
        for former in set(semaphores) - {user}:
            semaphores.pop(former, None)
        # If several threads make one at once, all use the first.
        free = semaphores.setdefault(user, threading.Semaphore(room))
    return free
