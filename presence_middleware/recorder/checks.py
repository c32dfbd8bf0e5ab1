"""What is checked around writes, because another server may answer: agreement and lost data.

Before a write, all processes of a site must agree. After it, a server may turn out to have lost
data: each shard stores when each process last wrote to it. If that time is missing or older than
the process remembers, the server restarted without it or with older data, failed over to a replica
that lagged behind, or evicted the key.
"""

import math
import secrets
from contextlib import suppress
from dataclasses import dataclass

from ..backend import Backend
from ..connections.drivers import Driver
from ..connections.server import TRUSTED
from ..errors import PresenceUnavailable
from ..identity.resolver import IdentityResolver
from ..stores import Store, Write, agree, keys, run_all
from .setup_hints import SetupHints

# Seconds; a Redis that restarted empty has lost the agreement. This is sooner than readers need the
# server's time, so that they seldom have to ask for it.
AGREED_EVERY = 0.7 * TRUSTED
AGREE_EVERY = 60.0  # seconds, less for a short window; each write checks its shard as well


class Agreement:
    """What must hold before a write.

    The server's time, the number of shards, the settings that all must share, and the key of hashed
    guests.
    """

    def __init__(self, backend: Backend, resolver: IdentityResolver, hints: SetupHints) -> None:
        self._backend, self._resolver, self._hints = backend, resolver, hints
        self._proposal = secrets.token_hex(32)
        self._agreed_at, self._generation = 0.0, -1

    def reach(self, driver: Driver, deadline: float) -> None:
        """Agree again if the last time is long ago, or if another server may answer since.

        No round trip starts after `deadline`. Raises `PresenceUnavailable`, but not if the
        agreement holds while the node that stores it is away.
        """
        backend = self._backend
        clock, generation = backend.clock, backend.health.generation
        now = clock.stamp()
        if now - self._agreed_at < AGREED_EVERY and generation == self._generation:
            return
        if not clock.is_trusted(TRUSTED / 5):
            driver.run(clock.synchronise(TRUSTED / 5), deadline)
        shared_key, publish = self._resolver.shared_key, backend.shared_settings.publish
        try:
            driver.run(backend.layout.claim(now), deadline)
            in_force = driver.run(publish(clock.moment(now)), deadline)
            for name, value in in_force.differing.items():
                self._hints.warn("setting", name, value, topic=name)
            for kind, seconds in in_force.keep_seconds.items():
                backend.stores[kind].keep_longer(seconds)
            if shared_key is not None:
                key = keys.visitor_key(backend.settings.prefix)
                agreed = agree(key, self._proposal, keys.VISITOR_KEY_TTL)
                self._proposal = driver.run(agreed, deadline)
                shared_key.learn(self._proposal.encode())
        except PresenceUnavailable:
            has_key = shared_key is None or shared_key.key is not None
            if not (backend.layout.is_agreed and has_key):
                raise
        self._agreed_at, self._generation = now, generation


@dataclass
class LastWrite:
    """The last write of this process to a shard."""

    moment: float
    """Seconds since the epoch, by the server's clock."""
    stamp: float
    """The same by the recorder's clock."""
    checked: float
    """The last time at which the write was found in Redis, by the recorder's clock."""

    def is_lost(self, stored: float | None) -> bool:
        """Return whether the shard, which has `stored`, has lost the write."""
        return stored is None or stored < self.moment


class LostData:
    """The last write of this process to each shard."""

    def __init__(self, window: float) -> None:
        """Forget writes after `window` seconds: then nothing of them must be there."""
        self.process = secrets.token_hex(8)
        """The name of this process beside its writes."""
        self._window = window
        self._check_every = min(AGREE_EVERY, max(10.0, window / 5))
        self._writes: dict[Store, LastWrite] = {}
        self._generation = -1

    def add(self, shard: Store, write: Write, stamp: float, previous: float | None) -> bool:
        """Add a write that `shard` answered; return whether the shard had lost data before.

        `stamp` is its time by the recorder's clock. `previous` is the write before it as the
        shard had it, in seconds since the epoch, or None.
        """
        last = self._writes.get(shard)
        self._writes[shard] = LastWrite(write.moment / 1e6, stamp, stamp)
        if last is None or stamp - last.stamp > self._window or not last.is_lost(previous):
            return False
        self._generation = -1  # the other shards are checked when `find` is called next
        return True

    def find(self, driver: Driver, stamp: float) -> list[Store]:
        """Check the shards that were not checked lately; return the shards that lost data.

        `stamp` is the current time by the recorder's clock. A node that failed is not asked now,
        but as soon as it is well again. Never raises for an outage.
        """
        if self._generation != driver.health.generation:
            self._generation = driver.health.generation
            for write in self._writes.values():
                write.checked = -math.inf  # another server may answer
        due, is_well, node_of = list[Store](), driver.health.is_well, driver.node_of
        for shard, write in list(self._writes.items()):
            if stamp - write.stamp > self._window:
                del self._writes[shard]
            elif stamp - write.checked >= self._check_every and is_well(node_of(shard.name)):
                due.append(shard)
        if not due:
            return []
        lost: list[Store] = []
        with suppress(PresenceUnavailable):  # these shards are asked again next time
            plans = [shard.last_write(self.process) for shard in due]
            for shard, stored in zip(due, driver.run(run_all(plans)), strict=True):
                if isinstance(stored, Exception):
                    continue
                if self._writes[shard].is_lost(stored):
                    lost.append(shard)
                    del self._writes[shard]
                else:
                    self._writes[shard].checked = stamp
        return lost
