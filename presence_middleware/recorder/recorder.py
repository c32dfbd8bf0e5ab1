"""Takes sightings from visits and writes them, off the path of requests."""

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from os import getpid
from typing import Any
from weakref import WeakSet

from ..connections import Clock, driver
from ..identity import Found, View, Who
from ..settings import Settings
from .buffer import Buffer, Pending, Reason
from .notices import Notices
from .outage import Outage
from .reception import Reception
from .sampler import Sampler
from .thread import FlushThread, is_uwsgi
from .visit import Visit
from .watch import Watch
from .writer import MayTry, Writer

STAMP_OPEN_EVERY = 60.0  # seconds at most, a third of the window if that is less
ASKED_IN_A_ROW = 200  # open visits, before requests have their turn
WAKE_AGAIN = 1.0  # seconds
FLUSH_SECONDS = 2.0  # at most, for whoever waits for a write

log = logging.getLogger("presence_middleware")
live: WeakSet["Recorder"] = WeakSet()
"""The recorders of this process: all begin anew after a fork, and are closed at exit."""


@dataclass(frozen=True)
class Stats:
    """Counters since the process began: recorded = coalesced + flushed + pending + dropped."""

    recorded: int
    coalesced: int
    flushed: int
    pending: int
    dropped: dict[Reason, int]
    flushes: int
    """Attempts to write, also those that failed."""
    flush_seconds: float
    """How long they took in all."""
    last_error: str | None
    last_flush: datetime | None


class Recorder:
    """Records visits. Nothing here raises towards a request, and nothing on its path does I/O.

    Only where no thread runs, one request an interval does what the thread would.
    """

    def __init__(
        self, settings: Settings, *, client: Any = None, clock: Clock | None = None
    ) -> None:
        """Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names is not there."""
        self.settings = settings
        self._driver = driver(settings.redis_url, client, clock)
        self._joining = self._driver.joining()
        self.now = self._driver.clock.stamp
        self._notices = Notices(settings)
        self._reception = Reception(settings, self._notices)
        self.chain = self._reception.chain
        self._stamp_every = min(STAMP_OPEN_EVERY, settings.window / 3)
        self._is_threadless = False
        self.begin()
        live.add(self)

    def begin(self, pending: Pending | None = None) -> None:
        """A fresh state for this process: after a fork, the parent writes what it held itself."""
        self._pid = getpid()
        self._buffer = Buffer(self.settings.max_pending, pending)
        self.open_visits: dict[Visit, None] = {}
        self._abandoned: deque[Visit] = deque()
        self._flushing, self._starting = threading.Lock(), threading.Lock()
        self._ticking = threading.Lock()
        self._thread: FlushThread | None = None
        self._is_started = False
        self._watch = Watch(self.settings.flush_interval)
        self._wake_at = -math.inf
        self._writer = Writer(self.settings, self._driver, self._reception.shared, self._notices)
        self._sampler = Sampler(self.settings, self._driver)
        self._outage = Outage()
        self._last_flush: datetime | None = None

    def open(self, view: View) -> Visit:
        """A visit for an arriving request; its `end` must follow."""
        now = self.now()
        self._reception.receive(view, now)
        visit = Visit(self, view, now)
        if visit.counts:
            if not self._is_started:
                self._start()
            self.open_visits[visit] = None
        return visit

    def abandoned(self, visit: Visit) -> None:
        """Notes a visit that nobody will end; the thread does."""
        self._abandoned.append(visit)

    def record(self, who: Who, stamp: float, arrival: float | None = None) -> None:
        """Takes a sighting: a dictionary write. `arrival` is earlier where a connection is long."""
        self._buffer.put(who, (stamp, stamp if arrival is None else arrival))
        if stamp >= self._wake_at:
            self._wake()

    def admit(self, view: View, guest: Found, stamp: float) -> bool:
        """Whether a guest is not one too many of an address; counts those that are."""
        if self._reception.guests.admit(view, guest, stamp):
            return True
        self._buffer.refuse("quota")
        self._notices.quota_reached()
        return False

    def finished(self, id: Found) -> str | None:
        """An id as it is kept; None if it waits for a key that is not known yet."""
        return self._writer.finished(id)

    def flush(self, seconds: float = math.inf) -> bool:
        """Writes all that this process knows, in the caller's thread: open visits as they are, too.

        Returns whether nothing is left to write. Never raises.
        """
        self._end_abandoned()
        for visit in list(self.open_visits):
            visit.settle()
        return self._write(lambda _: True, seconds)

    @property
    def is_cut_off(self) -> bool:
        """Whether there is something that could not be written."""
        return self._outage.is_on

    def write_for_reader(self) -> None:
        """Writes what can be written without waiting for a server that failed: the thread does."""
        self._write(self._writer.backoff.is_well)

    def _write(self, may_try: MayTry, seconds: float = math.inf) -> bool:
        """Writes what waits, in the caller's thread; returns whether nothing is left to write.

        Never raises, and starts no round trip later than half of `seconds` from now.
        """
        self._check_process()
        deadline = time.monotonic() + seconds / 2
        if not self._buffer.pending:
            return True
        if not self._flushing.acquire(timeout=min(seconds, FLUSH_SECONDS) / 2):
            return False
        try:
            return self._write_pending(deadline, may_try)
        finally:
            self._flushing.release()

    def close(self) -> None:
        """Writes what waits, in two seconds at most, and ends the thread; a visit starts another.

        An embedded server that is gone is not started for it.
        """
        if getpid() != self._pid:
            return  # the parent's: it writes what it held
        self._writer.driver = self._joining
        if not self.flush(FLUSH_SECONDS):
            log.warning("presence: ends with %d not written", self._buffer.pending)
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
        self._is_started = False

    def stats(self) -> Stats:
        """The counters of this process."""
        return Stats(
            **self._buffer.counters(),
            flushes=self._writer.flushes,
            flush_seconds=self._writer.flush_seconds,
            last_error=self._outage.last_error,
            last_flush=self._last_flush,
        )

    def _wake(self) -> None:
        """Has the thread write; what is recorded until it does goes with it."""
        thread = self._start()
        self._wake_at = self.now() + WAKE_AGAIN
        if thread is None:
            self._tick_here()
        else:
            thread.wake()
            self._watch.waits(self._buffer.pending)

    def _check_process(self) -> None:
        """Begins anew in a child that no hook told: at each write, and at a wake once a second.

        Also where gevent came after us: a lock from before would stop all greenlets at once.
        """
        if getpid() != self._pid or type(self._flushing) is not type(threading.Lock()):
            self.begin(self._buffer.copy())

    def _start(self) -> FlushThread | None:
        """The thread, started if there is none or a dead one; None where none can be had."""
        self._check_process()
        self._is_started = not is_uwsgi()  # there, each visit looks for itself before any lock
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._writer.driver = self._driver
                self._thread = FlushThread.started(self._tick, self.settings.flush_interval)
            return self._thread

    def _tick_here(self) -> None:
        """A round in the thread of a request, of one at a time; the next is due after its pause."""
        if not self._ticking.acquire(blocking=False):
            return
        try:
            self._say_threadless()
            self._wake_at = self.now() + self._tick()
        finally:
            self._ticking.release()

    def _say_threadless(self) -> None:
        if not self._is_threadless:
            self._is_threadless = True
            log.warning(
                "presence: no thread runs here, so that now and then a request waits for Redis; "
                "uWSGI wants enable-threads"
            )

    def _tick(self) -> float:
        """One round of the thread; returns the seconds to pause before the next."""
        self._wake_at = -math.inf
        try:
            self._visit_open()
            busy = self._buffer.pending > 0
            is_written = self._write(self._writer.backoff.is_due)
            self._write_again()
            self._writer.clean_up()
            if is_written:
                self._notices.tick(self._buffer.recorded, self._driver)
                self._sampler.tick()
        except Exception as error:
            self._outage.failed(error, self._buffer.pending)
            busy = True
        return self.settings.flush_interval * random.uniform(0.8, 1.0) if busy else 0.0

    def _visit_open(self) -> None:
        """Asks the visits that are open for longer than a moment who they are by now."""
        self._end_abandoned()
        now = self.now()
        for visit in self._each_open():
            if now - visit.arrival >= self.settings.flush_interval:
                visit.still_open(now, self._stamp_every)

    def _each_open(self) -> Iterator[Visit]:
        """The open visits; among many, requests have their turn now and then."""
        for number, visit in enumerate(list(self.open_visits), 1):
            yield visit
            if not number % ASKED_IN_A_ROW:
                time.sleep(0)

    def _end_abandoned(self) -> None:
        with suppress(IndexError):  # another thread may take the last
            while True:
                self._abandoned.popleft().end()

    def _tell_who_left(self) -> None:
        """Ends the sightings of connections that stay open: Redis forgets in time who left."""
        left, self._writer.left = self._writer.left, {}
        if left:
            for visit in self._each_open():
                visit.has_left(left)

    def _write_again(self) -> None:
        """Has written again what a server has lost."""
        self._buffer.put_again(self._writer.lost())

    def _write_pending(self, deadline: float, may_try: MayTry) -> bool:
        buffer = self._buffer
        flushed_before = buffer.flushed
        outcome = self._writer.write(buffer, deadline, may_try)
        self._watch.came_back()
        self._tell_who_left()
        flushed = buffer.flushed - flushed_before
        if flushed:
            self._last_flush = datetime.now(UTC)
        if outcome.failure:
            self._outage.failed(outcome.failure, buffer.pending)
        if outcome.unwritten:
            buffer.drop_before(self.now() - self.settings.window)
            return False
        self._outage.ended(flushed, buffer.given_up)
        return True
