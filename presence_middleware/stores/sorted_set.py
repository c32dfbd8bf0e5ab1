"""The default store: a sorted set of ids by last-seen time. Plans only, no I/O.

A departure takes an id out of the set. A goodbye does not, because the id may have another page
open: it lowers the score of the id, so that its window ends soon, and the true last-seen time is in
a set beside it until the window would have ended without the goodbye. The Lua files describe the
keys and the rules.
"""

import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b
from typing import Any

from ..errors import UnsupportedQuery
from .events import EventStream
from .plan import (
    CHUNK,
    Argument,
    Batch,
    Plan,
    chunks,
    load_script,
    members_with_scores,
    merge_plans,
    pairs,
    score,
    texts,
    to_microseconds,
)
from .store import (
    Act,
    Departure,
    Part,
    Rank,
    Ranked,
    ScriptedStore,
    Seen,
    Sighting,
    Write,
    Written,
    moment_of,
    rank,
)

# Ids that a sweep announces or takes out of their rooms: 2 to 4 ms of server time.
SWEPT = 500
# Members in one reply: about 1 ms of server time.
PAGE = 1000
# Ids that a command looks up: at most 30 ms of server time.
LOOKED_UP = 30_000
# Ids of a room that a reader compares with their times at once: 2 ms of server time.
COMPARED = 7500
ROOM_BITS = 52  # a score is a double, which holds whole numbers of 53 bits
NOWHERE = 0
"""The number for ids that are in no room."""


def room_number(name: str) -> int:
    """Return the number by which a room is stored. No two names are likely to share it."""
    digest = blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - ROOM_BITS) or 1


@dataclass(eq=False)
class SortedSet(ScriptedStore):
    """The store `sorted-set`: exact times, newest first, about 100 bytes a member."""

    _: KW_ONLY
    grace: float | None = None
    """For how many seconds an id stays online after its goodbye; None without goodbyes."""
    has_rooms: bool = False
    """Whether ids may be in rooms."""
    lag: float | None = None
    """After how many seconds beyond its window an id is announced to have gone: until then, late
    writes may arrive. None if the store does not announce who comes and goes."""

    acts = tuple(Act)
    _script = load_script("record")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.needs_sweep = self.grace is not None or self.has_rooms or self.lag is not None
        self.lowered_by = 0.0 if self.grace is None else self.window - self.grace
        # A goodbye hides when its id was last seen, for a window and until a sweep.
        self.min_period = 2 * self.window if self.needs_sweep else self.window
        self.gone_after += self.lag or 0.0
        self.keep_longer(0.0)
        key = self.key
        self._timed = key.seen, key.bye, key.left
        self.events = None if self.lag is None else EventStream(key, self.kind)
        # presence.lua tells rooms and events by the number of keys.
        self.names = [key.seen, key.bye, key.gone, key.left, key.writers]
        if self.has_rooms or self.events:
            rooms = [key.rooms, key.moves] if self.has_rooms else []
            self.names += [key.progress, *rooms, *([key.changes] if self.events else [])]

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None = None
    ) -> Plan[Written]:
        departing = len(seen)  # the place of the first departure, behind all sightings
        parts = [
            Part(
                seen[start : start + CHUNK],
                departures[max(0, start - departing) : max(0, start + CHUNK - departing)],
                self.names,
            )
            for start in range(0, departing + len(departures), CHUNK)
        ]
        return (yield from self._send(parts, write))

    def last_write(self, process: str) -> Plan[float | None]:
        exists, (members_marker, moment) = yield Batch(
            (("EXISTS", self.key.seen), ("ZMSCORE", self.key.writers, "", process))
        )
        is_evicted = members_marker is not None and not exists
        return None if is_evicted else score(moment)

    def first_seen_after(self, moment: float) -> Plan[float | None]:
        first = (f"({moment!r}", "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
        (reply,) = yield Batch((("ZRANGE", self.key.seen, *first),))
        return members_with_scores(reply)[0][1] if reply else None

    def count(self, now: float, window: float) -> Plan[int]:
        (count,) = yield Batch((("ZCOUNT", self.key.seen, f"({now - window!r}", "+inf"),))
        return int(count)

    def active(self, now: float, period: float) -> Plan[int]:
        if period < self.min_period:
            raise UnsupportedQuery(
                f"active needs two windows or more of kind {self.kind!r}: count has a shorter one"
            )
        since = f"({now - period!r}"
        # Nobody is in both.
        sets = self.key.seen, self.key.gone
        commands = tuple(("ZCOUNT", name, since, "+inf") for name in sets)
        return sum(map(int, (yield Batch(commands, atomic=True))))

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Ranked]]:
        last: Rank | None = None
        if before is not None and before.last_seen is not None:
            last = before.last_seen.timestamp(), before.id.encode()
        return (yield from newest(self.key.seen, now - window, limit, last))

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        times = zip(ids, (yield from self._scores(self.key.seen, ids)), strict=True)
        return [Sighting(id, moment_of(time)) for id, time in times if time and time > now - window]

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        # The weight 0 ignores the scores of the friends, and MAX, unlike SUM, accepts an infinite
        # score.
        weights = ("WEIGHTS", 1, 0, "AGGREGATE", "MAX", "WITHSCORES")
        (reply,) = yield Batch((("ZINTER", 2, self.key.seen, friends, *weights),))
        members = members_with_scores(reply)
        return [Sighting(id, moment_of(time)) for id, time in members if time > now - window]

    def last_seen(self, ids: Sequence[str], now: float) -> Plan[dict[str, float]]:
        names = [self.key.gone, self.key.seen, *([self.key.bye] if self.needs_sweep else [])]
        newest: dict[str, float] = {}
        for moments in (yield from merge_plans([self._scores(name, ids) for name in names])):
            for id, moment in zip(ids, moments, strict=True):
                if moment is not None and moment > newest.get(id, now - self.keep_seconds):
                    newest[id] = moment
        return newest

    def goodbyes(self, ids: Sequence[str]) -> Plan[dict[str, float]]:
        times = zip(ids, (yield from self._scores(self.key.bye, ids)), strict=True)
        return {id: time for id, time in times if time is not None}

    def _scores(self, key: str, ids: Sequence[str]) -> Plan[list[float | None]]:
        """Return the scores of ids in a sorted set, None for those that are not in it."""
        if not ids:
            return []
        replies = yield Batch(tuple(("ZMSCORE", key, *part) for part in chunks(ids)))
        return [score(moment) for moments in replies for moment in moments]

    def count_in_room(self, room: int, now: float) -> Plan[int]:
        found = yield from in_room(self, room, now, LOOKED_UP, sys.maxsize)
        return found if isinstance(found, int) else len(found)

    def online_in_room(self, room: int, now: float, limit: int | None) -> Plan[list[Sighting]]:
        found: list[Sighting] = yield from in_room(self, room, now, 0, limit or sys.maxsize)
        return found[:limit]

    def event_stream(self) -> EventStream:
        return self.events or super().event_stream()

    def sweep(self, now: float) -> Plan[bool]:
        part = Part((), (), self.names, (self.gone_after, SWEPT))
        written = yield from self._send([part], Write("", to_microseconds(now)))
        self.swept += written.went
        return written.has_more

    def keys(self, now: float) -> list[str]:
        return [self.key.seen]

    def keep_longer(self, seconds: float) -> None:
        # Until all who have gone are announced, their times must not go.
        super().keep_longer(max(seconds, self.gone_after))

    def clean_up(self, now: float) -> Plan[bool]:
        # Those who are gone are announced, and leave their rooms, before their times go.
        if self.needs_sweep and (yield from self.sweep(now)):
            return True
        has_more = yield from super().clean_up(now)
        has_stale, is_empty = yield from self._remove_stale(self.key.seen, now)
        if is_empty:
            # The sorted set is empty, so a missing key is no sign of lost data.
            yield Batch((("ZREM", self.key.writers, ""),))
        return has_stale or has_more


def newest(key: str, cut: float, limit: int | None, last: Rank | None) -> Plan[list[Ranked]]:
    """Return the members of `key` later than `cut`, the newest first, and at most `limit`.

    `last` is the rank of the last member of the previous page, its time rounded to microseconds.
    """
    if limit is None:
        members = yield from _everybody(key, cut, last)
    else:
        members = yield from _pages(key, cut, limit, last)
    if members and last is not None:
        time, member = rank(members[-1])
        if (round(time, 6), member) == last:
            # Another program wrote a time that is no whole microsecond. The caller cannot represent
            # it, and would read the same page for ever.
            return []
    return members


def _everybody(key: str, cut: float, last: Rank | None) -> Plan[list[Ranked]]:
    """Return all members, the newest first. They are read oldest first, a page in a round trip.

    So an id that is seen again between two pages moves to a page that is still to be read.
    """
    times: dict[bytes | str, Any] = {}
    read = 0
    start, size, end = f"({cut!r}", PAGE, "+inf" if last is None else repr(last[0])
    while True:
        limits = "BYSCORE", "LIMIT", 0, size, "WITHSCORES"
        (reply,) = yield Batch((("ZRANGE", key, start, end, *limits),))
        page = pairs(reply)
        read += len(page)
        for member, time in page:
            times.pop(member, None)  # the later place counts
            times[member] = time
        reached = repr(float(page[-1][1])) if page else start
        # Ids that are seen again may come as fast as they are read.
        if len(page) < size or read > 4 * len(times):
            return [each for each in reversed(times.items()) if last is None or rank(each) < last]
        # Of a moment with more than a page of ids, some may move between two pages.
        start, size = reached, 2 * size if reached == start else PAGE


def _pages(key: str, cut: float, limit: int, last: Rank | None) -> Plan[list[Ranked]]:
    """Return the members of as many pages as it takes, each in a round trip."""
    members: list[Ranked] = []
    offset = 0
    while len(members) < limit:
        size = min(PAGE, limit - len(members))
        # A page that begins within equal times contains members that have been returned before.
        count, start = (size, "+inf") if last is None else (PAGE, repr(last[0]))
        order = ("BYSCORE", "REV", "LIMIT", offset, count, "WITHSCORES")
        (reply,) = yield Batch((("ZRANGE", key, start, f"({cut!r}", *order),))
        page = pairs(reply)
        new = page if last is None else [ranked for ranked in page if rank(ranked) < last]
        members += new[:size]
        if len(page) < count:
            break
        last, offset = (rank(new[-1]), 0) if new else (last, offset + count)
    return members


def in_room(shard: SortedSet, room: int, now: float, most: int, wanted: int) -> Plan[Any]:
    """Return who is online in a room, sorted by id: `wanted` or more if there are so many.

    Return only their number if the server finds it by looking up at most `most` ids.
    """
    found: list[Sighting] = []
    after: Argument = ""
    while True:
        size = min(max(wanted, PAGE if after else 1), COMPARED)
        arguments = room, repr(now - shard.window), most, size, after
        (reply,) = yield from load_script("in_room").run((shard.names, arguments))
        if isinstance(reply, int):
            return reply
        if reply is None:
            found, after = [], ""
            continue
        ids, after = reply
        found += yield from shard.online_among(texts(ids), now, shard.window)
        if not after or len(found) >= wanted:
            return found
