"""A set of ids for each minute. Plans only, no I/O.

A window covers every minute that it touches. So it contains everyone seen in the window, and ids
that are at most a minute too old. Minutes are numbered since the epoch, so key names never repeat.
"""

import math
from collections.abc import Sequence

from . import keys
from .changes import Act, Departure, Seen, Write, Written, as_seconds, by_minute, words_of
from .paging import Ranked
from .plan import Batch, Command, Plan, score, texts
from .script import CHUNK, chunks, load_script
from .store import Sighting, Store, clamp_future_scores, last_write

# The sets of at most so many minutes are searched for known ids when there is little room.
MAX_SEARCHED_MINUTES = 30
# Look-ups in one command: its people times the sets in which the script looks for them.
MAX_LOOKUPS = 6000


class MinuteSets(Store):
    """The store `minute-sets`: cheap to write, and times are known to the minute only.

    A read unites all sets of the window, so it takes longer the more ids there are: 700 ms for a
    million. It has no rooms and no goodbyes.
    """

    def __init__(
        self,
        prefix: str,
        kind: str,
        window: float,
        keep_seconds: float,
        max_members: int,
        *,
        is_server_time: bool = True,
    ) -> None:
        """Create a store as `Store` describes."""
        self.name, self.keep_seconds = f"{prefix}:{kind}", keep_seconds
        self.ttl = keys.ttl(keep_seconds)
        self._prefix, self._kind = prefix, kind
        self._matters, self._is_server_time = window + keys.SLACK, is_server_time
        # New ids are refused while the sizes of all sets add up to `max_members`. An id may be in
        # several sets, so there are never more different ids, and no union is needed to count
        # them. Of a long window, only the last minutes are searched, with their share of the room.
        minutes = math.ceil(window / keys.MINUTE) + 1
        self._searched_before = min(minutes, MAX_SEARCHED_MINUTES) - 1
        self._max_members = max(1, max_members)
        self._share = max(1, max_members * (self._searched_before + 1) // minutes)
        self._writers_key = keys.writers(prefix, kind)
        self._left_key, self._gone_key = keys.left(prefix, kind), keys.gone(prefix, kind)
        self._script, self._lifetime = load_script("minute_sets"), self.ttl

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None = None
    ) -> Plan[Written]:
        commands: list[Command] = []
        # Departures come first: an id that was seen after its departure is added again.
        by_act = {act: [each for each in departures if each[0] == act] for act in Act}
        for act in (Act.SEEN, Act.LEFT, Act.ERASED):
            # A key outlives its last write by the retention and some slack, and that write may be
            # as late again. An erased id must be removed from all of these.
            keep = self.keep_seconds
            reach = 2 * keep + keys.SLACK if act is Act.ERASED else keep
            size = max(1, MAX_LOOKUPS // len(keys.minutes_of(0, reach)))
            for departing in chunks(by_act[act], min(CHUNK, size)):
                moments = [moment / 1e6 for _, _, moment, _ in departing]
                first = keys.minutes_of(min(moments), reach)[0]
                minutes = range(first, keys.minute_of(max(moments) + 1) + 1)
                commands.append(self._command(minutes, [], departing, write))
        positions: list[Sequence[int]] = [()] * len(commands)
        # The nearest minutes come first, because most known ids are there. Later minutes are
        # searched too: a sighting may be written late, when other processes have filled them.
        offsets = [offset for ago in range(1, self._searched_before + 1) for offset in (-ago, ago)]
        for minute, numbers in by_minute(seen):
            nearest = [minute, *(minute + offset for offset in offsets)]
            for part in chunks(numbers, min(CHUNK, MAX_LOOKUPS // len(nearest))):
                positions.append(part)
                commands.append(self._command(nearest, [seen[n] for n in part], [], write))
        replies = yield from self._script.send(*commands)
        refused = [
            part[int(position) - 1]
            for part, reply in zip(positions, replies, strict=True)
            for position in reply[0]
        ]
        wrote_before = score(replies[0][2]) if write and replies else None
        return Written(refused, sum(int(full) for _, full, _ in replies), wrote_before, 0, 0)

    def _command(
        self,
        minutes: Sequence[int],
        seen: Sequence[Seen],
        departures: Sequence[Departure],
        write: Write | None,
    ) -> Command:
        """Return the command for the sightings of a minute, or for departures."""
        arrivals = [arrival for _, _, arrival, _ in seen]
        now = write.moment if write else max([*arrivals, *(each[2] for each in departures)])
        return self._script.command(
            (self._left_key, self._gone_key, self._writers_key, *map(self._key, minutes)),
            self._lifetime,
            self._matters,
            self._share if seen else self._max_members,
            int(self._is_server_time),
            write.process if write else "",
            as_seconds(now),
            as_seconds(min(arrivals, default=now)),
            " ".join(map(as_seconds, arrivals)),
            minutes[0] * keys.MINUTE,
            len(seen),
            *(id for id, *_ in seen),
            *words_of(departures),
        )

    def last_write(self, process: str) -> Plan[float | None]:
        return last_write(self._writers_key, process)

    def count(self, now: float, window: float) -> Plan[int]:
        return len((yield from self._union(now, window)))

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Ranked]]:
        after = "" if before is None else before.id
        ids = sorted(id for id in (yield from self._union(now, window)) if id > after)
        return [(id, None) for id in ids[:limit]]

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
        return [Sighting(id, None) for id in online]

    def last_seen(self, ids: Sequence[str], now: float) -> Plan[dict[str, float]]:
        newest: dict[str, float] = {}
        minutes = keys.minutes_of(now, self.keep_seconds)
        for part in chunks(ids):
            commands = tuple(("SMISMEMBER", self._key(minute), *part) for minute in minutes)
            *replies, gone = yield Batch(
                (*commands, ("ZMSCORE", self._gone_key, *part)), atomic=True
            )
            for minute, memberships in zip(minutes, replies, strict=True):
                for id, is_member in zip(part, memberships, strict=True):
                    if is_member:
                        newest[id] = float(minute * keys.MINUTE)
            for id, moment in zip(part, map(score, gone), strict=True):
                if moment is not None and keys.minute_of(moment) in minutes:
                    newest[id] = max(moment, newest.get(id, moment))
        return newest

    def keys(self, now: float) -> list[str]:
        return self._keys(now, self.keep_seconds)

    def keep_longer(self, seconds: float) -> None:
        self._lifetime = keys.ttl(max(self.keep_seconds, seconds))

    def clean_up(self, now: float) -> Plan[bool]:
        """Remove processes that have ended. The keys of minutes expire by themselves."""
        silent_since = now - self.keep_seconds - 2 * keys.SLACK
        yield Batch((("ZREMRANGEBYSCORE", self._writers_key, "-inf", silent_since),))
        return self._is_server_time and (yield from clamp_future_scores((self._left_key,), now))

    def _union(self, now: float, window: float) -> Plan[set[str]]:
        (members,) = yield Batch((("SUNION", *self._keys(now, window)),))
        return set(texts(members))

    def _keys(self, now: float, window: float) -> list[str]:
        return [self._key(minute) for minute in keys.minutes_of(now, window)]

    def _key(self, minute: int) -> str:
        return keys.minute_set(self._prefix, self._kind, minute)
