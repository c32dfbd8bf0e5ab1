"""A sorted set that is swept: its ids may be in rooms, and may say goodbye. Plans only, no I/O.

An id is in one room at most: where it was last seen. Its room is its score in a sorted set, so
there is no key for each room, and there are never more rooms than ids. Whoever reads a room first
takes those out of their rooms who are no longer online.

A goodbye does not take an id offline, because it may have another page open. It lowers the score of
the id in the sorted set of last-seen times, so that its window ends soon. The true last-seen time
is in a sorted set beside it until the window would have ended without the goodbye.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ..errors import UnsupportedQuery
from . import keys
from .departures import load_script
from .events import EventStream
from .plan import Batch, Command, Plan, score, texts
from .record import (
    Move,
    Stamped,
    Write,
    chunks,
    ids_with_moves,
)
from .sorted_set import SortedSet
from .store import NO_EVENTS, Sighting, Swept, moment_of

NOWHERE = 0
"""The number for ids that are in no room."""
ROOM_BITS = 52  # a score is a double, which holds whole numbers of 53 bits
# Ids that a script announces or takes out of their rooms: 2 to 4 ms of server time.
SWEPT = 500


def room_number(name: str) -> int:
    """Return the number by which a room is stored. No two names are likely to share it."""
    digest = blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - ROOM_BITS) or 1


class SweptSet(SortedSet):
    """The store `sorted-set` of a kind with rooms or goodbyes."""

    def __init__(
        self,
        prefix: str,
        kind: str,
        window: float,
        keep_seconds: float,
        max_members: int,
        *,
        grace: float,
        flush_interval: float,
        lag: float | None = None,
    ) -> None:
        """Create a store as `Store` describes.

        An id stays online for `grace` seconds after its goodbye. Busy processes write every
        `flush_interval` seconds. With `lag`, the store announces who comes and goes: an id has gone
        after its window and so many seconds more, in which late writes may still arrive.
        """
        prelude = "no_events" if lag is None else "events"
        self.RECORD_SCRIPT = ("scored", prelude, "swept_set")
        self.DEPART_SCRIPT = ("depart_scored", prelude, "depart_swept_set")
        super().__init__(prefix, kind, window, keep_seconds, max_members)
        self._lowered_by = window - grace
        # Writes may be as late as this, in seconds, and still be compared with later moves.
        self._late = flush_interval + keys.SLACK
        self._lag = lag or 0.0
        self._goodbyes_key = keys.goodbyes(prefix, kind)
        self._rooms_key = keys.rooms(prefix, kind)
        self._edge_key = keys.edge(prefix, kind)
        self._events: EventStream | None = None
        self._events_keys: tuple[str, ...] = ()
        if lag is not None:
            self._events = EventStream(prefix, kind)
            self._events_keys = (keys.announced(prefix, kind), keys.events(prefix, kind))
        self._own_keys = (
            self._goodbyes_key,
            self._rooms_key,
            keys.moves(prefix, kind),
            keys.earlier_moves(prefix, kind),
            self._edge_key,
            *self._events_keys,
        )
        self._sets_of_times.append(self._goodbyes_key)
        self._sets_of_moments.append(self._goodbyes_key)
        self._further_departure_keys = self._own_keys
        self._sweep_source = load_script(prelude, "sweep")
        self._goodbye_source = load_script("clock", prelude, "goodbye")

    def _record_commands(
        self, sightings: Sequence[Stamped], write: Write | None, moves: Mapping[str, Move]
    ) -> list[Command]:
        return self._script.commands_with_moves(
            self._seen_key, self._own_keys, sightings, write, moves
        )

    def _ids_in(self, command: Command) -> Iterable[str]:
        return ids_with_moves(command)

    def as_sorted(self, sighting: Sighting) -> Plan[Sighting]:
        (goodbye,) = yield from self._goodbyes([sighting.id])
        if goodbye is None or moment_of(goodbye) != sighting.last_seen:
            return sighting
        return Sighting(sighting.id, moment_of(goodbye - self._lowered_by))

    def as_seen(self, sightings: Sequence[Sighting]) -> Plan[list[Sighting]]:
        goodbyes = yield from self._goodbyes([sighting.id for sighting in sightings])
        return [_later(*each) for each in zip(sightings, goodbyes, strict=True)]

    def _goodbyes(self, ids: Sequence[str]) -> Plan[list[float | None]]:
        """Return the moment of the goodbye of each id that said one."""
        if not ids:
            return []
        parts = chunks(ids)
        replies = yield Batch(tuple(("ZMSCORE", self._goodbyes_key, *part) for part in parts))
        return [score(moment) for moments in replies for moment in moments]

    def say_goodbye(self, id: str, moment: float, *, is_server_time: bool = True) -> Plan[float]:
        command: Command = (
            "EVAL",
            self._goodbye_source,
            4 + len(self._events_keys),
            self._seen_key,
            self._goodbyes_key,
            self._rooms_key,
            self._edge_key,
            *self._events_keys,
            id,
            repr(moment),
            int(is_server_time),
            repr(self._lowered_by),
            self._script.lifetime,
        )
        (said_at,) = yield Batch((command,))
        return float(said_at)

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
            outcome, reply = yield Batch((self._sweep_command(now), read), atomic=True)
            if not self._note_swept(outcome).has_more:
                return reply

    def event_stream(self) -> EventStream:
        if self._events is None:
            raise UnsupportedQuery(NO_EVENTS)
        return self._events

    def sweep(self, now: float, compared: int = 0) -> Plan[Swept]:
        (reply,) = yield Batch((self._sweep_command(now, compared),))
        return self._note_swept(reply)

    def _note_swept(self, reply: Sequence[Any]) -> Swept:
        outcome = Swept(bool(reply[0]), int(reply[1]))
        self.swept += outcome.went
        return outcome

    def _sweep_command(self, now: float, compared: int = 0) -> Command:
        return (
            "EVAL",
            self._sweep_source,
            1 + len(self._own_keys),
            self._seen_key,
            *self._own_keys,
            repr(now - self._window),
            SWEPT,
            repr(now),
            repr(self._late),
            # Whoever is seen after the clock was set back must not seem to be gone already.
            repr(min(float(keys.SLACK), self._window / 2)),
            self._script.lifetime,
            compared,
            repr(now - self._window - self._lag),
        )

    def clean_up(self, now: float, *, is_server_time: bool = True) -> Plan[bool]:
        # Those who are gone are announced, and leave their rooms, before their times are removed.
        swept = yield from self.sweep(now, SWEPT)
        if swept.has_more:
            return True
        had_members, reply = yield Batch(
            (("EXISTS", self._seen_key), ("ZSCORE", self._writers_key, ""))
        )
        noted = score(reply)
        has_more = yield from super().clean_up(now, is_server_time=is_server_time)
        (left,) = yield Batch((("PTTL", self._seen_key),))
        if had_members and left < 0:
            # The sorted set is empty, so a missing key is no sign of lost data.
            yield Batch((("ZREM", self._writers_key, ""),))
        elif noted is not None:
            # The members may be younger than the last write, by a clock that was set back in
            # between. Their loss must still be noticed, also if the key was evicted before.
            (is_missing,) = yield Batch((("ZADD", self._writers_key, "NX", noted, ""),))
            if is_missing:
                lifetime = left if left > 0 else 1000 * self._script.lifetime
                yield Batch((("PEXPIRE", self._writers_key, lifetime),))
        return has_more

    def _clean_before(self, now: float) -> float:
        # The sweep has just ended at this moment, or later.
        return min(super()._clean_before(now), now - self._window - self._lag)


def _later(sighting: Sighting, goodbye: float | None) -> Sighting:
    if goodbye is None or sighting.last_seen is None:
        return sighting
    return Sighting(sighting.id, max(sighting.last_seen, moment_of(goodbye)))
