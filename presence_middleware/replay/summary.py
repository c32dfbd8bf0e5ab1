"""The result of a replay: the peak of each kind, and a bounded number of points for a chart."""

from ..stores import Sample, moment_of
from ..svg import Line, draw
from .timeline import MINUTE, Moment

# A point for each minute of a day. A longer log has a point every 2, 4, 8 … minutes.
MAX_POINTS = 1440


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
