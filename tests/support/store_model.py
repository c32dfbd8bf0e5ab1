"""What a sorted set of people must hold after any history: a model without Redis, shards or chunks.

The model applies one write at a time to dictionaries. Moments are microseconds since the epoch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from presence_middleware.stores import Act, Departure, Seen, Write, Written

SECOND = 1_000_000
SLACK = 120 * SECOND
MOST_EVICTED = 1000


def erased(id: str) -> str:
    """Return the member that stands for an erased id."""
    return f" {hashlib.sha1(id.encode()).hexdigest()}"


@dataclass
class Model:
    """A kind in one shard."""

    window: int
    lowered_by: int
    """By how much a goodbye lowers the last-seen time."""
    keep: int
    max_members: int
    seen: dict[str, int] = field(default_factory=dict)
    bye: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    writers: dict[str, int] = field(default_factory=dict)
    room: dict[str, int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    is_marked: bool = False
    """Whether the server noted that there are members."""

    def write(self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write) -> Written:
        """Apply sightings, then departures."""
        self._notice_loss()
        wrote_before = self.writers.get(write.process)
        refused, full = self._see(seen, write.moment)
        for departure in departures:
            self._depart(*departure)
        if departures:
            self._trim(write.moment)
        self.is_marked = bool(self.seen)
        self.writers[write.process] = write.moment
        before = None if wrote_before is None else wrote_before / SECOND
        return Written(refused, full, before, 0, 0)

    def _notice_loss(self) -> None:
        if not self.seen:
            self.room, self.moved = {}, {}
            if self.is_marked:
                self.writers, self.bye = {}, {}

    def _trim(self, now: int) -> None:
        matters = now - self.window - SLACK
        left = {id: at for id, at in self.left.items() if at > matters}
        self.left, self.gone = self._newest(left), self._newest(self.gone)

    def _newest(self, times: dict[str, int]) -> dict[str, int]:
        excess = max(0, len(times) - self.max_members)
        return dict(sorted(times.items(), key=lambda each: (each[1], each[0]))[excess:])

    def _see(self, seen: Sequence[Seen], now: int) -> tuple[list[int], int]:
        room, is_tight = self.max_members - len(self.seen), False
        known = set(self.seen)
        if len(seen) > room:
            is_tight = True
            room += self._make_room(seen, sum(id not in known for id, *_ in seen) - room, now)
        refused, full, accepted = [], 0, []
        for position, (id, moment, arrival, move) in enumerate(seen):
            if self._has_left(id, arrival):
                refused.append(position)
            elif is_tight and id not in known and room <= 0:
                full += 1
            elif self.bye.get(id, 0) < max(moment, arrival):
                room -= id not in known
                accepted.append((id, moment, move))
        for id, moment, move in accepted:
            self.seen[id] = max(moment, self.seen.get(id, moment))
            self.gone.pop(id, None)
            if move and move[1] > self.moved.get(id, 0) and not self._has_left(id, move[1]):
                self.room[id], self.moved[id] = move
        return refused, full

    def _has_left(self, id: str, since: int) -> bool:
        return max(self.left.get(id, 0), self.left.get(erased(id), 0)) >= since

    def _make_room(self, seen: Sequence[Seen], needed: int, now: int) -> int:
        """Remove ids that are offline; return how many."""
        most = min(needed + len(seen), MOST_EVICTED)
        oldest = sorted((at, id) for id, at in self.seen.items() if at <= now - self.window)
        ids = {id for id, *_ in seen}
        evicted = [id for _, id in oldest[: max(0, most)] if id not in ids][: max(0, needed)]
        for id in evicted:
            self._forget(id)
        return len(evicted)

    def _forget(self, id: str) -> None:
        del self.seen[id]
        self.bye.pop(id, None)
        self.room.pop(id, None)

    def _depart(self, act: Act, id: str, moment: int, last_known: int | None) -> None:
        score = self.seen.get(id)
        last_seen = None if score is None else max(score, self.bye.get(id, 0))
        is_past = last_seen is not None and last_seen <= moment
        if act is Act.GOODBYE:
            if score is not None and is_past and score > moment - self.lowered_by:
                self.seen[id], self.bye[id] = moment - self.lowered_by, moment
            return
        if self.moved.get(id, 0) <= moment:
            self.room.pop(id, None)
        if is_past:
            self._forget(id)
        elif score is None and last_known is not None and last_known <= moment:
            is_erased = self.left.get(erased(id), 0) >= last_known
            last_seen = None if is_erased else last_known
        else:
            last_seen = None
        if act is Act.ERASED:
            self.gone.pop(id, None)
            self.left.pop(id, None)
            self.moved.pop(id, None)
            self.left[" "] = max(moment + 1, self.left.get(" ", 0))
        elif last_seen is not None:
            self.gone[id] = max(last_seen, self.gone.get(id, 0))
        member = erased(id) if act is Act.ERASED else id
        self.left[member] = max(moment, self.left.get(member, 0))

    def touch(self, id: str, now: int) -> bool:
        """See an id whatever happened before; return whether there was room."""
        self._notice_loss()
        _, full = self._see([(id, now, now + 1, None)], now)
        self.left.pop(id, None)
        self._trim(now)
        self.is_marked = bool(self.seen)
        return not full

    def sweep(self, now: int) -> None:
        """Take those who are offline out of their rooms; write goodbyes of a window ago back."""
        online = set(self.online(now))
        self.room = {id: room for id, room in self.room.items() if id in online}
        for id, goodbye in list(self.bye.items()):
            if goodbye <= now - self.window:
                del self.bye[id]
                if id in self.seen:
                    self.seen[id] = max(self.seen[id], goodbye)

    def clean_up(self, now: int) -> None:
        """Remove what is too old."""
        had_members = bool(self.seen)
        self.seen = {id: at for id, at in self.seen.items() if at > now - self.keep}
        self.gone = {id: at for id, at in self.gone.items() if at > now - self.keep}
        silent = now - self.window - 2 * SLACK
        self.writers = {name: at for name, at in self.writers.items() if at > silent}
        if had_members and not self.seen:
            self.is_marked = False

    def lose(self, key: str) -> None:
        """Lose a key, as a server that evicts does."""
        if key == "writers":
            self.is_marked = False
        if key in ("at", "progress", "seen"):
            self.room, self.moved = {}, {}
        if key == "moved":
            self.moved = {}
        if key in ("seen", "bye", "gone", "left", "writers"):
            setattr(self, key, {})

    def online(self, now: int) -> list[str]:
        """Return who is online, newest first."""
        ranked = [(at, id) for id, at in self.seen.items() if at > now - self.window]
        return [id for _, id in sorted(ranked, reverse=True)]

    def last_seen(self, now: int) -> dict[str, int]:
        """Return the last-seen times."""
        newest: dict[str, int] = {}
        for times in (self.seen, self.bye, self.gone):
            for id, at in times.items():
                if at > now - self.keep:
                    newest[id] = max(at, newest.get(id, at))
        return newest

    def in_room(self, number: int, now: int) -> list[str]:
        """Return who is online in a room, sorted."""
        self.sweep(now)
        return sorted(id for id, room in self.room.items() if room == number)
