"""The work that one process does for its whole site: sample, announce who has gone, clean up.

The process that holds a lease does it, any that records or follows events. The others only look
when the lease may have ended. If the holder is killed, another goes on after some seconds.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from os import getpid

from .connections.drivers import Driver
from .connections.health import jitter
from .connections.server import ServerClock
from .errors import PresenceError, PresenceUnavailable, RedisRefused
from .settings import Settings
from .stores import History, Lease, Plan, Shards, Store, keys, merge_plans, run_all

MOST_LEASE = 120.0  # seconds
LEASE_MARGIN = 6.0  # that the lease outlives the moment at which its holder looks again
UNHURRIED_SECONDS = 20.0  # between two looks at the lease, of a process that follows no events
LOOK_AGAIN = 1.0  # seconds, after somebody has gone
CLEAN_EVERY = 30.0  # seconds, while there is something to remove
CLEAN_IDLE = 600.0  # seconds, while there is nothing
STEP_PAUSE = 0.01  # seconds in which the server answers others
STEPS_SECONDS = 1.5  # of a kind of work, before the thread writes again


@dataclass
class Sweeping:
    """Runs a step for each shard of which the oldest id has not been seen for some time."""

    step: Callable[[Store, float], Plan[bool]]
    """Does a bounded part of the work at a moment, and returns whether there may be more."""
    after: Mapping[Store, float]
    """After how many seconds without a sighting of an id there is work, by shard."""
    least: float
    """The least number of seconds between two looks for such ids."""
    most: float
    """The greatest number of seconds between them."""
    is_of_events: bool = False
    """Whether the work also removes events, five minutes after they were announced."""
    due_at: float = -math.inf
    done: dict[Store, float] = field(default_factory=dict)
    """The moment at which nothing was left to do, by shard."""
    full_until: dict[Store, float] = field(default_factory=dict)
    """The moment up to which no event is old enough to be removed, by shard."""

    def run(self, driver: Driver, now: float) -> bool:
        """Do a step of what is due; return whether there is more. Raises if all shards fail."""
        moments: list[float] = []
        failures: dict[str, Exception] = {}
        for shard in self.after:
            node, health = driver.node_of(shard.name), driver.health
            # A server that refuses commands may be full, and needs the room.
            if node in failures or not (health.is_well(node) or health.is_refusing()):
                continue
            (outcome,) = driver.run(run_all([self._do(shard, now)]))
            if isinstance(outcome, Exception):
                # A key of a wrong type is the fault of one shard. Other errors are the node's.
                is_own = not isinstance(outcome, PresenceUnavailable)
                failures[shard.name if is_own else node] = outcome
            else:
                moments.append(outcome)
        is_complete = len(moments) == len(self.after)
        self.due_at = min([now + (self.most if is_complete else self.least), *moments])
        if failures and not moments:
            raise next(iter(failures.values()))
        return self.due_at <= now

    def _do(self, shard: Store, now: float) -> Plan[float]:
        """Do a step for a shard if one is due; return when the next is due."""
        after, done_at = self.after[shard], self.done.pop(shard, -math.inf)
        first = yield from shard.first_seen_after(done_at - after)
        due_at = after + (now if first is None else first)
        if self.is_of_events:
            if _is_due(self.full_until.get(shard, -math.inf), now):
                left = yield from shard.event_stream().seconds_left()
                self.full_until[shard] = now + left
            due_at = min(due_at, self.full_until[shard])
        # Some of the work shows in no id that was seen.
        if due_at > now and 0 <= now - done_at < min(CLEAN_IDLE, after):
            self.done[shard] = done_at
            return max(due_at, now + self.least)
        if (yield from self.step(shard, now)):
            return now
        self.done[shard] = now
        return now + self.least


class Upkeep:
    """The upkeep of a site, as far as this process does it."""

    def __init__(
        self,
        settings: Settings,
        stores: Mapping[str, Shards],
        history: History,
        clock: ServerClock,
    ) -> None:
        """Create the upkeep of the data in `stores`, by kind. This does no I/O."""
        self._clock, self._pause = clock, UNHURRIED_SECONDS
        self.forbidden: Callable[[str, PresenceError], object] = lambda *_: None
        """Called if the server never runs a command: with what needs it, and with the error.

        That is `clean-up`, without which the rest of the upkeep goes on, or `upkeep`.
        """

        # Whoever says goodbye after a look has not gone before the grace is over.
        most = settings.grace_seconds
        # A job for each kind: when one is swept must tell nothing of another.
        self._sweeps = [
            Sweeping(
                lambda shard, now: shard.sweep(now),
                dict.fromkeys(stores[kind].all, stores[kind].gone_after),
                LOOK_AGAIN if settings.rooms or settings.events else most,
                most,
                is_of_events=kind in settings.events,
            )
            for kind in settings.kinds
            if settings.is_swept(kind)
        ]
        self._clean = Sweeping(
            lambda shard, now: shard.clean_up(now),
            {shard: store.keep_seconds for store in stores.values() for shard in store.all},
            CLEAN_EVERY,
            CLEAN_IDLE,
        )
        self._stores, self._history, self._window = stores, history, settings.window
        self._sample_at = -math.inf
        self._lease = Lease(keys.upkeep(settings.prefix), MOST_LEASE)
        self._look_at = self._made_room_at = -math.inf
        self._generation = -1
        self.has_answered = False
        """Whether the server did what was due last, for whichever thread."""

    def hurry(self) -> None:
        """Take a lease that has ended soon from now on, because this process follows events."""
        self._pause, self._look_at = 0.0, -math.inf

    def run(self, driver: Driver) -> None:
        """Do what is due, unless another process does. Return at once if nothing is.

        Raises `PresenceUnavailable` if Redis does not answer. A node of a Cluster that is away
        stops no other.
        """
        if self._lease.pid != getpid():
            self._lease, self._look_at = Lease(self._lease.key, MOST_LEASE), -math.inf
        stamp, health, lock = self._clock.stamp(), driver.health, self._lease.lock
        # After a lost connection, another server may answer.
        is_due = _is_due(self._look_at, stamp) or self._generation != health.generation
        # A server that answers with a refusal may be full: each process makes room.
        is_refused = health.is_refusing() and stamp >= self._made_room_at + CLEAN_EVERY
        # Another thread of this process may be at it.
        if (is_refused or (is_due and health.is_well(""))) and lock.acquire(blocking=False):
            self.has_answered = False
            try:
                if is_refused:
                    self._made_room_at = stamp
                    self._clean.done.clear()
                    driver.run(self._clock.synchronise(0))
                    self._do(self._clean, driver)
                else:
                    self._look(driver, stamp)
            except RedisRefused as error:
                if not _is_forbidden(error):
                    raise
                # That is no outage: people are recorded all the same.
                self._look_at = stamp + LEASE_MARGIN
                self.forbidden("upkeep", error)
            else:
                self.has_answered = True
            finally:
                self._generation = health.generation
                lock.release()

    def give_up(self, driver: Driver, deadline: float = math.inf) -> None:
        """Let another process take the lease at once. Never raises.

        No round trip starts after `deadline`, by `time.monotonic()`: then the lease runs out.
        """
        # A forked child has a copy of the lease, and exits without a round trip.
        if self._lease.pid == getpid() and self._lease.is_held and driver.health.is_well(""):
            with suppress(PresenceError):
                driver.run(self._lease.give_up(), deadline)

    def _look(self, driver: Driver, stamp: float) -> None:
        """Take the lease or keep it, and do what is due."""
        lease = self._lease
        if self._generation != driver.health.generation:
            for sweep in self._sweeps:
                sweep.done.clear()
        if not lease.is_held:
            wait = 0.0
            try:
                wait = driver.run(lease.take(LEASE_MARGIN))
            except PresenceUnavailable:
                if driver.node_of(lease.key) == "":
                    raise  # or else, only the node of the lease may be away
            if wait:
                self._look_at = stamp + max(wait, self._pause) + jitter.uniform(0.05, 0.3)
                return
            self._history.renewed = None  # the server may have lost the lease with all keys
        # Removing by a clock that runs ahead would remove users who are online.
        driver.run(self._clock.synchronise(0))
        now = self._clock.moment(stamp)
        if _is_due(self._sample_at, now):
            with suppress(PresenceError):  # a gap in the history: the recorder logs outages
                minute = keys.minute_of(now)
                plans = [store.count(now, self._window) for store in self._stores.values()]
                counts = zip(self._stores, driver.run(merge_plans(plans)), strict=True)
                driver.run(self._history.record(minute, dict(counts)))
                self._sample_at = float((minute + 1) * keys.MINUTE)
        jobs = [*self._sweeps, self._clean]
        for job in jobs:
            # To look who has gone whenever the process is awake costs less than to wake up for it.
            if job is not self._clean or _is_due(job.due_at, now):
                self._do(job, driver)
        self._look_at = stamp + min(self._sample_at, *(job.due_at for job in jobs)) - now
        if lease.is_held:
            driver.run(lease.renew(max(0.0, self._look_at - stamp) + LEASE_MARGIN))

    def _do(self, job: Sweeping, driver: Driver) -> None:
        """Run a job until there is no more to do, for a bounded time."""
        now, until = self._clock.moment(self._clock.stamp()), time.monotonic() + STEPS_SECONDS
        try:
            while job.run(driver, now) and time.monotonic() < until:
                time.sleep(STEP_PAUSE)
        except RedisRefused as error:
            if job is not self._clean or not _is_forbidden(error):
                raise
            self.forbidden("clean-up", error)  # that is no outage


def _is_forbidden(error: PresenceError) -> bool:
    """Return whether the server never runs a command: by its ACL, or because it was renamed."""
    text = str(error).lower()
    return "permission" in text or "unknown" in text


def _is_due(moment: float, now: float) -> bool:
    """Return whether a moment has come. One too far ahead is of a clock that was set back."""
    return not now < moment <= now + CLEAN_IDLE
