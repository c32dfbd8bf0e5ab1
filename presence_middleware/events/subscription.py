"""A subscription: the events that wait for an iterator."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from ..errors import EventsLost, PresenceError, PresenceUnavailable
from ..stores import Position
from .event import Event, Item
from .streams import Streams

MAX_QUEUED = 10_000  # events that wait for a slow iterator
OUTAGE_SECONDS = 10.0  # after which iterators report an outage


class Sleeper(Protocol):
    """An iterator that waits for an event."""

    def wake(self) -> None:
        """Let it look for events again. For any thread."""


class Outage:
    """How long Redis has not answered."""

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether Redis did not answer the last time."""
        return self._since is not None

    def error_for(self, failure: Exception) -> PresenceUnavailable | None:
        """Note a failure; return an error every `OUTAGE_SECONDS` of an outage, else None."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since < OUTAGE_SECONDS:
            return None
        self._since = now
        return PresenceUnavailable(f"no events can be read: {failure}")

    def end(self) -> None:
        """Note that Redis answers."""
        self._since = None


class BaseSubscription:
    """What all subscriptions share: a queue, and the iterator that waits for it."""

    def __init__(self, among: frozenset[str] | None) -> None:
        self.created_at = time.monotonic()
        """When it was created, by `time.monotonic()`."""
        self.is_ended = False
        """Whether nothing will be added any more."""
        self._among = among
        self._queue: deque[Item] = deque()
        self._lock = threading.Lock()
        self._sleeper: Sleeper | None = None

    def end(self) -> None:
        """End the iteration. For any thread."""
        # Without the lock: the garbage collector may end an iterator in a thread that holds it.
        self.is_ended = True
        sleeper = self._sleeper
        if sleeper is not None:
            sleeper.wake()

    def _filtered(self, items: Sequence[Item]) -> list[Item]:
        among = self._among
        if among is None:
            return list(items)
        return [item for item in items if isinstance(item, PresenceError) or item.id in among]


class Subscription(BaseSubscription):
    """The events that wait for an iterator without a name."""

    def __init__(
        self, among: frozenset[str] | None = None, after: list[Position] | None = None
    ) -> None:
        """Create a subscription for events of the ids `among`, or of all.

        `after` are the positions to begin at, one for each shard; None to begin now.
        """
        super().__init__(among)
        self.after = after
        """The positions to go on from, until everything that came since is delivered."""

    def put(self, items: Sequence[Item]) -> None:
        """Add events and errors, and wake the iterator."""
        with self._lock:
            self._queue += self._filtered(items)
            if len(self._queue) > MAX_QUEUED:
                self._queue.clear()
                self._queue.append(EventsLost("this reader is too slow: too many events wait"))
            sleeper = self._sleeper if self._queue else None
        if sleeper is not None:
            sleeper.wake()

    def take(self, sleeper: Sleeper) -> Event | None:
        """Return the next event, or None if there is none: then `sleeper` is woken for the next.

        Raises an error that was added.
        """
        with self._lock:
            if not self._queue:
                self._sleeper = sleeper
                return None
            item = self._queue.popleft()
        if isinstance(item, PresenceError):
            raise item
        return item

    def catch_up(self, streams: Streams, ends: Sequence[Position]) -> None:
        """Add what was announced between `after` and `ends`. If a shard is away, not all of it.

        Raises `PresenceUnavailable` if no shard can be read.
        """
        positions, has_more = self.after, True
        while positions is not None and has_more:
            events, has_more = streams.read_until(positions, ends)
            self.put(events)
        if positions is not None and _numbers(positions) == _numbers(ends):
            self.after = None


def _numbers(positions: Sequence[Position]) -> list[int]:
    return [position.number for position in positions]
