"""The work that one process does for its whole site: sample, announce who has gone, clean up.

The process that holds a lease does it, any that records or follows events. The others only look
when the lease may have ended. If the holder is killed, another goes on after some seconds.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from os import getpid

from .connections import Driver, RedisHealth, ServerClock
from .errors import PresenceError, PresenceUnavailable
from .settings import Settings
from .stores import History, Plan, Shards, Store, UpkeepLease, keys, merge_plans, run_all

LEASE_SECONDS = 6.0  # that the lease outlives the moment at which its holder looks again
UNHURRIED_SECONDS = 20.0  # between two looks at the lease, of a process that follows no events
LOOK_EVERY = 60.0  # seconds at most between two looks of the holder
LOOK_AGAIN = 1.0  # seconds, after somebody has gone
CLEAN_EVERY = 30.0  # seconds, while there is something to remove
CLEAN_IDLE = 600.0  # seconds, while there is nothing
STEP_PAUSE = 0.01  # seconds in which the server answers others
STEPS_SECONDS = 1.5  # of a kind of work, before the thread writes again

_jitter = random.SystemRandom()  # leaves the app's random numbers alone, and forks differ


class Upkeep:
    """The upkeep of a site, as far as this process does it."""

    def __init__(
        self,
        settings: Settings,
        stores: Mapping[str, Shards],
        history: History,
        clock: ServerClock,
        health: RedisHealth,
    ) -> None:
        """Create the upkeep of the data in `stores`, by kind. This does no I/O."""
        self._settings, self._stores, self._history = settings, stores, history
        self._clock, self._health = clock, health
        self._gone_after = {
            shard: settings.window + (settings.lag_seconds(kind) or 0.0)
            for kind in settings.events
            for shard in stores[kind].all
        }
        """After how many seconds an id has gone, in each shard that announces it."""
        self.cleaning_ended: Callable[[PresenceError | None], object] = lambda _: None
        """Called after each clean-up, with the error if a permission is missing."""
        self._begin()

    def _begin(self) -> None:
        """Start as a process that does nothing for its site yet, as in a forked child."""
        self._pid, self._lock = getpid(), threading.Lock()
        self._lease = UpkeepLease(self._settings.prefix)
        self._generation = -1
        # All times are by the clock of the recorder.
        self._looked_at = self._look_at = self._cleaned_at = self._clean_at = -math.inf
        self._offset = -math.inf
        self._sampled: int | None = None
        self._swept: dict[Store, float] = {}
        """The last-seen time up to which each shard was swept."""

    def run(self, driver: Driver, *, listens: bool = False) -> None:
        """Do what is due, unless another process does. Return at once if nothing is.

        With `listens`, this process follows events and takes a lease that has ended soon. Raises
        `PresenceUnavailable` if Redis does not answer. A node of a Cluster that is away stops no
        other.
        """
        if self._pid != getpid():
            self._begin()
        stamp, health = self._clock.stamp(), self._health
        pause = 0.0 if listens or self._lease.is_held else UNHURRIED_SECONDS
        # A clock that tests pass may go back. After a lost connection, another server may answer.
        is_early = self._looked_at <= stamp < max(self._look_at, self._looked_at + pause)
        is_due = not is_early or self._generation != health.generation
        # A server that answers with a refusal may be full: each process makes room.
        is_refused = health.is_refusing() and stamp >= self._cleaned_at + CLEAN_EVERY
        if not (is_refused or (is_due and health.is_well(""))):
            return
        if not self._lock.acquire(blocking=False):
            return  # another thread of this process is at it
        try:
            if is_refused:
                self._clean_up(driver)
            else:
                self._look(driver, stamp)
        finally:
            self._generation = health.generation
            self._lock.release()

    def give_up(self, driver: Driver) -> None:
        """Let another process take the lease at once. Never raises."""
        if self._lease.is_held and self._health.is_well(""):
            self._looked_at = self._look_at = -math.inf
            with suppress(PresenceError):
                driver.run(self._lease.give_up())

    def _look(self, driver: Driver, stamp: float) -> None:
        is_held = self._lease.is_held
        if not is_held or self._generation != self._health.generation:
            self._swept.clear()  # another process may have swept since, or another server answers
        if not is_held:
            try:
                wait = driver.run(self._lease.take(LEASE_SECONDS))
            except PresenceUnavailable:
                if driver.node_of(self._lease.key) == "":
                    raise
                wait = 0.0  # only the node of the lease may be away
            if wait:
                self._looked_at, self._look_at = stamp, stamp + wait + _jitter.uniform(0.05, 0.3)
                return
        now = driver.run(self._clock.now())
        offset = now - self._clock.stamp()
        if offset < self._offset - keys.SLACK:
            self._clean_at = stamp  # the server's clock was set back, and times lie ahead of it
        self._offset = offset
        next_moment = min(self._sample(driver, now), self._sweep(driver, now))
        if stamp >= self._clean_at:
            self._clean_up(driver)
        self._looked_at = stamp
        self._look_at = min(stamp + next_moment - now, self._clean_at)
        if self._lease.is_held:
            driver.run(self._lease.renew(max(0.0, self._look_at - stamp) + LEASE_SECONDS))

    def _sample(self, driver: Driver, now: float) -> float:
        """Record how many are online in this minute, once; return when to sample again.

        Never raises. A failure leaves a gap in the history.
        """
        minute = keys.minute_of(now)
        if minute != self._sampled:
            window = self._settings.window
            try:
                plans = [store.count(now, window) for store in self._stores.values()]
                counts = driver.run(merge_plans(plans))
                samples = dict(zip(self._stores, counts, strict=True))
                driver.run(self._history.record(minute, samples))
            except PresenceError:
                return now  # the recorder logs outages
            self._sampled = minute
        return float((minute + 1) * keys.MINUTE)

    def _sweep(self, driver: Driver, now: float) -> float:
        """Announce who has gone; return when the next may have gone."""
        swept, next_moment = self._swept, now + LOOK_EVERY
        shards = _shards_of_well_nodes(driver, self._gone_after)
        looks: list[Plan[float | None]] = [
            shard.first_seen_after(swept.get(shard, -math.inf)) for shard in shards
        ]
        # A sweep also removes the events of more than five minutes ago.
        looks += [shard.event_stream().seconds_left() for shard in shards]
        replies = driver.run(run_all(looks))
        firsts, remaining = replies[: len(shards)], replies[len(shards) :]
        due: list[Store] = []
        for shard, first, left in zip(shards, firsts, remaining, strict=True):
            # Whoever says goodbye after this look has not gone before the grace is over.
            gone_at = now + self._settings.grace_seconds
            if shard not in swept or isinstance(first, Exception):
                gone_at = now
            elif first is not None:
                gone_at = min(gone_at, first + self._gone_after[shard])
            if isinstance(left, float):
                gone_at = min(gone_at, now + left)
            if gone_at <= now:
                due.append(shard)
            next_moment = min(next_moment, max(gone_at, now + LOOK_AGAIN))
        has_more = _in_steps(driver, due, lambda shard: _sweep_once(shard, now))
        for shard in due:
            if has_more.get(shard) is False:
                swept[shard] = now - self._gone_after[shard]
            else:
                swept.pop(shard, None)
                next_moment = now
        return next_moment

    def _clean_up(self, driver: Driver) -> None:
        """Remove a bounded number of stale members, so that keys do not grow."""
        clock = self._clock
        # Removing by a clock that runs ahead would remove users who are online.
        driver.run(clock.synchronise(0))
        stamp = clock.stamp()
        now = clock.moment(stamp)
        self._cleaned_at, self._clean_at = stamp, stamp + CLEAN_EVERY
        shards = [shard for store in self._stores.values() for shard in store.all]
        if not self._health.is_refusing():
            shards = _shards_of_well_nodes(driver, shards)
        try:
            has_more = _in_steps(driver, shards, lambda shard: shard.clean_up(now))
        except PresenceUnavailable as error:
            if "permission" not in str(error):
                raise
            self.cleaning_ended(error)  # a missing permission is no outage
            return
        self.cleaning_ended(None)
        if any(has_more.values()):
            self._clean_at = stamp
        elif len(has_more) == len(shards):
            firsts = driver.run(run_all([shard.first_seen_after(-math.inf) for shard in shards]))
            # What is written after this does not go stale sooner than what is seen now.
            fresh_for = [
                (first - now if isinstance(first, float) else 0.0) + shard.keep_seconds
                for shard, first in zip(shards, firsts, strict=True)
            ]
            self._clean_at = stamp + max(CLEAN_EVERY, min(CLEAN_IDLE, *fresh_for))


def _shards_of_well_nodes(driver: Driver, shards: Iterable[Store]) -> list[Store]:
    return [shard for shard in shards if driver.health.is_well(driver.node_of(shard.name))]


def _sweep_once(shard: Store, now: float) -> Plan[bool]:
    swept = yield from shard.sweep(now)
    return swept.has_more


def _in_steps(
    driver: Driver, shards: Iterable[Store], step: Callable[[Store], Plan[bool]]
) -> dict[Store, bool]:
    """Run a step for each shard until there is no more to do, for a bounded time.

    Return whether there is more, by shard, without those that failed at once. Raises the first
    failure if all did.
    """
    until = time.monotonic() + STEPS_SECONDS
    has_more: dict[Store, bool] = {}
    failures: dict[str, PresenceError] = {}
    for shard in shards:
        node = driver.node_of(shard.name)
        if node in failures:
            continue
        try:
            has_more[shard] = driver.run(step(shard))
            while has_more[shard] and time.monotonic() < until:
                time.sleep(STEP_PAUSE)
                has_more[shard] = driver.run(step(shard))
        except PresenceError as error:
            # A key of a wrong type is the fault of one shard. Other errors are the node's.
            is_own = not isinstance(error, PresenceUnavailable)
            failures[shard.name if is_own else node] = error
    if failures and not has_more:
        raise next(iter(failures.values()))
    return has_more
