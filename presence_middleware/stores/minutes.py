"""The stores with a key for each minute: a set of ids, or a HyperLogLog. Plans only, no I/O.

A window covers every minute that it touches. So it contains everyone seen in the window, and ids
that are at most a minute too old. Minutes are numbered since the epoch, so key names never repeat.
"""

import math
from collections.abc import Sequence
from itertools import compress

from . import keys
from .plan import (
    CHUNK,
    COMMANDS_PER_TRIP,
    Batch,
    Command,
    Plan,
    as_seconds,
    chunks,
    load_script,
    score,
    texts,
)
from .store import (
    Act,
    Departure,
    Part,
    Ranked,
    ScriptedStore,
    Seen,
    Sighting,
    Store,
    Write,
    Written,
)

# The sets of at most so many minutes are searched for known ids when there is little room.
MAX_SEARCHED_MINUTES = 30
# Look-ups in one command: its people times the sets in which the script looks for them.
MAX_LOOKUPS = 6000


def by_minute(seen: Sequence[Seen]) -> list[tuple[int, list[Seen]]]:
    """Return the sightings of each minute since the epoch, in order."""
    minutes: dict[int, list[Seen]] = {}
    for sighting in seen:
        minutes.setdefault(sighting[1] // (keys.MINUTE * 1_000_000), []).append(sighting)
    return sorted(minutes.items())


class MinuteSets(ScriptedStore):
    """The store `minute-sets`: cheap to write, and times are known to the minute only.

    A read unites all sets of the window, so it takes longer the more ids there are: 700 ms for a
    million. It has no rooms and no goodbyes.
    """

    resolution = keys.MINUTE
    _script = load_script("minute_sets")

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None = None
    ) -> Plan[Written]:
        parts: list[Part] = []
        others = self.key.left, self.key.gone, self.key.writers
        # Departures come first: an id that was seen after its departure is added again.
        for act in (Act.SEEN, Act.LEFT, Act.ERASED):
            # A key outlives its last write by the retention and some slack, and that write may be
            # as late again. An erased id must be removed from all of these.
            keep = self.keep_seconds
            reach = 2 * keep + keys.SLACK if act is Act.ERASED else keep
            size = max(1, MAX_LOOKUPS // len(keys.minutes_of(0, reach)))
            of_act = [each for each in departures if each[0] == act]
            for departing in chunks(of_act, min(CHUNK, size)):
                moments = [moment / 1e6 for _, _, moment, _ in departing]
                sets = self._keys(max(moments), reach + max(moments) - min(moments))
                parts.append(Part((), departing, [*others, *sets]))
        if write and departures:
            # The server lowers a departure to its clock, so what the departure ends is lowered too.
            now, ends = write.moment, {id: moment for _, id, moment, _ in departures}
            seen = [
                (id, at, min(came, now) if came <= ends.get(id, 0) else came, move)
                for id, at, came, move in seen
            ]
        # New ids are refused while the sizes of all sets add up to `max_members`. An id may be in
        # several sets, so there are never more different ids, and no union is needed to count
        # them. Of a long window, only the last minutes are searched, with their share of the room.
        minutes_of_window = math.ceil(self.window / keys.MINUTE) + 1
        searched = min(minutes_of_window, MAX_SEARCHED_MINUTES)
        share = max(1, self.max_members * searched // minutes_of_window)
        # The nearest minutes come first, because most known ids are there. Later minutes are
        # searched too: a sighting may be written late, when other processes have filled them.
        offsets = [0, *(offset for ago in range(1, searched) for offset in (-ago, ago))]
        for minute, of_minute in by_minute(seen):
            names = [*others, *(self._key(minute + offset) for offset in offsets)]
            size = min(CHUNK, MAX_LOOKUPS // len(offsets))
            parts += [Part(part, (), names, (share,)) for part in chunks(of_minute, size)]
        return (yield from self._send(parts, write))

    def count(self, now: float, window: float) -> Plan[int]:
        return len((yield from self._union(now, window)))

    def active(self, now: float, period: float) -> Plan[int]:
        minutes = keys.minutes_of(now, period)
        left = ("ZRANGE", self.key.gone, minutes[0] * keys.MINUTE, "+inf", "BYSCORE")
        seen = ("SUNION", *map(self._key, minutes))
        members = yield Batch((seen, left), atomic=True)
        return len({id for each in members for id in texts(each)})

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Ranked]]:
        after = "" if before is None else before.id
        ids = sorted(id for id in (yield from self._union(now, window)) if id > after)
        return [(id, None) for id in ids[:limit]]

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        minutes = self._keys(now, window)
        replies = yield Batch(tuple(("SMISMEMBER", key, *ids) for key in minutes), atomic=True)
        are_online = map(any, zip(*replies, strict=True))
        return [Sighting(id, None) for id in compress(ids, are_online)]

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        # ZINTER accepts a set or a sorted set of friends; the server intersects, nothing is copied.
        minutes = self._keys(now, window)
        replies = yield Batch(tuple(("ZINTER", 2, friends, key) for key in minutes), atomic=True)
        online = {friend for reply in replies for friend in texts(reply)}
        return [Sighting(id, None) for id in online]

    def last_seen(self, ids: Sequence[str], now: float) -> Plan[dict[str, float]]:
        newest: dict[str, float] = {}
        minutes = keys.minutes_of(now, self.keep_seconds)
        for part in chunks(ids):
            commands = tuple(("SMISMEMBER", self._key(minute), *part) for minute in minutes)
            *replies, gone = yield Batch(
                (*commands, ("ZMSCORE", self.key.gone, *part)), atomic=True
            )
            for id, moment, *memberships in zip(part, map(score, gone), *replies, strict=True):
                found = list(compress(minutes, memberships))
                if moment is not None and keys.minute_of(moment) in minutes:
                    found.append(keys.minute_of(moment))
                if found:
                    newest[id] = float(max(found) * keys.MINUTE)
        return newest

    def keys(self, now: float) -> list[str]:
        return self._keys(now, self.keep_seconds)

    def _union(self, now: float, window: float) -> Plan[set[str]]:
        (members,) = yield Batch((("SUNION", *self._keys(now, window)),))
        return set(texts(members))

    def _keys(self, now: float, window: float) -> list[str]:
        return [self._key(minute) for minute in keys.minutes_of(now, window)]

    def _key(self, minute: int) -> str:
        return f"{self.key.minute_set}{minute}"


class HyperLogLog(Store):
    """The store `hyperloglog`: it counts within about one per cent and stores no ids.

    It is meant for guests and bots. Its size is constant, 12 kB a minute: `max_members` is unused.
    """

    acts = Act.SEEN, Act.ERASED  # because no id is stored

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None = None
    ) -> Plan[Written]:
        commands: list[Command] = []
        if write:
            # A write that is lost stays missing, so that the next shows it if this fails.
            writers, only_if_known = self.key.writers, ["XX"] if write.previous else []
            commands += (
                ("ZSCORE", writers, write.process),
                ("ZADD", writers, *only_if_known, as_seconds(write.moment), write.process),
                ("EXPIRE", writers, self.ttl),
            )
        for minute, of_minute in by_minute(seen):
            key = f"{self.key.minute_log}{minute}"
            for part in chunks(of_minute):
                commands.append(("PFADD", key, *(id for id, *_ in part)))
                commands.append(("EXPIRE", key, self.ttl))
        replies: list[object] = []
        for trip in chunks(commands, COMMANDS_PER_TRIP):
            replies += yield Batch(tuple(trip))
        return Written((), 0, score(replies[0]) if write else None, 0, 0)

    def count(self, now: float, window: float) -> Plan[int]:
        (count,) = yield Batch((("PFCOUNT", *self._keys(now, window)),))
        return int(count)

    def keys(self, now: float) -> list[str]:
        return self._keys(now, self.keep_seconds)

    def _keys(self, now: float, window: float) -> list[str]:
        return [f"{self.key.minute_log}{minute}" for minute in keys.minutes_of(now, window)]
