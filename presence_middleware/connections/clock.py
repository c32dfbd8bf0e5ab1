"""The Redis server's clock, read from this process's monotonic one.

Hosts may disagree about the time, and their clocks may jump. So a sighting is stamped with the
monotonic clock, and written as a time of the server's. Asking the server (TIME) bounds what its
clock shows: it was read after the question left and before the answer came. A sighting takes the
lower bound and a departure the upper, so that a logout always comes after its own request.
"""

import time
from collections.abc import Callable

from ..stores.plan import Batch, Plan
from .health import RedisHealth

WIDE = 0.02  # seconds between the two bounds that are worth another question
TRUSTED = 10.0  # seconds for which one answer is used; a failed-over server has another clock


class ServerClock:
    """Turns stamps of this process into times of the server."""

    def __init__(self, health: RedisHealth, clock: Callable[[], float] | None = None) -> None:
        """`clock` returns seconds since the epoch, and is then used in place of the server's."""
        self.stamp: Callable[[], float] = clock or time.monotonic
        self.is_server_time = clock is None
        """Whether stamps become times of the server, rather than of a clock that was passed."""
        self._health = health
        self._low = self._high = 0.0
        self._asked = 0.0
        self._generation = -1
        """The server that was asked, as `RedisHealth` numbers them; -1 before the first answer."""

    def synchronise(self, trusted: float = TRUSTED) -> Plan[None]:
        """Ask the server for the time, unless its last answer is younger than `trusted` seconds.

        The monotonic clock stands still while a machine sleeps: after that, an answer is wrong.
        """
        if not self.is_server_time or self._is_known(trusted):
            return
        yield from self._ask()
        if self._high - self._low > WIDE:  # a connection was made on the way: now there is one
            yield from self._ask()

    def _is_known(self, trusted: float) -> bool:
        is_same_server = self._generation == self._health.generation
        return is_same_server and self.stamp() - self._asked <= trusted

    def _ask(self) -> Plan[None]:
        generation, before = self._health.generation, self.stamp()
        ((seconds, microseconds),) = yield Batch((("TIME",),))
        server = int(seconds) + int(microseconds) / 1e6
        self._low, self._high = server - self.stamp(), server - before
        self._asked, self._generation = before, generation

    def now(self) -> Plan[float]:
        """Return the time in seconds since the epoch, never later than it really is."""
        yield from self.synchronise()
        return self.moment(self.stamp())

    def latest(self) -> Plan[float]:
        """Return the time in seconds since the epoch, never earlier than it really is."""
        yield from self.synchronise()
        return self.latest_moment(self.stamp())

    def moment(self, stamp: float) -> float:
        """Return a stamp as seconds since the epoch by the server's clock."""
        return round(self._low + stamp, 6)

    def latest_moment(self, stamp: float) -> float:
        """Return a stamp as seconds since the epoch, never earlier than it really was."""
        return round(self._high + stamp, 6)

    def microseconds(self, stamp: float) -> int:
        """Return a stamp as whole microseconds since the epoch by the server's clock."""
        return int((self._low + stamp) * 1e6 + 0.5)
