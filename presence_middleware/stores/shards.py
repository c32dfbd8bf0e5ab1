"""A kind spread over several keys, on one server or on the nodes of a Cluster. Plans, no I/O.

Each id has its shard. What is asked of one id goes there alone; what is asked of all goes to every
shard in one batch, and the answers are put together.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice

from . import keys
from .plan import Batch, Plan, T, merge_plans, readable_texts
from .store import Sighting, Store


class Shards:
    """The shards of a kind: where there is one, that store, behind the same questions."""

    def __init__(self, shards: Sequence[Store], *, on_one_server: bool) -> None:
        """On one server, what is asked of all shards is one snapshot."""
        self.all = tuple(shards)
        self.keep = shards[0].keep
        self._on_one_server = on_one_server

    def shard_for(self, id: str) -> Store:
        """Return the shard that an id is in."""
        if len(self.all) == 1:
            return self.all[0]
        return self.all[zlib.crc32(id.encode()) % len(self.all)]

    def keep_longer(self, seconds: float) -> None:
        """Keep last-seen times for as long as any process of the site does."""
        for shard in self.all:
            shard.keep_longer(seconds)

    def count(self, now: float, window: float) -> Plan[int]:
        return sum((yield from self._ask(lambda shard: shard.count(now, window))))

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        pages = yield from self._ask(lambda shard: shard.online(now, window, limit, before))
        return list(islice(_in_order(pages), limit))

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        parts: dict[Store, list[str]] = {}
        for id in ids:
            parts.setdefault(self.shard_for(id), []).append(id)
        plans = [shard.online_among(part, now, window) for shard, part in parts.items()]
        found = yield from merge_plans(plans, atomic=self._on_one_server)
        online = {sighting.id: sighting for part in found for sighting in part}
        return [online[id] for id in ids if id in online]

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        plans = [shard.online_friends(friends, now, window) for shard in self.all]
        if self._shares_slot_with(friends):
            found = yield from merge_plans(plans, atomic=self._on_one_server)
            return list(_in_order(found))
        (members,) = yield Batch((("ZUNION", 1, friends),))  # of a set as well
        online = yield from self.online_among(readable_texts(members), now, window)
        return list(_in_order([[sighting] for sighting in online]))

    def keys(self, now: float) -> list[str]:
        return [key for shard in self.all for key in shard.keys(now)]

    def _ask(self, question: Callable[[Store], Plan[T]]) -> Plan[list[T]]:
        plans = [question(shard) for shard in self.all]
        return (yield from merge_plans(plans, atomic=self._on_one_server))

    def _shares_slot_with(self, key: str) -> bool:
        """Whether a server can intersect all shards with the members of a key of the site's."""
        slots = {keys.slot_of(shard.name) for shard in self.all}
        return self._on_one_server or slots == {keys.slot_of(key)}


def _in_order(found: list[list[Sighting]]) -> Iterator[Sighting]:
    """All in the order of one store: newest first, of equal times the greater id first; or by id.

    Each of the lists is in that order.
    """
    if any(sightings and sightings[0].last_seen for sightings in found):
        return merge(*found, key=lambda s: (s.last_seen, s.id.encode()), reverse=True)
    return merge(*found, key=lambda s: s.id)
