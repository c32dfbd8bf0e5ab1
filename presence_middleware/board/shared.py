"""What was read from Redis, shared by all who ask within a second.

Whoever asks first reads, the others wait for him. What failed is not tried again for a second.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import PresenceUnavailable
from ..presence import Presence
from .reads import Read

MOST = 256  # questions whose answers are held
PATIENCE = 5.0  # seconds for which a question may be on its way
FAILED_FOR = 1.0  # seconds

Clock = Callable[[], float]


class Slot:
    """The answer to one question, or the place for it while it is on its way."""

    def __init__(self, ready: Any, asked: float, seconds: float) -> None:
        self.ready, self._asked, self._seconds = ready, asked, seconds
        self.answer: Any = None
        self._error: Exception | None = PresenceUnavailable("the read broke off, or takes too long")

    def serves(self, now: float) -> bool:
        """Whether nobody need ask again."""
        return now - self._asked < (self._seconds if self.ready.is_set() else PATIENCE)

    @contextmanager
    def filled(self, clock: Clock) -> Iterator[None]:
        """Has those who wait go on in the end, whatever comes."""
        try:
            yield
            self._error = None
        except Exception as error:
            self._error = error
        finally:
            if self._error:
                self._asked, self._seconds = clock(), FAILED_FOR
            self.ready.set()

    def result(self) -> Any:
        """The answer; raises what the one who asked met with."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self.answer


class Slots:
    """The answers of the last second, and a few that keep longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # never held while anybody waits
        self._slots: dict[Read, Slot] = {}

    def claim(self, read: Read, event: Callable[[], Any]) -> tuple[Slot, bool]:
        """The place for an answer, and whether the caller is the one to get it."""
        now = self._clock()
        with self._lock:
            slot = self._slots.pop(read, None)
            is_mine = slot is None or not slot.serves(now)
            if slot is None or is_mine:
                slot = Slot(event(), now, read.seconds)
            self._slots[read] = slot
            if len(self._slots) > MOST:
                del self._slots[next(iter(self._slots))]
            return slot, is_mine


class Shared:
    """Reads for threads and greenlets."""

    def __init__(self, presence: Presence, clock: Clock = time.monotonic) -> None:
        self._presence, self._clock = presence, clock
        self._slots = Slots(clock)

    def __call__(self, read: Read) -> Slot:
        """The answer to a question, a second old at most."""
        slot, is_mine = self._slots.claim(read, threading.Event)
        if is_mine:
            with slot.filled(self._clock):
                slot.answer = self._presence.run(read.plan(self._presence.backend.queries))
        else:
            slot.ready.wait(PATIENCE)
        return slot
