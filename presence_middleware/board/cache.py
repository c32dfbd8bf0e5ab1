"""Results that readers share, so that Redis is read once a second for any number of readers.

The first reader of a slot runs the read, and the others wait for its result. A failure is shared
for a second, too. If the first reader is cancelled, a waiting reader runs the read instead.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import PresenceUnavailable
from .reads import Read

MAX_SLOTS = 256
PATIENCE = 5.0  # seconds that readers wait for a read before another starts
FAILURE_SECONDS = 1.0  # how long a failure is shared

Clock = Callable[[], float]


class Slot:
    """The result of a read, or its place while the read runs."""

    def __init__(self, ready: Any, started: float, seconds: float) -> None:
        """`ready` is an event; the result is shared until `seconds` after `started`."""
        self.ready: Any | None = ready
        """An event while the read runs, then None: an event may hold its event loop."""
        self.is_abandoned = False
        self._expires = started + PATIENCE
        self._serves_until = started + seconds
        self._result: Any = None
        self._error: Exception | None = PresenceUnavailable("the read takes too long")

    def is_current(self, now: float) -> bool:
        """Return whether readers use this slot at `now`, in seconds, rather than read again."""
        return now < self._expires

    def fill(self, result: Any) -> None:
        """Share a result."""
        self._result, self._error = result, None
        self._expires = self._serves_until

    @contextmanager
    def reading(self, clock: Clock) -> Iterator[None]:
        """Run a read that calls `fill`, and wake the waiting readers, also after an error.

        `clock` returns seconds. An error is shared. A cancelled reader abandons the slot, and a
        waiting reader runs the read.
        """
        try:
            yield
        except Exception as error:
            self._error, self._expires = error, clock() + FAILURE_SECONDS
        except BaseException:
            self.is_abandoned, self._expires = True, -math.inf
            raise
        finally:
            ready, self.ready = self.ready, None
            if ready is not None:
                ready.set()

    def result(self) -> Any:
        """Return the result. Raise the error of the read if it failed."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._result


class Slots:
    """The slots of the most recent reads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # never held while a read runs
        self._slots: dict[Read, Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def claim(self, read: Read, event: Callable[[], Any]) -> tuple[Slot, bool]:
        """Return the slot of a read, and whether the caller must run the read.

        `event` makes an event that other callers can wait for.
        """
        now = self._clock()
        with self._lock:
            slot = self._slots.pop(read, None)
            is_mine = slot is None or not slot.is_current(now)
            if slot is None or is_mine:
                slot = Slot(event(), now, read.seconds)
            self._slots[read] = slot
            if len(self._slots) > MAX_SLOTS:
                del self._slots[self._oldest(read)]
            return slot, is_mine

    def _oldest(self, read: Read) -> Read:
        """Return the read to drop for `read`: the oldest with the same question, if any.

        Readers who ask for ever new rooms or ids must not push out the other reads.
        """
        alike = (each for each in self._slots if each.question is read.question)
        oldest = next(alike)
        return oldest if oldest != read else next(iter(self._slots))


class SharedReads:
    """Reads whose results threads and greenlets share."""

    def __init__(self, run: Callable[[Read], Any], clock: Clock = time.monotonic) -> None:
        """`run` reads from Redis and returns the result; `clock` returns seconds."""
        self._run, self._clock = run, clock
        self.slots = Slots(clock)

    def __call__(self, read: Read) -> Slot:
        """Return the slot of a read, once it has a result or an error."""
        while True:
            slot, is_mine = self.slots.claim(read, threading.Event)
            if is_mine:
                with slot.reading(self._clock):
                    slot.fill(self._run(read))
            elif (ready := slot.ready) is not None:
                ready.wait(PATIENCE)
            if not slot.is_abandoned:
                return slot
