"""A chart of who was online: an SVG that needs nothing else, in light and in dark."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape

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


def drawn(kinds: Sequence[str], points: Sequence[Moment], step: int, title: str) -> str:
    """The SVG of moments in order, `step` seconds apart; where some are missing is a gap."""
    return "\n".join(_Chart(kinds, points, step).lines(title)) + "\n"


class _Chart:
    def __init__(self, kinds: Sequence[str], points: Sequence[Moment], step: int) -> None:
        self._points, self._step = points, step
        self._first = points[0].at if points else 0
        self._span = max(step, points[-1].at - self._first) if points else step
        self._peaks = {
            place: max(points, key=lambda point: point.counts[place])
            for place in range(len(kinds))
            if any(point.counts[place] for point in points)
        }
        self._kinds = kinds
        most = max((peak.counts[place] for place, peak in self._peaks.items()), default=1)
        self._unit = _unit(most)
        self._top = math.ceil(most / self._unit) * self._unit

    def lines(self, title: str) -> Iterator[str]:
        told = "; ".join(map(self._told, self._peaks)) or "nobody was online"
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'role="img" aria-labelledby="title told">'
        )
        yield f'<title id="title">{escape(title)}</title><desc id="told">{escape(told)}</desc>'
        yield f"<style>{STYLE}</style>"
        yield f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>'
        yield from self._counts()
        yield from self._times()
        for number, place in enumerate(self._peaks):
            yield f'<g class="c{number % COLOURS}">'
            yield from self._key(number, place)
            yield f'<path class="line" d="{self._path(place)}"/>'
            yield from self._peak(place)
            yield "</g>"
        yield "</svg>"

    def _told(self, place: int) -> str:
        peak = self._peaks[place]
        return f"{self._kinds[place]}: {peak.counts[place]:,} at most, {_moment(peak.at)}"

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

    def _key(self, number: int, place: int) -> Iterator[str]:
        x = LEFT + number * 290
        yield f'<path class="key" d="M{x} 24h18"/>'
        yield f'<text x="{x + 26}" y="28">{escape(self._told(place))}</text>'

    def _path(self, place: int) -> str:
        parts, before = [], None
        for point in self._points:
            pen = "L" if before is not None and point.at - before <= self._step else "M"
            parts.append(f"{pen}{self._x(point.at)} {self._y(point.counts[place])}")
            before = point.at
        return "".join(parts)

    def _peak(self, place: int) -> Iterator[str]:
        peak = self._peaks[place]
        x, y = self._x(peak.at), self._y(peak.counts[place])
        yield f'<circle class="peak" cx="{x}" cy="{y}" r="4"/>'

    def _x(self, at: int) -> float:
        return round(LEFT + (at - self._first) / self._span * (RIGHT - LEFT), 1)

    def _y(self, count: int) -> float:
        return round(BOTTOM - count / self._top * (BOTTOM - TOP), 1)


def _unit(most: int) -> int:
    """A round number of which four or five make the whole height."""
    size: int = 10 ** max(0, len(str(most)) - 2)
    return next(n * size for n in (1, 2, 5, 10, 20, 50) if n * size * 5 >= most)


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="axis" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def _moment(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%d %b %Y %H:%M}"
