"""Those who are no longer online, as the script sweep.lua handles them. Plans only, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import keys
from .events import EventStream
from .plan import Plan
from .script import Script

# Ids that a script announces or takes out of their rooms: 2 to 4 ms of server time.
SWEPT = 500


class Swept(NamedTuple):
    """The outcome of a sweep."""

    has_more: bool
    """True if there may be more ids that have gone."""
    went: int
    """The number of ids that were announced."""


@dataclass(frozen=True)
class Sweeps:
    """The script sweep.lua of a kind in one shard: its arguments and its reply."""

    script: Script
    names: Sequence[str]
    """The keys of the script."""
    window: float
    lag: float
    """For how many seconds after its window an id has not gone yet."""
    events: EventStream | None

    def sweep(self, now: float, lifetime: int, compared: int = 0) -> Plan[Swept]:
        """Handle a bounded number of ids, and compare some in rooms, chosen at random."""
        command = self.script.command(
            self.names,
            lifetime,
            repr(now),
            repr(now - self.window),
            repr(now - self.window - self.lag),
            SWEPT,
            repr(now - self.window - keys.SLACK),
            # Whoever is seen after the clock was set back must not seem to be gone already.
            repr(min(float(keys.SLACK), self.window / 2)),
            compared,
        )
        (reply,) = yield from self.script.send(command)
        if self.events and reply[-1]:
            self.events.warn_of_size()
        return Swept(bool(reply[0]), int(reply[2]) if self.events else 0)
