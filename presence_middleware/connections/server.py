"""The server itself: its clock and its INFO. Plans only, no I/O.

Hosts may disagree about the time, and their clocks may jump. So this process stamps sightings with
its monotonic clock, and writes them in the time of the server. TIME gives two bounds for the
server's clock: it was read after the question left and before the reply came. A sighting uses the
lower bound and a departure the upper, so a logout always comes after its own request.
"""

import time
from collections.abc import Callable
from typing import Any

from ..stores.plan import Batch, Plan, decoded, seconds_of, to_microseconds
from .health import RedisHealth

# If the two bounds are further apart than this, in microseconds, the server is asked again.
MAX_UNCERTAINTY = 20_000
# How long one answer is used, in seconds: after a failover, another server has another clock.
TRUSTED = 10.0

Facts = dict[str, Any]
"""A section of INFO: values by name."""


class ServerClock:
    """Converts stamps of this process into times of the server."""

    def __init__(self, health: RedisHealth, clock: Callable[[], float] | None = None) -> None:
        """Create the clock of a site.

        `health` shows when another server may answer. `clock` returns seconds since the epoch and
        replaces the time of the server.
        """
        self.stamp: Callable[[], float] = clock or time.monotonic
        """Returns the current stamp, in seconds of the process's clock."""
        self.is_server_time = clock is None
        """True if stamps are converted to the server's time, rather than returned unchanged."""
        self._health = health
        self.bounds = 0, 0
        """The bounds of the server's time at the stamp 0, in whole microseconds since the epoch."""
        self._asked_at = 0.0
        # The server that was asked, as `RedisHealth` numbers them; -1 before the first answer.
        self._generation = -1

    def is_trusted(self, seconds: float = TRUSTED) -> bool:
        """Return whether the last answer of the server is younger than `seconds`."""
        if not self.is_server_time:
            return True
        is_same_server = self._generation == self._health.generation
        return is_same_server and self.stamp() - self._asked_at <= seconds

    def synchronise(self, trusted_seconds: float = TRUSTED) -> Plan[None]:
        """Ask the server for its time, unless the last answer is younger than `trusted_seconds`.

        A monotonic clock may stop while a machine sleeps, so an answer does not stay right.
        """
        if self.is_trusted(trusted_seconds):
            return
        yield from self._ask()
        low, high = self.bounds
        if high - low > MAX_UNCERTAINTY:
            # The first question may have had to wait for a new connection.
            yield from self._ask()

    def _ask(self) -> Plan[None]:
        generation, before = self._health.generation, self.stamp()
        (reply,) = yield Batch((("TIME",),))
        server = seconds_of(reply)
        self.bounds = to_microseconds(server - self.stamp()), to_microseconds(server - before)
        self._asked_at, self._generation = before, generation

    def now(self) -> Plan[float]:
        """Return the lower bound of the server's time, in seconds since the epoch."""
        if not self.is_trusted():
            yield from self.synchronise()
        return self.moment(self.stamp())

    def latest(self) -> Plan[float]:
        """Return the upper bound of the server's time, in seconds since the epoch."""
        if not self.is_trusted():
            yield from self.synchronise()
        return round(self.bounds[1] / 1e6 + self.stamp(), 6)

    def moment(self, stamp: float) -> float:
        """Return the lower bound of a stamp in the server's time, in seconds since the epoch."""
        return round(self.bounds[0] / 1e6 + stamp, 6)


def server_facts(section: str) -> Plan[Facts]:
    """Return a section of INFO, such as `memory`.

    Raises `RedisRefused` if the user of the connection may not run INFO.
    """
    (reply,) = yield Batch((("INFO", section),))
    return {decoded(name): value for name, value in reply.items()}


def eviction_policy(memory: Facts) -> str | None:
    """Return the rule by which the server evicts keys when its memory is full.

    `memory` is the INFO section of that name. Returns None if the server evicts nothing.
    """
    policy = str(memory["maxmemory_policy"])
    return policy if int(memory["maxmemory"]) and policy != "noeviction" else None
