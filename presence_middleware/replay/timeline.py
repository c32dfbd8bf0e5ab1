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

from ..identity.hashing import Who
from ..stores import Sample, moment_of
from ..svg import Line, draw

MINUTE = 60
MAX_QUIET = 1440  # minutes without a visit that are reported; the gap after them is not
# A point for each minute of a day. A longer log has a point every 2, 4, 8 … minutes.
MAX_POINTS = 1440


class Moment(NamedTuple):
    """The number of people online at a moment, by kind."""

    at: int
    """Seconds since the epoch."""
    counts: tuple[int, ...]
    """In the order of the kinds."""


class Timeline:
    """Counts sightings that come in nearly any order, and reports each minute in order."""

    def __init__(
        self, kinds: tuple[str, ...], window: float, report: Callable[[Moment], object]
    ) -> None:
        """Call `report` with each minute; a user is online for `window` seconds."""
        self._counts = dict.fromkeys(kinds, 0)
        self._window, self._patience = window, math.ceil(window / MINUTE)
        self._report = report
        self._seen: OrderedDict[Who, int] = OrderedDict()
        """Who is online, by last-seen time, the latest at the end."""
        self._waiting: dict[int, dict[Who, int]] = {}
        """The last-seen times of each minute that is not reported yet."""
        self._newest: int | None = None
        self._next = self._quiet = 0
        self.late = 0
        """The number of lines that came too late to count."""

    def add(self, at: int, who: Who | None) -> None:
        """Add a sighting at a time in seconds since the epoch; None only moves the clock."""
        minute = -(-at // MINUTE)  # the first full minute that includes it
        sightings = self._waiting.get(minute)
        if sightings is None:
            if self._newest is None:
                self._next = self._newest = minute
            elif minute < self._newest - self._patience:
                self.late += 1
                return
            self._next = min(self._next, minute)
            if minute > self._newest:
                self._newest = minute
                self._report_until(minute - self._patience - 1)
            sightings = self._waiting[minute] = {}
        if who is not None and at >= sightings.get(who, at):
            sightings[who] = at

    def finish(self) -> None:
        """Report the minutes that remain, up to the full minute after the last line."""
        if self._newest is not None:
            self._report_until(self._newest)

    def _report_until(self, last: int) -> None:
        while self._next <= last:
            if self._quiet >= MAX_QUIET and self._next not in self._waiting:
                self._next = min(self._waiting, default=last + 1)
                continue
            now = self._next * MINUTE
            sightings = self._waiting.pop(self._next, {})
            for who, at in sorted(sightings.items(), key=itemgetter(1)):
                self._counts[who[0]] += who not in self._seen
                self._seen[who] = at
                self._seen.move_to_end(who)
            while self._seen and next(iter(self._seen.values())) <= now - self._window:
                (kind, _), _ = self._seen.popitem(last=False)
                self._counts[kind] -= 1
            if sightings:
                self._quiet = 0
            elif not self._seen:
                self._quiet += 1
            self._report(Moment(now, tuple(self._counts.values())))
            self._next += 1


class Series:
    """The highest counts of equal steps of time; steps double so that they stay few."""

    def __init__(self, most: int = MAX_POINTS) -> None:
        """Hold at most `most` points."""
        self._most = most
        self.step = MINUTE
        """The length of a step, in seconds."""
        self.points: list[Moment] = []
        """By kind the highest count of each step, at the time when the step begins."""

    def add(self, moment: Moment) -> None:
        """Add the next moment; moments come in order."""
        at = moment.at // self.step * self.step
        if self.points and self.points[-1].at == at:
            highest = tuple(map(max, self.points[-1].counts, moment.counts))
            self.points[-1] = Moment(at, highest)
            return
        self.points.append(Moment(at, moment.counts))
        if len(self.points) > self._most:
            self.step *= 2
            shorter, self.points = self.points, []
            for point in shorter:
                self.add(point)


class Summary:
    """The peaks and the series of a replay."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.series = Series()
        self.peaks: dict[str, Sample | None] = dict.fromkeys(kinds)
        """The first highest minute of each kind; None if none of the kind came."""

    def add(self, moment: Moment) -> None:
        """Add the next moment; moments come in order."""
        self.series.add(moment)
        for (kind, peak), count in zip(self.peaks.items(), moment.counts, strict=True):
            if count > (peak.count if peak else 0):
                self.peaks[kind] = Sample(moment_of(moment.at), count)

    def chart(self) -> str:
        """Return an SVG with a line for each kind that came; its times are in UTC."""
        points, step = self.series.points, self.series.step
        lines = [
            Line(
                kind,
                [(moment.at, moment.counts[place]) for moment in points],
                (int(peak.at.timestamp()), peak.count),
                place,
            )
            for place, (kind, peak) in enumerate(self.peaks.items())
            if peak
        ]
        start, end = (points[0].at, points[-1].at) if points else (0, step)
        return draw(lines, start, max(end, start + step), gap=step)
