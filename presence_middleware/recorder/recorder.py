"""The recorder takes sightings from visits and writes them, off the path of requests."""

import atexit
import concurrent.futures.thread  # noqa: F401 - Redis clients import it: at exit, that is too late
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from os import getpid
from typing import Any, TypeVar
from weakref import WeakSet

from .. import logs
from ..backend import Backend, backend_for
from ..connections import Clock
from ..departed import Manner
from ..errors import PresenceUnavailable, RedisRefused
from ..identity import Guests, Id, IdentityResolver, Report, Who, report_nothing
from ..request import Request
from ..settings import Settings
from ..signals import Signal
from ..stores import NOWHERE, Plan
from .buffer import Buffer, Entrance, Reason, Sightings
from .request_filter import RequestFilter
from .setup_hints import SetupHints
from .thread import FlushThread, is_uwsgi
from .visit import Visit
from .writer import Attempt, MayTry, Writer

REFRESHED_IN_A_ROW = 200  # open visits, before other threads have their turn
WAKE_AGAIN = 1.0  # seconds
FLUSH_SECONDS = 2.0  # at most, for a handler or an exit that waits for a write

T = TypeVar("T")
_jitter = random.SystemRandom()  # leaves the app's random numbers alone, and forks differ


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


class Recorder:
    """Records visits. Nothing here raises towards a request, and nothing on its path does I/O.

    The exception: where threads cannot run, a single request per interval writes.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        client: Any = None,
        clock: Clock | None = None,
        background: bool = True,
    ) -> None:
        """Create a recorder. It connects and starts its thread with the first visit.

        `client` is a synchronous `redis.Redis`, or a `redis.RedisCluster` for a Cluster URL; by
        default, the recorder connects to `PRESENCE_REDIS_URL`. `clock` is a function that returns
        seconds since the epoch, and replaces the server's time. With `background=False` nothing
        is written until `flush` or `run_once` is called.

        Raises `SettingsError` if the client does not fit the settings, or if a function that
        `PRESENCE_IDENTITY` names cannot be imported.
        """
        self.settings = settings
        self.background = background
        """False if only `flush` and `run_once` write, and no thread."""
        self.backend: Backend = backend_for(settings, client, clock)
        self.health = self.backend.health
        self.stamp = self.backend.clock.stamp
        """Return the current time in seconds, by the clock of all stamps in this process."""
        self._driver = self.backend.writing_driver
        self._closing_driver = self._driver.joining()
        self.hints = SetupHints(settings)
        """The warnings that this process logs about its setup."""
        self.backend.upkeep.cleaning_ended = self.hints.cleaning_ended
        self._filter = RequestFilter(settings, self.hints)
        self._plain_paths, self._looks_at_all = self._filter.paths, self._filter.looks_at_all
        self._rooms = self.backend.rooms
        self.resolver = resolver_for(settings, self.hints.warn_of_crowd)
        self._keep_seconds = {kind: settings.keep_seconds(kind) for kind in settings.kinds}
        self._refresh_every = settings.refresh_seconds
        self._warned_of_threads = False
        self.reset()
        live_recorders.add(self)

    def reset(self, sightings: Sightings = []) -> None:  # noqa: B006 - only read
        """Start with nothing but `sightings` to write, as in a forked child.

        The parent process writes its own sightings. Locks and threads of the parent do not work
        in the child, so the child creates its own.
        """
        self._pid = getpid()
        self.buffer = Buffer(self.settings.max_pending, sightings)
        """The sightings and departures that wait to be written."""
        self.open_visits: dict[Visit, None] = {}
        """The visits that have arrived and not ended, oldest first."""
        self._abandoned: deque[Visit] = deque()
        self.write_lock = threading.Lock()
        """Held during each write and its I/O."""
        self._starting, self._inline = threading.Lock(), threading.Lock()
        self.thread: FlushThread | None = None
        """The thread that writes. None before the first visit, and where threads cannot run."""
        self._is_started = False
        self._wake_after = -math.inf
        self.health.begin()
        self._writer = Writer(self.backend, self._driver, self.resolver, self.hints)
        self._last_flush: datetime | None = None

    # Called by visits, on the path of requests.

    def admit(self, visit: Visit) -> bool:
        """Add a visit that has just arrived to `open_visits`, if it is to be recorded.

        Return False for a visit that does not count, such as a health check or a prefetch.
        """
        try:
            is_plain = visit.is_plain(self._plain_paths)
        except Exception:  # an invalid environ or scope: the filter warns of it
            is_plain = False
        is_due = self._looks_at_all or visit.arrival >= self.hints.look_at
        if is_due or not is_plain:
            visit.is_logout = self._filter.is_logout(visit)
            if not self._filter.admit(visit, visit.arrival):
                return False
        if not self._is_started:
            self._start()
        self.open_visits[visit] = None
        if self._rooms is not None:
            number = self._rooms.number_for(visit)
            if number is not None:
                visit.entrance = number, visit.arrival
        return True

    def room_number(self, room: str) -> int | None:
        """Return the number of a room that a handler enters; None if the site has no rooms.

        `room` is its name or a path in it; empty for no room.
        """
        if self._rooms is None:
            self.hints.warn_of_missing_rooms()
            return None
        return self._rooms.number_of(room) if room else NOWHERE

    def admit_signal(self, visit: Visit, signal: Signal) -> bool:
        """Add a visit that a page sent as a pulse or goodbye, if it is to be recorded.

        Its room is that of the page: the path of the request is no room. Return False for a signal
        that does not count, such as one that another site sent.
        """
        if not self._filter.admit(visit, visit.arrival, is_signal=True):
            return False
        if not signal.is_same_origin:
            return False
        if not self._is_started:
            self._start()
        self.open_visits[visit] = None
        if self._rooms is not None and signal.page is not None:
            visit.entrance = self._rooms.number_at(signal.page) or NOWHERE, visit.arrival
        return True

    def note_signal(self, who: Who | None) -> None:
        """Note whom a pulse or goodbye named, for the warnings about the setup."""
        self.hints.note_signal(None if who is None else who[0])

    def admit_guest(self, request: Request, guest: Id, stamp: float) -> bool:
        """Return whether a guest is within the quota of its address and network.

        `stamp` is the time by the recorder's clock. A guest above the quota is counted as dropped.
        """
        if self.resolver.guests.admit(request, guest, stamp):
            return True
        self.buffer.refuse("quota")
        return False

    def record(
        self,
        who: Who,
        stamp: float,
        arrival: float | None = None,
        entrance: Entrance | None = None,
    ) -> None:
        """Add a sighting of `who`, a kind and an id. Does no I/O.

        `stamp` is the time by the recorder's clock. `arrival` is when the request or connection
        arrived, by default `stamp`. `entrance` is the room that it entered, or None.
        """
        self.buffer.put(who, stamp, stamp if arrival is None else arrival, entrance)
        if stamp > self._wake_after:
            self._wake()

    def abandoned(self, visit: Visit) -> None:
        """Have the thread end a visit, whose response was dropped unclosed. Takes no lock."""
        self._abandoned.append(visit)

    def log_out(self, who: Who, stamp: float) -> None:
        """Have the thread take an identity offline that logged out at `stamp`. Waits for no I/O.

        Does nothing where the store of the kind cannot: HyperLogLogs forget nobody.
        """
        if self.settings.store_of(who[0]) == "hyperloglog":
            return
        self._check_process()
        self.buffer.add_departure(who, stamp, Manner.LEAVE)
        self._wake()

    def say_goodbye(self, who: Who, stamp: float) -> None:
        """Have the thread end the window of an identity soon, which closed its page at `stamp`.

        Waits for no I/O. Does nothing where the store of the kind cannot.
        """
        if not self.settings.is_swept(who[0]):
            return
        self._check_process()
        self.buffer.add_departure(who, stamp, Manner.GOODBYE)
        self._wake()

    def is_leaving(self, who: Who, arrival: float) -> bool:
        """Return whether a logout waits of an identity that arrived before it."""
        departure = self.buffer.departure_of(who)
        if departure is None or departure.manner == Manner.GOODBYE:
            return False
        return arrival <= departure.stamp

    # The thread, or a request in its place.

    def _wake(self) -> None:
        """Wake the thread. Until its next round, sightings only wait in the buffer.

        A thread that does not come is woken again after `WAKE_AGAIN` seconds.
        """
        if not self.background:
            return
        thread = self._start()
        self._wake_after = self.stamp() + WAKE_AGAIN
        if thread is None:
            self._run_once_inline()
        else:
            thread.wake()
            self.health.waits(self.buffer.pending, self.settings.flush_interval)

    def _start(self) -> FlushThread | None:
        """Return the running thread, started if need be. Return None where threads cannot run."""
        self._check_process()
        if not self.background:
            self._is_started = True
            return None
        # uWSGI forks without a hook: there, each visit must compare the process id.
        self._is_started = not is_uwsgi()
        with self._starting:
            if self.thread is None or not self.thread.is_alive():
                self._writer.driver = self._driver
                self.thread = FlushThread.launch(self.run_once, self.settings.flush_interval)
            return self.thread

    def _check_process(self) -> None:
        """Reset the recorder if this process is a child whose fork called no hook.

        Also if gevent has replaced the type of locks since: an old lock would stop all greenlets.
        """
        if getpid() != self._pid or type(self.write_lock) is not type(threading.Lock()):
            self.reset(self.buffer.waiting())

    def _run_once_inline(self) -> None:
        """Run a round in the thread of a request, never two at a time. Then pause as usual."""
        if not self._inline.acquire(blocking=False):
            return
        try:
            if not self._warned_of_threads:
                self._warned_of_threads = True
                logs.warn(
                    "background threads are disabled, so some requests will wait for Redis; start "
                    "uWSGI with --enable-threads"
                )
            self._wake_after = self.stamp() + self.run_once()
        finally:
            self._inline.release()

    def run_once(self) -> float:
        """Run a round of the thread; return the seconds to pause before the next.

        A round refreshes open connections, writes waiting sightings, rewrites lost data, removes
        stale data and samples the history. Never raises: an error is logged as an outage.
        """
        self._wake_after = -math.inf
        try:
            self._refresh_open()
            is_busy = not self.buffer.is_empty
            is_written = self._write(self.health.is_due).is_complete
            with self.write_lock:
                self._writer.rewrite_lost(self.buffer)
            self.backend.upkeep.run(self._writer.driver)
            self.buffer.forget_idle(self.stamp(), self.settings.window)
            if is_written:
                self.hints.check(self.buffer.recorded, self._driver)
        except Exception as error:
            self.health.outage(error, self.buffer.pending)
            is_busy = True
        return self.settings.flush_interval * _jitter.uniform(0.8, 1.0) if is_busy else 0.0

    def _refresh_open(self) -> None:
        """Record the visits that have been open for longer than a flush interval."""
        self._end_abandoned()
        for visit in self._each_open():
            # Not the same moment for all: a sweep takes all users of a moment together.
            now = self.stamp()
            if now - visit.arrival >= self.settings.flush_interval:
                visit.refresh(now, self._refresh_every)

    def _each_open(self) -> Iterator[Visit]:
        """Yield the open visits. Among many, let other threads have their turn now and then."""
        for number, visit in enumerate(list(self.open_visits), 1):
            yield visit
            if not number % REFRESHED_IN_A_ROW:
                time.sleep(0)

    def _end_abandoned(self) -> None:
        with suppress(IndexError):  # another thread may take the last
            while True:
                self._abandoned.popleft().end()

    # Writing, in the thread or in a handler.

    def _write(
        self, may_try: MayTry, seconds: float = math.inf, query: Plan[Any] | None = None
    ) -> Attempt:
        """Write everything that waits, and run `query` in the last round trip if it can.

        Never raises. Waits no longer than half of `seconds` for another write to end, and starts
        no round trip after that.
        """
        attempt = Attempt(time.monotonic() + seconds / 2, may_try, query)
        self._check_process()
        buffer, health = self.buffer, self.health
        if buffer.is_empty:
            attempt.is_complete = True
            return attempt
        if not self.write_lock.acquire(timeout=min(seconds, FLUSH_SECONDS) / 2):
            return attempt
        try:
            flushed_before = buffer.flushed
            self._writer.write(buffer, attempt)
            health.attempt_ended()
            if attempt.left:
                # An open connection must not keep a user online who left: Redis refuses its
                # sightings only as long as it stores the departure.
                for visit in self._each_open():
                    visit.dismiss(attempt.left)
            flushed = buffer.flushed - flushed_before
            if flushed:
                self._last_flush = datetime.now(UTC)
            if attempt.failure:
                health.outage(attempt.failure, buffer.pending)
            if attempt.is_complete:
                health.outage_over(flushed, buffer.expired_or_full)
            else:
                now = self.stamp()
                keep_since = {kind: now - keep for kind, keep in self._keep_seconds.items()}
                buffer.drop_expired(now - self.settings.window, keep_since)
        finally:
            self.write_lock.release()
        return attempt

    @property
    def has_pending(self) -> bool:
        """Return whether a sighting or a departure waits to be written."""
        return not self.buffer.is_empty

    def flush(self, seconds: float = math.inf) -> bool:
        """Write everything that waits, including the visits that are open.

        Waits for Redis, no longer than about `seconds`. Return whether nothing is left to write.
        Never raises.
        """
        self._end_abandoned()
        for visit in list(self.open_visits):
            visit.record()
        return self._write(lambda _: True, seconds).is_complete

    def write_for_reader(self) -> None:
        """Write everything that waits, except to servers that failed: the thread tries them.

        Never raises.
        """
        self._write(self.health.is_well)

    def read(self, plan: Plan[T]) -> T:
        """Write everything that waits and run a reader's plan, in the same round trip if possible.

        Return the result of the plan. Raises the errors of `Driver.run`. If the write found
        an outage, its error is raised at once: a reader never waits twice for the same outage.
        """
        attempt = self._write(self.health.is_well, query=plan)
        if attempt.is_answered:
            if isinstance(attempt.answer, Exception):
                raise attempt.answer
            return attempt.answer  # type: ignore[no-any-return]
        failure = attempt.failure
        if isinstance(failure, PresenceUnavailable) and not isinstance(failure, RedisRefused):
            raise failure
        return self.backend.driver.run(plan)

    def depart(self, who: Who, *, erase: bool = False) -> None:
        """Take `who`, a kind and an id, offline: now, or as soon as Redis answers again.

        With `erase`, also delete its last-seen time. Never raises.
        """
        stamp = self.stamp()
        self.buffer.add_departure(who, stamp, Manner.FORGET if erase else Manner.LEAVE)
        for visit in list(self.open_visits):
            visit.dismiss({who: stamp})
        self.write_for_reader()

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write everything that waits and end the thread, in at most about `seconds`.

        Logs the number of sightings that could not be written. The next visit starts a new thread.
        Never raises, and never starts an embedded server that is gone.
        """
        if getpid() != self._pid:
            return  # a forked child: the parent writes its own sightings
        deadline = time.monotonic() + seconds
        self._writer.driver = self._closing_driver
        if not self.flush(seconds):
            logs.warn("shutting down with %d sightings unwritten", self.buffer.pending)
        if self.thread is not None:
            self.thread.stop(max(0.0, deadline - time.monotonic()))
            self.thread = None
        self.backend.upkeep.give_up(self._writer.driver)
        self._is_started = False

    def stats(self) -> Stats:
        """Return the counters of this process. Does no I/O."""
        return Stats(
            **self.buffer.counters(),
            flushes=self._writer.flushes,
            flush_seconds=self._writer.flush_seconds,
            came={kind: self._writer.came[kind] for kind in self.settings.events},
            went={
                kind: self._writer.went[kind]
                + sum(shard.swept for shard in self.backend.stores[kind].all)
                for kind in self.settings.events
            },
            last_error=self.health.last_error,
            last_flush=self._last_flush,
        )


def resolver_for(
    settings: Settings, report: Report = report_nothing, **others: Any
) -> IdentityResolver:
    """Return the identity resolver of a site. It calls `report` when a quota of guests is reached.

    `others` are further keyword arguments of `IdentityResolver`. Raises `SettingsError` if a
    function that `PRESENCE_IDENTITY` names cannot be imported.
    """
    return IdentityResolver(
        settings.identity,
        secret=settings.secret,
        session_secrets=settings.session_secret,
        bots=settings.bots,
        guests=Guests(settings.window, settings.trusted_proxies, report),
        **others,
    )


# The recorders of a process: shared by all apps, reset by a fork, closed at exit.

live_recorders: WeakSet[Recorder] = WeakSet()
"""All recorders of this process that are in use."""


def recorder_for(
    settings: Settings | None = None, client: Any = None, clock: Clock | None = None
) -> Recorder:
    """Return the recorder for `settings`, by default the environment's.

    Equal settings share a recorder per process, however many apps are wrapped. With a `client`
    or a `clock`, as for `Recorder`, the recorder is new. Raises `SettingsError` like `Recorder`,
    and for invalid settings in the environment.
    """
    settings = Settings.from_env() if settings is None else settings
    if client is None and clock is None:
        return shared_recorder(settings)
    return Recorder(settings, client=client, clock=clock)


@cache
def shared_recorder(settings: Settings) -> Recorder:
    """Return the recorder that all apps with equal settings share."""
    return Recorder(settings)


@atexit.register
def _close_all() -> None:
    """Close all recorders within `FLUSH_SECONDS`.

    Each may use an equal share of the remaining time. Recorders in an outage come last.
    """
    deadline = time.monotonic() + FLUSH_SECONDS
    recorders = sorted(live_recorders, key=lambda recorder: recorder.health.is_outage)
    for number, recorder in enumerate(recorders):
        remaining = max(0.0, deadline - time.monotonic())
        recorder.close(remaining / (len(recorders) - number))


def _reset_all() -> None:
    for recorder in list(live_recorders):
        recorder.reset()


# Under uWSGI this hook may not be called: the recorder compares process ids as well.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
