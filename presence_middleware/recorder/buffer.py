"""The identities that this process saw lately, and which of them wait to be written.

The buffer is bounded. Each sighting is counted once:
recorded = coalesced + flushed + pending + dropped.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from ..departed import Manner
from ..identity import Who
from ..stores import Store

Sightings = list[tuple[Who, float, float]]
"""Identities with their last-seen and arrival times, by the recorder's clock."""

Entrance = tuple[int, float]
"""The number of a room, or `NOWHERE`, and the time of entering it, by the recorder's clock."""

TIGHT = 0.5  # of the limit: above it, sightings from before the window are dropped

Reason = Literal["expired", "full", "left", "members", "quota"]
"""Why a sighting was dropped.

`expired`: it left the window before Redis answered. `full`: the buffer was at its limit. `left`:
the user had left after it. `members`: `PRESENCE_MAX_MEMBERS` was reached. `quota`: its address
had brought too many guests.
"""


class Entry:
    """An identity that this process saw: idle, waiting to be written, or being written."""

    __slots__ = (
        "arrival",
        "entrance",
        "id",
        "is_in_flight",
        "is_waiting",
        "last_seen",
        "move",
        "shard",
        "who",
    )

    def __init__(self, who: Who, last_seen: float, arrival: float) -> None:
        self.who = who
        self.last_seen = last_seen
        self.arrival = arrival
        self.is_waiting = False
        self.is_in_flight = False
        self.id: str | None = None
        """The id as it is stored. None until the writer has resolved it."""
        self.shard: Store | None = None
        """The shard that holds the id. None until the writer has resolved it."""
        self.entrance: Entrance | None = None
        """The room that the identity last entered or left. None if it entered none."""
        self.move: Entrance | None = None
        """The same until it is written, then None."""

    def enter(self, entrance: Entrance) -> None:
        """Note that the identity entered a room, unless it has moved again since."""
        known = self.entrance
        if known is None or (entrance[1] >= known[1] and entrance != known):
            self.entrance = self.move = entrance


class PendingDeparture(NamedTuple):
    """A goodbye, a logout or an erasure that waits to be written."""

    stamp: float
    """The time of the call, by the recorder's clock."""
    manner: Manner


class Buffer:
    """Sightings and departures that wait for Redis, each identity at most once."""

    def __init__(self, limit: int, sightings: Sightings = []) -> None:  # noqa: B006 - only read
        """Create a buffer that already holds `sightings`.

        At most `limit` identities wait, and at most as many again are remembered after a write.
        """
        self._limit = limit
        self.lock = threading.Lock()
        """Held by each method for a moment, never across I/O."""
        # Entries of the current period and of the one before. A period is as long as the window.
        self._recent: dict[Who, Entry] = {}
        self._earlier: dict[Who, Entry] = {}
        self._period_began = float("-inf")
        self._waiting: list[Entry] = []
        self._taken: list[Entry] = []
        self._in_flight = 0
        self._departures: dict[Who, PendingDeparture] = {}
        self.recorded = 0
        self.coalesced = 0
        self.flushed = 0
        self.dropped: Counter[Reason] = Counter()
        for who, last_seen, arrival in sightings:
            self.put(who, last_seen, arrival)

    @property
    def pending(self) -> int:
        """The number of identities that wait or are being written."""
        return len(self._waiting) + self._in_flight

    @property
    def is_empty(self) -> bool:
        """Return whether neither a sighting nor a departure waits."""
        return not (self._waiting or self._in_flight or self._departures)

    @property
    def expired_or_full(self) -> int:
        """The number of sightings that were dropped because Redis was away for too long."""
        return self.dropped["expired"] + self.dropped["full"]

    def counters(self) -> dict[str, Any]:
        """Return all counters at the same moment, so that they add up."""
        with self.lock:
            return {
                "recorded": self.recorded,
                "coalesced": self.coalesced,
                "flushed": self.flushed,
                "pending": self.pending,
                "dropped": dict(+self.dropped),
            }

    def waiting(self) -> Sightings:
        """Return the sightings that wait.

        Takes no lock: in a forked child, it may be held for ever.
        """
        return [(entry.who, entry.last_seen, entry.arrival) for entry in list(self._waiting)]

    def put(self, who: Who, stamp: float, arrival: float, entrance: Entrance | None = None) -> None:
        """Add a sighting of `who`, seen at `stamp` by a visit that arrived at `arrival`.

        `entrance` is the room that the visit entered, or None. All times are by the recorder's
        clock. At the limit, only identities that wait already
        are refreshed; other sightings are dropped and counted.
        """
        self.lock.acquire()  # each request comes here, and `with` takes twice as long
        try:
            self.recorded += 1
            entry = self._recent.get(who)
            if entry is None or not entry.is_waiting:
                self._put_idle(who, stamp, arrival, entrance)
                return
            self.coalesced += 1
            # Each maximum counts: a departure between two arrivals refuses only the older visit.
            entry.last_seen = max(entry.last_seen, stamp)
            entry.arrival = max(entry.arrival, arrival)
            if entrance is not None:
                entry.enter(entrance)
        finally:
            self.lock.release()

    def _put_idle(self, who: Who, stamp: float, arrival: float, entrance: Entrance | None) -> None:
        """Add a sighting of an identity that does not wait. The caller holds the lock."""
        entry = self._recent.get(who)
        if entry is None and (entry := self._earlier.pop(who, None)) is not None:
            self._recent[who] = entry
        is_in_flight = entry is not None and entry.is_in_flight
        if self.pending >= self._limit and not is_in_flight:
            self.dropped["full"] += 1
            return
        if entry is None:
            entry = self._recent[who] = Entry(who, stamp, arrival)
        else:
            entry.last_seen = max(stamp, entry.last_seen)
            entry.arrival = max(arrival, entry.arrival) if is_in_flight else arrival
        if entrance is not None:
            entry.enter(entrance)
        entry.is_waiting = True
        self._waiting.append(entry)

    def refuse(self, reason: Reason) -> None:
        """Count a sighting that is dropped before it waits."""
        with self.lock:
            self.recorded += 1
            self.dropped[reason] += 1

    def add_departure(self, who: Who, stamp: float, manner: Manner) -> None:
        """Add a departure that was asked for at `stamp`, by the recorder's clock.

        A later departure of the same identity replaces the earlier, but never cancels an erasure,
        and a goodbye cancels no logout. At the limit, departures of other identities are ignored.
        """
        with self.lock:
            waiting = self._departures.get(who)
            if waiting is None and len(self._departures) >= self._limit:
                return
            if waiting is not None:
                if manner == Manner.GOODBYE < waiting.manner:
                    return
                manner = max(manner, waiting.manner)
            self._departures[who] = PendingDeparture(stamp, manner)

    def departure_of(self, who: Who) -> PendingDeparture | None:
        """Return the departure of an identity while it waits."""
        return self._departures.get(who)

    def departures(self) -> dict[Who, PendingDeparture]:
        """Return the departures that wait."""
        with self.lock:
            return dict(self._departures)

    def departure_written(self, who: Who, departure: PendingDeparture) -> None:
        """Remove a departure that was written, unless a later call has replaced it."""
        with self.lock:
            if self._departures.get(who) == departure:
                del self._departures[who]

    def take(self, limit: int) -> list[Entry]:
        """Take out up to `limit` waiting entries, oldest first.

        The caller must call `mark_written` for the entries that Redis answered, then `restore`.
        """
        with self.lock:
            taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
            for entry in taken:
                entry.is_waiting, entry.is_in_flight = False, True
            self._taken += taken
            self._in_flight += len(taken)
            return taken

    def mark_written(self, written: Collection[Entry], left: Collection[Entry], full: int) -> None:
        """Count taken entries that Redis answered.

        Of `written`, Redis refused `left` because these users had left after their visit, and
        `full` more because `PRESENCE_MAX_MEMBERS` was reached.
        """
        with self.lock:
            for entry in written:
                entry.is_in_flight = False
                if not entry.is_waiting:
                    entry.move = None
            for entry in left:
                if not entry.is_waiting:
                    self._forget(entry)
            self._in_flight -= len(written)
            self.flushed += len(written) - len(left) - full
            self.dropped["left"] += len(left)
            self.dropped["members"] += full
            if len(self._recent) + len(self._earlier) > self._limit:
                self._forget_beyond_limit(written)

    def restore(self) -> None:
        """Make taken entries wait again if they were not written.

        An identity that was seen again meanwhile waits once.
        """
        with self.lock:
            for entry in self._taken:
                if not entry.is_in_flight:
                    continue
                entry.is_in_flight = False
                self._in_flight -= 1
                if entry.is_waiting:
                    self.coalesced += 1
                else:
                    entry.is_waiting = True
                    self._waiting.append(entry)
            self._taken = []

    def rewrite(self, shard: Store, since: float) -> None:
        """Make all entries of `shard` that were seen after `since` wait again.

        `since` is by the recorder's clock.
        """
        with self.lock:
            for entry in [*self._earlier.values(), *self._recent.values()]:
                is_idle = not (entry.is_waiting or entry.is_in_flight)
                if is_idle and entry.shard is shard and entry.last_seen > since:
                    self.recorded += 1
                    entry.is_waiting = True
                    entry.move = entry.entrance
                    self._waiting.append(entry)

    def drop_expired(self, window_began: float, retained_since: Mapping[str, float]) -> None:
        """Drop waiting sightings that are too old to be of use.

        A sighting from before `window_began` no longer makes a user online, but may still set a
        last-seen time: it waits if it is newer than `retained_since` of its kind, and if the
        buffer is not more than half full. All times are by the recorder's clock.
        """
        with self.lock:
            is_tight = self.pending > TIGHT * self._limit
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                since = window_began
                if not is_tight:
                    since = min(since, retained_since[entry.who[0]])
                if entry.last_seen > since:
                    self._waiting.append(entry)
                else:
                    entry.is_waiting = False
                    self._forget(entry)
                    self.dropped["expired"] += 1

    def forget_idle(self, now: float, window: float) -> None:
        """Forget identities that were not seen for a whole `window`, in seconds.

        Does nothing until a window has passed since it last did so. `now` is by the recorder's
        clock.
        """
        if now - self._period_began >= window:
            with self.lock:
                earlier = self._recent
                self._recent = {entry.who: entry for entry in self._waiting}
                self._earlier = {
                    who: entry for who, entry in earlier.items() if not entry.is_waiting
                }
                self._period_began = now

    def _forget_beyond_limit(self, written: Iterable[Entry]) -> None:
        for entry in written:
            if len(self._recent) + len(self._earlier) <= self._limit:
                break
            if not entry.is_waiting:
                self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        for period in (self._recent, self._earlier):
            if period.get(entry.who) is entry:
                del period[entry.who]
