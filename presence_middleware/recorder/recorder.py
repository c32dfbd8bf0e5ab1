"""The recorder takes what people did from visits and writes it, off the path of requests."""

import atexit
import concurrent.futures.thread  # noqa: F401 - Redis clients import it: at exit, that is too late
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from .. import logs
from ..backend import Backend, backend_for
from ..connections import Clock, require_sync
from ..connections.clients import import_library
from ..connections.health import RedisHealth, jitter
from ..identity.addresses import locator
from ..identity.ids import Who
from ..identity.resolver import IdentityResolver
from ..people import People, Reason, Sightings
from ..request import StateRequest
from ..rooms import Room
from ..settings import Settings, settings_or_env
from ..stores import Act, Plan
from .guests import Guests
from .request_filter import RequestFilter
from .setup_hints import SetupHints
from .verdict import UNCOUNTED, Purpose
from .worker import Worker
from .writer import Attempt, Writer

FLUSH_SECONDS = 2.0  # at most, for a handler or an exit that waits for a write
REFRESHED_IN_A_ROW = 200  # open visits, before other threads have their turn
SEEN = Act.SEEN

T = TypeVar("T")
_resetting = threading.Lock()  # several requests may find at once that this process was forked


@dataclass(frozen=True)
class Stats:
    """The counters of a process since it began.

    recorded = coalesced + flushed + pending + dropped.
    """

    recorded: int
    """Sightings: each visit is a sighting, and an open connection repeats it."""
    coalesced: int
    """Sightings that were merged into a waiting sighting of the same identity."""
    flushed: int
    """Sightings that were written."""
    pending: int
    """Sightings that wait or are being written."""
    dropped: dict[Reason, int]
    """Sightings that were dropped, by reason."""
    flushes: int
    """Attempts to write, including failed attempts."""
    flush_seconds: float
    """The duration of these attempts in total."""
    came: dict[str, int]
    """Users that a write announced to have come online, by kind of `PRESENCE_EVENTS`."""
    went: dict[str, int]
    """Users that a write or a sweep announced to have gone, by kind of `PRESENCE_EVENTS`."""
    last_error: str | None
    """The last error of a write. None if there was none."""
    last_flush: datetime | None
    """The time of the last successful write, in UTC. None if there was none."""


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


class Recorder:
    """Records visits. Nothing here raises towards a request, and nothing on its path does I/O.

    The exception: where threads cannot run, a single request per interval writes.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        client: Any = None,
        clock: Clock | None = None,
        background: bool = True,
    ) -> None:
        """Create a recorder. It connects and starts its thread with the first visit.

        `settings` are by default those of the environment. `client` is a synchronous `redis.Redis`,
        or a `redis.RedisCluster` for a Cluster URL, to use instead of `PRESENCE_REDIS_URL`. `clock`
        is a function that returns seconds since the epoch, and replaces the server's time. With
        `background=False` nothing is written until `flush` or `run_once` is called.

        Raises `SettingsError` if the client or the clock cannot be used, or if a function that
        `PRESENCE_IDENTITY` names cannot be imported.
        """
        self.background = background
        """False if only `flush` and `run_once` write, and no thread."""
        self.backend: Backend = backend_for(settings, client, clock)
        require_sync(self.backend.driver)
        self.settings = settings = self.backend.settings
        self.health: RedisHealth = self.backend.health
        """Whether Redis is well."""
        self.stamp = self.backend.clock.stamp
        """Return the current time in seconds, by the clock of all stamps in this process."""
        self.resolver = resolver_for(settings)
        self.hints = SetupHints(settings, self.resolver)
        """The warnings that this process logs about its setup."""
        self.backend.upkeep.forbidden = self.hints.warn
        self.filter = RequestFilter(settings, self.hints)
        self.reset()
        self.backend.departures.add(self)
        live_recorders.add(self)

    def reset(self, sightings: Sightings = []) -> None:  # noqa: B006 - only read
        """Start with nothing but `sightings` to write, as in a forked child.

        The parent process writes its own sightings. Locks and threads of the parent do not work
        in the child, so the child creates its own.
        """
        settings = self.settings
        self.people = People(settings.max_pending, settings.window, settings.grace_seconds)
        """What people did that waits to be written, and the people of the last window."""
        for sighting in sightings:
            self.people.note(*sighting)
        self.guests = Guests(
            self.people, settings.window, settings.trusted_proxies, self.hints.warn
        )
        self.open_visits = OpenVisits(self.stamp, settings.flush_interval, settings.refresh_seconds)
        self.usual_until = -math.inf
        """Until when a plain request needs no `admit`, by the recorder's clock."""
        self.health.begin()
        self.writer = Writer(self.backend, self.people, self.resolver, self.hints)
        # At last: from then on, other threads of this process take everything as it is.
        self.worker = Worker(self.run_once, settings.flush_interval, self.stamp)

    # Called by visits, on the path of requests.

    def admit(self, visit: OpenVisit, purpose: Purpose) -> None:
        """Add a visit that has just arrived to `open_visits`, unless its purpose never counts."""
        if purpose in UNCOUNTED:
            return
        if not self.worker.is_started:
            self._start()
        if self.worker.is_started and not self.resolver.checks_status:
            self.usual_until = self.hints.look_at
        self.open_visits[visit] = None

    def record(  # noqa: PLR0917 - each request comes here, and keywords take longer
        self,
        who: Who,
        at: float,
        arrival: float | None = None,
        act: Act = SEEN,
        room: Room | None = None,
        inventor: StateRequest | None = None,
    ) -> None:
        """Note what `who` did, a kind and an id: by default, that they were seen. Does no I/O.

        `at` is the moment by the recorder's clock. `arrival` is when the request or connection
        arrived, by default `at`. `room` is the room that it entered, or None. Does nothing if the
        store of the kind cannot: HyperLogLogs forget nobody, and only sorted sets know goodbyes.

        `inventor` is the request if clients can invent the id, also to log it out. Such an id must
        be known or within the quota of the client's address and network.
        """
        people = self.people
        if (
            inventor is not None
            and who not in people.recent
            and not self.guests.admit(inventor, who, at)
        ):
            people.refuse("quota")
            return
        if act is not SEEN:
            if act not in self.backend.stores[who[0]].acts:
                return
            self._check_process()
        people.note(who, at, at if arrival is None else arrival, act, room)
        if at > self.worker.wake_after or act is not SEEN:
            self._wake()

    # The thread, or a request in its place.

    def _wake(self) -> None:
        """Wake the thread. Until its next round, what people did only waits."""
        if self.background:
            self._start()
            if self.worker.wake():
                self.health.waits(self.people.pending, self.settings.flush_interval)

    def _start(self) -> None:
        """Start the thread if need be."""
        self._check_process()
        if not self.background:
            self.worker.is_started = True
            return
        if self.worker.stopping.is_set():  # `close` has taken the one that starts a server
            self.writer.driver = self.backend.writing_driver
        self.worker.start()

    def _check_process(self) -> None:
        """Reset the recorder if this process is a child whose fork called no hook."""
        if self.worker.is_inherited:
            with _resetting:
                if self.worker.is_inherited:
                    self.reset(self.people.waiting())

    def run_once(self) -> float:
        """Run a round of the thread; return the seconds to pause before the next.

        A round refreshes open connections, writes what waits, rewrites lost data, removes stale
        data and samples the history. Never raises: an error is logged as an outage.
        """
        self.worker.wake_after = -math.inf
        try:
            self.open_visits.refresh()
            is_busy = not self.people.is_empty
            is_written = self._write(self.health.resting()).is_complete
            with self.writer.lock:
                self.writer.rewrite_lost()
            self.backend.upkeep.run(self.writer.driver)
            if self.backend.upkeep.has_answered and self.health.is_outage and self.people.is_empty:
                self.health.all_written(0, self.people.dropped_in_outages)
            now = self.stamp()
            if now >= self.people.period_ends:
                self.guests.turn(now)
            if is_written:
                self.hints.check(now, self.backend.writing_driver, self.people.dropped["full"])
        except Exception as error:
            self.health.outage(error, self.people.pending)
            is_busy = True
        return self.settings.flush_interval * jitter.uniform(0.8, 1.0) if is_busy else 0.0

    # Writing, in the thread or in a handler.

    def _write(
        self, avoid: set[str], seconds: float = math.inf, query: Plan[Any] | None = None
    ) -> Attempt:
        """Write everything that waits, and run `query` in the last round trip if it can.

        Never raises. Does not try the targets in `avoid`, by their names in `RedisHealth`. Waits no
        longer than half of `seconds` for another write to end, and starts no round trip after that.
        """
        attempt = Attempt(avoid, time.monotonic() + seconds / 2, query)
        people, health, writer = self.people, self.health, self.writer
        if people.is_empty:
            attempt.is_complete = True
            return attempt
        import_library(self.settings.redis_url.scheme)
        if not writer.lock.acquire(timeout=min(seconds, FLUSH_SECONDS) / 2):
            return attempt
        try:
            flushed = people.flushed
            writer.write(attempt)
            health.attempt_ended()
            if attempt.failure:
                health.outage(attempt.failure, people.pending)
            if attempt.is_complete:
                health.all_written(people.flushed - flushed, people.dropped_in_outages)
            else:
                now, settings = self.stamp(), self.settings
                keep_since = {kind: now - settings.keep_seconds(kind) for kind in settings.kinds}
                people.drop_expired(now - settings.window, keep_since)
        finally:
            writer.lock.release()
        return attempt

    def flush(self, seconds: float = math.inf) -> bool:
        """Write everything that waits, including the visits that are open.

        Waits for Redis, no longer than about `seconds`. Return whether nothing is left to write.
        Never raises.
        """
        self._check_process()
        self.open_visits.note()
        return self._write(set(), seconds).is_complete

    def write_for_reader(self) -> None:
        """Write everything that waits, except to servers that failed: the thread tries them.

        Never raises.
        """
        self._check_process()
        self._write(set(self.health.failing))

    def read(self, plan: Plan[T], waited: float = 0.0) -> T:
        """Write everything that waits and run a reader's plan, in the same round trip if possible.

        Return the result of the plan. The caller has `waited` for some seconds already. Raises the
        errors of `Driver.run`. If the write found an outage, its error is raised at once: a reader
        never waits twice for the same outage.
        """
        self._check_process()
        attempt = self._write(set(self.health.failing), query=plan)
        answer, is_answered = attempt.answer, attempt.query is None
        # In a cycle with the frames of its traceback, an error would keep the request.
        attempt.answer = attempt.failure = None
        if isinstance(answer, Exception):
            try:
                raise answer.with_traceback(None)
            finally:
                del answer
        return answer if is_answered else self.backend.driver.run(plan, waited=waited)

    def depart(self, who: Who, act: Act) -> None:
        """Note that `who`, a kind and an id, departs now. The caller then writes it.

        `act` is `Act.LEFT`, or `Act.ERASED` to also delete its last-seen time. Never raises.
        """
        self._check_process()
        stamp = self.stamp()
        self.people.note(who, stamp, stamp, act)

    def departed(self, who: Who, act: Act, at: float, moment: int) -> None:
        """Note a departure that a reader of this process has written: see `People.departed`."""
        self._check_process()
        self.people.departed(who, act, at, moment)

    def touched(self, who: Who) -> None:
        """Note that a reader of this process has undone a departure: see `People.touched`."""
        self._check_process()
        self.people.touched(who)

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write everything that waits and end the thread, in at most about `seconds`.

        Logs the number of sightings that could not be written. The next visit starts a new thread.
        Never raises, and never starts an embedded server that is gone.
        """
        if self.worker.is_inherited:
            return  # a forked child: the parent writes its own sightings
        deadline = time.monotonic() + seconds
        self.usual_until = -math.inf
        self.writer.driver = self.backend.writing_driver.joining()
        if not self.flush(seconds):
            logs.warn("shutting down with %d sightings unwritten", self.people.pending)
        self.worker.stop(max(0.0, deadline - time.monotonic()))
        self.backend.upkeep.give_up(self.writer.driver, deadline)

    def stats(self) -> Stats:
        """Return the counters of this process. Does no I/O."""
        totals, stores = self.writer.totals, self.backend.stores
        return Stats(
            **self.people.counters(),
            flushes=totals.flushes,
            flush_seconds=totals.flush_seconds,
            came={kind: totals.came[kind] for kind in self.settings.events},
            went={
                kind: totals.went[kind] + sum(shard.swept for shard in stores[kind].all)
                for kind in self.settings.events
            },
            last_error=self.health.last_error,
            last_flush=totals.last_flush,
        )


def resolver_for(settings: Settings, **others: Any) -> IdentityResolver:
    """Return the identity resolver of a site.

    `others` are further keyword arguments of `IdentityResolver`. Raises `SettingsError` if a
    function that `PRESENCE_IDENTITY` names cannot be imported.
    """
    return IdentityResolver(
        settings.identity,
        secret=settings.secret,
        session_secrets=settings.session_secret,
        bots=settings.bots,
        locate=locator(settings.trusted_proxies, settings.ip_prefix),
        **others,
    )


# The recorders of a process: shared by all apps, reset by a fork, closed at exit.

live_recorders: WeakSet[Recorder] = WeakSet()
"""All recorders of this process that are in use."""


def recorder_for(
    settings: Settings | None = None, client: Any = None, clock: Clock | None = None
) -> Recorder:
    """Return the recorder for `settings`, by default the environment's.

    Equal settings share a recorder per process, however many apps are wrapped. It is new with a
    `client`, which is used instead of `PRESENCE_REDIS_URL`, or with a `clock`, which replaces the
    time of the server. Raises `SettingsError` if a setting is invalid.
    """
    settings = settings_or_env(settings)
    if client is None and clock is None:
        return shared_recorder(settings)
    return Recorder(settings, client=client, clock=clock)


shared_recorder = cache(Recorder)
"""Returns the recorder that all apps with equal settings share."""


@atexit.register
def _close_all() -> None:
    """Close the recorders that were not closed since their last visit, within `FLUSH_SECONDS`.

    Each may use an equal share of the remaining time. Recorders in an outage come last.
    """
    deadline = time.monotonic() + FLUSH_SECONDS
    in_use = [each for each in live_recorders if not each.worker.stopping.is_set()]
    recorders = sorted(in_use, key=lambda recorder: recorder.health.is_outage)
    for number, recorder in enumerate(recorders):
        remaining = max(0.0, deadline - time.monotonic())
        recorder.close(remaining / (len(recorders) - number))


def _reset_all() -> None:
    for recorder in list(live_recorders):
        recorder.reset()


# Under uWSGI this hook may not be called: the recorder compares process ids as well.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
