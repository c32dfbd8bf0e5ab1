"""What waits to be written: of each identity the newest sighting. Bounded, and counted.

Every sighting ends as one of the counters: recorded = coalesced + flushed + pending + dropped.
"""

import threading
from collections import Counter

from ..identity import Found

Pending = dict[str, dict[Found, float]]
"""By kind, the stamp of each id."""


class Buffer:
    """A dictionary under a lock that nothing holds across I/O."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._pending: Pending = {}
        self._size = 0
        self._in_flight = 0
        self.recorded = 0
        self.coalesced = 0
        self.flushed = 0
        self.dropped: Counter[str] = Counter()

    @property
    def pending(self) -> int:
        """How many identities wait, those just being written included."""
        return self._size + self._in_flight

    def put(self, kind: str, id: Found, stamp: float) -> None:
        """Takes a sighting; past the limit only of identities that are waiting already."""
        with self._lock:
            self.recorded += 1
            self._merge(kind, id, stamp)

    def take(self) -> Pending:
        """Takes out all that waits; `wrote` or `put_back` must follow for each kind of it."""
        with self._lock:
            taken, self._pending = self._pending, {}
            self._in_flight, self._size = self._size, 0
            return taken

    def wrote(self, count: int, refused: int) -> None:
        """Notes that `count` sightings were sent, of which Redis refused some: they had left."""
        with self._lock:
            self._in_flight -= count
            self.flushed += count - refused
            self.dropped["left"] += refused

    def put_back(self, unwritten: Pending) -> None:
        """Takes back what could not be written; what has come since is newer."""
        with self._lock:
            since, self._pending = self._pending, unwritten
            self._size, self._in_flight = sum(map(len, unwritten.values())), 0
            for kind, ids in since.items():
                for id, stamp in ids.items():
                    self._merge(kind, id, stamp)

    def drop_before(self, stamp: float) -> None:
        """Drops sightings from before `stamp`: their window is over."""
        with self._lock:
            for kind, ids in self._pending.items():
                kept = {id: at for id, at in ids.items() if at > stamp}
                self._size -= len(ids) - len(kept)
                self.dropped["expired"] += len(ids) - len(kept)
                self._pending[kind] = kept

    def _merge(self, kind: str, id: Found, stamp: float) -> None:
        ids = self._pending.setdefault(kind, {})
        known = ids.get(id)
        if known is not None:
            self.coalesced += 1
            ids[id] = max(known, stamp)
        elif self._size < self._limit:
            ids[id] = stamp
            self._size += 1
        else:
            self.dropped["full"] += 1
