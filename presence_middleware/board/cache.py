"""Results that readers share, so that Redis is read once a second for any number of readers.

The first reader runs the read, and the others wait for its result. A failure is shared for a
second, too. If the first reader is cancelled or killed, a waiting reader runs the read instead.
"""

import asyncio
import concurrent.futures
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from ..errors import PresenceError, QueryError
from ..stores import Plan
from . import BUSY, UNAVAILABLE, Response, problem

MAX_RESULTS = 256  # of each topic
PATIENCE = 5.0  # seconds that readers wait for a read before another starts
FAILURE_SECONDS = 1.0  # how long a failure is shared


class SharedRead(NamedTuple):
    """A read from Redis whose result readers share."""

    topic: str
    """Reads of a topic make room for each other and push out no others."""
    arguments: tuple[Any, ...]
    plan: Plan[Any]
    """Reads the response, or what `finish` makes a response of."""
    seconds: float = 1.0
    """For how long the result is shared after the read began."""
    finish: Callable[[Any], Response] = lambda result: result
    """Return the response for one of the readers."""
    is_bounded: bool = False
    """True if a new read is refused while the topic has `MAX_RESULTS` that are still shared."""


class _Result:
    """The result of a read, or its place while the read runs."""

    def __init__(self, expires: float) -> None:
        self.expires = expires
        self.value: Any = None
        """A response, or what `finish` makes one of. None if the reader was cancelled."""
        self.running: Future[None] | None = Future()
        """Ends with the read, then None: it may hold the event loops of those who waited."""


class Cache:
    """The results of the latest reads, for threads, greenlets and the tasks of any event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()  # never held while a read runs
        # Of each process, because a read of the parent ends in no fork.
        self._topics: dict[tuple[int, str], dict[tuple[Any, ...], _Result]] = {}

    async def get(
        self, read: SharedRead, run: Callable[[Plan[Any]], Any], *, is_async: bool = False
    ) -> Response:
        """Return the response of a read. `run` runs its plan if no other reader does.

        With `is_async`, the result of `run` is awaited, and the loop of asyncio is not blocked.
        Without, this waits for no event loop. An error of the package becomes a response. Any
        other, such as that of a cancelled task, leaves the read to a waiting reader.
        """
        value = None
        while value is None:
            began = self._clock()
            with self._lock:
                results = self._topics.setdefault((os.getpid(), read.topic), {})
                result = results.pop(read.arguments, None)
                is_mine = result is None or began >= result.expires
                is_full = len(results) >= MAX_RESULTS
                if read.is_bounded and is_full and began < next(iter(results.values())).expires:
                    return BUSY
                if result is None or is_mine:
                    result = _Result(began + PATIENCE)
                if is_full:
                    del results[next(iter(results))]
                results[read.arguments] = result
            running = result.running
            if is_mine and running is not None:
                try:
                    found = run(read.plan)
                    result.value = await found if is_async else found
                    result.expires = began + read.seconds
                except PresenceError as error:
                    # Other reasons may name hosts, and no reader can do anything about them.
                    is_mistake = isinstance(error, QueryError)
                    result.value = problem(400, str(error)) if is_mistake else UNAVAILABLE
                    result.expires = self._clock() + FAILURE_SECONDS
                except BaseException:
                    result.expires = -math.inf
                    raise
                finally:
                    result.running = None
                    running.set_result(None)
            elif running is not None:
                if is_async:
                    await asyncio.wait((asyncio.wrap_future(running),), timeout=PATIENCE)
                else:
                    concurrent.futures.wait((running,), PATIENCE)
                if not running.done():
                    return UNAVAILABLE
            value = result.value
        return value if isinstance(value, Response) else read.finish(value)
