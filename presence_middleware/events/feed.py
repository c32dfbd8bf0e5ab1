"""The feed of a kind: a thread that reads the streams, for all iterators of the process.

It only reads, and wakes the iterators: each takes from the page of the newest events by itself,
and whoever is behind the page reads the streams. The thread runs while an iterator is used. All
iterators end when the web server stops, which would otherwise wait for the responses that wait for
events.
"""

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from weakref import WeakSet, ref

from ..connections.health import Outage
from ..connections.loops import is_server_stopping
from ..errors import PresenceError
from ..logs import warn
from ..stores import Batch, Lease, Plan, agree, keys
from .streams import Event, Page, Positions, Streams, cursor_of

READ_EVERY = 1.0  # seconds
CHECK_EVERY = 25.0  # seconds between two looks at the settings of others: they are fresh for 30
WOKEN_AT_ONCE = 100  # iterators: a loop that has thousands serves others in between
WAKE_PAUSE = 0.002  # seconds
NAME_SECONDS = 3600  # for which a name is remembered that nobody reads under
LEASE_SECONDS = 10.0  # after which another process takes the place of one that died

Waker = Callable[[], object]
"""Lets an iterator that waits look for events again. For any thread."""


class Era:
    """What all iterators share until they are ended together. The thread runs while it exists."""

    is_over = False


class NameLease(Lease):
    """The lease of a name, for one iterator. The thread of the feed renews it.

    The iterators of all processes that use a name share it. An event counts as handled when its
    iterator is asked for the next one. Beside the lease is stored up to which place events have
    been handled, so that another process goes on from there.
    """

    def __init__(self, streams: Streams, name: str) -> None:
        """Create the lease of a name for the events of `streams`. It is not held yet."""
        super().__init__(keys.reader(streams.prefix, streams.kind, name), LEASE_SECONDS)
        self.outage = Outage()
        self.released = threading.Event()
        """Set when the lease has been given up, after the iterator was closed."""
        self._streams = streams
        self.start = ""
        """Where the name begins if Redis does not know it: the cursor of when this was created.

        After the lease was lost, that of what was handled. Empty until the lease is asked for."""
        self._created_at = time.monotonic()
        # Up to where events were handled; empty if another reader had the lease lately.
        self._handled = ""
        # The cursor of the event that the iterator returned last.
        self._in_hand = ""
        self._is_awaited = False  # by the iterator, because the lease was not renewed in time
        self._begin: Positions | None = None

    def begin(self) -> Positions | None:
        """Return where the iterator has to go on, once after the lease was taken; else None."""
        with self.lock:
            begin, self._begin = self._begin, None
            return begin

    def hand_out(self, queue: Iterator[Event], end: Positions | None) -> Iterable[Event] | None:
        """Note that the last event is handled; return the next of `queue`, or none at its end.

        Everything up to `end` is handled then, also events of other ids. Return None if the lease
        was not renewed in time.
        """
        with self.lock:
            self._handled, self._in_hand = self._in_hand or self._handled, ""
            if self._begin is not None or not (self._handled and self.is_held):
                self._is_awaited = True
                return None
            for event in queue:
                self._in_hand = event.cursor
                return (event,)
            self._handled = cursor_of(end) if end else self._handled
            return ()

    def hold(self) -> bool:
        """Take or renew the lease; return True if the iterator has to be woken.

        A failure is reported to the iterator if it lasts.
        """
        streams = self._streams
        try:
            if not self.start:
                self.start = cursor_of(streams.positions(self._created_at))
            place = streams.run(self._hold())
        except Exception as failure:
            return self.outage.note(failure)
        self.outage.end()
        if not place:
            return False
        with self.lock:
            is_awaited, self._is_awaited = self._is_awaited or not self._handled, False
            if not self._handled:
                self._begin = streams.resume(place)
                self._handled = cursor_of(self._begin)
        return is_awaited

    def _hold(self) -> Plan[str]:
        """Take or renew the lease; return the place that is stored, empty if another holds it."""
        handled, place = self._handled, keys.handled(self.key)
        if handled:
            yield from self.renew(LEASE_SECONDS)
            if self.is_held:
                yield Batch((("SET", place, handled, "EX", NAME_SECONDS),))
                return handled
            with self.lock:
                self.start, self._handled, self._in_hand = handled, "", ""
        if (yield from self.take(LEASE_SECONDS)):
            return ""
        # A server that lost its data has no place.
        return (yield from agree(place, self.start, NAME_SECONDS))

    def end(self) -> None:
        """Give up the lease, because the iterator was closed. Without Redis, it runs out."""
        with suppress(PresenceError):
            if self._handled:
                self._streams.run(self._hold())
            self._streams.run(self.give_up())
        self.released.set()


class Feed:
    """Reads the streams of a kind once a second, and wakes the iterators of this process.

    A forked child has neither its thread nor its iterators, and needs a feed of its own.
    """

    def __init__(
        self, streams: Streams, upkeep: Callable[[], None], is_announced: Callable[[], bool]
    ) -> None:
        """Create a feed.

        `upkeep` announces who has gone, unless another process does: of a site that is asleep, this
        process may be the only one that runs. `is_announced` returns False if another process
        records and does not announce the events of this kind.
        """
        self.streams, self.pid = streams, os.getpid()
        self._upkeep, self._is_announced = upkeep, is_announced
        self.page = Page(streams)
        self.waiters: set[Waker] = set()
        self.outage = Outage()
        self._era: Callable[[], Era | None] = lambda: None
        self._lock = threading.Lock()
        # Wakes the thread. A lease in it is to be given up.
        self._woken: queue.SimpleQueue[NameLease | None] = queue.SimpleQueue()
        self._leases: WeakSet[NameLease] = WeakSet()
        self._thread: threading.Thread | None = None
        self._check_at = -math.inf

    def open(self, lease: NameLease | None = None) -> Era:
        """Start the thread if it does not run; return the era of a new iterator.

        The lease is renewed from now on.
        """
        with self._lock:
            era = self._era() or Era()
            if self._thread is None:
                self.page = Page(self.streams)
                thread = threading.Thread(
                    target=self._run, args=(self.page,), name="presence-events", daemon=True
                )
                thread.start()
                self._thread = thread
            self._era = ref(era)
            if lease is not None:
                self._leases.add(lease)
            return era

    def release(self, lease: NameLease | None) -> None:
        """Let the thread give up a lease, or end. For any thread, amid a garbage collection."""
        self._woken.put(lease)

    def close(self, wait_seconds: float = 0.0) -> None:
        """End all iterators. Wait for at most `wait_seconds` until their names are given up."""
        deadline = time.monotonic() + wait_seconds
        with self._lock:
            era, self._era = self._era(), lambda: None
            if era:
                era.is_over = True
            leases = list(self._leases)
            self._leases.clear()
        # The thread may be giving them up before anybody waits for that.
        held = [lease for lease in leases if lease.is_held]
        for lease in leases:
            self.release(lease)
        self._wake()
        for lease in held:
            lease.released.wait(max(0.0, deadline - time.monotonic()))

    def _wake(self) -> None:
        # Whoever is awake may wait again before the last of these is woken.
        for number, waiter in enumerate(list(self.waiters), 1):
            self.waiters.discard(waiter)
            waiter()
            if number % WOKEN_AT_ONCE == 0:
                time.sleep(WAKE_PAUSE)

    def _run(self, page: Page) -> None:
        read_at = time.monotonic()
        while True:
            if is_server_stopping():
                self.close()
            with self._lock:
                leases = list(self._leases)
                if self.page is not page:
                    return  # an interrupt came while it started, and there is another thread
                if self._woken.empty() and not self._era():
                    self._thread = None
                    return
            now = time.monotonic()
            if now >= read_at:
                if not self._read():
                    read_at = now + READ_EVERY
                if sum(each.hold() for each in leases):  # unlike any(), this holds them all
                    self._wake()
            del leases  # those of iterators that nobody uses are forgotten
            with suppress(queue.Empty):
                lease = self._woken.get(timeout=max(0.0, read_at - time.monotonic()))
                if lease is not None:
                    with self._lock:
                        self._leases.discard(lease)
                    lease.end()

    def _read(self) -> bool:
        """Read what is new; return whether there may be more."""
        until = time.monotonic() + READ_EVERY
        if self.outage.since is None:
            with suppress(Exception):  # a user that may only read, for example
                self._upkeep()
            with suppress(Exception):
                if until > self._check_at:
                    self._check_at = until + CHECK_EVERY
                    if not self._is_announced():
                        self._check_at = math.inf  # this is said once
                        warn(
                            "a process that records does not announce the events of %s, so "
                            "iterators miss them; set PRESENCE_EVENTS to the same kinds in all "
                            "processes",
                            self.streams.kind,
                        )
        has_more = True
        while has_more and time.monotonic() < until:
            try:
                is_news, has_more = self.page.read_on()
            except Exception as failure:
                is_news, has_more = self.outage.note(failure), False
            else:
                self.outage.end()
            if is_news:
                self._wake()
        return has_more
