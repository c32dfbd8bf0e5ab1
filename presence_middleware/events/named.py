"""The subscription of a named iterator: one process at a time receives events under a name."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from secrets import token_hex

from ..errors import PresenceError, PresenceUnavailable
from ..stores import Position
from .event import Event, Item, cursor_of
from .streams import Streams
from .subscription import BaseSubscription, Outage, Sleeper

LEASE_SECONDS = 10.0  # after which another process takes the place of one that died
ENOUGH_QUEUED = 1000  # a named iterator reads no more while so many events wait


class NamedSubscription(BaseSubscription):
    """The events that wait for a named iterator, while it holds the lease of the name.

    The iterators of all processes that use a name share its lease. An event counts as handled when
    its iterator is asked for the next one.
    """

    def __init__(self, name: str, among: frozenset[str] | None = None) -> None:
        """Create a subscription for events of the ids `among`, or of all, under a name."""
        super().__init__(among)
        self.positions: list[Position] | None = None
        """Up to where events have been read. None unless it holds the lease."""
        self.outage = Outage()
        self.released = threading.Event()
        """Set when the lease has been given up, after the iterator was closed."""
        self._name = name
        # Identifies this iterator in the lease.
        self._who = token_hex(8)
        # Where the name begins if it is not known yet: the cursor of when this was created.
        self._start = ""
        self._failure: PresenceUnavailable | None = None
        self._held_until = 0.0
        self._handled = ""
        # The cursor of the event that the iterator returned last.
        self._in_hand = ""
        self._is_waiting = False

    def take(self, sleeper: Sleeper) -> Event | None:
        """Note that the last event is handled; return the next, or None as `Subscription.take`.

        Returns None also at the end, and if the lease was not renewed in time, because another
        process may hold it by now. Raises `PresenceUnavailable` in an outage, and `EventsLost`.
        """
        with self._lock:
            self._handled, self._in_hand = self._in_hand or self._handled, ""
            self._is_waiting = False
            failure, self._failure = self._failure, None
            if self.is_ended:
                return None  # what waits is for the process that holds the lease next
            if failure is not None:
                raise failure
            if not self._queue or time.monotonic() >= self._held_until:
                self._is_waiting, self._sleeper = True, sleeper
                return None
            item = self._queue.popleft()
            if isinstance(item, PresenceError):
                raise item
            self._in_hand = item.cursor
            return item

    @property
    def is_new(self) -> bool:
        """Whether it has not asked for the lease yet."""
        return not self._start

    @property
    def handled(self) -> str:
        """The cursor up to which events are handled; empty unless it holds the lease."""
        with self._lock:
            if self.positions is not None and self._is_waiting and not self._queue:
                return cursor_of(self.positions)  # also after events of ids that are not wanted
            return self._handled

    @property
    def has_room(self) -> bool:
        """Whether to read more events: a slow iterator leaves them in the stream."""
        return len(self._queue) < ENOUGH_QUEUED

    def begin(self, positions: list[Position]) -> None:
        """Go on from `positions`, because it holds the lease from now on."""
        with self._lock:
            self.positions = positions
            self._queue.clear()
            self._handled, self._in_hand = cursor_of(positions), ""

    def lose(self) -> None:
        """Drop what is not handled, because another process holds the lease."""
        with self._lock:
            self.positions = None
            self._queue.clear()
            self._handled = self._in_hand = ""
            self._held_until = 0.0

    def renew(self, until: float) -> None:
        """Let the iterator go on until a time of `time.monotonic()`."""
        with self._lock:
            self._held_until = until
        self._wake()

    def put(self, items: Sequence[Item], positions: list[Position]) -> None:
        """Add events and errors, which end at `positions`, and wake the iterator."""
        with self._lock:
            self._queue += self._filtered(items)
            self.positions = positions
        self._wake()

    def serve(self, streams: Streams) -> bool:
        """Renew the lease, and read what is new; return whether there may be more.

        A failure is reported to the iterator if it lasts.
        """
        try:
            has_more = self._hold(streams) and self._read_on(streams)
        except Exception as failure:
            error = self.outage.error_for(failure)
            if error is not None:
                with self._lock:
                    self._failure = error
                self._wake()
            return False
        self.outage.end()
        return has_more

    def release(self, streams: Streams) -> None:
        """Give up the lease, because the iterator was closed. Without Redis, it runs out."""
        with suppress(PresenceError):
            streams.run(streams.lease(self._name).give_up(self._who, self.handled))
        self.released.set()

    def _hold(self, streams: Streams) -> bool:
        """Take or renew the lease; return False if another process holds it.

        Raises `PresenceUnavailable`.
        """
        asked_at = time.monotonic()
        if not self._start:
            self._start = cursor_of(streams.positions(asked_at - self.created_at))
        handled = self.handled
        start = handled or self._start  # a server that lost its data knows no name
        lease = streams.lease(self._name)
        held = streams.run(lease.take(self._who, LEASE_SECONDS, handled, start))
        if held is None:
            self.lose()
            return False
        if self.positions is None or not held.is_renewed:
            self.begin(streams.resume(held.place))
        self.renew(asked_at + LEASE_SECONDS)
        return True

    def _read_on(self, streams: Streams) -> bool:
        """Read on if the iterator keeps up; return whether there may be more.

        Raises `PresenceUnavailable` if no shard can be read.
        """
        if self.positions is None or not self.has_room:
            return False
        positions = list(self.positions)
        events, has_more = streams.read_on(positions)
        self.put(events, positions)
        return has_more

    def _wake(self) -> None:
        with self._lock:
            sleeper = self._sleeper if self._queue or self._failure else None
        if sleeper is not None:
            sleeper.wake()
