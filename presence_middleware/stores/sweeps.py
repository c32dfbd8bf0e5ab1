"""Those who are no longer online, as the script sweep.lua handles them. Plans only, no I/O."""

from collections.abc import Sequence
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


class Sweeps:
    """The script sweep.lua of a kind in one shard: its arguments and its reply."""

    def __init__(
        self,
        script: Script,
        names: Sequence[str],
        window: float,
        lag: float,
        events: EventStream | None,
    ) -> None:
        """`names` are the keys of the script. An id has gone `lag` seconds after its window."""
        self._script, self._names, self._events = script, names, events
        self._window, self._lag = window, lag

    def sweep(self, now: float, lifetime: int, compared: int = 0) -> Plan[Swept]:
        """Handle a bounded number of ids, and compare some in rooms, chosen at random."""
        command = self._script.command(
            self._names,
            lifetime,
            repr(now),
            repr(now - self._window),
            repr(now - self._window - self._lag),
            SWEPT,
            repr(now - self._window - keys.SLACK),
            # Whoever is seen after the clock was set back must not seem to be gone already.
            repr(min(float(keys.SLACK), self._window / 2)),
            compared,
        )
        (reply,) = yield from self._script.send(command)
        if self._events and reply[-1]:
            self._events.warn_of_size()
        return Swept(bool(reply[0]), int(reply[2]) if self._events else 0)
