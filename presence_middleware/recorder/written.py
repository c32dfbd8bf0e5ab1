"""What was written in the window: a server that loses its data is given it again.

Each shard has a key with a name that its first writer made up. Where that has become another,
the server, or the node of a Cluster, has begun anew: restarted without its data, say, or failed
over to one that had none.
"""

import secrets
from collections.abc import Callable

from ..connections import Driver
from ..errors import PresenceUnavailable
from ..stores import Store, agree, keys
from .buffer import Pending

LOOK_EVERY = 10.0  # seconds


class Written:
    """The newest sightings of this process, by shard. Bounded."""

    def __init__(self, window: float, most: int) -> None:
        """`most` is how many sightings are held at most; others are not given again."""
        self._window, self._most = window, most
        self._shards: dict[Store, Pending] = {}
        self._births: dict[Store, str] = {}
        self._look_at, self._doubts = float("-inf"), 0

    def note(self, shard: Store, sightings: Pending) -> None:
        """Remembers what was written just now."""
        room = self._most - sum(map(len, self._shards.values()))
        held = self._shards.setdefault(shard, {})
        for who, times in sightings.items():
            if who in held or room > 0:
                room -= who not in held
                held[who] = times

    def drop(self, shard: Store, sightings: Pending) -> None:
        """Forgets those who have left."""
        for who in sightings:
            self._shards.get(shard, {}).pop(who, None)

    def lost(self, driver: Driver, is_well: Callable[[str], bool]) -> Pending:
        """Looks now and then, and after errors; returns what a server does not have any more.

        Servers that are not well are asked when they are again.
        """
        now, doubts = driver.clock.stamp(), driver.clock.doubts
        is_named = self._births.keys() >= self._shards.keys()
        if now < self._look_at and doubts == self._doubts and is_named:
            return {}
        lost: Pending = {}
        look_at = now + LOOK_EVERY
        # While it is known; copied, for a handler may write meanwhile.
        places = {shard: driver.place(shard.name) for shard in list(self._shards)}
        away: set[str] = set()
        for shard, place in places.items():
            recent = self._recent(shard, now)
            if place in away or not is_well(place):
                look_at = now  # soon
                continue
            try:
                if self._is_another(shard, driver) and recent:
                    lost |= recent
            except PresenceUnavailable:  # the clock has noted that, too
                away.add(place)
        self._look_at, self._doubts = look_at, doubts
        return lost

    def _recent(self, shard: Store, now: float) -> Pending:
        """Those of the window; the others are forgotten."""
        held = self._shards[shard]
        seen = list(held.items())
        for who, (stamp, _) in seen:
            if stamp <= now - self._window:
                held.pop(who, None)
        return {who: times for who, times in seen if times[0] > now - self._window}

    def _is_another(self, shard: Store, driver: Driver) -> bool:
        known = self._births.get(shard)
        birth = driver.run(agree(keys.birth(shard.name), secrets.token_hex(8), shard.ttl))
        self._births[shard] = birth
        return known not in (None, birth)
