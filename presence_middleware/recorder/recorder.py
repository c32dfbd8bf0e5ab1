"""Takes sightings from visits and writes them, off the path of requests."""

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
from typing import Any, TypeVar
from weakref import WeakSet

from .. import logs
from ..backend import Backend, backend_for
from ..connections import Clock
from ..errors import PresenceUnavailable, RedisRefused
from ..identity import Guests, Id, IdentityResolver, Report, Who, report_nothing
from ..request import Request
from ..settings import Settings
from ..stores import Plan
from .buffer import Buffer, Reason, Sightings
from .request_filter import RequestFilter
from .sampler import Sampler
from .setup_hints import SetupHints
from .thread import FlushThread, is_uwsgi
from .visit import Visit
from .writer import Attempt, MayTry, Writer

REFRESH_EVERY = 60.0  # seconds at most, a third of the window if that is less
REFRESHED_IN_A_ROW = 200  # open visits, before requests have their turn
WAKE_AGAIN = 1.0  # seconds
FLUSH_SECONDS = 2.0  # at most, for whoever waits for a write

T = TypeVar("T")
_jitter = random.SystemRandom()  # nothing of the site's own, and forks are not in step

live: WeakSet["Recorder"] = WeakSet()
"""The recorders of this process: all begin afresh after a fork, and are closed at exit."""


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
        self,
        settings: Settings,
        *,
        client: Any = None,
        clock: Clock | None = None,
        background: bool = True,
    ) -> None:
        """Record with `settings`; `client` is a `redis.Redis` to use.

        `clock` returns seconds since the epoch, and is used in place of the server's time. With
        `background=False` no thread writes: call `flush` or `run_once`. Raises `SettingsError` for
        a client that does not fit, or if a function that `PRESENCE_IDENTITY` names is not there.
        """
        self.settings = settings
        self.background = background
        self.backend: Backend = backend_for(settings, client, clock)
        self.health = self.backend.health
        self.stamp = self.backend.clock.stamp
        """The clock of arrivals, in seconds."""
        self._driver = self.backend.writing_driver
        self._joining = self._driver.joining()
        self._hints = SetupHints(settings)
        self._filter = RequestFilter(settings, self._hints)
        self._plain_paths, self._looks_at_all = self._filter.paths, self._filter.looks_at_all
        self.resolver = resolver_for(settings, self._hints.crowd)
        self._refresh_every = min(REFRESH_EVERY, settings.window / 3)
        self._is_threadless = False
        self.begin()
        live.add(self)

    def begin(self, sightings: Sightings = []) -> None:  # noqa: B006 - only read
        """Start afresh in a forked child: the parent writes what it held itself."""
        self._pid = getpid()
        self._buffer = Buffer(self.settings.max_pending, sightings)
        self.open_visits: dict[Visit, None] = {}
        self._abandoned: deque[Visit] = deque()
        self._flushing, self._starting = threading.Lock(), threading.Lock()
        self._ticking = threading.Lock()
        self._thread: FlushThread | None = None
        self._is_started = False
        self._wake_after = -math.inf
        """Sightings stamped later wake the thread; once a second while it does not come."""
        self.health.begin()
        self._writer = Writer(self.backend, self._driver, self.resolver, self._hints)
        self._sampler = Sampler(self.backend, self._driver)
        self._last_flush: datetime | None = None

    def admit(self, visit: Visit) -> bool:
        """Take a visit that has just arrived among the open ones; return whether it counts."""
        try:
            is_plain = visit.is_plain(self._plain_paths)
        except Exception:  # an environ or scope that is none: the filter says so
            is_plain = False
        is_due = self._looks_at_all or visit.arrival >= self._hints.look_at
        if is_due or not is_plain:
            visit.is_logout = self._filter.is_logout(visit)
            if not self._filter.admit(visit, visit.arrival):
                return False
        if not self._is_started:
            self._start()
        self.open_visits[visit] = None
        return True

    def abandoned(self, visit: Visit) -> None:
        """Note a visit that nobody will end; the thread does."""
        self._abandoned.append(visit)

    def record(self, who: Who, stamp: float, arrival: float | None = None) -> None:
        """Take a sighting: a dictionary write. `arrival` is earlier where a connection is long."""
        self._buffer.put(who, stamp, stamp if arrival is None else arrival)
        if stamp > self._wake_after:
            self._wake()

    def admit_guest(self, request: Request, guest: Id, stamp: float) -> bool:
        """Return whether a guest is within the quota of its network; count those that are not."""
        if self.resolver.guests.admit(request, guest, stamp):
            return True
        self._buffer.refuse("quota")
        return False

    def flush(self, seconds: float = math.inf) -> bool:
        """Write all that this process knows, open visits as they are included.

        Waits for Redis, no longer than about `seconds`. Returns whether nothing is left to write.
        Never raises.
        """
        self._end_abandoned()
        for visit in list(self.open_visits):
            visit.record()
        return self._write(lambda _: True, seconds)

    @property
    def has_pending(self) -> bool:
        """Whether anything waits to be written."""
        return not self._buffer.is_empty

    def depart(self, who: Who, *, erase: bool = False) -> None:
        """Take somebody offline, or erase them: now, or once Redis answers. Never raises."""
        stamp = self.stamp()
        self._buffer.depart(who, stamp, erase=erase)
        for visit in list(self.open_visits):
            visit.dismiss({who: stamp})
        self.write_for_reader()

    def log_out(self, who: Who, stamp: float) -> None:
        """Have the thread take somebody offline who logged out at `stamp`. Waits for no I/O.

        Does nothing where the store of their kind cannot: HyperLogLogs forget nobody.
        """
        if self.settings.store_of(who[0]) == "hyperloglog":
            return
        self._check_process()
        self._buffer.depart(who, stamp, erase=False)
        self._wake()

    def is_leaving(self, who: Who, arrival: float) -> bool:
        """Return whether a departure waits of somebody who arrived before it."""
        departing = self._buffer.departure_of(who)
        return departing is not None and arrival <= departing.stamp

    def write_for_reader(self) -> None:
        """Write what can be written without waiting for a server that failed: the thread does."""
        self._write(self.health.is_well)

    def read(self, plan: Plan[T]) -> T:
        """Run a reader's plan, with what must be written first in the same round trip if it can.

        Raises what `Driver.run` raises. Who reads never waits twice for one outage.
        """
        attempt = Attempt(math.inf, self.health.is_well, plan)
        self._try(attempt, math.inf)
        if attempt.is_answered:
            if isinstance(attempt.answer, Exception):
                raise attempt.answer
            return attempt.answer  # type: ignore[no-any-return]
        failure = attempt.failure
        if isinstance(failure, PresenceUnavailable) and not isinstance(failure, RedisRefused):
            raise failure
        return self.backend.driver.run(plan)

    def _write(self, may_try: MayTry, seconds: float = math.inf) -> bool:
        """Write what waits, in the caller's thread; return whether nothing is left to write.

        Never raises, and starts no round trip later than half of `seconds` from now.
        """
        return self._try(Attempt(time.monotonic() + seconds / 2, may_try), seconds)

    def _try(self, attempt: Attempt, seconds: float) -> bool:
        self._check_process()
        if self._buffer.is_empty:
            return True
        if not self._flushing.acquire(timeout=min(seconds, FLUSH_SECONDS) / 2):
            return False
        try:
            return self._write_pending(attempt)
        finally:
            self._flushing.release()

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write what waits, in `seconds` at most, and end the thread; a visit starts another.

        An embedded server that is gone is not started for it.
        """
        if getpid() != self._pid:
            return  # the parent's: it writes what it held
        deadline = time.monotonic() + seconds
        self._writer.driver = self._joining
        if not self.flush(seconds):
            logs.warn("shutting down with %d sightings unwritten", self._buffer.pending)
        if self._thread is not None:
            self._thread.stop(max(0.0, deadline - time.monotonic()))
            self._thread = None
        self._is_started = False

    def stats(self) -> Stats:
        """Return the counters of this process."""
        return Stats(
            **self._buffer.counters(),
            flushes=self._writer.flushes,
            flush_seconds=self._writer.flush_seconds,
            last_error=self.health.last_error,
            last_flush=self._last_flush,
        )

    def run_once(self) -> float:
        """Do one round of what the thread does; return the seconds to pause before the next.

        Writes what waits, refreshes open connections, removes what is stale, samples the history.
        """
        self._wake_after = -math.inf
        try:
            self._refresh_open()
            busy = not self._buffer.is_empty
            is_written = self._write(self.health.is_due)
            self._rewrite_lost()
            self._writer.clean_up()
            self._buffer.forget_idle(self.stamp(), self.settings.window)
            if is_written:
                self._hints.tick(self._buffer.recorded, self._driver)
                self._sampler.tick()
        except Exception as error:
            self.health.outage(error, self._buffer.pending)
            busy = True
        return self.settings.flush_interval * _jitter.uniform(0.8, 1.0) if busy else 0.0

    def _wake(self) -> None:
        """Have the thread write; what is recorded until it does goes with it."""
        if not self.background:
            return
        thread = self._start()
        self._wake_after = self.stamp() + WAKE_AGAIN
        if thread is None:
            self._run_once_here()
        else:
            thread.wake()
            self.health.waits(self._buffer.pending, self.settings.flush_interval)

    def _keep_before(self, now: float) -> dict[str, float]:
        """Return by kind up to when whoever was last seen need not be recorded any more."""
        return {kind: now - self.settings.keep(kind) for kind in self.settings.kinds}

    def _check_process(self) -> None:
        """Start afresh in a child that no hook told: at each write, and at a wake once a second.

        Also where gevent came after us: a lock from before would stop all greenlets at once.
        """
        if getpid() != self._pid or type(self._flushing) is not type(threading.Lock()):
            self.begin(self._buffer.copy())

    def _start(self) -> FlushThread | None:
        """Return the thread, started if there is none or a dead one; None where none can be had."""
        self._check_process()
        if not self.background:
            self._is_started = True
            return None
        self._is_started = not is_uwsgi()  # there, each visit looks for itself before any lock
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._writer.driver = self._driver
                self._thread = FlushThread.started(self.run_once, self.settings.flush_interval)
            return self._thread

    def _run_once_here(self) -> None:
        """Do a round in the thread of a request, of one at a time, and pause before the next."""
        if not self._ticking.acquire(blocking=False):
            return
        try:
            if not self._is_threadless:
                self._is_threadless = True
                logs.warn(
                    "background threads are disabled, so some requests will wait for Redis; start "
                    "uWSGI with --enable-threads"
                )
            self._wake_after = self.stamp() + self.run_once()
        finally:
            self._ticking.release()

    def _refresh_open(self) -> None:
        """Ask the visits that are open for longer than a moment who they are by now."""
        self._end_abandoned()
        now = self.stamp()
        for visit in self._each_open():
            if now - visit.arrival >= self.settings.flush_interval:
                visit.refresh(now, self._refresh_every)

    def _each_open(self) -> Iterator[Visit]:
        """Yield the open visits; among many, requests have their turn now and then."""
        for number, visit in enumerate(list(self.open_visits), 1):
            yield visit
            if not number % REFRESHED_IN_A_ROW:
                time.sleep(0)

    def _end_abandoned(self) -> None:
        with suppress(IndexError):  # another thread may take the last
            while True:
                self._abandoned.popleft().end()

    def _rewrite_lost(self) -> None:
        """Have what a server has lost written again."""
        with self._flushing:
            self._writer.rewrite_lost(self._buffer)

    def _write_pending(self, attempt: Attempt) -> bool:
        buffer = self._buffer
        flushed_before = buffer.flushed
        self._writer.write(buffer, attempt)
        self.health.attempt_ended()
        if attempt.left:
            # Connections that stay open keep nobody online who left: Redis forgets in time who did.
            for visit in self._each_open():
                visit.dismiss(attempt.left)
        flushed = buffer.flushed - flushed_before
        if flushed:
            self._last_flush = datetime.now(UTC)
        if attempt.failure:
            self.health.outage(attempt.failure, buffer.pending)
        if attempt.unwritten:
            now = self.stamp()
            buffer.drop_expired(now - self.settings.window, self._keep_before(now))
            return False
        self.health.outage_over(flushed, buffer.expired_or_full)
        return True


def resolver_for(
    settings: Settings, report: Report = report_nothing, **others: Any
) -> IdentityResolver:
    """Return the resolver of a site; it calls `report` when a quota of guests is reached.

    `others` are keyword arguments of `IdentityResolver`. Raises `SettingsError` for a function that
    is not there.
    """
    return IdentityResolver(
        settings.identity,
        secret=settings.secret,
        session_secrets=settings.session_secret,
        bots=settings.bots,
        guests=Guests(settings.window, settings.trusted_proxies, report),
        **others,
    )
