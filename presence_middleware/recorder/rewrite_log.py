"""A log of this process's writes, to find data that a server has lost.

Each shard stores when each process last wrote to it. If that time is missing or older than in
this log, the server lost data: it restarted without it or with older data, failed over to a
replica that lagged behind, or evicted the key.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from ..connections import Driver
from ..errors import PresenceUnavailable
from ..stores import Store, Write, run_all

CHECK_EVERY = 60.0  # seconds, less for a short window; each write checks its shard as well


@dataclass
class LastWrite:
    """The last write of this process to a shard."""

    moment: float
    """Seconds since the epoch, by the server's clock."""
    stamp: float
    """The same by the recorder's clock."""
    checked: float
    """The last time at which the write was found in Redis, by the recorder's clock."""


class RewriteLog:
    """The last write of this process to each shard."""

    def __init__(self, window: float) -> None:
        """Forget writes after `window` seconds: then nothing of them must be there."""
        self._process = secrets.token_hex(8)
        self._window = window
        self._check_every = min(CHECK_EVERY, max(10.0, window / 10))
        self._writes: dict[Store, LastWrite] = {}
        self._generation = -1

    def new_write(self, moment: int) -> Write:
        """Return the write to be noted in a shard, at `moment` in microseconds since the epoch."""
        return Write(self._process, moment)

    def add(self, shard: Store, write: Write, stamp: float, previous: float | None) -> bool:
        """Add a write that `shard` answered; return whether the shard had lost data before.

        `stamp` is its time by the recorder's clock. `previous` is the write before it as the
        shard had it, in seconds since the epoch, or None.
        """
        last = self._writes.get(shard)
        is_recent = last is not None and stamp - last.stamp <= self._window
        is_lost = is_recent and self._is_lost(shard, previous)
        self._writes[shard] = LastWrite(write.moment / 1e6, stamp, stamp)
        return is_lost

    def find_lost(
        self, driver: Driver, stamp: float, is_well: Callable[[str], bool]
    ) -> list[Store]:
        """Check the shards that were not checked lately; return the shards that lost data.

        `stamp` is the current time by the recorder's clock. A node for which `is_well` returns
        False is not asked now, but as soon as it is well again. Never raises for an outage.
        """
        generation, lost = driver.health.generation, list[Store]()
        has_asked_all = True
        for node, shards in self._due_by_node(driver, stamp, generation).items():
            replies: list[float | Exception | None] = []
            if is_well(node):
                try:
                    plans = [shard.last_write(self._process) for shard in shards]
                    replies = driver.run(run_all(plans))
                except PresenceUnavailable:
                    pass  # this node is asked again next time
            has_asked_all = has_asked_all and len(replies) == len(shards)
            for shard, reply in zip(shards, replies, strict=False):
                if isinstance(reply, Exception):
                    has_asked_all = False
                elif self._is_lost(shard, reply):
                    lost.append(shard)
                    del self._writes[shard]
                else:
                    self._writes[shard].checked = stamp
        if has_asked_all:
            self._generation = generation
        return lost

    def _due_by_node(self, driver: Driver, stamp: float, generation: int) -> dict[str, list[Store]]:
        """Return by node the shards not checked lately, or not since a connection was lost."""
        nodes: dict[str, list[Store]] = {}
        for shard, write in list(self._writes.items()):
            if stamp - write.stamp > self._window:
                del self._writes[shard]
            elif generation != self._generation or stamp - write.checked >= self._check_every:
                nodes.setdefault(driver.node_of(shard.name), []).append(shard)
        return nodes

    def _is_lost(self, shard: Store, previous: float | None) -> bool:
        write = self._writes.get(shard)
        return write is not None and (previous is None or previous < write.moment)
