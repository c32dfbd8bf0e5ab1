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
    refuse_if_full,
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
        self._script = RecordScript(
            "minute_sets", prefix, kind, window=window, keep=keep, most=share
        )
        self._departures = Departures(prefix, kind, window, keep, most)

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
        _, (_, full, _) = yield Batch((undo, with_hashes(record, [id])), atomic=True)
        refuse_if_full(self.name, full)

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
        *seen, gone = yield Batch((*asked, self._departures.last_seen(id)), atomic=True)
        moments = [float(m * keys.MINUTE) for m, is_in in zip(minutes, seen, strict=True) if is_in]
        if (moment := score(gone)) is not None and keys.minute_of(moment) in minutes:
            moments.append(moment)
        return max(moments, default=None)

    def depart(
        self, id: str, moment: float, *, is_server_time: bool = True, erase: bool = False
    ) -> Plan[float]:
        # A key outlives its last write by `keep` and some slack, and that may be a window late.
        reach = 2 * self.keep + keys.SLACK if erase else self.keep
        minutes = keys.minutes_of(moment, reach)
        departures = self._departures
        names = (departures.left, departures.forgotten, departures.gone, *map(self._key, minutes))
        script, first = "depart_minute_sets", minutes[0] * keys.MINUTE
        command = departures.depart(
            script, names, id, moment, is_server_time=is_server_time, erase=erase, more=(first,)
        )
        (at,) = yield Batch((command,))
        return float(at)

    def keys(self, now: float) -> list[str]:
        return self._keys(now, self.keep)

    def keep_longer(self, seconds: float) -> None:
        self._script.lifetime = keys.ttl(max(self.keep, seconds))

    def clean_up(self, now: float, *, is_server_time: bool = True) -> Plan[bool]:
        """Remove processes that have gone; every minute expires by itself."""
        silent = now - self.keep - 2 * keys.SLACK
        yield Batch((("ZREMRANGEBYSCORE", self._writers, "-inf", silent),))
        if not is_server_time:
            return False
        names = (self._departures.left, self._departures.forgotten)
        return (yield from clamp_future_scores(names, now))

    def _union(self, now: float, window: float) -> Plan[set[str]]:
        (members,) = yield Batch((("SUNION", *self._keys(now, window)),))
        return set(texts(members))

    def _keys(self, now: float, window: float) -> list[str]:
        return [self._key(minute) for minute in keys.minutes_of(now, window)]

    def _key(self, minute: int) -> str:
        return keys.minute_set(self._prefix, self._kind, minute)
