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
from .store import Sighting, Store, clamp_future_scores

# The sets of at most so many minutes are searched for known ids when there is little room.
MAX_SEARCHED_MINUTES = 30
# Look-ups in one command: its people times the sets in which the script looks for them.
MAX_LOOKUPS = 6000


class MinuteSets(Store):
    """The store `minute-sets`: cheap to write, and times are known to the minute only.

    A read unites all sets of the window, so it takes longer the more ids there are: 700 ms for a
    million. It has no rooms and no goodbyes.
    """

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
                members = self.max_members
                commands.append(self._command(minutes, members, [], departing, write))
        positions: list[Sequence[int]] = [()] * len(commands)
        # New ids are refused while the sizes of all sets add up to `max_members`. An id may be in
        # several sets, so there are never more different ids, and no union is needed to count
        # them. Of a long window, only the last minutes are searched, with their share of the room.
        minutes_of_window = math.ceil(self.window / keys.MINUTE) + 1
        searched = min(minutes_of_window, MAX_SEARCHED_MINUTES)
        share = max(1, self.max_members * searched // minutes_of_window)
        # The nearest minutes come first, because most known ids are there. Later minutes are
        # searched too: a sighting may be written late, when other processes have filled them.
        offsets = [offset for ago in range(1, searched) for offset in (-ago, ago)]
        for minute, numbers in by_minute(seen):
            nearest = [minute, *(minute + offset for offset in offsets)]
            for part in chunks(numbers, min(CHUNK, MAX_LOOKUPS // len(nearest))):
                positions.append(part)
                commands.append(self._command(nearest, share, [seen[n] for n in part], [], write))
        replies = yield from load_script("minute_sets").send(*commands)
        refused = [
            part[int(position) - 1]
            for part, reply in zip(positions, replies, strict=True)
            for position in reply[0]
        ]
        wrote_before = score(replies[0][2]) if replies else None
        return Written(refused, sum(int(full) for _, full, _ in replies), wrote_before, 0, 0)

    def _command(
        self,
        minutes: Sequence[int],
        max_members: int,
        seen: Sequence[Seen],
        departures: Sequence[Departure],
        write: Write | None,
    ) -> Command:
        """Return the command for the sightings of a minute, or for departures."""
        arrivals = [arrival for _, _, arrival, _ in seen]
        now = write.moment if write else max([*arrivals, *(each[2] for each in departures)])
        return load_script("minute_sets").command(
            (self.left, self.gone, self.writers, *map(self._key, minutes)),
            self.ttl,
            self.window + keys.SLACK,
            max_members,
            int(self.is_server_time),
            write.process if write else "",
            as_seconds(now),
            as_seconds(min(arrivals, default=now)),
            " ".join(map(as_seconds, arrivals)),
            minutes[0] * keys.MINUTE,
            len(seen),
            *(id for id, *_ in seen),
            *words_of(departures),
        )

    def count(self, now: float, window: float) -> Plan[int]:
        return len((yield from self._union(now, window)))

    def active(self, now: float, period: float) -> Plan[int]:
        minutes = keys.minutes_of(now, period)
        left = ("ZRANGE", self.gone, minutes[0] * keys.MINUTE, "+inf", "BYSCORE")
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
            *replies, gone = yield Batch((*commands, ("ZMSCORE", self.gone, *part)), atomic=True)
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

    def clean_up(self, now: float) -> Plan[bool]:
        yield from super().clean_up(now)
        return self.is_server_time and (yield from clamp_future_scores((self.left,), now))

    def _union(self, now: float, window: float) -> Plan[set[str]]:
        (members,) = yield Batch((("SUNION", *self._keys(now, window)),))
        return set(texts(members))

    def _keys(self, now: float, window: float) -> list[str]:
        return [self._key(minute) for minute in keys.minutes_of(now, window)]

    def _key(self, minute: int) -> str:
        return keys.minute_set(self.prefix, self.kind, minute)
