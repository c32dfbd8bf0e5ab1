"""What this process has seen lately and what of it waits to be written. Bounded, and counted.

Every sighting ends in one of the counters: recorded = coalesced + flushed + pending + dropped.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from ..identity import Who
from ..stores import Store

Sightings = list[tuple[Who, float, float]]
"""Who was seen, when, and when they arrived, by the recorder's clock."""

ROOMY = 0.5  # of the limit: up to there, last-seen times from before the window may wait
Reason = Literal["expired", "full", "left", "members", "quota"]
"""Why a sighting was dropped."""


class Seen:
    """One identity that this process has seen: idle, waiting to be written, being written."""

    __slots__ = ("arrival", "id", "is_in_flight", "is_waiting", "last_seen", "shard", "who")

    def __init__(self, who: Who, last_seen: float, arrival: float) -> None:
        self.who = who
        self.last_seen = last_seen
        self.arrival = arrival
        self.is_waiting = False
        self.is_in_flight = False
        self.id: str | None = None
        """The id as it is stored; None until the writer has asked for it."""
        self.shard: Store | None = None


class Departing(NamedTuple):
    """Somebody who is to leave, or to be erased."""

    stamp: float
    """When that was asked for, by the recorder's clock."""
    erase: bool


class Buffer:
    """Identities by kind and id, under a lock that nothing holds across I/O."""

    def __init__(self, limit: int, sightings: Sightings = []) -> None:  # noqa: B006 - only read
        """`limit` is how many identities may wait, and how many more are remembered."""
        self._limit = limit
        self._lock = threading.Lock()
        # Those of this period, and of the one before: a period is as long as the window.
        self._recent: dict[Who, Seen] = {}
        self._earlier: dict[Who, Seen] = {}
        self._period_began = float("-inf")
        self._waiting: list[Seen] = []
        self._taken: list[Seen] = []
        self._in_flight = 0
        self._departing: dict[Who, Departing] = {}
        self.recorded = 0
        self.coalesced = 0
        self.flushed = 0
        self.dropped: Counter[Reason] = Counter()
        for who, last_seen, arrival in sightings:
            self.put(who, last_seen, arrival)

    @property
    def pending(self) -> int:
        """How many identities wait, those just being written included."""
        return len(self._waiting) + self._in_flight

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits: no sighting and no departure."""
        return not (self._waiting or self._in_flight or self._departing)

    @property
    def expired_or_full(self) -> int:
        """How many sightings could not wait for Redis any longer."""
        return self.dropped["expired"] + self.dropped["full"]

    def counters(self) -> dict[str, Any]:
        """Return all counters as of one moment, so that they add up."""
        with self._lock:
            return {
                "recorded": self.recorded,
                "coalesced": self.coalesced,
                "flushed": self.flushed,
                "pending": self.pending,
                "dropped": dict(+self.dropped),
            }

    def copy(self) -> Sightings:
        """Return what waits, without the lock: in a forked child, nobody may release it."""
        return [(seen.who, seen.last_seen, seen.arrival) for seen in list(self._waiting)]

    def put(self, who: Who, stamp: float, arrival: float) -> None:
        """Take a sighting; past the limit only of identities that are waiting already."""
        self._lock.acquire()  # each request comes here, and `with` takes twice as long
        try:
            self.recorded += 1
            seen = self._recent.get(who)
            if seen is None or not seen.is_waiting:
                self._put_idle(who, stamp, arrival)
                return
            self.coalesced += 1
            # The newest of each: who left between two arrivals is refused one, not the other.
            seen.last_seen = max(seen.last_seen, stamp)
            seen.arrival = max(seen.arrival, arrival)
        finally:
            self._lock.release()

    def _put_idle(self, who: Who, stamp: float, arrival: float) -> None:
        """Take a sighting of somebody who is not waiting."""
        seen = self._recent.get(who) or self._find_earlier(who)
        is_in_flight = seen is not None and seen.is_in_flight
        if self.pending >= self._limit and not is_in_flight:
            self.dropped["full"] += 1
            return
        if seen is None:
            seen = self._recent[who] = Seen(who, stamp, arrival)
        else:
            seen.last_seen = max(stamp, seen.last_seen)
            seen.arrival = max(arrival, seen.arrival) if is_in_flight else arrival
        seen.is_waiting = True
        self._waiting.append(seen)

    def _find_earlier(self, who: Who) -> Seen | None:
        """Return who was seen in the period before, and count them to this one."""
        seen = self._earlier.pop(who, None)
        if seen is not None:
            self._recent[who] = seen
        return seen

    def refuse(self, reason: Reason) -> None:
        """Count a sighting that is not even taken."""
        with self._lock:
            self.recorded += 1
            self.dropped[reason] += 1

    def depart(self, who: Who, stamp: float, *, erase: bool) -> None:
        """Take a departure; past the limit only of somebody whose departure waits already."""
        with self._lock:
            known = self._departing.get(who)
            if known is not None:
                erase = erase or known.erase
            elif len(self._departing) >= self._limit:
                return
            self._departing[who] = Departing(stamp, erase)

    def departure_of(self, who: Who) -> Departing | None:
        """Return the departure of somebody, while it waits."""
        return self._departing.get(who)

    def departing(self) -> dict[Who, Departing]:
        """Return the departures that wait."""
        with self._lock:
            return dict(self._departing)

    def departed(self, who: Who, departing: Departing) -> None:
        """Note that a departure was written, unless another has come since."""
        with self._lock:
            if self._departing.get(who) == departing:
                del self._departing[who]

    def take(self, most: int) -> list[Seen]:
        """Take out up to `most` that wait. `wrote` must follow for each, or else `restore`."""
        with self._lock:
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
            for seen in taken:
                seen.is_waiting, seen.is_in_flight = False, True
            self._taken += taken
            self._in_flight += len(taken)
            return taken

    def wrote(self, written: Collection[Seen], left: Collection[Seen], full: int) -> None:
        """Note what was sent. Redis refused those who `left`, and `full` for want of room."""
        with self._lock:
            for seen in written:
                seen.is_in_flight = False
            for seen in left:
                if not seen.is_waiting:
                    self._forget(seen)
            self._in_flight -= len(written)
            self.flushed += len(written) - len(left) - full
            self.dropped["left"] += len(left)
            self.dropped["members"] += full
            if len(self._recent) + len(self._earlier) > self._limit:
                self._forget_beyond_limit(written)

    def restore(self) -> None:
        """Have what was taken and not written wait again; what has come since is merged."""
        with self._lock:
            for seen in self._taken:
                if not seen.is_in_flight:
                    continue
                seen.is_in_flight = False
                self._in_flight -= 1
                if seen.is_waiting:
                    self.coalesced += 1
                else:
                    seen.is_waiting = True
                    self._waiting.append(seen)
            self._taken = []

    def rewrite(self, shard: Store, since: float) -> None:
        """Have everybody of a shard wait again who was seen after `since`."""
        with self._lock:
            for seen in [*self._earlier.values(), *self._recent.values()]:
                is_idle = not (seen.is_waiting or seen.is_in_flight)
                if is_idle and seen.shard is shard and seen.last_seen > since:
                    self.recorded += 1
                    seen.is_waiting = True
                    self._waiting.append(seen)

    def drop_expired(self, stamp: float, kept_since: Mapping[str, float]) -> None:
        """Drop sightings that are of no use any more, and those from before `stamp` if it is tight.

        `stamp` is when the window began: somebody from before is offline, but may have a last-seen
        time. Of each kind, those are kept from `kept_since` on.
        """
        with self._lock:
            is_tight = self.pending > ROOMY * self._limit
            waiting, self._waiting = self._waiting, []
            for seen in waiting:
                since = stamp if is_tight else min(stamp, kept_since[seen.who[0]])
                if seen.last_seen > since:
                    self._waiting.append(seen)
                else:
                    seen.is_waiting = False
                    self._forget(seen)
                    self.dropped["expired"] += 1

    def forget_idle(self, now: float, window: float) -> None:
        """Once a window, forget those who were not seen for a whole one."""
        if now - self._period_began >= window:
            with self._lock:
                earlier = self._recent
                self._recent = {seen.who: seen for seen in self._waiting}
                self._earlier = {who: seen for who, seen in earlier.items() if not seen.is_waiting}
                self._period_began = now

    def _forget_beyond_limit(self, written: Iterable[Seen]) -> None:
        for seen in written:
            if len(self._recent) + len(self._earlier) <= self._limit:
                break
            if not seen.is_waiting:
                self._forget(seen)

    def _forget(self, seen: Seen) -> None:
        for known in (self._recent, self._earlier):
            if known.get(seen.who) is seen:
                del known[seen.who]
