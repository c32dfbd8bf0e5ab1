"""Writes what the buffer holds to Redis: by shard, with the server's time, and cleans up behind."""

import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from ..connections import Driver
from ..errors import PresenceUnavailable
from ..identity import Found, SharedHasher
from ..settings import Settings
from ..stores import Refused, Store, agree, keys
from .backoff import Backoff
from .buffer import Buffer, Pending
from .notices import Notices
from .written import Written

AGREED_EVERY = 10.0  # seconds; a Redis that restarted empty has lost what was agreed
CLEAN_EVERY = 30.0  # seconds
CLEAN_ROUNDS = 20  # of a thousand each, at a time
ALL = "*"
"""The name of a failure that is no single server's, as of what comes before all writes."""

ONLY = ""
"""The name of the server, where there are no nodes (`Driver.place`)."""

MayTry = Callable[[str], bool]
"""Whether to try a server, or a shard of its own, by name."""


class Outcome(NamedTuple):
    """What became of a flush."""

    unwritten: int
    """How many sightings are still to be written."""
    failure: Exception | None = None
    """Why, unless what failed before was not tried again."""


class Writer:
    """One flush: runs in the flush thread, or in the thread of whoever asks for it."""

    def __init__(
        self, settings: Settings, driver: Driver, shared: SharedHasher | None, notices: Notices
    ) -> None:
        self.driver = driver
        self.backoff = Backoff(settings.flush_interval)
        self._notices = notices
        self._clock = driver.clock
        self._stores = settings.stores()
        self._layout = settings.layout()
        self._prefix = settings.prefix
        self._shared = shared
        self._proposal = secrets.token_hex(32)
        self._agree_at = self._clean_at = float("-inf")
        self._doubts = 0
        self._written = Written(settings.window, settings.max_pending)
        self.flushes, self.flush_seconds = 0, 0.0
        """How often this has tried to write, and for how long in all."""
        self.left: Pending = {}
        """Who was refused since they had left, for the recorder to take."""

    def write(self, buffer: Buffer, deadline: float, may_try: MayTry) -> Outcome:
        """Writes what waits in `buffer`; what failed, or may not be tried, goes back.

        No round trip starts after `deadline`, by `time.monotonic()`.
        """
        if not (may_try(ALL) and may_try(ONLY)):
            return Outcome(buffer.pending)
        began, unwritten = time.monotonic(), buffer.take()
        try:
            self._prepare()
            self.backoff.succeeded(ALL)
            failure = self._write_shards(unwritten, buffer, deadline, may_try)
        except Exception as error:  # a fault of ours, too, must lose nobody
            self.backoff.failed(ALL)
            failure = error
        finally:  # nor may whatever interrupts a handler that writes
            if unwritten:
                buffer.put_back(unwritten)
            self.flushes += 1
            self.flush_seconds += time.monotonic() - began
        if not unwritten:
            self.backoff.clear()
        return Outcome(len(unwritten), failure)

    def _write_shards(
        self, unwritten: Pending, buffer: Buffer, deadline: float, may_try: MayTry
    ) -> Exception | None:
        """Writes each shard by itself, and takes out what is written; returns why it is not all."""
        failure: Exception | None = None
        failed: set[str] = set()
        for place, kind, shard, sightings in self._by_shard(unwritten):
            if place in failed or not (may_try(place) and may_try(shard.name)):
                continue
            try:
                refused = self._write(shard, sightings, deadline)
            except Exception as error:
                # The server would fail all else as well; a wrong key is one shard's own.
                failure = error
                is_down = isinstance(error, PresenceUnavailable)
                self.backoff.failed(place if is_down else shard.name)
                failed.update({place} if is_down else ())
            else:
                for who in sightings:
                    del unwritten[who]
                self.backoff.succeeded(place)
                buffer.wrote(len(sightings), refused)
                self._notices.wrote(kind, refused)
        return failure

    def _write(self, shard: Store, sightings: Pending, deadline: float) -> Refused:
        moment = self._clock.moment
        kept = [
            (self.finished(id) or "", moment(stamp), moment(arrival))
            for (_, id), (stamp, arrival) in sightings.items()
        ]
        refused = self.driver.run(shard.record(kept), deadline)
        self._written.note(shard, sightings)
        if refused.left:
            sent = zip(sightings.items(), kept, strict=True)
            left = {who: times for (who, times), (id, *_) in sent if id in refused.left}
            self._written.drop(shard, left)
            self.left |= left
        return refused

    def _by_shard(self, pending: Pending) -> list[tuple[str, str, Store, Pending]]:
        """The place, kind, shard and sightings of each shard; the places that are well first."""
        shards: dict[tuple[str, Store], Pending] = {}
        for (kind, id), times in pending.items():
            shard = self._stores[kind].of(self.finished(id) or "")
            shards.setdefault((kind, shard), {})[kind, id] = times
        placed = [
            (self.driver.place(shard.name), kind, shard, sightings)
            for (kind, shard), sightings in shards.items()
        ]
        return sorted(placed, key=lambda each: not self.backoff.is_well(each[0]))

    def _prepare(self) -> None:
        """Learns the server's time, and what all processes agree upon."""
        self.driver.run(self._clock.synchronise())
        now, doubts = self._clock.stamp(), self._clock.doubts
        if now >= self._agree_at or doubts > self._doubts:
            try:
                self._agree(now)
            except PresenceUnavailable:
                if not self._is_agreed:
                    raise  # else it stands while the node that keeps it is away
            self._agree_at, self._doubts = now + AGREED_EVERY, doubts

    def _agree(self, now: float) -> None:
        self.driver.run(self._layout.claim(now))
        if self._shared is not None:  # the key with which guests are hashed
            name, ttl = keys.visitor_key(self._prefix), keys.VISITOR_KEY_TTL
            self._proposal = self.driver.run(agree(name, self._proposal, ttl))
            self._shared.learn(self._proposal.encode())

    @property
    def _is_agreed(self) -> bool:
        return self._layout.is_agreed and (self._shared is None or self._shared.key is not None)

    def finished(self, id: Found) -> str | None:
        """An id as it is kept; None if it waits for a key that is not known yet."""
        if isinstance(id, str):
            return id
        return self._shared.finish(id) if self._shared and self._shared.key else None

    def lost(self) -> Pending:
        """What this process wrote in the window, and a server does not have any more."""
        if not self.backoff.is_well(ALL):
            return {}
        return self._written.lost(self.driver, self.backoff.is_well)

    def clean_up(self) -> None:
        """Removes the stale, a bounded number at a time, now and then."""
        if self._clock.stamp() < self._clean_at or not self.backoff.is_well(ALL):
            return
        self.driver.run(self._clock.synchronise(0))  # what is removed or moved is so by this time
        now = self._clock.stamp()
        self._clean_at = now + CLEAN_EVERY
        for store in self._stores.values():
            for shard in store.all:
                if self.backoff.is_well(self.driver.place(shard.name)):
                    self._clean(shard, now)

    def _clean(self, shard: Store, now: float) -> None:
        try:
            for _ in range(CLEAN_ROUNDS):
                if not self.driver.run(shard.clean_up(self._clock.moment(now))):
                    self._notices.cleaned(None)
                    return
        except PresenceUnavailable as error:
            if "permission" not in str(error):
                raise
            self._notices.cleaned(error)  # a right that is missing is no outage
            return
        self._clean_at = now  # there is more: go on after the next write
