"""What is kept of a replay: the peak of each kind, and a chart of bounded size."""

from datetime import UTC, datetime

from ..stores import Sample
from .timeline import MINUTE, Moment

POINTS = 1440  # a day has one a minute; above it, each is of two minutes, then of four …


class Series:
    """Moments, of which a bounded number of points is kept: each the most of its step."""

    def __init__(self, most: int = POINTS) -> None:
        self._most = most
        self.step = MINUTE
        """Seconds that a point is of."""
        self.points: list[Moment] = []

    def add(self, moment: Moment) -> None:
        """Takes the next moment."""
        self._put(moment)
        while len(self.points) > self._most:
            self.step *= 2
            fine, self.points = self.points, []
            for point in fine:
                self._put(point)

    def _put(self, moment: Moment) -> None:
        at = moment.at // self.step * self.step
        if not self.points or self.points[-1].at != at:
            self.points.append(Moment(at, moment.counts))
        elif moment.counts != self.points[-1].counts:
            self.points[-1] = highest(self.points[-1], moment)


class Summary:
    """Hears every moment of a replay."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.series = Series()
        self._counts: tuple[int, ...] = ()
        self.peaks: dict[str, Sample | None] = dict.fromkeys(kinds)
        """Of each kind, if anybody of it was there."""
        self.requests = self.unreadable = self.late = self.ahead = self.refused = 0

    def add(self, moment: Moment) -> None:
        """Takes the next moment."""
        self.series.add(moment)
        if moment.counts != self._counts:
            self._counts = moment.counts
            self._raise(moment)

    def _raise(self, moment: Moment) -> None:
        for (kind, peak), count in zip(self.peaks.items(), moment.counts, strict=True):
            if count > (peak.count if peak else 0):
                self.peaks[kind] = Sample(datetime.fromtimestamp(moment.at, UTC), count)


def highest(one: Moment, other: Moment) -> Moment:
    """The most of each kind in two moments, at the time of the first."""
    return Moment(one.at, tuple(map(max, one.counts, other.counts)))
