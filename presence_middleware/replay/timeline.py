"""The number of people online at each full minute of a log's clock, exactly.

A line may be late by as much as the window. Sightings therefore wait by minute, and a minute is
reported once the clock is a window past it. At most the sightings of two windows are in memory,
however long the log is.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from ..identity import Id, Who

MINUTE = 60
MAX_QUIET = 1440  # minutes without a visit that are reported; the gap after them is not


class Moment(NamedTuple):
    """The number of people online at a moment, by kind."""

    at: int
    """Seconds since the epoch."""
    counts: tuple[int, ...]
    """In the order of the kinds."""


class Online:
    """The ids of a kind with their last-seen times, the latest at the end."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: OrderedDict[Id, float] = OrderedDict()

    def add(self, id: Id, at: float) -> None:
        """Add a sighting; `at`, in seconds, is no earlier than in the call before."""
        self._seen[id] = at
        self._seen.move_to_end(id)

    def count(self, now: float) -> int:
        """Remove the ids that were last seen a window before `now`; return how many are left."""
        seen, over = self._seen, now - self._window
        while seen and next(iter(seen.values())) <= over:
            seen.popitem(last=False)
        return len(seen)


class Timeline:
    """Counts sightings that come in nearly any order, and reports each minute in order."""

    def __init__(
        self, kinds: tuple[str, ...], window: float, report: Callable[[Moment], object]
    ) -> None:
        """Call `report` with each minute; a user is online for `window` seconds."""
        self._online = {kind: Online(window) for kind in kinds}
        self._nobody = (0,) * len(kinds)
        self._report = report
        self._patience = math.ceil(window / MINUTE)
        self._waiting: dict[int, dict[Who, float]] = {}
        self._newest: int | None = None
        self._next = self._quiet = 0
        self.late = 0
        """The number of lines that came too late to count."""

    def add(self, at: int, who: Who | None) -> None:
        """Add a sighting at a time in seconds since the epoch; None only moves the clock."""
        minute = -(-at // MINUTE)  # the first full minute that includes it
        sightings = self._waiting.get(minute)
        if sightings is None:
            sightings = self._begin(minute)
        if who is not None and at >= sightings.get(who, at):
            sightings[who] = at

    def finish(self) -> None:
        """Report the minutes that remain, up to the full minute after the last line."""
        if self._newest is not None:
            self._report_until(self._newest)

    def _begin(self, minute: int) -> dict[Who, float]:
        """Return the place for the sightings of a minute that has none yet."""
        if self._newest is None:
            self._next = self._newest = minute
        elif minute < self._newest - self._patience:
            self.late += 1
            return {}
        self._next = min(self._next, minute)
        if minute > self._newest:
            self._newest = minute
            self._report_until(minute - self._patience - 1)
        return self._waiting.setdefault(minute, {})

    def _report_until(self, last: int) -> None:
        while self._next <= last:
            if self._quiet >= MAX_QUIET and self._next not in self._waiting:
                self._next = min(self._waiting, default=last + 1)
            else:
                self._report(self._moment(self._next))
                self._next += 1

    def _moment(self, minute: int) -> Moment:
        now = minute * MINUTE
        sightings = self._waiting.pop(minute, None)
        if self._quiet and not sightings:
            self._quiet += 1
            return Moment(now, self._nobody)
        for (kind, id), at in sorted((sightings or {}).items(), key=itemgetter(1)):
            self._online[kind].add(id, at)
        counts = tuple(online.count(now) for online in self._online.values())
        self._quiet = 0 if any(counts) else 1
        return Moment(now, counts)
