"""Who is online at each full minute of a log's clock, exactly.

A line may be as late as the window is long: sightings wait by their minute, and a minute is told
once the clock is a window past it. What is held is those of two windows, however long the log is.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from ..identity import Id, Who

MINUTE = 60
QUIET = 1440  # minutes without anybody, after which there is a gap until somebody comes


class Moment(NamedTuple):
    """How many of each kind were online, in the order of the kinds."""

    at: int
    """Seconds since the epoch."""
    counts: tuple[int, ...]


class Online:
    """The ids of a kind with when they were last seen, the latest behind the others."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: OrderedDict[Id, float] = OrderedDict()

    def saw(self, id: Id, at: float) -> None:
        """Takes a sighting, which is no older than those before it."""
        self._seen[id] = at
        self._seen.move_to_end(id)

    def count(self, now: float) -> int:
        """How many there are, once those are gone whose window is over."""
        seen, over = self._seen, now - self._window
        while seen and next(iter(seen.values())) <= over:
            seen.popitem(last=False)
        return len(seen)


class Timeline:
    """Takes sightings in nearly any order, and tells each minute in order."""

    def __init__(
        self, kinds: tuple[str, ...], window: float, tell: Callable[[Moment], object]
    ) -> None:
        self._online = {kind: Online(window) for kind in kinds}
        self._nobody = (0,) * len(kinds)
        self._tell = tell
        self._patience = math.ceil(window / MINUTE)
        self._waiting: dict[int, dict[Who, float]] = {}
        self._newest: int | None = None
        self._next = self._quiet = 0
        self.late = 0
        """How many came later than the window is long, and do not count."""

    def saw(self, at: int, who: Who | None) -> None:
        """Takes a sighting, or a line of nobody's: the clock goes on all the same."""
        minute = -(-at // MINUTE)  # the first full minute that knows of it
        sightings = self._waiting.get(minute)
        if sightings is None:
            sightings = self._begin(minute)
        if who is not None and at >= sightings.get(who, at):
            sightings[who] = at

    def end(self) -> None:
        """Tells what is left: up to the full minute after the last line."""
        if self._newest is not None:
            self._tell_until(self._newest)

    def _begin(self, minute: int) -> dict[Who, float]:
        if self._newest is None:
            self._next = self._newest = minute
        elif minute < self._newest - self._patience:
            self.late += 1
            return {}
        self._next = min(self._next, minute)
        if minute > self._newest:
            self._newest = minute
            self._tell_until(minute - self._patience - 1)
        return self._waiting.setdefault(minute, {})

    def _tell_until(self, last: int) -> None:
        while self._next <= last:
            if self._quiet >= QUIET and self._next not in self._waiting:
                self._next = min(self._waiting, default=last + 1)
            else:
                self._tell(self._moment(self._next))
                self._next += 1

    def _moment(self, minute: int) -> Moment:
        now = minute * MINUTE
        sightings = self._waiting.pop(minute, None)
        if self._quiet and not sightings:
            self._quiet += 1
            return Moment(now, self._nobody)
        for (kind, id), at in sorted((sightings or {}).items(), key=itemgetter(1)):
            self._online[kind].saw(id, at)
        counts = tuple(online.count(now) for online in self._online.values())
        self._quiet = 0 if any(counts) else 1
        return Moment(now, counts)
