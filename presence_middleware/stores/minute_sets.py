"""A set of ids for each minute. Plans only, no I/O.

A window covers every minute that it touches. So it contains everyone seen in the window, and ids
that are at most a minute too old. Minutes are numbered since the epoch, so key names never repeat.
"""

import math
from collections.abc import Mapping, Sequence

from . import keys
from .departures import Departures
from .plan import Batch, Command, Plan, score, texts
from .record import (
    NO_MOVES,
    Move,
    Recorded,
    RecordScript,
    Stamped,
    Write,
    by_minute,
    chunks,
    combine_replies,
    ids_alone,
    raise_if_full,
    send_record_commands,
    to_microseconds,
    with_hashes,
)
from .store import Sighting, WithoutRooms, clamp_future_scores, last_write

# The sets of at most so many minutes are searched for known ids when there is little room.
MAX_SEARCHED_MINUTES = 30


class MinuteSets(WithoutRooms):
    """The store `minute-sets`: cheap to write, and times are known to the minute only.

    A read unites all sets of the window, so it takes longer the more ids there are: 700 ms for a
    million.
    """

    def __init__(
        self, prefix: str, kind: str, window: float, keep_seconds: float, max_members: int
    ) -> None:
        """Create a store as `Store` describes."""
        self.name, self.keep_seconds = f"{prefix}:{kind}", keep_seconds
        self.ttl = keys.ttl(keep_seconds)
        self._prefix, self._kind = prefix, kind
        # New ids are refused while the sizes of all sets add up to `max_members`. An id may be in
        # several sets, so there are never more different ids, and no union is needed to count
        # them. Of a long window, only the last minutes are searched, with their share of the room.
        minutes = math.ceil(window / keys.MINUTE) + 1
        self._searched_before = min(minutes, MAX_SEARCHED_MINUTES) - 1
        share = max(1, max_members * (self._searched_before + 1) // minutes)
        self._writers_key = keys.writers(prefix, kind)
        self._script = RecordScript(
            ("minute_sets",),
            prefix,
            kind,
            window=window,
            keep_seconds=keep_seconds,
            max_members=share,
        )
        self._departures = Departures(prefix, kind, window, keep_seconds, max_members)

    def record(
        self,
        sightings: Sequence[Stamped],
        write: Write | None = None,
        moves: Mapping[str, Move] = NO_MOVES,
    ) -> Plan[Recorded]:
        commands = [
            command
            for minute, seen in by_minute(sightings)
            for command in self._record_commands(minute, seen, write)
        ]
        return combine_replies((yield from send_record_commands(commands, ids_alone)))

    def _record_commands(
        self, minute: int, seen: list[Stamped], write: Write | None
    ) -> list[Command]:
        # The nearest minutes come first, because most known ids are there. Later minutes are
        # searched too: a sighting may be written late, when other processes have filled them.
        offsets = [offset for ago in range(1, self._searched_before + 1) for offset in (-ago, ago)]
        other_keys = [self._key(minute + offset) for offset in offsets]
        return self._script.commands_with_ids(self._key(minute), other_keys, seen, write)

    def last_write(self, process: str) -> Plan[float | None]:
        return last_write(self._writers_key, process)

    def touch(self, id: str, now: float, latest: float) -> Plan[None]:
        stamped = id, to_microseconds(now), to_microseconds(latest)
        (record,) = self._record_commands(keys.minute_of(now), [stamped], None)
        undo = self._departures.undo(id)
        _, (_, full, _) = yield Batch((undo, with_hashes(record, [id])), atomic=True)
        raise_if_full(self.name, full)

    def count(self, now: float, window: float) -> Plan[int]:
        return len((yield from self._union(now, window)))

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        after = "" if before is None else before.id
        ids = sorted(id for id in (yield from self._union(now, window)) if id > after)
        return [Sighting(id, None) for id in ids[:limit]]

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        minutes = self._keys(now, window)
        replies = yield Batch(tuple(("SMISMEMBER", key, *ids) for key in minutes), atomic=True)
        memberships = zip(*replies, strict=True)
        return [Sighting(id, None) for id, seen in zip(ids, memberships, strict=True) if any(seen)]

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        # ZINTER accepts a set or a sorted set of friends; the server intersects, nothing is copied.
        minutes = self._keys(now, window)
        replies = yield Batch(tuple(("ZINTER", 2, friends, key) for key in minutes), atomic=True)
        online = {friend for reply in replies for friend in texts(reply)}
        return [Sighting(id, None) for id in sorted(online)]

    def last_seen(self, ids: Sequence[str], now: float) -> Plan[dict[str, float]]:
        newest: dict[str, float] = {}
        minutes = keys.minutes_of(now, self.keep_seconds)
        for part in chunks(ids):
            commands = tuple(("SMISMEMBER", self._key(minute), *part) for minute in minutes)
            *replies, gone = yield Batch(
                (*commands, ("ZMSCORE", self._departures.gone_key, *part)), atomic=True
            )
            for minute, memberships in zip(minutes, replies, strict=True):
                for id, is_member in zip(part, memberships, strict=True):
                    if is_member:
                        newest[id] = float(minute * keys.MINUTE)
            for id, moment in zip(part, map(score, gone), strict=True):
                if moment is not None and keys.minute_of(moment) in minutes:
                    newest[id] = max(moment, newest.get(id, moment))
        return newest

    def depart(
        self, id: str, moment: float, *, is_server_time: bool = True, erase: bool = False
    ) -> Plan[float]:
        # A key outlives its last write by the retention and some slack, and that write may be as
        # late again. An erased id must be removed from all of these.
        reach = 2 * self.keep_seconds + keys.SLACK if erase else self.keep_seconds
        minutes = keys.minutes_of(moment, reach)
        departures = self._departures
        command = departures.depart(
            ("depart_minute_sets",),
            (
                departures.left_key,
                departures.forgotten_key,
                departures.gone_key,
                *map(self._key, minutes),
            ),
            id,
            moment,
            is_server_time=is_server_time,
            erase=erase,
            extra=(minutes[0] * keys.MINUTE,),
        )
        (departed_at,) = yield Batch((command,))
        return float(departed_at)

    def keys(self, now: float) -> list[str]:
        return self._keys(now, self.keep_seconds)

    def keep_longer(self, seconds: float) -> None:
        self._script.lifetime = keys.ttl(max(self.keep_seconds, seconds))

    def clean_up(self, now: float, *, is_server_time: bool = True) -> Plan[bool]:
        """Remove processes that have ended. The keys of minutes expire by themselves."""
        silent_since = now - self.keep_seconds - 2 * keys.SLACK
        yield Batch((("ZREMRANGEBYSCORE", self._writers_key, "-inf", silent_since),))
        if not is_server_time:
            return False
        names = (self._departures.left_key, self._departures.forgotten_key)
        return (yield from clamp_future_scores(names, now))

    def _union(self, now: float, window: float) -> Plan[set[str]]:
        (members,) = yield Batch((("SUNION", *self._keys(now, window)),))
        return set(texts(members))

    def _keys(self, now: float, window: float) -> list[str]:
        return [self._key(minute) for minute in keys.minutes_of(now, window)]

    def _key(self, minute: int) -> str:
        return keys.minute_set(self._prefix, self._kind, minute)
