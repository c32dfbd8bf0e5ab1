"""Notices that a server has lost what this process wrote, so that it is written again.

Each shard keeps when each process last wrote to it. Where that is older than this process knows,
or missing, the server has gone back: it restarted without its data or with older data, failed
over to a replica that lagged, or evicted the key.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from ..connections import Driver
from ..errors import PresenceUnavailable
from ..stores import Store, Write, run_all

LOOK_EVERY = 10.0  # seconds; also each write looks


@dataclass
class LastWrite:
    """When this process last wrote to a shard, and last found that to be there still."""

    moment: float
    """Seconds since the epoch, by the server's clock."""
    stamp: float
    """By the recorder's clock."""
    looked: float
    """By the recorder's clock."""


class RewriteLog:
    """When this process last wrote to each shard."""

    def __init__(self, window: float) -> None:
        """`window` is the seconds after which nothing that was written needs to be there."""
        self._process = secrets.token_hex(8)
        self._window = window
        self._writes: dict[Store, LastWrite] = {}
        self._generation = -1

    def write(self, moment: int) -> Write:
        """Return what a record command notes of this process, at a moment in microseconds."""
        return Write(self._process, moment)

    def wrote(self, shard: Store, write: Write, stamp: float, wrote_before: float | None) -> bool:
        """Note a write, and when the server had the one before; return whether it lost data."""
        is_lost = self._is_lost(shard, wrote_before)
        self._writes[shard] = LastWrite(write.moment / 1e6, stamp, stamp)
        return is_lost

    def find_lost(
        self, driver: Driver, stamp: float, is_well: Callable[[str], bool]
    ) -> list[Store]:
        """Return the shards that lost data, of those to which nothing was written for a while.

        Servers that are not well are asked when they are again.
        """
        generation, lost = driver.health.generation, list[Store]()
        has_asked_all = True
        for node, shards in self._to_ask(driver, stamp, generation).items():
            answers: list[float | Exception | None] = []
            if is_well(node):
                answers = self._ask(driver, shards)
            has_asked_all = has_asked_all and len(answers) == len(shards)
            for shard, answer in zip(shards, answers, strict=False):
                if isinstance(answer, Exception):
                    has_asked_all = False
                elif self._is_lost(shard, answer):
                    lost.append(shard)
                    del self._writes[shard]
                else:
                    self._writes[shard].looked = stamp
        if has_asked_all:
            self._generation = generation
        return lost

    def _to_ask(self, driver: Driver, stamp: float, generation: int) -> dict[str, list[Store]]:
        """Return by node the shards that were not looked at lately, or not since an error."""
        nodes: dict[str, list[Store]] = {}
        for shard, write in list(self._writes.items()):
            if stamp - write.stamp > self._window:
                del self._writes[shard]
            elif generation != self._generation or stamp - write.looked >= LOOK_EVERY:
                nodes.setdefault(driver.node_of(shard.name), []).append(shard)
        return nodes

    def _ask(self, driver: Driver, shards: list[Store]) -> list[float | Exception | None]:
        try:
            return driver.run(run_all([shard.last_write(self._process) for shard in shards]))
        except PresenceUnavailable:
            return []

    def _is_lost(self, shard: Store, wrote_before: float | None) -> bool:
        write = self._writes.get(shard)
        return write is not None and (wrote_before is None or wrote_before < write.moment)
