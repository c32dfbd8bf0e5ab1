"""Writes to Redis what people did, and checks around that, because another server may answer.

Before a write, all processes of a site must agree. After it, a server may turn out to have lost
data: each shard stores when each process last wrote to it. If that time is missing or older than
the process remembers, the server restarted without it or with older data, failed over to a replica
that lagged behind, or evicted the key.
"""

import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..backend import Backend
from ..connections.drivers import Driver
from ..connections.health import MAX_PAUSE_SECONDS
from ..connections.server import TRUSTED, ServerClock
from ..errors import PresenceUnavailable, QueryError, is_silence
from ..identity.resolver import IdentityResolver
from ..people import People, Person, Taken
from ..stores import Departure, Plan, Seen, Store, Write, agree, keys, run_all
from ..stores.plan import CHUNK, COMMANDS_PER_TRIP, to_microseconds
from .setup_hints import SetupHints

MOST_PEOPLE = COMMANDS_PER_TRIP * CHUNK  # in a round trip: far below a client's timeout
# Seconds; a Redis that restarted empty has lost the agreement. This is sooner than readers need the
# server's time, so that they seldom have to ask for it.
AGREED_EVERY = 0.7 * TRUSTED
# Seconds between two looks for lost data, less for a short window. Each write looks in its shard.
LOOK_EVERY = 60.0


@dataclass
class Attempt:
    """An attempt to write everything that waits."""

    avoid: set[str]
    """The targets not to try, by their names in `RedisHealth`. One that fails is added."""
    deadline: float
    """No round trip starts later, by `time.monotonic()`."""
    query: Plan[Any] | None = None
    """A read to run in the last round trip. None once it was run, or an outage was found."""
    answer: Any = None
    """The result of the query, or the error that its reader gets."""
    is_complete: bool = False
    """True if nothing is left of what waited at the beginning."""
    failure: Exception | None = None
    """The last error. None also if a target was avoided."""


@dataclass
class Totals:
    """What the writer did since the process began."""

    flushes: int = 0
    """The number of attempts that reached out to Redis."""
    flush_seconds: float = 0.0
    """The duration of these attempts in total."""
    last_flush: datetime | None = None
    """The time of the last attempt that wrote a sighting, in UTC."""
    came: Counter[str] = field(default_factory=Counter)
    """The number of users that a write announced to have come, by kind."""
    went: Counter[str] = field(default_factory=Counter)
    """The number of users that a write announced to have gone, by kind."""


class Writer:
    """Writes for the flush thread, and for handlers that read or flush."""

    def __init__(
        self, backend: Backend, people: People, resolver: IdentityResolver, hints: SetupHints
    ) -> None:
        self.driver: Driver = backend.writing_driver
        self.totals = Totals()
        self.lock = threading.Lock()
        """Held by callers during each write and its I/O."""
        self._clock, self._health, self._stores = backend.clock, backend.health, backend.stores
        self._window = backend.settings.window
        self._people, self._resolver, self._hints = people, resolver, hints
        self._agreement = Agreement(backend, resolver, hints)
        self._lost = LostData(self._window, self._clock)

    def write(self, attempt: Attempt) -> None:
        """Write everything that waits, and note the outcome in `attempt`.

        What failed, or may not be tried, waits again. Raises nothing but an interrupt of the
        calling thread.
        """
        people = self._people
        if "" in attempt.avoid:
            return
        began, flushed, has_left = time.monotonic(), people.flushed, True
        try:
            self._agreement.reach(self.driver, attempt.deadline)
            remaining = len(people)
            while remaining > 0 and "" not in attempt.avoid:
                taken = people.take(min(remaining, MOST_PEOPLE))
                remaining -= MOST_PEOPLE
                # A query may ask a node that fails, and other readers would wait for that.
                is_last = remaining <= 0 and not attempt.avoid
                self._write_batch(attempt, taken, attempt.query if is_last else None)
        except Exception as error:  # an error of our own must not lose sightings either
            self._note_failure(attempt, "", error)
        finally:  # nor must an interrupt of a handler that writes
            has_left = people.restore()
            self.totals.flushes += 1
            self.totals.flush_seconds += time.monotonic() - began
        if people.flushed > flushed:
            self.totals.last_flush = datetime.now(UTC)
        attempt.is_complete = attempt.failure is None and not has_left

    def _write_batch(
        self, attempt: Attempt, taken: Sequence[Taken], query: Plan[Any] | None
    ) -> None:
        """Write what some people did, in a round trip that also runs the query."""
        parts: dict[Store, list[Taken]] = {}
        key = self._resolver.hasher.key
        for each in taken:
            person, shard = each.person, each.person.shard
            if shard is None or person.key != key:  # another key is that of what was written before
                shard = self._place(person)
            if person.id != person.who[1] and (shard.kind, person.id) in self._people.recent:
                self._people.share_departure(person)
            parts.setdefault(shard, []).append(each)
        nodes = self._nodes_to_try(parts, attempt.avoid)
        if not nodes:
            return
        stamp, (low, high) = self._clock.stamp(), self._clock.bounds
        moment = low + int(stamp * 1e6 + 0.5)
        notes = {shard: self._lost.note(shard, moment) for shard in nodes}
        plans: list[Plan[Any]] = [
            shard.write(*_timed(parts[shard], low, high, self._window), notes[shard])
            for shard in nodes
        ]
        if query is not None:
            plans.append(query)
            attempt.query = None
        try:
            outcomes = self.driver.run(
                run_all(plans, reads_last=query is not None), attempt.deadline
            )
        except PresenceUnavailable as error:
            if query is not None:  # a plan runs only once: this stopped it on the way
                attempt.answer = error
            self._note_failure(attempt, "", error)
            return
        if query is not None:
            attempt.answer = outcomes.pop()
        for (shard, node), outcome in zip(nodes.items(), outcomes, strict=True):
            if isinstance(outcome, Exception):
                # A key of a wrong type is the fault of one shard. Other errors are the node's.
                is_own = isinstance(outcome, QueryError)
                self._note_failure(attempt, shard.name if is_own else node, outcome)
                continue
            if self._health.failing:
                self._health.succeeded(node)
            self._people.written(parts[shard], outcome.refused, outcome.full)
            self.totals.came[shard.kind] += outcome.came
            self.totals.went[shard.kind] += outcome.went
            self._hints.note_written(shard.kind, outcome.full)
            if self._lost.answered(shard, notes[shard], outcome.wrote_before):
                self._people.lost(shard, stamp - self._window)

    def _nodes_to_try(self, shards: Iterable[Store], avoid: set[str]) -> dict[Store, str]:
        """Return the node of each shard, last those that may fail again: they delay no other."""
        well, failing = dict[Store, str](), dict[Store, str]()
        for shard in shards:
            node = self.driver.node_of(shard.name)
            if avoid.isdisjoint((node, shard.name)):
                (failing if node in self._health.failing else well)[shard] = node
        return well | failing

    def _place(self, person: Person) -> Store:
        """Return the shard of a person, and resolve the id as it is stored."""
        kind, id = person.who
        person.id, person.key = self._resolver.resolve_id(id) or "", self._resolver.hasher.key
        person.shard = self._stores[kind].shard_for(person.id)
        return person.shard

    def _note_failure(self, attempt: Attempt, target: str, error: Exception) -> None:
        if target not in attempt.avoid:  # several shards of a node fail together
            self._health.failed(target, error)
        if attempt.query is not None and is_silence(error):  # the reader must not wait for it again
            attempt.query, attempt.answer = None, error
        attempt.failure = error
        attempt.avoid.add(target)

    def rewrite_lost(self) -> None:
        """Make what people did in the window wait again if a server has lost it."""
        now = self._clock.stamp()
        for shard in self._lost.find(self.driver, now):
            self._people.lost(shard, now - self._window)


def _timed(
    part: Sequence[Taken], low: int, high: int, window: float
) -> tuple[list[Seen], list[Departure]]:
    """Return what a part of the people did, by the server's clock, with its bounds at the stamp 0.

    A sighting uses the lower bound of that clock and a departure the upper. This process knows
    the order of what one person did, so a sighting that followed a departure is timed after it.
    """
    sightings: list[Seen] = []
    departures: list[Departure] = []
    for person, seen, *_, due in part:
        for departure in due:
            if departure.moment is None:  # sent twice, it must not count later
                least = max(departure.least, person.erased.least_time(departure.at))
                departure.moment = max(high + int(departure.at * 1e6 + 0.5), least)
            known = None
            # For a window, the server knows who was erased.
            if seen is None and departure.at - window < person.seen <= departure.at:
                known = low + int(person.seen * 1e6 + 0.5)
            departures.append((departure.act, person.id, departure.moment, known))
    for person, seen, _, arrival, room, _ in part:
        if seen is None:
            continue
        time = low + int(seen * 1e6 + 0.5)
        arrived = low + int(arrival * 1e6 + 0.5)
        left, move = person.left, None
        # A logout ends the stay in a room that was entered before.
        if room is not None and (left.moment is None or left.at < room.since):
            entered = low + int(room.since * 1e6 + 0.5)
            move = room.number, max(entered, left.least_time(room.since))
        if left is not person.goodbye:  # usually, both are `NOT_DEPARTED`
            after_logout = max(left.least_time(arrival), person.erased.least_time(arrival))
            time = max(time, person.goodbye.least_time(seen), after_logout)
            arrived = max(arrived, after_logout)
        sightings.append((person.id, time, arrived, move))
    return sightings, departures


class Agreement:
    """What must hold before a write.

    The server's time, the number of shards, the settings that all must share, and the key of hashed
    guests.
    """

    def __init__(self, backend: Backend, resolver: IdentityResolver, hints: SetupHints) -> None:
        self._backend, self._resolver, self._hints = backend, resolver, hints
        self._proposal = secrets.token_hex(32)
        self._agreed_at, self._generation = 0.0, -1
        self._asks_after = -math.inf
        """When to ask again, after a node of a Cluster that stores the agreement was away."""

    def reach(self, driver: Driver, deadline: float) -> None:
        """Agree again if the last time is long ago, or if another server may answer since.

        No round trip starts after `deadline`. Raises `PresenceUnavailable`, but not if the
        agreement holds while the node that stores it is away.
        """
        backend, resolver = self._backend, self._resolver
        clock, generation = backend.clock, backend.health.generation
        now = clock.stamp()
        if now - self._agreed_at < AGREED_EVERY and generation == self._generation:
            return
        if not clock.is_trusted(TRUSTED / 5):
            driver.run(clock.synchronise(TRUSTED / 5), deadline)
        if now < self._asks_after:
            return
        try:
            driver.run(backend.layout.claim(now), deadline)
            in_force = driver.run(backend.shared_settings.publish(clock.moment(now)), deadline)
            for name, value in in_force.differing.items():
                self._hints.warn("setting", name, value)
            for kind, seconds in in_force.keep_seconds.items():
                backend.stores[kind].keep_longer(seconds)
            if resolver.shared_kinds:
                key = keys.visitor_key(backend.settings.prefix)
                agreed = agree(key, self._proposal, keys.VISITOR_KEY_TTL)
                self._proposal = driver.run(agreed, deadline)
                resolver.hasher.learn(self._proposal.encode())
        except PresenceUnavailable:
            has_key = resolver.hasher.key or not resolver.shared_kinds
            if not (backend.layout.is_agreed and has_key):
                raise
            if driver.node_of(backend.settings.prefix):
                self._asks_after = now + MAX_PAUSE_SECONDS  # or else each write would wait for it
        self._agreed_at, self._generation = now, generation


def is_lost(moment: int, stored: float | None) -> bool:
    """Return whether a shard has lost a write, given the moment of the last write that it has."""
    return stored is None or stored < moment / 1e6


class LostData:
    """The last write of this process to each shard."""

    def __init__(self, window: float, clock: ServerClock) -> None:
        """Forget writes after `window` seconds: then nothing of them must be there.

        These are seconds of the server, by `clock`. The recorder's clock stands still while the
        machine sleeps, and who was online before must not be written as if it were now.
        """
        self.process = secrets.token_hex(8)
        """The name of this process beside its writes."""
        self._clock, self._most_age = clock, to_microseconds(window)
        self._look_every = min(LOOK_EVERY, max(10.0, window / 5))
        self._writes: dict[Store, int] = {}  # as moments of the server, in microseconds
        self._look_at, self._generation = -math.inf, -1

    def note(self, shard: Store, moment: int) -> Write:
        """Return the note of a write to `shard` at `moment`, in microseconds since the epoch."""
        return Write(self.process, moment, self._last(shard, moment))

    def answered(self, shard: Store, write: Write, previous: float | None) -> bool:
        """Remember a write that `shard` answered; return whether it had lost data before.

        `write` is what `note` returned. `previous` is the write before it as the shard had it, in
        seconds since the epoch, or None.
        """
        if write.previous is not None and is_lost(write.previous, previous):
            del self._writes[shard]  # the shard did not note this write
            self._generation = -1  # the other shards are checked when `find` is called next
            return True
        self._writes[shard] = write.moment
        return False

    def _last(self, shard: Store, moment: int) -> int | None:
        """Return the last write to `shard`, if it must still be there at `moment`."""
        last = self._writes.get(shard)
        return None if last is None or moment - last > self._most_age else last

    def find(self, driver: Driver, stamp: float) -> list[Store]:
        """Look into all shards now and then, or if another server may answer; return the losses.

        `stamp` is the current time by the recorder's clock. A node that failed is not asked now,
        but as soon as it is well again. Never raises for an outage.
        """
        health, lost = driver.health, list[Store]()
        if stamp < self._look_at and self._generation == health.generation:
            return lost
        now = to_microseconds(self._clock.moment(stamp))
        written = [shard for shard in self._writes if self._last(shard, now) is not None]
        asked = [shard for shard in written if health.is_well(driver.node_of(shard.name))]
        if not asked:
            return lost
        if asked == written:
            self._look_at, self._generation = stamp + self._look_every, health.generation
        with suppress(PresenceUnavailable):  # then another server may answer
            plans = [shard.last_write(self.process) for shard in asked]
            for shard, stored in zip(asked, driver.run(run_all(plans)), strict=True):
                if isinstance(stored, Exception) or not is_lost(self._writes[shard], stored):
                    continue
                # Rightly, if a window has passed by the server's clock.
                driver.run(self._clock.synchronise())
                now = to_microseconds(self._clock.moment(stamp))
                if self._last(shard, now) is not None:
                    lost.append(shard)
                del self._writes[shard]
        return lost
