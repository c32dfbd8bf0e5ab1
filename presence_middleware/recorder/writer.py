"""Writes the sightings and departures of the buffer to Redis."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..backend import Backend
from ..connections import TRUSTED, Driver
from ..departed import Departure, Manner
from ..errors import PresenceUnavailable, QueryError, RedisRefused
from ..identity import IdentityResolver, Who
from ..stores import Move, Plan, Recorded, Stamped, Store, agree, keys, run_all
from ..stores.record import CHUNK, NO_MOVES, to_microseconds
from .buffer import Buffer, Entry, PendingDeparture
from .rewrite_log import RewriteLog
from .setup_hints import SetupHints

AGREED_EVERY = 10.0  # seconds; a Redis that restarted empty has lost the agreement
MOST_COMMANDS = 16  # of full chunks in a round trip: far below a client's timeout

MayTry = Callable[[str], bool]
"""Return whether to try a place, by its name in `RedisHealth`."""


@dataclass
class Attempt:
    """An attempt to write everything that waits."""

    deadline: float
    """No round trip starts later, by `time.monotonic()`."""
    may_try: MayTry
    query: Plan[Any] | None = None
    """A read to run in the last round trip."""
    answer: Any = None
    """The result of the query, or the error that it raised."""
    is_answered: bool = False
    """True once the query was run."""
    written: int = 0
    """The number of sightings that Redis answered."""
    is_complete: bool = False
    """True if nothing is left of the sightings and departures that waited at the beginning."""
    failure: Exception | None = None
    """The last error. None also if a place that failed before was not tried again."""
    failed_nodes: set[str] = field(default_factory=set)
    left: dict[Who, float] = field(default_factory=dict)
    """Users that Redis refused since they had left, and the arrival of their newest visit."""


class Writer:
    """Writes for the flush thread, and for handlers that read or flush. Not thread-safe."""

    def __init__(
        self, backend: Backend, driver: Driver, resolver: IdentityResolver, hints: SetupHints
    ) -> None:
        self.driver = driver
        self._clock, self._health, self._layout = backend.clock, backend.health, backend.layout
        self._stores, self._departed = backend.stores, backend.departed
        self._shared_settings = backend.shared_settings
        self._window = backend.settings.window
        self._batch_size = CHUNK * min(MOST_COMMANDS, 4 * backend.settings.shards)
        self._resolver, self._hints = resolver, hints
        self._visitor_key = keys.visitor_key(backend.settings.prefix)
        self._proposal = secrets.token_hex(32)
        self._agreed_at, self._agreed_generation = 0.0, -1
        self.is_refused = False
        """True if the last failure was a refusal: the server answers, but does not write."""
        self._rewrites = RewriteLog(self._window)
        self.flushes = 0
        """The number of attempts that reached out to Redis."""
        self.flush_seconds = 0.0
        """The duration of these attempts in total."""
        self.came: Counter[str] = Counter()
        """The number of users that a write announced to have come, by kind."""
        self.went: Counter[str] = Counter()
        """The number of users that a write announced to have gone, by kind."""

    def write(self, buffer: Buffer, attempt: Attempt) -> None:
        """Write everything that waits in `buffer`, and note the outcome in `attempt`.

        Sightings that failed, or that may not be tried, wait again. Raises nothing but an
        interrupt of the calling thread.
        """
        if not attempt.may_try(""):
            attempt.is_complete = buffer.is_empty
            return
        began, waiting = time.monotonic(), buffer.pending
        try:
            self._prepare()
            self._write_all(buffer, attempt)
        except Exception as error:  # an error of our own must not lose sightings either
            self._note_failure(attempt, "", error)
        finally:  # nor must an interrupt of a handler that writes
            buffer.restore()
            attempt.is_complete = attempt.written >= waiting and not buffer.departures()
            self.flushes += 1
            self.flush_seconds += time.monotonic() - began
        if attempt.is_complete:
            self._health.all_written()
            self.is_refused = False

    # Before each attempt: the server's time, and the agreement of all processes.

    def _prepare(self) -> None:
        # Sooner than readers need the time, so that they seldom have to ask for it.
        self.driver.run(self._clock.synchronise(TRUSTED / 2))
        now, generation = self._clock.stamp(), self._health.generation
        if now - self._agreed_at < AGREED_EVERY and generation == self._agreed_generation:
            return
        try:
            self._agree(now)
        except PresenceUnavailable:
            if not self._has_agreed:
                raise  # otherwise the agreement holds while the node that stores it is away
        self._agreed_at, self._agreed_generation = now, generation

    def _agree(self, now: float) -> None:
        self.driver.run(self._layout.claim(now))
        in_force = self.driver.run(self._shared_settings.publish(self._clock.moment(now)))
        self._hints.warn_of_differences(in_force.differing)
        for kind, seconds in in_force.keep_seconds.items():
            self._stores[kind].keep_longer(seconds)
        if self._resolver.shared_key is not None:  # the key with which guests are hashed
            agreed = agree(self._visitor_key, self._proposal, keys.VISITOR_KEY_TTL)
            self._proposal = self.driver.run(agreed)
            self._resolver.shared_key.learn(self._proposal.encode())

    @property
    def _has_agreed(self) -> bool:
        shared_key = self._resolver.shared_key
        return self._layout.is_agreed and (shared_key is None or shared_key.key is not None)

    # One attempt: sightings, then departures, then users who came back after theirs.

    def _write_all(self, buffer: Buffer, attempt: Attempt) -> None:
        departures = buffer.departures()
        came_back: list[Entry] = []
        remaining = buffer.pending
        while remaining > 0:
            taken = buffer.take(min(remaining, self._batch_size))
            remaining -= self._batch_size
            if departures:
                came_back += [entry for entry in taken if _came_back(entry, departures)]
                taken = [entry for entry in taken if not _came_back(entry, departures)]
            is_last = remaining <= 0 and not departures
            self._write_entries(buffer, attempt, taken, attempt.query if is_last else None)
        if departures:
            self._write_departures(buffer, attempt, departures)
            self._write_entries(buffer, attempt, came_back, None)

    def _write_entries(
        self, buffer: Buffer, attempt: Attempt, taken: list[Entry], query: Plan[Any] | None
    ) -> None:
        """Write entries to their nodes, the healthy nodes first."""
        nodes = self._by_node(taken)
        if len(nodes) != 1:
            query = None  # each node has its own round trip, so no single one comes last
        for node in sorted(nodes, key=self._health.is_well, reverse=True):
            self._write_node(buffer, attempt, node, nodes[node], query)

    def _by_node(self, taken: Sequence[Entry]) -> dict[str, dict[Store, list[Entry]]]:
        """Return the entries by node, and there by shard."""
        shards: dict[Store, list[Entry]] = {}
        for entry in taken:
            shard = entry.shard
            if shard is None:
                kind, id = entry.who
                entry.id = self._resolver.resolve_id(id) or ""
                shard = entry.shard = self._stores[kind].shard_for(entry.id)
            if shard in shards:
                shards[shard].append(entry)
            else:
                shards[shard] = [entry]
        nodes: dict[str, dict[Store, list[Entry]]] = {}
        for shard, entries in shards.items():
            nodes.setdefault(self.driver.node_of(shard.name), {})[shard] = entries
        return nodes

    def _write_node(
        self,
        buffer: Buffer,
        attempt: Attempt,
        node: str,
        shards: dict[Store, list[Entry]],
        query: Plan[Any] | None,
    ) -> None:
        """Write the shards of a node in a round trip that also runs the query."""
        if node in attempt.failed_nodes or not attempt.may_try(node):
            return
        stamp = self._clock.stamp()
        write = self._rewrites.new_write(self._clock.microseconds(stamp))
        tried = [shard for shard in shards if attempt.may_try(shard.name)]
        plans: list[Plan[Any]] = [
            shard.record(
                self.stamped(buffer, shards[shard]), write, self._moves(buffer, shards[shard])
            )
            for shard in tried
        ]
        if query is not None:
            plans.append(query)
        outcomes = self._run_at(node, plans, attempt, reads_last=query is not None)
        if query is not None:
            # A plan runs only once, so its reader gets an error that stopped it on the way.
            attempt.answer = attempt.failure if outcomes is None else outcomes.pop()
            attempt.is_answered = True
        if outcomes is None:
            return
        for shard, outcome in zip(tried, outcomes, strict=True):
            if isinstance(outcome, Exception):
                # A key of a wrong type is the fault of one shard. Other errors are the node's.
                is_own = isinstance(outcome, QueryError)
                self._note_failure(attempt, shard.name if is_own else node, outcome)
                continue
            self._health.succeeded(node)
            self._note_recorded(buffer, attempt, shards[shard], outcome)
            if self._rewrites.add(shard, write, stamp, outcome.wrote_before):
                self._rewrite(buffer, shard, stamp)

    def stamped(self, buffer: Buffer, taken: Sequence[Entry]) -> list[Stamped]:
        """Return the id, last-seen and arrival time of each entry, by the server's clock."""
        to_microseconds = self._clock.microseconds
        stamped: list[Stamped] = []
        for entry in taken:
            moment = to_microseconds(entry.last_seen)
            is_same = entry.arrival == entry.last_seen
            stamped.append(
                (entry.id or "", moment, moment if is_same else to_microseconds(entry.arrival))
            )
        departures = buffer.departures()
        if self._departed or departures:
            for number, entry in enumerate(taken):
                stamped[number] = self._after_departure(entry, departures, stamped[number])
        return stamped

    def _moves(self, buffer: Buffer, taken: Sequence[Entry]) -> Mapping[str, Move]:
        """Return the rooms that entries entered since the last write, and when, by id.

        The times are later than a departure that the move followed, as in `_after_departure`. Moves
        from before a departure are left out.
        """
        moving = [(entry, *entry.move) for entry in taken if entry.move is not None]
        if not moving:
            return NO_MOVES
        moves: dict[str, Move] = {}
        waiting = buffer.departures()
        for entry, number, stamp in moving:
            moment, is_over = self._clock.microseconds(stamp), False
            for departure, departed_at in self._departures_of(entry.who, waiting):
                if departure.manner == Manner.GOODBYE:
                    continue
                is_over = is_over or departure.stamp >= stamp
                moment = max(moment, to_microseconds(departed_at) + 1)
            if not is_over:
                moves[entry.id or ""] = number, moment
        return moves

    def _departures_of(
        self, who: Who, waiting: Mapping[Who, PendingDeparture]
    ) -> Iterator[tuple[Departure | PendingDeparture, float]]:
        """Yield the departures of an identity: the last that was written, and one of `waiting`.

        Each comes with the moment at which it counts by the server's clock, at the latest.
        """
        written, pending = self._departed.get(who), waiting.get(who)
        if written is not None:
            yield written, written.moment
        if pending is not None:
            yield pending, self._clock.latest_moment(pending.stamp)

    def _after_departure(
        self, entry: Entry, departures: Mapping[Who, PendingDeparture], stamped: Stamped
    ) -> Stamped:
        """Return a sighting with times later than a departure that it followed.

        This process's clock is exact. By the server's clock, a user who comes back at once may
        seem to have arrived before the departure.
        """
        for departure, departed_at in self._departures_of(entry.who, departures):
            if _followed(entry, departure):
                stamped = _later(stamped, departed_at, departure.manner)
        return stamped

    def _note_recorded(
        self, buffer: Buffer, attempt: Attempt, taken: list[Entry], recorded: Recorded
    ) -> None:
        left: list[Entry] = []
        if recorded.left:
            left = [entry for entry in taken if entry.id in recorded.left]
            attempt.left |= {entry.who: entry.arrival for entry in left}
        buffer.mark_written(taken, left, recorded.full)
        attempt.written += len(taken)
        kind = taken[0].who[0]
        self.came[kind] += recorded.came
        self.went[kind] += recorded.went
        self._hints.note_written(kind, recorded.full)

    def _write_departures(
        self, buffer: Buffer, attempt: Attempt, departures: Mapping[Who, PendingDeparture]
    ) -> None:
        """Take users offline, or erase them, with a single round trip per node."""
        nodes: dict[str, list[Who]] = {}
        for who in departures:
            nodes.setdefault(self.driver.node_of(self._shard_of(who).name), []).append(who)
        for node, users in nodes.items():
            if node in attempt.failed_nodes or not attempt.may_try(node):
                continue
            plans = [self._departure(who, departures[who]) for who in users]
            outcomes = self._run_at(node, plans, attempt)
            if outcomes is None:
                continue
            for who, moment in zip(users, outcomes, strict=True):
                if isinstance(moment, Exception):
                    self._note_failure(attempt, node, moment)
                else:
                    stamp, manner = departures[who]
                    buffer.departure_written(who, departures[who])
                    self._departed.note(who, Departure(stamp, moment, manner))

    def _departure(self, who: Who, departure: PendingDeparture) -> Plan[float]:
        id = self._resolver.resolve_id(who[1]) or ""
        moment = self._clock.latest_moment(departure.stamp)
        is_server_time = self._clock.is_server_time
        shard = self._shard_of(who)
        if departure.manner == Manner.GOODBYE:
            return shard.say_goodbye(id, moment, is_server_time=is_server_time)
        erase = departure.manner == Manner.FORGET
        return shard.depart(id, moment, is_server_time=is_server_time, erase=erase)

    def _shard_of(self, who: Who) -> Store:
        return self._stores[who[0]].shard_for(self._resolver.resolve_id(who[1]) or "")

    def _run_at(
        self, node: str, plans: Sequence[Plan[Any]], attempt: Attempt, *, reads_last: bool = False
    ) -> list[Any] | None:
        """Run plans on a node in a single round trip. Note an outage, and return None for it."""
        try:
            return self.driver.run(run_all(plans, reads_last=reads_last), attempt.deadline)
        except PresenceUnavailable as error:
            self._note_failure(attempt, node, error)
            attempt.failed_nodes.add(node)
            return None

    def _note_failure(self, attempt: Attempt, place: str, error: Exception) -> None:
        self._health.failed(place)
        self.is_refused = isinstance(error, RedisRefused)
        attempt.failure = error

    # After a server lost data.

    def rewrite_lost(self, buffer: Buffer) -> None:
        """Make sightings and departures of the window wait again if a server has lost them."""
        if not self._health.is_well(""):
            return
        now = self._clock.stamp()
        for shard in self._rewrites.find_lost(self.driver, now, self._health.is_well):
            self._rewrite(buffer, shard, now)
        self._departed.forget_before(now)

    def _rewrite(self, buffer: Buffer, shard: Store, now: float) -> None:
        buffer.rewrite(shard, now - self._window)
        self._departed.forget_before(now)
        for who, departure in self._departed:
            if self._shard_of(who) is shard:
                buffer.add_departure(who, departure.stamp, departure.manner)


def _came_back(entry: Entry, departures: Mapping[Who, PendingDeparture]) -> bool:
    """Return whether a user came back after a departure of theirs that waits."""
    departure = departures.get(entry.who)
    return departure is not None and _followed(entry, departure)


def _followed(entry: Entry, departure: Departure | PendingDeparture) -> bool:
    """Return whether a user was seen after a goodbye, or arrived after another departure."""
    since = entry.last_seen if departure.manner == Manner.GOODBYE else entry.arrival
    return departure.stamp < since


def _later(stamped: Stamped, floor: float, manner: Manner) -> Stamped:
    """Return a sighting with times after `floor`, the moment of a departure that it followed."""
    least = to_microseconds(floor) + 1
    id, moment, arrival = stamped
    if manner == Manner.GOODBYE:
        return id, max(moment, least), arrival
    return id, max(moment, least), max(arrival, least)
