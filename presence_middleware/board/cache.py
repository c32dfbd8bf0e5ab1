"""Results that readers share, so that Redis is read once a second for any number of readers.

The first reader runs the read, and the others wait for its result. A failure is shared for a
second, too. If the first reader is killed, a waiting reader runs the read instead.
"""

import os
import threading
import time
from collections.abc import Callable
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
        """A response, or what `finish` makes one of. None until a reader has read it."""
        self.reading = threading.Lock()


class Cache:
    """The results of the latest reads, for threads and greenlets."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()  # never held while a read runs
        # Of each process, because a read of the parent ends in no fork.
        self._topics: dict[tuple[int, str], dict[tuple[Any, ...], _Result]] = {}

    def get(self, read: SharedRead, run: Callable[[Plan[Any]], Any]) -> Response:
        """Return the response of a read. `run` runs its plan if no other reader does.

        An error of the package becomes a response. Any other leaves the read to a waiting reader.
        """
        began = self._clock()
        with self._lock:
            results = self._topics.setdefault((os.getpid(), read.topic), {})
            result = results.pop(read.arguments, None)
            is_full = len(results) >= MAX_RESULTS
            if read.is_bounded and is_full and began < next(iter(results.values())).expires:
                return BUSY
            if result is None or began >= result.expires:
                result = _Result(began + PATIENCE)
            if is_full:
                del results[next(iter(results))]
            results[read.arguments] = result
        if not result.reading.acquire(timeout=PATIENCE):
            return UNAVAILABLE
        try:
            if result.value is None:
                result.value = run(read.plan)
                result.expires = began + read.seconds
        except PresenceError as error:
            # Other reasons may name hosts, and no reader can do anything about them.
            is_mistake = isinstance(error, QueryError)
            result.value = problem(400, str(error)) if is_mistake else UNAVAILABLE
            result.expires = self._clock() + FAILURE_SECONDS
        finally:
            result.reading.release()
        value = result.value
        return value if isinstance(value, Response) else read.finish(value)
