"""Announces who has gone, in whichever process of a site comes first: one that records or follows.

No process leads. A process that dies is replaced by the next that sweeps, and two that sweep at the
same time announce nobody twice.
"""

from collections.abc import Sequence
from itertools import groupby

from .connections import Driver, RedisHealth, ServerClock
from .errors import PresenceUnavailable
from .stores import Batch, Plan, Store, keys, run_all

SWEEP_MILLISECONDS = 900
SWEEP_ROUNDS = 20  # of some hundreds of users each, at a time


class Sweeper:
    """Announces who has gone, once a second, unless another process of the site does."""

    def __init__(
        self, prefix: str, shards: Sequence[Store], clock: ServerClock, health: RedisHealth
    ) -> None:
        """Create a sweeper of the shards of all kinds that are announced.

        `prefix` is `PRESENCE_PREFIX`.
        """
        self._claim_key, self._shards = keys.swept(prefix), shards
        self._clock, self._health = clock, health

    def sweep(self, driver: Driver) -> None:
        """Announce a bounded number of users who have gone, unless another process does.

        A node of a Cluster that is away stops no other. Raises `PresenceUnavailable` if no node
        answers, or if the server refuses to write.
        """
        if not self._shards or not self._health.is_well("") or not self._is_claimed(driver):
            return
        now = driver.run(self._clock.now())
        failures: list[PresenceUnavailable] = []
        nodes = self._by_node(driver)
        for shards in nodes:
            try:
                self._sweep_node(driver, shards, now)
            except PresenceUnavailable as error:
                failures.append(error)
        if failures and len(failures) == len(nodes):
            raise failures[0]

    def _by_node(self, driver: Driver) -> list[list[Store]]:
        """Return the shards of each node that did not fail before."""

        def node_of(shard: Store) -> str:
            return driver.node_of(shard.name)

        nodes = groupby(sorted(self._shards, key=node_of), key=node_of)
        return [list(shards) for node, shards in nodes if self._health.is_well(node)]

    def _sweep_node(self, driver: Driver, shards: list[Store], now: float) -> None:
        for _ in range(SWEEP_ROUNDS):
            outcomes = driver.run(run_all([shard.sweep(now) for shard in shards]))
            remaining: list[Store] = []
            for shard, outcome in zip(shards, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    raise outcome
                if outcome.has_more:
                    remaining.append(shard)
            shards = remaining
            if not shards:
                return

    def _is_claimed(self, driver: Driver) -> bool:
        """Return whether this process sweeps in this second."""
        try:
            return driver.run(self._claim())
        except PresenceUnavailable:
            if all(driver.node_of(shard.name) == "" for shard in self._shards):
                raise
            return True  # only the node of the claim may be away, and sweeping twice does no harm

    def _claim(self) -> Plan[bool]:
        claim = ("SET", self._claim_key, 1, "NX", "PX", SWEEP_MILLISECONDS)
        (is_claimed,) = yield Batch((claim,))
        return bool(is_claimed)
