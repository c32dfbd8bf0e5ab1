"""How long a question to Redis may take, however many timeouts are in it."""

import math
import time
from contextvars import ContextVar

READ_SECONDS = 2.0
"""For all that a plan waits: somebody waits for the page that asked.

A client's own timeouts bound a single packet, and begin again with the next one.
"""
PROMPT_SECONDS = 0.1
"""A round trip up to this long is not counted: a list of a million takes a thousand of them."""

_end: ContextVar[float] = ContextVar("presence_end", default=math.inf)


class within:  # noqa: N801 - read as a statement
    """Have everything in the block end in so many seconds, or sooner if that is asked already."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._token = _end.set(min(_end.get(), time.monotonic() + self._seconds))

    def __exit__(self, *_: object) -> None:
        _end.reset(self._token)


def remaining() -> float:
    """Return the seconds that are left, below zero if the time is over; without end, infinity."""
    return _end.get() - time.monotonic()


class Allowance:
    """The seconds that one plan may wait for Redis in all."""

    def __init__(self) -> None:
        self.left = READ_SECONDS
        self._began = 0.0

    def begin(self) -> None:
        """Note that a round trip begins."""
        self._began = time.monotonic()

    def end(self) -> None:
        """Note that it has ended, and how long it took."""
        took = time.monotonic() - self._began
        if took > PROMPT_SECONDS:
            self.left -= took
