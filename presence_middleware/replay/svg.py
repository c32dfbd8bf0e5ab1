"""A chart of who was online: an SVG that needs nothing else, in light and in dark."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from ..stores import Sample
from .timeline import Moment

WIDTH, HEIGHT = 960, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 940, 56, 320  # the edges of the plot
STEPS = [60 * n for n in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)]  # seconds between times
DAY = 86400
TIMES = 9  # labels below, at most
STYLE = """
svg { --paper: #ffffff; --ink: #1f2328; --faint: #59636e; --grid: #d8dee4;
  font: 13px system-ui, sans-serif }
.c0 { --line: #0757ba } .c1 { --line: #a04100 } .c2 { --line: #59636e } .c3 { --line: #116329 }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1; --grid: #30363d }
  .c0 { --line: #6cb6ff } .c1 { --line: #f0a05a } .c2 { --line: #9198a1 } .c3 { --line: #57c46a }
}
.paper { fill: var(--paper) } text { fill: var(--ink) } .axis { fill: var(--faint) }
.grid { stroke: var(--grid) } .key { stroke: var(--line); stroke-width: 3 }
.line { fill: none; stroke: var(--line); stroke-width: 1.5; stroke-linejoin: round }
.peak { fill: var(--line); stroke: var(--paper); stroke-width: 1.5 }
"""
COLOURS = 4
KEYS = 3  # above the plot, in a row


def drawn(peaks: Mapping[str, Sample | None], points: Sequence[Moment], step: int) -> str:
    """The SVG of moments in order, `step` seconds apart; where some are missing is a gap.

    `peaks` are of the kinds in the order of the counts; one that has none is left out.
    """
    return "\n".join(_Chart(peaks, points, step).lines()) + "\n"


class _Line(NamedTuple):
    place: int
    """Of the counts, which are its."""
    kind: str
    peak: Sample

    @property
    def told(self) -> str:
        return f"{self.kind}: {self.peak.count:,} at most, {self.peak.at:%d %b %Y %H:%M}"


class _Chart:
    def __init__(
        self, peaks: Mapping[str, Sample | None], points: Sequence[Moment], step: int
    ) -> None:
        self._points, self._step = points, step
        self._first = points[0].at if points else 0
        self._span = max(step, points[-1].at - self._first) if points else step
        self._lines = [
            _Line(place, kind, peak) for place, (kind, peak) in enumerate(peaks.items()) if peak
        ]
        most = max((line.peak.count for line in self._lines), default=1)
        self._unit = _unit(most)
        self._top = math.ceil(most / self._unit) * self._unit

    def lines(self) -> Iterator[str]:
        told = "; ".join(line.told for line in self._lines) or "nobody"
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'role="img" aria-labelledby="title told">'
        )
        yield f'<title id="title">Who was online</title><desc id="told">{escape(told)}</desc>'
        yield f"<style>{STYLE}</style>"
        yield f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>'
        yield from self._counts()
        yield from self._times()
        for number, line in enumerate(self._lines):
            yield f'<g class="c{number % COLOURS}">'
            yield from _key(number, line.told)
            yield f'<path class="line" d="{self._path(line.place)}"/>'
            x, y = self._x(line.peak.at.timestamp()), self._y(line.peak.count)
            yield f'<circle class="peak" cx="{x}" cy="{y}" r="4"/></g>'
        yield "</svg>"

    def _counts(self) -> Iterator[str]:
        for count in range(0, self._top + 1, self._unit):
            y = self._y(count)
            yield f'<path class="grid" d="M{LEFT} {y}H{RIGHT}"/>'
            yield _label(LEFT - 8, y + 4, "end", f"{count:,}")

    def _times(self) -> Iterator[str]:
        apart = next((s for s in STEPS if self._span / s <= TIMES - 1), 0)
        apart = apart or math.ceil(self._span / (TIMES - 1) / DAY) * DAY
        first = math.ceil(self._first / apart) * apart
        for at in range(first, self._first + self._span + 1, apart):
            label = datetime.fromtimestamp(at, UTC)
            text = f"{label:%H:%M}" if at % DAY else f"{label:%d %b}"
            yield f'<path class="grid" d="M{self._x(at)} {BOTTOM}v5"/>'
            yield _label(self._x(at), BOTTOM + 20, "middle", text)
        yield _label(RIGHT, HEIGHT - 4, "end", "UTC")

    def _path(self, place: int) -> str:
        parts, before = [], None
        for point in self._points:
            pen = "L" if before is not None and point.at - before <= self._step else "M"
            parts.append(f"{pen}{self._x(point.at)} {self._y(point.counts[place])}")
            before = point.at
        return "".join(parts)

    def _x(self, at: float) -> float:
        return round(LEFT + (at - self._first) / self._span * (RIGHT - LEFT), 1)

    def _y(self, count: int) -> float:
        return round(BOTTOM - count / self._top * (BOTTOM - TOP), 1)


def _unit(most: int) -> int:
    """A round number of which four or five make the whole height."""
    size: int = 10 ** max(0, len(str(most)) - 2)
    return next(n * size for n in (1, 2, 5, 10, 20, 50) if n * size * 5 >= most)


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="axis" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def _key(number: int, told: str) -> Iterator[str]:
    x, y = LEFT + number % KEYS * 290, 18 + number // KEYS * 20
    yield f'<path class="key" d="M{x} {y}h18"/>'
    yield f'<text x="{x + 26}" y="{y + 4}">{escape(told)}</text>'
