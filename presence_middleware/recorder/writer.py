"""Writes what waits in the buffer to Redis, and removes what is stale there."""

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..backend import Backend
from ..connections import TRUSTED, Driver
from ..departed import Departure
from ..errors import PresenceUnavailable, QueryError, RedisRefused
from ..identity import IdentityResolver, Who
from ..stores import Plan, Recorded, Stamped, Store, agree, keys, run_all
from ..stores.record import CHUNK, to_microseconds
from .buffer import Buffer, Departing, Seen
from .rewrite_log import RewriteLog
from .setup_hints import SetupHints

AGREED_EVERY = 10.0  # seconds; a Redis that restarted empty has lost what was agreed
CLEAN_EVERY = 30.0  # seconds
CLEAN_ROUNDS = 20  # of a thousand each, at a time
MOST_COMMANDS = 16  # of full chunks in a round trip: far below a client's timeout

MayTry = Callable[[str], bool]
"""Whether to try a place, by the name that `RedisHealth` knows it by."""


@dataclass
class Attempt:
    """One attempt to write all that waits."""

    deadline: float
    """By `time.monotonic()`: no round trip starts later."""
    may_try: MayTry
    query: Plan[Any] | None = None
    """A read to be done in the last round trip."""
    answer: Any = None
    """What the query returned, or the error that it raised."""
    is_answered: bool = False
    written: int = 0
    unwritten: int = 0
    """How many sightings are still to be written."""
    failure: Exception | None = None
    """Why something is still to be written, unless what failed before was not tried again."""
    failed_nodes: set[str] = field(default_factory=set)
    left: dict[Who, float] = field(default_factory=dict)
    """Who was refused since they had left, and when the newest of their visits arrived."""


class Writer:
    """Runs in the flush thread, or in the thread of whoever asks for a flush."""

    def __init__(
        self, backend: Backend, driver: Driver, resolver: IdentityResolver, hints: SetupHints
    ) -> None:
        self.driver = driver
        self._clock, self._health, self._layout = backend.clock, backend.health, backend.layout
        self._stores, self._departed = backend.stores, backend.departed
        self._shared_settings = backend.shared_settings
        self._window = backend.settings.window
        self._round = CHUNK * min(MOST_COMMANDS, 4 * backend.settings.shards)
        self._resolver, self._hints = resolver, hints
        self._visitor_key = keys.visitor_key(backend.settings.prefix)
        self._proposal = secrets.token_hex(32)
        self._agreed_at, self._agreed_generation = 0.0, -1
        self._clean_at = float("-inf")
        self._is_refused = False
        """Whether the last failure was an answer of a server."""
        self._rewrites = RewriteLog(self._window)
        self.flushes, self.flush_seconds = 0, 0.0
        """How often this has tried to write, and for how long in all."""

    def write(self, buffer: Buffer, attempt: Attempt) -> None:
        """Write what waits in `buffer`. What failed, or may not be tried, waits on."""
        if not attempt.may_try(""):
            attempt.unwritten = buffer.pending + len(buffer.departing())
            return
        began, waiting = time.monotonic(), buffer.pending
        try:
            self._prepare()
            self._write_rounds(buffer, attempt)
        except Exception as error:  # a fault of ours, too, must lose nobody
            self._failed(attempt, "", error)
        finally:  # nor may whatever interrupts a handler that writes
            buffer.restore()
            attempt.unwritten = waiting - attempt.written + len(buffer.departing())
            self.flushes += 1
            self.flush_seconds += time.monotonic() - began
        if not attempt.unwritten:
            self._health.all_written()
            self._is_refused = False

    def _write_rounds(self, buffer: Buffer, attempt: Attempt) -> None:
        departing = buffer.departing()
        came_back: list[Seen] = []
        left = buffer.pending
        while left > 0:
            taken = buffer.take(min(left, self._round))
            left -= self._round
            if departing:  # who came in again after leaving is recorded after that
                came_back += [seen for seen in taken if _is_after(seen, departing)]
                taken = [seen for seen in taken if not _is_after(seen, departing)]
            is_last = left <= 0 and not departing
            self._write_taken(buffer, attempt, taken, attempt.query if is_last else None)
        self._write_departures(buffer, attempt, departing)
        self._write_taken(buffer, attempt, came_back, None)

    def _write_taken(
        self, buffer: Buffer, attempt: Attempt, taken: list[Seen], query: Plan[Any] | None
    ) -> None:
        nodes = self._by_node(taken)
        for node in sorted(nodes, key=self._health.is_well, reverse=True):
            is_one = len(nodes) == 1
            self._write_node(buffer, attempt, node, nodes[node], query if is_one else None)

    def _write_departures(
        self, buffer: Buffer, attempt: Attempt, departing: Mapping[Who, Departing]
    ) -> None:
        """Take offline, or erase, who is to be."""
        nodes: dict[str, list[Who]] = {}
        for who in departing:
            nodes.setdefault(self.driver.node_of(self._shard_of(who).name), []).append(who)
        for node, people in nodes.items():
            if node in attempt.failed_nodes or not attempt.may_try(node):
                continue
            plans = [self._departure(who, departing[who]) for who in people]
            outcomes = self._run_at(node, plans, attempt)
            if outcomes is None:
                continue
            for who, moment in zip(people, outcomes, strict=True):
                if isinstance(moment, Exception):
                    self._failed(attempt, node, moment)
                else:
                    stamp, erase = departing[who]
                    buffer.departed(who, departing[who])
                    self._departed.note(who, Departure(stamp, moment, erase))

    def _departure(self, who: Who, departing: Departing) -> Plan[float]:
        id = self._resolver.resolve_id(who[1]) or ""
        moment = self._clock.latest_moment(departing.stamp)
        return self._shard_of(who).depart(
            id, moment, is_server_time=self._clock.is_server_time, erase=departing.erase
        )

    def _shard_of(self, who: Who) -> Store:
        return self._stores[who[0]].shard_for(self._resolver.resolve_id(who[1]) or "")

    def _by_node(self, taken: Sequence[Seen]) -> dict[str, dict[Store, list[Seen]]]:
        """Return what was taken by shard, and those by the node that has them."""
        shards: dict[Store, list[Seen]] = {}
        for seen in taken:
            shard = seen.shard
            if shard is None:
                kind, id = seen.who
                seen.id = self._resolver.resolve_id(id) or ""
                shard = seen.shard = self._stores[kind].shard_for(seen.id)
            if shard in shards:
                shards[shard].append(seen)
            else:
                shards[shard] = [seen]
        nodes: dict[str, dict[Store, list[Seen]]] = {}
        for shard, seen_there in shards.items():
            nodes.setdefault(self.driver.node_of(shard.name), {})[shard] = seen_there
        return nodes

    def _write_node(
        self,
        buffer: Buffer,
        attempt: Attempt,
        node: str,
        shards: dict[Store, list[Seen]],
        query: Plan[Any] | None,
    ) -> None:
        """Write the shards of a node in one round trip, and do the query in the same one."""
        if node in attempt.failed_nodes or not attempt.may_try(node):
            return
        stamp = self._clock.stamp()
        write = self._rewrites.write(self._clock.microseconds(stamp))
        tried = [shard for shard in shards if attempt.may_try(shard.name)]
        plans: list[Plan[Any]] = [
            shard.record(self.stamped(buffer, shards[shard]), write) for shard in tried
        ]
        if query is not None:
            plans.append(query)
        outcomes = self._run_at(node, plans, attempt)
        if outcomes is None:
            return
        if query is not None:
            attempt.answer, attempt.is_answered = outcomes.pop(), True
        for shard, outcome in zip(tried, outcomes, strict=True):
            if isinstance(outcome, Exception):
                # A key of another type is one shard's own; the server would fail all else as well.
                is_own = isinstance(outcome, QueryError)
                self._failed(attempt, shard.name if is_own else node, outcome)
            else:
                self._health.succeeded(node)
                self._recorded(buffer, attempt, shard, shards[shard], outcome)
                if self._rewrites.wrote(shard, write, stamp, outcome.wrote_before):
                    self._rewrite(buffer, shard, stamp)

    def _run_at(self, node: str, plans: Sequence[Plan[Any]], attempt: Attempt) -> list[Any] | None:
        """Run plans on a node in one round trip; note it, and return None, if none is answered."""
        try:
            return self.driver.run(run_all(plans), attempt.deadline)
        except PresenceUnavailable as error:
            self._failed(attempt, node, error)
            attempt.failed_nodes.add(node)
            return None

    def _failed(self, attempt: Attempt, place: str, error: Exception) -> None:
        self._health.failed(place)
        self._is_refused = isinstance(error, RedisRefused)
        attempt.failure = error

    def stamped(self, buffer: Buffer, taken: Sequence[Seen]) -> list[Stamped]:
        """Return sightings with the server's time."""
        microseconds = self._clock.microseconds
        stamped: list[Stamped] = []
        for seen in taken:
            moment = microseconds(seen.last_seen)
            is_same = seen.arrival == seen.last_seen
            stamped.append(
                (seen.id or "", moment, moment if is_same else microseconds(seen.arrival))
            )
        departing = buffer.departing()
        if self._departed or departing:
            for number, seen in enumerate(taken):
                stamped[number] = self._after_departure(seen, departing, stamped[number])
        return stamped

    def _after_departure(
        self, seen: Seen, departing: Mapping[Who, Departing], stamped: Stamped
    ) -> Stamped:
        """Return a sighting as later than a departure of before, by this process's own clock.

        By the server's, whoever comes in again at once may seem to have come in before.
        """
        left = self._departed.get(seen.who)
        floor = -math.inf if left is None or left.stamp >= seen.arrival else left.moment
        waits = departing.get(seen.who)
        if waits is not None and waits.stamp < seen.arrival:
            floor = max(floor, self._clock.latest_moment(waits.stamp))
        if floor == -math.inf:
            return stamped
        least = to_microseconds(floor) + 1
        id, moment, arrival = stamped
        return id, max(moment, least), max(arrival, least)

    def _recorded(
        self, buffer: Buffer, attempt: Attempt, shard: Store, taken: list[Seen], recorded: Recorded
    ) -> None:
        left: list[Seen] = []
        if recorded.left:
            left = [seen for seen in taken if seen.id in recorded.left]
            attempt.left |= {seen.who: seen.arrival for seen in left}
        buffer.wrote(taken, left, recorded.full)
        attempt.written += len(taken)
        kind = taken[0].who[0]
        self._hints.wrote(kind, recorded.full)

    def _prepare(self) -> None:
        """Learn the server's time, and what all processes agree upon."""
        # Sooner than readers need it, so that they seldom have to ask.
        self.driver.run(self._clock.synchronise(TRUSTED / 2))
        now, generation = self._clock.stamp(), self._health.generation
        if now - self._agreed_at < AGREED_EVERY and generation == self._agreed_generation:
            return
        try:
            self._agree(now)
        except PresenceUnavailable:
            if not self._is_agreed:
                raise  # else it stands while the node that keeps it is away
        self._agreed_at, self._agreed_generation = now, generation

    def _agree(self, now: float) -> None:
        self.driver.run(self._layout.claim(now))
        in_force = self.driver.run(self._shared_settings.publish(self._clock.moment(now)))
        self._hints.disagree(in_force.differing)
        for kind, seconds in in_force.keep_seconds.items():
            self._stores[kind].keep_longer(seconds)
        if self._resolver.shared_key is not None:  # the key with which guests are hashed
            agreed = agree(self._visitor_key, self._proposal, keys.VISITOR_KEY_TTL)
            self._proposal = self.driver.run(agreed)
            self._resolver.shared_key.learn(self._proposal.encode())

    @property
    def _is_agreed(self) -> bool:
        shared_key = self._resolver.shared_key
        return self._layout.is_agreed and (shared_key is None or shared_key.key is not None)

    def rewrite_lost(self, buffer: Buffer) -> None:
        """Have what this process wrote in the window wait again where a server has lost it."""
        if not self._health.is_well(""):
            return
        now = self._clock.stamp()
        for shard in self._rewrites.find_lost(self.driver, now, self._health.is_well):
            self._rewrite(buffer, shard, now)
        self._departed.forget_before(now)

    def _rewrite(self, buffer: Buffer, shard: Store, now: float) -> None:
        """Have sightings and departures of the window wait again for a shard that lost them."""
        buffer.rewrite(shard, now - self._window)
        self._departed.forget_before(now)
        for who, departure in self._departed:
            if self._shard_of(who) is shard:
                buffer.depart(who, departure.stamp, erase=departure.erase)

    def clean_up(self) -> None:
        """Remove what is stale, a bounded number of members at a time, now and then."""
        # A server that answers may be full: what is stale can be removed all the same.
        if self._clock.stamp() < self._clean_at or not self._may_clean(""):
            return
        self.driver.run(self._clock.synchronise(0))  # what is removed or moved is so by this time
        now = self._clock.stamp()
        self._clean_at = now + CLEAN_EVERY
        for store in self._stores.values():
            for shard in store.all:
                if self._may_clean(self.driver.node_of(shard.name)):
                    self._clean(shard, now)

    def _may_clean(self, node: str) -> bool:
        return self._health.is_well(node) or self._is_refused

    def _clean(self, shard: Store, now: float) -> None:
        try:
            for _ in range(CLEAN_ROUNDS):
                plan = shard.clean_up(
                    self._clock.moment(now), is_server_time=self._clock.is_server_time
                )
                if not self.driver.run(plan):
                    self._hints.cleaned(None)
                    return
        except PresenceUnavailable as error:
            if "permission" not in str(error):
                raise
            self._hints.cleaned(error)  # a right that is missing is no outage
            return
        self._clean_at = now  # there is more: go on after the next write


def _is_after(seen: Seen, departing: Mapping[Who, Departing]) -> bool:
    """Return whether somebody has come in again since a departure that waits."""
    departure = departing.get(seen.who)
    return departure is not None and departure.stamp < seen.arrival
