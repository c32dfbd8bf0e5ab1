"""The Redis server's clock, read from this process's monotonic one.

Hosts may disagree about the time, and their clocks may jump. So a sighting is stamped with the
monotonic clock, and written as a time of the server's. Asking the server (TIME) bounds what its
clock says: it was read after the question left and before the answer came. A sighting takes the
lower bound and a departure the upper, so that a logout always comes after its own request.
"""

import time
from collections.abc import Callable

from ..stores.plan import Batch, Plan

WIDE = 0.02  # seconds between the two bounds that are worth another question
TRUSTED = 10.0  # seconds for which one answer is used; a failed-over server has another clock


class ServerClock:
    """Turns stamps of this process into seconds since the epoch by the server's clock.

    With `clock`, a function that returns seconds since the epoch, that is the time instead.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.stamp: Callable[[], float] = clock or time.monotonic
        self._given = clock is not None
        self._low = self._high = 0.0
        self._asked = -TRUSTED - 1 if clock is None else 0.0
        self.doubts = 0
        """How often another server may have answered since."""

    def synchronise(self, trusted: float = TRUSTED) -> Plan[None]:
        """Asks the server for the time, unless its last answer is younger than `trusted` seconds.

        The monotonic clock stands still while a machine sleeps: after that, an answer is wrong.
        """
        if self._given or self.stamp() - self._asked <= trusted:
            return
        yield from self._ask()
        if self._high - self._low > WIDE:  # a connection was made on the way: now there is one
            yield from self._ask()

    def _ask(self) -> Plan[None]:
        before = self.stamp()
        ((seconds, microseconds),) = yield Batch((("TIME",),))
        server = int(seconds) + int(microseconds) / 1e6
        self._low, self._high = server - self.stamp(), server - before
        self._asked = before

    def distrust(self) -> None:
        """Forgets the server's answer: after an error another server may answer."""
        self._asked = -TRUSTED - 1
        self.doubts += 1

    def now(self) -> Plan[float]:
        """The time, never later than it really is."""
        yield from self.synchronise()
        return self.moment(self.stamp())

    def latest(self) -> Plan[float]:
        """The time, never earlier than it really is."""
        yield from self.synchronise()
        return round(self._high + self.stamp(), 6)

    def moment(self, stamp: float) -> float:
        """A stamp of this process as the server's time, in microseconds like its own."""
        return round(self._low + stamp, 6)
