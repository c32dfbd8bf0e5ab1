"""The number of people online at each full minute of a log's clock, exactly.

A line may be late by as much as the window. Sightings therefore wait by minute, and a minute is
counted once the clock is a window past it. At most the sightings of two windows are in memory,
however long the log is.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from ..identity.ids import Who
from ..stores import Sample, moment_of
from ..svg import Series, draw
from .lines import Tally

MINUTE = 60
MAX_QUIET = 1440  # minutes without a visit that are reported; the gap after them is not
# A point for each minute of a day. A longer log has a point every 2, 4, 8 … minutes.
MAX_POINTS = 1440

LoggedVisit = tuple[int, Who | None]
"""When, in seconds since the epoch, and who. A line that counts nobody only moves the clock."""


class Moment(NamedTuple):
    """The number of people online at a moment, by kind."""

    at: int
    """Seconds since the epoch."""
    counts: tuple[int, ...]
    """In the order of the kinds."""


def count_minutes(
    sightings: Iterable[LoggedVisit], kinds: tuple[str, ...], window: float, tally: Tally
) -> Iterator[Moment]:
    """Yield the numbers of each minute, from the first sighting to the last.

    A user is online for `window` seconds. Sightings may be out of order by as much. Those that are
    later do not count, and the `tally` has their number.
    """
    counts = dict.fromkeys(kinds, 0)
    # Who is online, by last-seen time, the latest at the end.
    online: OrderedDict[Who, int] = OrderedDict()
    for minute, seen in _by_minute(sightings, math.ceil(window / MINUTE), tally):
        now = int(minute) * MINUTE
        for who, at in sorted(seen.items(), key=itemgetter(1)):
            counts[who[0]] += who not in online
            online[who] = at
            online.move_to_end(who)
        while online and next(iter(online.values())) <= now - window:
            (kind, _), _ = online.popitem(last=False)
            counts[kind] -= 1
        yield Moment(now, tuple(counts.values()))


def _by_minute(
    sightings: Iterable[LoggedVisit], patience: int, tally: Tally
) -> Iterator[tuple[float, dict[Who, int]]]:
    """Yield each minute in order, and when who was last seen in it, until a day without visits.

    A minute waits until the log is `patience` minutes past it.
    """
    waiting: dict[float, dict[Who, int]] = {}
    oldest, newest, quiet = math.inf, -math.inf, 0
    for at, who in sightings:
        minute = -(-at // MINUTE)  # the first full minute that includes it
        if minute < newest - patience:
            tally.note("late")
            continue
        oldest, newest = min(oldest, minute), max(newest, minute)
        if who is not None:
            seen = waiting.setdefault(minute, {})
            seen[who] = max(at, seen.get(who, at))
        while oldest < newest - patience:
            seen = waiting.pop(oldest, {})
            yield oldest, seen
            quiet = 0 if seen else quiet + 1
            is_gap = quiet >= MAX_QUIET + patience - 1
            oldest = min(waiting, default=newest - patience) if is_gap else oldest + 1
    while oldest <= newest:
        yield oldest, waiting.get(oldest, {})
        oldest += 1


class Summary:
    """The peaks of a replay, and the highest counts of equal steps of time.

    The steps double so that they stay few.
    """

    def __init__(self, kinds: tuple[str, ...], most: int = MAX_POINTS) -> None:
        """Hold at most `most` points."""
        self._most = most
        self.step = MINUTE
        """The length of a step, in seconds."""
        self.points: dict[int, tuple[int, ...]] = {}
        """By the time when a step begins, the highest count of each kind in it."""
        self.peaks: dict[str, Sample | None] = dict.fromkeys(kinds)
        """The first highest minute of each kind; None if none of the kind came."""

    def add(self, moment: Moment) -> None:
        """Add the next moment; moments come in order."""
        for (kind, peak), count in zip(self.peaks.items(), moment.counts, strict=True):
            if count > (peak.count if peak else 0):
                self.peaks[kind] = Sample(moment_of(moment.at), count)
        at = moment.at // self.step * self.step
        self.points[at] = tuple(map(max, self.points.get(at, moment.counts), moment.counts))
        if len(self.points) > self._most:
            self.step *= 2
            shorter, self.points = self.points, {}
            for point in shorter.items():
                self.add(Moment(*point))

    def chart(self) -> str:
        """Return an SVG with a line for each kind that came; its times are in UTC."""
        lines = []
        for place, (kind, peak) in enumerate(self.peaks.items()):
            if peak:
                points = [(at, counts[place]) for at, counts in self.points.items()]
                lines.append(Series(kind, points, (int(peak.at.timestamp()), peak.count), place))
        start, end = min(self.points, default=0), max(self.points, default=0)
        return draw(lines, start, max(end, start + self.step), gap=self.step)
