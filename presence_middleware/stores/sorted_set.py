"""The default store: a sorted set of ids by last-seen time. Plans only, no I/O.

A departure takes an id out of the set. A goodbye does not, because the id may have another page
open: it lowers the score of the id, so that its window ends soon, and the true last-seen time is in
a set beside it until the window would have ended without the goodbye. The Lua files describe the
keys and the rules.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from ..errors import UnsupportedQuery
from . import keys
from .changes import Departure, Seen, Write, Written, as_seconds, to_microseconds
from .events import EventStream
from .plan import Argument, Batch, Command, Plan, members_with_scores, pairs, score, texts
from .script import CHUNK, chunks, load_script
from .store import NO_EVENTS, Ranked, Sighting, Store, Swept, clamp_future_scores, moment_of, rank

# Members in one reply, or removed by one command: about 1 ms of server time.
PAGE = 1000
NOWHERE = 0
"""The number for ids that are in no room."""
ROOM_BITS = 52  # a score is a double, which holds whole numbers of 53 bits
# Ids that a script announces or takes out of their rooms: 2 to 4 ms of server time.
SWEPT = 500


def room_number(name: str) -> int:
    """Return the number by which a room is stored. No two names are likely to share it."""
    digest = blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - ROOM_BITS) or 1


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
        flush_interval: float = 0.0,
        lag: float | None = None,
    ) -> None:
        """Create a store as `Store` describes.

        An id stays online for `grace` seconds after its goodbye; by default there are no goodbyes.
        With `has_rooms`, ids may be in rooms, and busy processes write every `flush_interval`
        seconds. With `lag`, the store announces who comes and goes: an id has gone after its window
        and so many seconds more, in which late writes may still arrive.
        """
        self.name, self.keep_seconds = f"{prefix}:{kind}", keep_seconds
        self.ttl = keys.ttl(keep_seconds)
        self.needs_sweep = grace is not None or has_rooms or lag is not None
        self.swept = 0
        self._window, self._site_keep_seconds = window, keep_seconds
        self._max_members, self._is_server_time = max(1, max_members), is_server_time
        self._lowered_by = 0.0 if grace is None else window - grace
        # Writes may be as late as this, in seconds, and still be compared with later moves.
        self._late, self._lag = flush_interval + keys.SLACK, lag or 0.0
        self._has_rooms = has_rooms
        self._events = None if lag is None else EventStream(prefix, kind)
        self._seen_key, self._bye_key = keys.seen(prefix, kind), keys.bye(prefix, kind)
        self._gone_key, self._left_key = keys.gone(prefix, kind), keys.left(prefix, kind)
        self._writers_key, self._rooms_key = keys.writers(prefix, kind), keys.rooms(prefix, kind)
        hooks, own = [], [self._seen_key, self._bye_key, self._gone_key, self._left_key]
        own.append(self._writers_key)
        if has_rooms or self._events:
            own.append(keys.progress(prefix, kind))
        if has_rooms:
            hooks.append("rooms")
            own += self._rooms_key, keys.moves(prefix, kind)
        if self._events:
            hooks.append("events")
            own.append(keys.changes(prefix, kind))
        self._keys = tuple(own)
        self._record, self._sweep = load_script("record", *hooks), load_script("sweep", *hooks)

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None = None
    ) -> Plan[Written]:
        commands: list[Command] = []
        for start in range(0, len(seen) + len(departures), CHUNK):
            first = max(0, start - len(seen))
            last = max(0, start - len(seen) + CHUNK)
            commands.append(
                self._command(seen[start : start + CHUNK], departures[first:last], write)
            )
        replies = yield from self._record.send(*commands)
        refused = [
            number * CHUNK + int(position) - 1
            for number, reply in enumerate(replies)
            for position in reply[0]
        ]
        wrote_before = score(replies[0][2]) if write and replies else None
        if self._events and any(reply[-1] for reply in replies):
            self._events.warn_of_size()
        full, came, went = (
            sum(int(reply[n]) for reply in replies if len(reply) > n) for n in (1, 3, 4)
        )
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
        departing: list[Argument] = []
        for act, id, moment, last in departures:
            departing += int(act), id, as_seconds(moment), "" if last is None else as_seconds(last)
        return self._record.command(
            self._keys,
            keys.ttl(self._site_keep_seconds),
            self._window,
            self._lowered_by,
            self._window + keys.SLACK,
            self._max_members,
            int(self._is_server_time),
            write.process if write else "",
            as_seconds(now),
            as_seconds(now - to_microseconds(self._window)),
            as_seconds(earliest),
            "" if arrivals == moments else " ".join(map(as_seconds, arrivals)),
            len(seen),
            len(departures),
            *sightings,
            *departing,
            *moves,
        )

    def last_write(self, process: str) -> Plan[float | None]:
        exists, (members_marker, moment) = yield Batch(
            (("EXISTS", self._seen_key), ("ZMSCORE", self._writers_key, "", process))
        )
        is_evicted = members_marker is not None and not exists
        return None if is_evicted else score(moment)

    def first_seen_after(self, moment: float) -> Plan[float | None]:
        first = (_after(moment), "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
        (reply,) = yield Batch((("ZRANGE", self._seen_key, *first),))
        return members_with_scores(reply)[0][1] if reply else None

    def count(self, now: float, window: float) -> Plan[int]:
        (count,) = yield Batch((("ZCOUNT", self._seen_key, _after(now - window), "+inf"),))
        return int(count)

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Ranked]]:
        start: Ranked | None = None
        if before is not None and before.last_seen is not None:
            start = before.id.encode(), before.last_seen.timestamp()
        members = yield from self._pages(now - window, limit, start)
        if start and members and _rounded(members[-1]) == start:
            # Another program wrote a time that is no whole microsecond: a datetime cannot
            # represent it, so the same page would be read for ever.
            return []
        if limit is None and len(members) > PAGE:
            # An id that was seen again between two pages has moved up, out of the pages that were
            # still to be read. So read once more the members newer than the first page.
            listed = {member for member, _ in members}
            newer = yield from self._pages(float(members[0][1]), None, None)
            members = [ranked for ranked in newer if ranked[0] not in listed] + members
        return members

    def _pages(self, cut: float, limit: int | None, before: Ranked | None) -> Plan[list[Ranked]]:
        """Return the members later than `cut`, in as many round trips as there are pages.

        Of equal times, the greater id is first. `before` is the last member of an earlier page.
        """
        members: list[Ranked] = []
        offset = 0
        while limit is None or len(members) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(members))
            # Of a page that begins within equal times, some members have been returned before.
            count, start = (size, "+inf") if before is None else (PAGE, repr(float(before[1])))
            order = ("BYSCORE", "REV", "LIMIT", offset, count, "WITHSCORES")
            (reply,) = yield Batch((("ZRANGE", self._seen_key, start, _after(cut), *order),))
            page = pairs(reply)
            last = before and rank(before)
            new = [ranked for ranked in page if rank(ranked) < last] if last else page
            members += new[:size]
            if len(page) < count:
                break
            if new:
                before, offset = members[-1], 0
            else:
                offset += count
        return members

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        (scores,) = yield Batch((("ZMSCORE", self._seen_key, *ids),))
        times = [
            (id, float(time)) for id, time in zip(ids, scores, strict=True) if time is not None
        ]
        return [Sighting(id, moment_of(time)) for id, time in times if time > now - window]

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        # The weight 0 ignores the scores of the friends, and MAX, unlike SUM, accepts an infinite
        # score.
        weights = ("WEIGHTS", 1, 0, "AGGREGATE", "MAX", "WITHSCORES")
        (reply,) = yield Batch((("ZINTER", 2, self._seen_key, friends, *weights),))
        members = members_with_scores(reply)
        return [Sighting(id, moment_of(time)) for id, time in members if time > now - window]

    def last_seen(self, ids: Sequence[str], now: float) -> Plan[dict[str, float]]:
        parts = list(chunks(ids))
        sets = (self._seen_key, self._gone_key, *([self._bye_key] if self.needs_sweep else []))
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
        replies = yield Batch(tuple(("ZMSCORE", self._bye_key, *part) for part in chunks(ids)))
        return [score(moment) for moments in replies for moment in moments]

    def count_in_room(self, room: int, now: float) -> Plan[int]:
        return int((yield from self._read_swept(("ZCOUNT", self._rooms_key, room, room), now)))

    def online_in_room(self, room: int, now: float, limit: int | None) -> Plan[list[Sighting]]:
        most = -1 if limit is None else limit
        listing: Command = ("ZRANGE", self._rooms_key, room, room, "BYSCORE", "LIMIT", 0, most)
        ids = texts((yield from self._read_swept(listing, now)))
        sightings: list[Sighting] = []
        for part in chunks(ids):
            sightings += yield from self.online_among(list(part), now, self._window)
        return (yield from self.as_seen(sightings))

    def _read_swept(self, read: Command, now: float) -> Plan[Any]:
        """Return the reply to a read of rooms in which nobody is who is no longer online."""
        while True:
            sweep = self._sweep_command(now)
            outcome, reply = yield from self._sweep.send(sweep, read, is_atomic=True)
            if not self._note_swept(outcome).has_more:
                return reply

    def event_stream(self) -> EventStream:
        if self._events is None:
            raise UnsupportedQuery(NO_EVENTS)
        return self._events

    def sweep(self, now: float, compared: int = 0) -> Plan[Swept]:
        (reply,) = yield from self._sweep.send(self._sweep_command(now, compared))
        return self._note_swept(reply)

    def _note_swept(self, reply: Sequence[Any]) -> Swept:
        outcome = Swept(bool(reply[0]), int(reply[2]) if len(reply) > 1 else 0)
        self.swept += outcome.went
        if self._events and reply[-1]:
            self._events.warn_of_size()
        return outcome

    def _sweep_command(self, now: float, compared: int = 0) -> Command:
        return self._sweep.command(
            self._keys,
            keys.ttl(self._site_keep_seconds),
            repr(now),
            repr(now - self._window),
            repr(now - self._window - self._lag),
            SWEPT,
            repr(self._late),
            # Whoever is seen after the clock was set back must not seem to be gone already.
            repr(min(float(keys.SLACK), self._window / 2)),
            compared,
        )

    def keys(self, now: float) -> list[str]:
        return [self._seen_key]

    def keep_longer(self, seconds: float) -> None:
        self._site_keep_seconds = max(self.keep_seconds, seconds)

    def clean_up(self, now: float) -> Plan[bool]:
        if self.needs_sweep:
            # Those who are gone are announced, and leave their rooms, before their times go.
            swept = yield from self.sweep(now, SWEPT)
            if swept.has_more:
                return True
        has_more = False
        if self._is_server_time:
            sets = (self._seen_key, self._bye_key, self._left_key)
            has_more = yield from clamp_future_scores(sets, now)
        # Remove by score, never by rank: if two workers do this at once, the ranks have changed
        # for the second, which would remove ids that are online.
        cut = now - max(self._site_keep_seconds, self._window + self._lag)
        stale = ("ZRANGE", self._seen_key, "-inf", cut, "BYSCORE")
        (last,) = yield Batch(((*stale, "LIMIT", PAGE - 1, 1, "WITHSCORES"),))
        page_end = members_with_scores(last)[0][1] if last else cut
        silent_since = now - self._window - 2 * keys.SLACK
        *_, members, removed = yield Batch(
            (
                ("ZREMRANGEBYSCORE", self._gone_key, "-inf", cut),
                ("ZREMRANGEBYSCORE", self._writers_key, "-inf", silent_since),
                ("ZCARD", self._seen_key),
                ("ZREMRANGEBYSCORE", self._seen_key, "-inf", page_end),
            ),
            atomic=True,
        )
        if removed and removed == members:
            # The sorted set is empty, so a missing key is no sign of lost data.
            yield Batch((("ZREM", self._writers_key, ""),))
        return bool(last) or has_more


def _after(moment: float) -> str:
    """Return the exclusive lower bound of a range of scores."""
    return f"({moment!r}"


def _rounded(ranked: Ranked) -> Ranked:
    time, member = rank(ranked)
    return member, moment_of(time).timestamp()
