"""A kind spread over several shards, on one server or on the nodes of a Cluster. No I/O.

Every id belongs to one shard. A query about one id goes to its shard; a query about all ids goes to
every shard in one batch, and the results are merged.
"""

import zlib
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import TypeVar

from . import keys
from .plan import Batch, Plan, decoded, merge_plans, readable_texts
from .store import Ranked, Sighting, Store, moment_of, rank

T = TypeVar("T")


class Shards:
    """All shards of a kind, with the queries of a single store.

    `Store` describes the arguments and results of the methods.
    """

    def __init__(self, shards: Sequence[Store], *, on_one_server: bool) -> None:
        """Create the shards of a kind.

        With `on_one_server`, a query about all shards reads one consistent snapshot.
        """
        self.all = tuple(shards)
        self.acts, self.keep_seconds = shards[0].acts, shards[0].keep_seconds
        self.min_period, self.gone_after = shards[0].min_period, shards[0].gone_after
        self._on_one_server = on_one_server

    def shard_for(self, id: str) -> Store:
        """Return the shard of an id."""
        return self.all[zlib.crc32(id.encode()) % len(self.all)]

    def keep_longer(self, seconds: float) -> None:
        """Remove nothing younger than `seconds`, because another process retains it so long."""
        for shard in self.all:
            shard.keep_longer(seconds)

    def count(self, now: float, window: float) -> Plan[int]:
        """Return how many ids of all shards were seen in the window."""
        if len(self.all) == 1:
            return self.all[0].count(now, window)
        return self._total([shard.count(now, window) for shard in self.all])

    def active(self, now: float, period: float) -> Plan[int]:
        """Return how many ids of all shards were seen in the period, also who left since."""
        return self._total([shard.active(now, period) for shard in self.all])

    def _total(self, plans: list[Plan[int]]) -> Plan[int]:
        return sum((yield from merge_plans(plans, atomic=self._on_one_server)))

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        """Return the ids of all shards seen in the window, newest first.

        An id that said goodbye is sorted as if it had been seen earlier.
        """
        if before is not None and self.all[0].needs_sweep:
            shard = self.shard_for(before.id)
            for id, goodbye in (yield from shard.goodbyes([before.id])).items():
                found = yield from shard.online_among([id], now, window)
                # An id that was seen again in the same instant is where its time says.
                if moment_of(goodbye) == before.last_seen and before not in found:
                    before = Sighting(id, moment_of(goodbye - shard.lowered_by))
        # Of many shards, each has a few of the first ids. Most of a longer page would be dropped.
        share = min(limit, 8 + 2 * limit // len(self.all)) if limit else limit
        plans = [shard.online(now, window, share, before) for shard in self.all]
        pages = yield from merge_plans(plans, atomic=self._on_one_server)
        ranked = _first(pages, limit)
        if share != limit:
            # A shard whose whole page is among the first may have more of them.
            taken = set(map(itemgetter(0), ranked))
            whole = [
                n for n, page in enumerate(pages) if len(page) == share and page[-1][0] in taken
            ]
            longer = [self.all[n].online(now, window, limit, before) for n in whole]
            for n, page in zip(whole, (yield from merge_plans(longer)), strict=True):
                pages[n] = page
            ranked = _first(pages, limit)
        # Nothing is decoded before it is certain to be returned.
        sightings = [
            Sighting(decoded(id), None if time is None else moment_of(float(time)))
            for id, time in ranked
        ]
        return (yield from self._as_seen(sightings))

    def _as_seen(self, sightings: list[Sighting]) -> Plan[list[Sighting]]:
        """Return sightings with the last-seen times that goodbyes have lowered."""
        if not self.all[0].needs_sweep:
            return sightings
        ids = [sighting.id for sighting in sightings]
        parts = yield from self._each(ids, lambda shard, part: shard.goodbyes(part))
        goodbyes = {id: moment_of(moment) for part in parts for id, moment in part.items()}
        return [
            Sighting(id, last_seen and max(last_seen, goodbyes.get(id, last_seen)))
            for id, last_seen in sightings
        ]

    def _each(self, ids: list[str], ask: Callable[[Store, list[str]], Plan[T]]) -> Plan[list[T]]:
        """Ask each shard about its ids; return the results."""
        parts: dict[Store, list[str]] = {}
        for id in ids:
            parts.setdefault(self.shard_for(id), []).append(id)
        plans = [ask(shard, part) for shard, part in parts.items()]
        return merge_plans(plans, atomic=self._on_one_server)

    def count_in_room(self, room: int, now: float) -> Plan[int]:
        """Return how many ids that are online were last seen in a room, by its number."""
        return self._total([shard.count_in_room(room, now) for shard in self.all])

    def online_in_room(self, room: int, now: float, limit: int | None) -> Plan[list[Sighting]]:
        """Return the ids that are online and were last seen in a room, sorted by id."""
        plans = [shard.online_in_room(room, now, limit) for shard in self.all]
        lists = yield from merge_plans(plans, atomic=self._on_one_server)
        return (yield from self._as_seen(list(islice(merge(*lists), limit))))

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        """Return the given ids that were seen in the window, in the given order."""
        results = yield from self._each(
            ids, lambda shard, part: shard.online_among(part, now, window)
        )
        online = {sighting.id: sighting for result in results for sighting in result}
        return [online[id] for id in ids if id in online]

    def last_seen(self, ids: list[str], now: float) -> Plan[dict[str, float]]:
        """Return the last-seen times of ids, without those older than the retention."""
        results = yield from self._each(ids, lambda shard, part: shard.last_seen(part, now))
        return {id: moment for result in results for id, moment in result.items()}

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        """Return the members of `friends` that were seen in the window, newest first.

        On a Cluster, a key in another slot than the shards costs a second round trip.
        """
        # A store that cannot do this raises here, on a Cluster too.
        plans = [shard.online_friends(friends, now, window) for shard in self.all]
        # A server can intersect keys only if it has all of them: on a Cluster, in one slot.
        slots = {keys.slot_of(shard.name) for shard in self.all}
        if self._on_one_server or slots == {keys.slot_of(friends)}:
            results = yield from merge_plans(plans, atomic=self._on_one_server)
            return _in_order(list(chain(*results)))
        # ZUNION of a single key reads its members, whether it is a set or a sorted set.
        (members,) = yield Batch((("ZUNION", 1, friends),))
        online = yield from self.online_among(readable_texts(members), now, window)
        return _in_order(online)

    def keys(self, now: float) -> list[str]:
        """Return the keys of all shards that contain the current data."""
        return [key for shard in self.all for key in shard.keys(now)]


def _first(pages: list[list[Ranked]], limit: int | None) -> list[Ranked]:
    """Merge the pages of several shards into the order of a single store."""
    has_times = any(page[0][1] is not None for page in pages if page)
    key, is_reversed = (rank, True) if has_times else (itemgetter(0), False)
    return list(islice(merge(*pages, key=key, reverse=is_reversed), limit))


def _in_order(sightings: list[Sighting]) -> list[Sighting]:
    """Return sightings in the order of `online`: newest first, or by id if there are no times."""
    if any(sighting.last_seen for sighting in sightings):
        return sorted(sightings, key=lambda s: (s.last_seen, s.id), reverse=True)
    return sorted(sightings)
