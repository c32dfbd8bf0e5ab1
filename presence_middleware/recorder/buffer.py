"""What waits to be written: of each identity the newest sighting. Bounded, and counted.

Every sighting ends as one of the counters: recorded = coalesced + flushed + pending + dropped.
"""

import threading
from collections import Counter
from typing import Any, Literal

from ..identity import Who
from ..stores import Refused

Times = tuple[float, float]
"""When an identity was last seen, and when the newest of its visits arrived."""
Pending = dict[Who, Times]
Reason = Literal["expired", "full", "left", "members", "quota"]
"""Why a sighting was dropped."""


class Buffer:
    """A dictionary under a lock that nothing holds across I/O."""

    def __init__(self, limit: int, pending: Pending | None = None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._pending: Pending = pending or {}
        self._in_flight = 0
        self._taken: Pending = {}
        self.recorded = len(self._pending)
        self.coalesced = 0
        self.flushed = 0
        self.dropped: Counter[Reason] = Counter()

    @property
    def pending(self) -> int:
        """How many identities wait, those just being written included."""
        return len(self._pending) + self._in_flight

    @property
    def given_up(self) -> int:
        """How many sightings could not wait for Redis any longer."""
        return self.dropped["expired"] + self.dropped["full"]

    def counters(self) -> dict[str, Any]:
        """All of one moment, so that they add up."""
        with self._lock:
            return {
                "recorded": self.recorded,
                "coalesced": self.coalesced,
                "flushed": self.flushed,
                "pending": self.pending,
                "dropped": dict(+self.dropped),
            }

    def copy(self) -> Pending:
        """What waits, without the lock: in a forked child, nobody may be left to let go of it."""
        return dict(self._pending)

    def put(self, who: Who, times: Times) -> None:
        """Takes a sighting; past the limit only of identities that are waiting already."""
        with self._lock:
            self.recorded += 1
            self._merge(who, times)

    def take(self) -> Pending:
        """Takes out all that waits; `wrote` and `put_back` must follow for all of it."""
        with self._lock:
            taken, self._pending = self._pending, {}
            self._in_flight, self._taken = len(taken), taken
            return taken

    def refuse(self, reason: Reason) -> None:
        """Counts a sighting that is not even taken."""
        with self._lock:
            self.recorded += 1
            self.dropped[reason] += 1

    def wrote(self, count: int, refused: Refused) -> None:
        """Notes that `count` sightings were sent, of which Redis refused some."""
        left = len(refused.left)
        with self._lock:
            self._in_flight -= count
            if not self._in_flight:
                self._taken = {}
            self.flushed += count - left - refused.full
            self.dropped["left"] += left
            self.dropped["members"] += refused.full

    def put_back(self, unwritten: Pending) -> None:
        """Takes back what could not be written; what has come since is newer."""
        with self._lock:
            since, self._pending, self._in_flight = self._pending, unwritten, 0
            self._taken = {}
            for who, times in since.items():
                self._merge(who, times)

    def put_again(self, sightings: Pending) -> None:
        """Takes sightings that were written and lost; what has come since is newer."""
        for who, times in sightings.items():
            self.put(who, times)

    def drop_before(self, stamp: float) -> None:
        """Drops sightings from before `stamp`: their window is over."""
        with self._lock:
            kept = {who: times for who, times in self._pending.items() if times[0] > stamp}
            self.dropped["expired"] += len(self._pending) - len(kept)
            self._pending = kept

    def _merge(self, who: Who, times: Times) -> None:
        pending = self._pending
        known = pending.get(who)
        if known is not None:
            self.coalesced += 1
            if times[0] < known[0] or times[1] < known[1]:
                # The newest of each: who left between two arrivals is refused one, not the other.
                times = max(known[0], times[0]), max(known[1], times[1])
            pending[who] = times
        elif len(pending) + self._in_flight < self._limit or (
            self._in_flight and who in self._taken
        ):
            pending[who] = times
        else:
            self.dropped["full"] += 1
