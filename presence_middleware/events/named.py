"""The lease of a named iterator: one process at a time receives events under a name."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from secrets import token_hex

from ..errors import PresenceError
from .outage import Outage
from .streams import Event, Positions, Streams, cursor_of

LEASE_SECONDS = 10.0  # after which another process takes the place of one that died


class NameLease:
    """The lease of a name, for one iterator. The thread of the feed renews it.

    The iterators of all processes that use a name share it. An event counts as handled when its
    iterator is asked for the next one.
    """

    def __init__(self, streams: Streams, name: str) -> None:
        """Create the lease of a name for the events of `streams`. It is not held yet."""
        self.outage = Outage()
        self.released = threading.Event()
        """Set when the lease has been given up, after the iterator was closed."""
        self._streams, self._lease = streams, streams.lease(name)
        # Identifies this iterator in the lease.
        self._who = token_hex(8)
        # Where the name begins if it is not known yet: the cursor of when this was created.
        self._start = ""
        self._created_at = time.monotonic()
        self._held_until = 0.0
        self._handled = ""
        # The cursor of the event that the iterator returned last.
        self._in_hand = ""
        self._begin: Positions | None = None
        self._lock = threading.Lock()

    @property
    def is_new(self) -> bool:
        """Whether it was not asked for yet."""
        return not self._start

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lease: another may take it once it was not renewed."""
        return time.monotonic() < self._held_until

    def begin(self) -> Positions | None:
        """Return where the iterator has to go on, once after the lease was taken; else None."""
        with self._lock:
            begin, self._begin = self._begin, None
            return begin

    def hand_out(self, queue: Iterator[Event]) -> Iterable[Event]:
        """Note that the last event is handled; return the next, or none if there is none to handle.

        Returns none also if the lease was not renewed in time.
        """
        with self._lock:
            self._handled, self._in_hand = self._in_hand or self._handled, ""
            event = next(queue, None) if self.is_held and self._begin is None else None
            self._in_hand = event.cursor if event else ""
            return (event,) if event else ()

    def note_handled(self, positions: Positions) -> None:
        """Note that everything up to `positions` is handled, also events of other ids."""
        with self._lock:
            if self._begin is None and self.is_held:
                self._handled = cursor_of(positions)

    def renew(self) -> bool:
        """Take or renew the lease; return True if the iterator has to be woken.

        A failure is reported to the iterator if it lasts.
        """
        streams, asked_at, was_held = self._streams, time.monotonic(), self.is_held
        try:
            if not self._start:
                self._start = cursor_of(streams.positions(self._created_at))
            handled = self._handled
            start = handled or self._start  # a server that lost its data knows no name
            held = streams.run(self._lease.take(self._who, LEASE_SECONDS, handled, start))
        except Exception as failure:
            return self.outage.note(failure)
        self.outage.end()
        with self._lock:
            if held is None:
                self._held_until, self._handled, self._in_hand = 0.0, "", ""
                return False
            # A server that lost its data gave the lease anew, but nobody else had it meanwhile.
            if not self._handled or not (held.is_renewed or held.place == handled):
                self._begin, self._in_hand = streams.resume(held.place), ""
                self._handled = cursor_of(self._begin)
                was_held = False
            self._held_until = asked_at + LEASE_SECONDS
        return not was_held

    def give_up(self) -> None:
        """Give up the lease, because the iterator was closed. Without Redis, it runs out."""
        with suppress(PresenceError):
            self._streams.run(self._lease.take(self._who, 0, self._handled, ""))
        self.released.set()
