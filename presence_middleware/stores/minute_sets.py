"""A set of ids for every minute. Plans only, no I/O.

A window covers every minute it touches: everyone of the window is in them, and nobody older than a
minute more. Minutes are numbered since the epoch, so no hour's names come round again.
"""

import math
from collections.abc import Sequence

from . import keys
from .departures import Departures
from .future import clamp_future_scores
from .plan import Batch, Command, Plan, score, texts
from .record import (
    Recorded,
    RecordScript,
    Stamped,
    Write,
    by_minute,
    microseconds,
    send,
    total,
    unscored_ids,
    with_hashes,
)
from .store import Sighting, last_write

LOOKED_AT = 30  # minutes, for whether somebody is known where there is little room


class MinuteSets:
    """Cheap to write, no times; a union takes longer the more there are (a million: 700 ms)."""

    def __init__(self, prefix: str, kind: str, window: float, keep: float, most: int) -> None:
        self.name, self.keep, self.ttl = f"{prefix}:{kind}", keep, keys.ttl(keep)
        self._prefix, self._kind = prefix, kind
        # Nobody new comes while the minutes together have `most` members, though an id may be in
        # several: so there are never more different ones, and no union is needed to count them.
        # Of a long window only the last minutes are looked at, which have their share of it.
        minutes = math.ceil(window / keys.MINUTE) + 1
        self._earlier = min(minutes, LOOKED_AT) - 1
        share = max(1, most * (self._earlier + 1) // minutes)
        self._writers = keys.writers(prefix, kind)
        self._script = RecordScript("minute_sets", prefix, kind, keep, share)
        self._departures = Departures(prefix, kind, window, keep)

    def record(self, sightings: Sequence[Stamped], write: Write | None = None) -> Plan[Recorded]:
        commands = [
            command
            for minute, seen in by_minute(sightings)
            for command in self._record_in(minute, seen, write)
        ]
        return total((yield from send(commands, unscored_ids)))

    def _record_in(self, minute: int, seen: list[Stamped], write: Write | None) -> list[Command]:
        # The nearest first: there most who are known are found. A sighting may come late, too, when
        # others have filled the minutes after it.
        near = [offset for ago in range(1, self._earlier + 1) for offset in (-ago, ago)]
        others = [self._key(minute + offset) for offset in near]
        return self._script.unscored(self._key(minute), others, seen, write)

    def last_write(self, process: str) -> Plan[float | None]:
        return last_write(self._writers, process)

    def touch(self, id: str, now: float) -> Plan[None]:
        moment = microseconds(now)
        (record,) = self._record_in(keys.minute_of(now), [(id, moment, moment)], None)
        undo = self._departures.undo(id)
        yield Batch((undo, with_hashes(record, [id])), atomic=True)

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
        seen = zip(*replies, strict=True)
        return [Sighting(id, None) for id, is_in in zip(ids, seen, strict=True) if any(is_in)]

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        # ZINTER takes a set or a sorted set of friends; the server intersects, nothing is copied.
        minutes = self._keys(now, window)
        replies = yield Batch(tuple(("ZINTER", 2, friends, key) for key in minutes), atomic=True)
        online = {friend for reply in replies for friend in texts(reply)}
        return [Sighting(id, None) for id in sorted(online)]

    def last_seen(self, id: str, now: float) -> Plan[float | None]:
        minutes = keys.minutes_of(now, self.keep)
        asked = tuple(("SISMEMBER", self._key(minute), id) for minute in minutes)
        *seen, left = yield Batch((*asked, self._departures.moment(id)), atomic=True)
        moments = [float(m * keys.MINUTE) for m, is_in in zip(minutes, seen, strict=True) if is_in]
        if (moment := score(left)) is not None and moment > now - self.keep:
            moments.append(moment)
        return max(moments, default=None)

    def leave(self, id: str, now: float) -> Plan[None]:
        removals = self._removals(id, now, self.keep)
        yield Batch((*removals, *self._departures.leave(id, now)), atomic=True)

    def forget(self, id: str, now: float) -> Plan[None]:
        # A key outlives its last write by `keep` and some slack, and that may be a window late.
        removals = self._removals(id, now, 2 * self.keep + keys.SLACK)
        yield Batch((*removals, *self._departures.forget(id, now)), atomic=True)

    def keys(self, now: float) -> list[str]:
        return self._keys(now, self.keep)

    def clean_up(self, now: float) -> Plan[bool]:
        """Remove processes that have gone; every minute expires by itself."""
        silent = now - self.keep - 2 * keys.SLACK
        yield Batch((("ZREMRANGEBYSCORE", self._writers, "-inf", silent),))
        return (yield from clamp_future_scores(self._departures.keys, now))

    def _union(self, now: float, window: float) -> Plan[set[str]]:
        (members,) = yield Batch((("SUNION", *self._keys(now, window)),))
        return set(texts(members))

    def _removals(self, id: str, now: float, reach: float) -> tuple[tuple[str, str, str], ...]:
        return tuple(("SREM", key, id) for key in self._keys(now, reach))

    def _keys(self, now: float, window: float) -> list[str]:
        return [self._key(minute) for minute in keys.minutes_of(now, window)]

    def _key(self, minute: int) -> str:
        return keys.minute_set(self._prefix, self._kind, minute)
