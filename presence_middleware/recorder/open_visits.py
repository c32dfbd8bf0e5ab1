"""The visits of a process that are open. They are refreshed, so that their users stay online."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

REFRESHED_IN_A_ROW = 200  # before other threads have their turn


class OpenVisit(Protocol):
    """The part of a visit that is used while it is open: `Visit` describes it."""

    arrival: float

    def note(self) -> None: ...
    def refresh(self, now: float, interval: float) -> None: ...
    def end(self) -> None: ...


class OpenVisits(dict[OpenVisit, None]):
    """The visits that have arrived and not ended, oldest first."""

    def __init__(self, stamp: Callable[[], float], age: float, interval: float) -> None:
        """Visits are refreshed once they are `age` seconds old, each once per `interval`.

        `stamp` is the recorder's clock.
        """
        super().__init__()
        self._stamp, self._age, self._interval = stamp, age, interval
        self.abandoned: deque[OpenVisit] = deque()
        """Visits whose response was dropped unclosed. Appending to it takes no lock."""

    def end_abandoned(self) -> None:
        """End the visits that were abandoned."""
        with suppress(IndexError):  # another thread may take the last
            while True:
                self.abandoned.popleft().end()

    def note(self) -> None:
        """Record all visits."""
        self.end_abandoned()
        for visit in list(self):
            visit.note()

    def refresh(self) -> None:
        """Record the visits that have been open for some time, each once per interval."""
        self.end_abandoned()
        for number, visit in enumerate(list(self), 1):
            # Not the same moment for all: a sweep takes all users of a moment together.
            now = self._stamp()
            if now - visit.arrival >= self._age:
                visit.refresh(now, self._interval)
            if not number % REFRESHED_IN_A_ROW:
                time.sleep(0)  # let other threads have their turn
