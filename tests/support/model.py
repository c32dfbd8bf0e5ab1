"""What a kind in one shard must hold after any history: a model without Redis, scripts or chunks.

It applies one write at a time to dictionaries. Moments are microseconds since the epoch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from presence_middleware.stores import Act, Departure, Seen, Write
from presence_middleware.stores.store import Written

SECOND = 1_000_000
MINUTE = 60 * SECOND
SLACK = 120 * SECOND
MOST_EVICTED = 1000
MINUTES = 10  # of a window: so many before and after its own are searched for a known id

Times = dict[str, int]


def erased(id: str) -> str:
    """Return the member that stands for an erased id."""
    return f" {hashlib.sha1(id.encode()).hexdigest()}"


@dataclass
class Limits:
    window: int
    keep: int
    max_members: int
    lowered_by: int = 0
    """By how much a goodbye lowers the last-seen time."""
    lag: int | None = None
    """How long after its window an id is announced to have gone; None without events."""


@dataclass
class Model:
    """A sorted set; and what is common to it and to minute sets."""

    limits: Limits
    seen: Times = field(default_factory=dict)
    bye: Times = field(default_factory=dict)
    gone: Times = field(default_factory=dict)
    left: Times = field(default_factory=dict)
    writers: Times = field(default_factory=dict)
    room: Times = field(default_factory=dict)
    moved: Times = field(default_factory=dict)
    is_marked: bool = False
    """Whether the server noted that there are members."""
    cut: int | None = None
    """Whoever was seen later is announced to be online."""
    cut_at: int = 0
    """When the cut was moved."""

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None
    ) -> Written:
        """Apply sightings, then departures."""
        moments = [moment for _, moment, _, _ in seen] + [each[2] for each in departures]
        now = write.moment if write else max(moments)
        self.notice_loss(now)
        before = self.noted(write)
        refused, full = self._see(seen, now)
        departures = [*self.left_meanwhile(seen, refused), *departures]
        for departure in departures:
            self._depart(*departure)
        if departures:
            self._hold(departures, now)
            self._trim(now)
        self.is_marked = bool(self.seen)
        return Written(frozenset(seen[n][0] for n in refused), full, before, 0, 0)

    def notice_loss(self, now: int) -> None:
        """Begin again if the server has lost the members, or how far it had announced."""
        if not self.seen:
            self.room, self.moved = {}, {}
            if self.is_marked:
                self.writers, self.bye, self.cut = {}, {}, None
        if self.cut is None:
            self.cut, self.cut_at = now - self.limits.window, now

    def noted(self, write: Write | None) -> float | None:
        """Note a write of a process; return its write before, in seconds."""
        if write is None:
            return None
        before = self.writers.get(write.process)
        self.writers[write.process] = write.moment
        return None if before is None else before / SECOND

    def _hold(self, departures: Sequence[Departure], now: int) -> None:
        """Note that some departures waited for so long: others may have waited as long."""
        acts = [act for act, _, moment, _ in departures if moment <= now - self.limits.window]
        if {Act.LEFT, Act.ERASED}.intersection(acts):
            self.left["  "] = now

    def _trim(self, now: int) -> None:
        matters = now - self.limits.window - SLACK
        if self.left.get("  ", 0) >= matters:
            matters = 0
        self.left = self._newest({id: at for id, at in self.left.items() if at > matters})
        self.gone = self._newest(self.gone)

    def _newest(self, times: Times) -> Times:
        excess = max(0, len(times) - self.limits.max_members)
        return dict(sorted(times.items(), key=lambda each: (each[1], each[0]))[excess:])

    def has_left(self, id: str, since: int) -> bool:
        return max(self.left.get(id, 0), self.left.get(erased(id), 0)) >= since

    def _see(self, seen: Sequence[Seen], now: int) -> tuple[list[int], int]:
        room, is_tight = self.limits.max_members - len(self.seen), False
        known = set(self.seen)
        if len(seen) > room:
            is_tight = True
            room += self._make_room(seen, sum(id not in known for id, *_ in seen) - room, now)
        refused, full, accepted = [], 0, []
        for position, (id, moment, arrival, move) in enumerate(seen):
            if self.has_left(id, arrival):
                refused.append(position)
            elif is_tight and id not in known and room <= 0:
                full += 1
            elif self.bye.get(id, 0) < max(moment, arrival):
                room -= id not in known
                accepted.append((id, moment, move))
        for id, *_ in accepted:
            if self.seen.get(id, now) <= now - self.limits.window:
                self._leave_room(id)
        for id, moment, move in accepted:
            self.seen[id] = max(moment, self.seen.get(id, moment))
            self.gone.pop(id, None)
            if move and move[1] > self.moved.get(id, 0) and not self.has_left(id, move[1]):
                self.room[id], self.moved[id] = move
        return refused, full

    def left_meanwhile(self, seen: Sequence[Seen], refused: list[int]) -> list[Departure]:
        """Return refused sightings that are all that is known of whoever left meanwhile."""
        departed: list[Departure] = []
        for id, moment, arrival, _ in map(seen.__getitem__, refused):
            if self.left.get(id, 0) >= moment:
                was_erased = self.left.get(erased(id), 0) >= arrival
                departed.append((Act.LEFT, id, self.left[id], None if was_erased else moment))
        return departed

    def _make_room(self, seen: Sequence[Seen], needed: int, now: int) -> int:
        """Remove ids that are offline; return how many."""
        most = min(needed + len(seen), MOST_EVICTED)
        oldest = sorted((at, id) for id, at in self.seen.items() if at <= now - self.limits.window)
        ids = {id for id, *_ in seen}
        evicted = [id for _, id in oldest[: max(0, most)] if id not in ids][: max(0, needed)]
        for id in evicted:
            self._forget(id)
        return len(evicted)

    def _forget(self, id: str) -> None:
        self.seen.pop(id, None)
        self.bye.pop(id, None)
        self._leave_room(id)

    def _leave_room(self, id: str) -> None:
        self.room.pop(id, None)
        self.moved.pop(id, None)

    def _depart(self, act: Act, id: str, moment: int, last_known: int | None) -> None:
        if act is Act.SEEN:
            self.left.pop(id, None)
            return
        score = self.seen.get(id, 0)
        last_seen = max(score, self.bye.get(id, 0)) or None
        is_past = last_seen is not None and last_seen <= moment
        lowered = moment - self.limits.lowered_by
        if act is Act.GOODBYE:
            if is_past and score > lowered:
                self.seen[id], self.bye[id] = lowered, moment
            return
        if self.moved.get(id, 0) <= moment:
            self._leave_room(id)
        if is_past:
            self._forget(id)
        else:
            last_seen = None if last_seen else self.lost(id, moment, last_known)
        self._leave(act, id, moment, last_seen)

    def lost(self, id: str, moment: int, last_known: int | None) -> int | None:
        """Return the last-seen time that the server lost, if there is one."""
        if last_known is None or moment < last_known:
            return None
        return None if self.left.get(erased(id), 0) >= last_known else last_known

    def _leave(self, act: Act, id: str, moment: int, last_seen: int | None) -> None:
        if act is Act.ERASED:
            for times in (self.gone, self.left):
                if times.get(id, 0) <= moment:
                    times.pop(id, None)
            self.left[" "] = max(moment + 1, self.left.get(" ", 0))
        elif self.left.get(erased(id), 0) > moment:
            return  # an id that was erased since is noted nowhere
        elif last_seen is not None:
            self.gone[id] = max(last_seen, self.gone.get(id, 0))
        member = erased(id) if act is Act.ERASED else id
        self.left[member] = max(moment, self.left.get(member, 0))

    def sweep(self, now: int) -> None:
        """Announce who has gone; write goodbyes of a window ago back."""
        self.notice_loss(now)
        self.leave_rooms(now)
        passed = now - self.limits.window
        if self.limits.lag is not None:
            gone, reached = passed - self.limits.lag, self.cut or 0
            if self.cut_at - SLACK > now:  # the clock was set back
                self.cut, self.cut_at = passed, now
            elif gone > reached:
                self.cut, self.cut_at = gone, now
            passed = self.cut or gone
        for id in [id for id, goodbye in self.bye.items() if goodbye <= passed]:
            goodbye = self.bye.pop(id)
            if id in self.seen:
                self.seen[id] = max(self.seen[id], goodbye)
        # Only a write notes that there are members.
        self.is_marked = self.is_marked and bool(self.seen)

    def leave_rooms(self, now: int) -> None:
        """Take those who are offline out of their rooms, as whoever reads a room does."""
        online = self.online(now, self.limits.window)
        for id in (self.room.keys() | self.moved.keys()).difference(online):
            self._leave_room(id)

    def clean_up(self, now: int) -> None:
        """Remove what is too old, after a sweep."""
        had_members = bool(self.seen)
        cut = now - max(self.limits.keep, self.limits.window + (self.limits.lag or 0))
        self.seen = {id: at for id, at in self.seen.items() if at > cut}
        self.gone = {id: at for id, at in self.gone.items() if at > cut}
        self.forget_writers(now)
        if had_members and not self.seen:
            self.is_marked = False

    def forget_writers(self, now: int) -> None:
        since = now - max(self.limits.window, 60 * MINUTE) - 2 * SLACK
        self.writers = {name: at for name, at in self.writers.items() if at > since}

    def lose(self, key: str) -> None:
        """Lose a key, as a server that evicts does."""
        if key == "writers":
            self.is_marked = False
        if key == "progress":
            self.cut = None
        if key in ("at", "progress", "seen"):
            self.room = {}
        if key in ("progress", "seen", "moved"):
            self.moved = {}
        if key in ("seen", "bye", "gone", "left", "writers"):
            setattr(self, key, {})

    def online(self, now: int, window: int) -> list[str]:
        ranked = [(at, id) for id, at in self.seen.items() if at > now - window]
        return [id for _, id in sorted(ranked, reverse=True)]

    def announced(self) -> set[str]:
        cut = self.cut
        return set() if cut is None else {id for id, at in self.seen.items() if at > cut}

    def last_seen(self, now: int) -> Times:
        newest: Times = {}
        for times in (self.seen, self.bye, self.gone):
            for id, at in times.items():
                if at > now - self.limits.keep:
                    newest[id] = max(at, newest.get(id, at))
        return newest


@dataclass
class Minutes(Model):
    """Sets of minutes; or a HyperLogLog of each, which has no departures and no limit."""

    has_ids: bool = True
    sets: dict[int, set[str]] = field(default_factory=dict)

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None
    ) -> Written:
        before, refused, full = self.noted(write), list[int](), 0
        for act in (Act.SEEN, Act.LEFT, Act.ERASED) if self.has_ids else ():
            acts = [each for each in departures if each[0] is act]
            if not acts:
                continue
            reach = self.limits.keep if act is Act.LEFT else 2 * self.limits.keep + SLACK
            first = (min(moment for _, _, moment, _ in acts) - reach) // MINUTE
            now = write.moment if write else max(moment for _, _, moment, _ in acts)
            self._hold(acts, now)
            for departure in acts:
                self._depart_since(first, *departure)
            self._trim(now)
        numbered = list(enumerate(seen))
        for minute in sorted({moment // MINUTE for _, moment, _, _ in seen}):
            part = [
                (n, id, at) for n, (id, moment, at, _) in numbered if moment // MINUTE == minute
            ]
            near = [self.sets.get(minute + n, set()) for n in range(-MINUTES, MINUTES + 1)]
            known, room = set[str]().union(*near), self.limits.max_members - sum(map(len, near))
            is_tight = len(part) > room and self.has_ids
            for n, id, arrival in part:
                if self.has_left(id, arrival):
                    refused.append(n)
                elif is_tight and id not in known and room <= 0:
                    full += 1
                else:
                    room -= id not in known
                    self.sets.setdefault(minute, set()).add(id)
            waited = self.left_meanwhile(
                seen, [n for n in refused if seen[n][1] // MINUTE == minute]
            )
            for act, id, left, moment in waited:
                self._leave(act, id, left, self.lost(id, left, moment))
            if waited:
                now = write.moment if write else max(moment for _, moment, _, _ in seen)
                self._hold(waited, now)
                self._trim(now)
        return Written(frozenset(seen[n][0] for n in refused), full, before, 0, 0)

    def _depart_since(self, first: int, act: Act, id: str, moment: int, known: int | None) -> None:
        if act is Act.SEEN:
            self.left.pop(id, None)
            return
        last_seen = self.lost(id, moment, known)
        known = 0 if act is Act.ERASED else self.left.get(id, 0)
        is_new = max(known, self.left.get(erased(id), 0)) < moment
        for minute in sorted(self.sets) if is_new else ():
            if first <= minute <= moment // MINUTE and id in self.sets[minute]:
                self.sets[minute].remove(id)
                last_seen = minute * MINUTE
        self._leave(act, id, moment, last_seen)

    def clean_up(self, now: int) -> None:
        oldest = now - self.limits.keep - MINUTE  # the beginning of a minute that is over
        self.gone = {id: at for id, at in self.gone.items() if at > oldest}
        self.forget_writers(now)

    def _in(self, now: int, window: int) -> Times:
        """Return the ids of a window with their last minutes."""
        reach = range((now - window) // MINUTE, (now + SECOND) // MINUTE + 1)
        return {id: n * MINUTE for n in reach for id in sorted(self.sets.get(n, ()))}

    def online(self, now: int, window: int) -> list[str]:
        return sorted(self._in(now, window))

    def last_seen(self, now: int) -> Times:
        newest = self._in(now, self.limits.keep)
        for id, at in self.gone.items():
            if at // MINUTE >= (now - self.limits.keep) // MINUTE:
                newest[id] = max(at // MINUTE * MINUTE, newest.get(id, 0))
        return newest
