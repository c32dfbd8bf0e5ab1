"""The default store: a sorted set of ids by last-seen time. Plans only, no I/O.

A departure takes an id out of the set. A goodbye does not, because the id may have another page
open: it lowers the score of the id, so that its window ends soon, and the true last-seen time is in
a set beside it until the window would have ended without the goodbye. The Lua files describe the
keys and the rules.
"""

import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from ..errors import UnsupportedQuery
from . import keys
from .changes import Departure, Seen, Write, Written, as_seconds, to_microseconds, words_of
from .events import EventStream
from .paging import PAGE, Ranked, newest
from .plan import Argument, Batch, Command, Plan, members_with_scores, score, texts
from .script import CHUNK, chunks, load_script
from .store import NO_EVENTS, Sighting, Store, Swept, clamp_future_scores, moment_of

NOWHERE = 0
"""The number for ids that are in no room."""
ROOM_BITS = 52  # a score is a double, which holds whole numbers of 53 bits
# Ids that a script announces or takes out of their rooms: 2 to 4 ms of server time.
SWEPT = 500
# Ids that a read of a room looks up at once: at most 30 ms of server time.
LOOKED_UP = 30_000


def room_number(name: str) -> int:
    """Return the number by which a room is stored. No two names are likely to share it."""
    digest = blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - ROOM_BITS) or 1


class Names(NamedTuple):
    """The keys of the store, in the order in which the scripts take them."""

    seen: str
    bye: str
    gone: str
    left: str
    writers: str


class SortedSet(Store):
    """The store `sorted-set`: exact times, newest first, about 100 bytes a member."""

    def __init__(
        self,
        prefix: str,
        kind: str,
        window: float,
        keep_seconds: float,
        max_members: int,
        *,
        is_server_time: bool = True,
        grace: float | None = None,
        has_rooms: bool = False,
        lag: float | None = None,
    ) -> None:
        """Create a store as `Store` describes.

        An id stays online for `grace` seconds after its goodbye; by default there are no goodbyes.
        With `has_rooms`, ids may be in rooms. With `lag`, the store announces who comes and goes:
        an id has gone after its window and so many seconds more, in which late writes may still
        arrive.
        """
        self.name, self.keep_seconds = f"{prefix}:{kind}", keep_seconds
        self.ttl = keys.ttl(keep_seconds)
        self.needs_sweep = grace is not None or has_rooms or lag is not None
        self.swept = 0
        self._window, self._lag = window, lag or 0.0
        self._lowered_by = 0.0 if grace is None else window - grace
        self._is_server_time, self._has_rooms = is_server_time, has_rooms
        self._limits = (
            window,
            self._lowered_by,
            window + keys.SLACK,
            max(1, max_members),
            int(is_server_time),
        )
        """What the script takes as `window`, … `is_server_time`."""
        functions = (keys.seen, keys.bye, keys.gone, keys.left, keys.writers)
        self._names = Names(*(function(prefix, kind) for function in functions))
        self._rooms_key, self._progress_key = keys.rooms(prefix, kind), keys.progress(prefix, kind)
        self._events = None if lag is None else EventStream(prefix, kind)
        hooks: list[str] = []
        hook_keys: list[str] = []
        if has_rooms:
            hooks.append("rooms")
            hook_keys += self._rooms_key, keys.moves(prefix, kind)
        if self._events:
            hooks.append("events")
            hook_keys.append(keys.changes(prefix, kind))
        progress = [self._progress_key] if hooks else []
        self._keys = (*self._names, *progress, *hook_keys)
        self._record, self._sweep = load_script("record", *hooks), load_script("sweep", *hooks)
        self._reading = load_script("in_room")

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None = None
    ) -> Plan[Written]:
        commands: list[Command] = []
        for start in range(0, len(seen) + len(departures), CHUNK):
            first, last = (max(0, end - len(seen)) for end in (start, start + CHUNK))
            part = seen[start : start + CHUNK]
            commands.append(self._command(part, departures[first:last], write))
        replies = yield from self._record.send(*commands)
        refused = [
            number * CHUNK + int(position) - 1
            for number, reply in enumerate(replies)
            for position in reply[0]
        ]
        wrote_before = score(replies[0][2]) if write and replies else None
        if self._events and any(reply[-1] for reply in replies):
            self._events.warn_of_size()
        counts = [(reply[1], *(reply[3:5] or (0, 0))) for reply in replies]
        full, came, went = map(sum, zip((0, 0, 0), *counts, strict=True))
        return Written(refused, full, wrote_before, came, went)

    def _command(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None
    ) -> Command:
        """Return the command for at most `CHUNK` people."""
        sightings = [word for id, moment, _, _ in seen for word in (f"{moment}e-6", id)]
        arrivals = [arrival for _, _, arrival, _ in seen]
        moments = [moment for _, moment, _, _ in seen]
        now = write.moment if write else max([*moments, *(each[2] for each in departures)])
        earliest = min(arrivals, default=now)
        moves: list[Argument] = []
        if self._has_rooms:
            for position, (_, _, _, move) in enumerate(seen, 1):
                if move is not None:
                    moves += position, move[0], as_seconds(move[1])
                    earliest = min(earliest, move[1])
        return self._record.command(
            self._keys,
            self.ttl,
            *self._limits,
            write.process if write else "",
            as_seconds(now),
            as_seconds(now - to_microseconds(self._window)),
            as_seconds(earliest),
            "" if arrivals == moments else " ".join(map(as_seconds, arrivals)),
            len(seen),
            len(departures),
            *sightings,
            *words_of(departures),
            *moves,
        )

    def last_write(self, process: str) -> Plan[float | None]:
        exists, (members_marker, moment) = yield Batch(
            (("EXISTS", self._names.seen), ("ZMSCORE", self._names.writers, "", process))
        )
        is_evicted = members_marker is not None and not exists
        return None if is_evicted else score(moment)

    def first_seen_after(self, moment: float) -> Plan[float | None]:
        first = (f"({moment!r}", "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
        (reply,) = yield Batch((("ZRANGE", self._names.seen, *first),))
        return members_with_scores(reply)[0][1] if reply else None

    def count(self, now: float, window: float) -> Plan[int]:
        (count,) = yield Batch((("ZCOUNT", self._names.seen, f"({now - window!r}", "+inf"),))
        return int(count)

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Ranked]]:
        last: Ranked | None = None
        if before is not None and before.last_seen is not None:
            last = before.id, before.last_seen.timestamp()
        return (yield from newest(self._names.seen, now - window, limit, last))

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        (scores,) = yield Batch((("ZMSCORE", self._names.seen, *ids),))
        times = zip(ids, map(score, scores), strict=True)
        return [Sighting(id, moment_of(time)) for id, time in times if time and time > now - window]

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        # The weight 0 ignores the scores of the friends, and MAX, unlike SUM, accepts an infinite
        # score.
        weights = ("WEIGHTS", 1, 0, "AGGREGATE", "MAX", "WITHSCORES")
        (reply,) = yield Batch((("ZINTER", 2, self._names.seen, friends, *weights),))
        members = members_with_scores(reply)
        return [Sighting(id, moment_of(time)) for id, time in members if time > now - window]

    def last_seen(self, ids: Sequence[str], now: float) -> Plan[dict[str, float]]:
        parts = list(chunks(ids))
        sets = (self._names.seen, self._names.gone, self._names.bye)[: 3 if self.needs_sweep else 2]
        replies = yield Batch(tuple(("ZMSCORE", key, *part) for key in sets for part in parts))
        newest: dict[str, float] = {}
        for part, scores in zip(parts * len(sets), replies, strict=True):
            for id, moment in zip(part, map(score, scores), strict=True):
                if moment is not None and moment > newest.get(id, now - self.keep_seconds):
                    newest[id] = moment
        return newest

    def as_sorted(self, sighting: Sighting) -> Plan[Sighting]:
        (goodbye,) = yield from self._goodbyes([sighting.id])
        if goodbye is None or moment_of(goodbye) != sighting.last_seen:
            return sighting
        return Sighting(sighting.id, moment_of(goodbye - self._lowered_by))

    def as_seen(self, sightings: Sequence[Sighting]) -> Plan[list[Sighting]]:
        goodbyes = yield from self._goodbyes([sighting.id for sighting in sightings])
        return [
            sighting
            if goodbye is None or sighting.last_seen is None
            else Sighting(sighting.id, max(sighting.last_seen, moment_of(goodbye)))
            for sighting, goodbye in zip(sightings, goodbyes, strict=True)
        ]

    def _goodbyes(self, ids: Sequence[str]) -> Plan[list[float | None]]:
        """Return the true last-seen time of each id that said goodbye."""
        if not ids or not self.needs_sweep:
            return [None] * len(ids)
        replies = yield Batch(tuple(("ZMSCORE", self._names.bye, *part) for part in chunks(ids)))
        return [score(moment) for moments in replies for moment in moments]

    def count_in_room(self, room: int, now: float) -> Plan[int]:
        return sum((yield from self._in_room(room, now)))

    def online_in_room(self, room: int, now: float, limit: int | None) -> Plan[list[Sighting]]:
        ids = texts((yield from self._in_room(room, now, limit or sys.maxsize)))
        sightings: list[Sighting] = []
        for part in chunks(ids[:limit]):
            sightings += yield from self.online_among(list(part), now, self._window)
        return (yield from self.as_seen(sightings))

    def _in_room(self, room: int, now: float, wanted: int = 0) -> Plan[list[Any]]:
        """Return the first ids in a room, at least `wanted` if there are as many.

        If that is 0, return numbers instead: their sum is the number of all ids in the room.
        """
        names = (self._names.seen, self._rooms_key, self._progress_key)
        most = min(LOOKED_UP, 4 * max(wanted, PAGE)) if wanted else LOOKED_UP
        moments = repr(now), repr(now - self._window)
        found: list[Any] = []
        after: Argument = ""
        while True:
            command = self._reading.command(names, room, *moments, most, min(wanted, most), after)
            (reply,) = yield from self._reading.send(command)
            if reply is None:
                yield from self.sweep(now)
                found, after = [], ""
                continue
            page, after = reply
            found += page if wanted else [page]
            if not after or 0 < wanted <= len(found):
                return found

    def event_stream(self) -> EventStream:
        if self._events is None:
            raise UnsupportedQuery(NO_EVENTS)
        return self._events

    def sweep(self, now: float, compared: int = 0) -> Plan[Swept]:
        (reply,) = yield from self._sweep.send(self._sweep_command(now, compared))
        return self._note_swept(reply)

    def _note_swept(self, reply: Sequence[Any]) -> Swept:
        outcome = Swept(bool(reply[0]), int(reply[2]) if self._events else 0)
        self.swept += outcome.went
        if self._events and reply[-1]:
            self._events.warn_of_size()
        return outcome

    def _sweep_command(self, now: float, compared: int = 0) -> Command:
        return self._sweep.command(
            self._keys,
            self.ttl,
            repr(now),
            repr(now - self._window),
            repr(now - self._window - self._lag),
            SWEPT,
            repr(now - self._window - keys.SLACK),
            # Whoever is seen after the clock was set back must not seem to be gone already.
            repr(min(float(keys.SLACK), self._window / 2)),
            compared,
        )

    def keys(self, now: float) -> list[str]:
        return [self._names.seen]

    def keep_longer(self, seconds: float) -> None:
        self.ttl = keys.ttl(max(self.keep_seconds, seconds))

    def clean_up(self, now: float) -> Plan[bool]:
        if self.needs_sweep:
            # Those who are gone are announced, and leave their rooms, before their times go.
            swept = yield from self.sweep(now, SWEPT)
            if swept.has_more:
                return True
        names, has_more = self._names, False
        if self._is_server_time:
            has_more = yield from clamp_future_scores((names.seen, names.bye, names.left), now)
        # Remove by score, never by rank: if two workers do this at once, the ranks have changed
        # for the second, which would remove ids that are online.
        cut = now - max(self.ttl - keys.SLACK, self._window + self._lag)
        stale = ("ZRANGE", names.seen, "-inf", cut, "BYSCORE")
        (last,) = yield Batch(((*stale, "LIMIT", PAGE - 1, 1, "WITHSCORES"),))
        page_end = members_with_scores(last)[0][1] if last else cut
        silent_since = now - self._window - 2 * keys.SLACK
        *_, members, removed = yield Batch(
            (
                ("ZREMRANGEBYSCORE", names.gone, "-inf", cut),
                ("ZREMRANGEBYSCORE", names.writers, "-inf", silent_since),
                ("ZCARD", names.seen),
                ("ZREMRANGEBYSCORE", names.seen, "-inf", page_end),
            ),
            atomic=True,
        )
        if removed and removed == members:
            # The sorted set is empty, so a missing key is no sign of lost data.
            yield Batch((("ZREM", names.writers, ""),))
        return bool(last) or has_more
