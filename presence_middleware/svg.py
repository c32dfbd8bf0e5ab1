"""A chart of counts over time, as an SVG that needs no other file, in light and in dark.

The board and `presence replay --chart` draw the same chart. Times are data (`data-at`, in seconds
since the epoch) as well as text, so a page can show them by its reader's clock; so are counts.
"""

import math
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from html import escape
from typing import NamedTuple

WIDTH = 960  # pixels, unless the caller chooses
MIN_HEIGHT = 230
LABEL_WIDTH = 80  # of the times below, with the room between two of them
KEY_WIDTH = 290  # of an entry of the legend
FOOT = 40  # below the plot: the times, and the time zone
DAY = 86400
# The distance of times below, in seconds. Longer ones are whole days.
STEPS = [60 * minutes for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)]
COLOURS = 4
STYLE = """
.presence-chart { --paper: #fff; --ink: #1c2126; --soft: #5b6670; --rule: #dfe3e7;
  font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  font-variant-numeric: tabular-nums }
.presence-chart .c0 { --colour: #0b6e63 } .presence-chart .c1 { --colour: #a04100 }
.presence-chart .c2 { --colour: #5b6670 } .presence-chart .c3 { --colour: #0757ba }
@media (prefers-color-scheme: dark) {
  .presence-chart { --paper: #1a1e21; --ink: #e7eaec; --soft: #9ba6ae; --rule: #30373c }
  .presence-chart .c0 { --colour: #5cc8b8 } .presence-chart .c1 { --colour: #f0a05a }
  .presence-chart .c2 { --colour: #9ba6ae } .presence-chart .c3 { --colour: #6cb6ff }
}
.presence-chart .paper { fill: var(--paper) }
.presence-chart text { fill: var(--ink) }
.presence-chart .axis { fill: var(--soft) }
.presence-chart .grid { stroke: var(--rule) }
.presence-chart .key { stroke: var(--colour); stroke-width: 3 }
.presence-chart .area { fill: var(--colour); fill-opacity: .1 }
.presence-chart .line { fill: none; stroke: var(--colour); stroke-width: 1.5;
  stroke-linejoin: round; stroke-linecap: round }
.presence-chart .peak { fill: var(--colour); stroke: var(--paper); stroke-width: 1.5 }
.presence-chart .label { font-weight: 600; stroke: var(--paper); stroke-width: 4;
  paint-order: stroke }
"""
STYLE_HASH = f"'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"
"""The source expression that allows the chart's style in a Content-Security-Policy."""


Point = tuple[int, int]
"""A time in seconds since the epoch, and a count."""


class Line(NamedTuple):
    """The counts of a kind."""

    kind: str
    points: Sequence[Point]
    """Oldest first."""
    peak: Point | None
    """The point to mark; None if none of the kind came."""
    colour: int = 0
    """The number of its colour, from 0."""


def draw(
    lines: Sequence[Line],
    start: int,
    end: int,
    *,
    gap: int,
    width: int = WIDTH,
    offset: int = 0,
) -> str:
    """Return the SVG of lines from `start` to `end`, in seconds since the epoch.

    A line has a gap where two of its points are more than `gap` seconds apart. A single line is
    filled and its peak is labelled; several lines have a legend. `width` is in pixels, and the
    height follows from it. `offset` is how many minutes the clock of the times is ahead of UTC.
    """
    chart = _Chart(lines, start, end, gap=gap, width=width, offset=offset)
    return "\n".join(chart.elements()) + "\n"


class _Chart:
    def __init__(
        self,
        lines: Sequence[Line],
        start: int,
        end: int,
        *,
        gap: int,
        width: int,
        offset: int,
    ) -> None:
        self._lines = [line for line in lines if line.points]
        self._start, self._end, self._gap, self._offset = start, end, gap, offset
        self._zone = timezone(timedelta(minutes=offset))
        highest = max((line.peak[1] for line in self._lines if line.peak), default=1)
        self._unit = _round_unit(highest)
        self._most = math.ceil(highest / self._unit) * self._unit
        self._width, self._height = width, max(MIN_HEIGHT, width // 3)
        self._left, self._right = 10 + 8 * len(f"{self._most:,}"), width - 24
        self._keys = max(1, (self._right - self._left) // KEY_WIDTH)
        rows = math.ceil(len(self._lines) / self._keys) if len(self._lines) > 1 else 1
        self._top, self._bottom = 16 + 20 * rows, self._height - FOOT
        self._pixels_a_second = (self._right - self._left) / max(1, end - start)
        self._pixels_a_head = (self._bottom - self._top) / self._most

    def elements(self) -> Iterator[str]:
        width, height = self._width, self._height
        peaks = escape("; ".join(self._peak_text(line) for line in self._lines)) or "Nobody"
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="presence-chart" role="img" '
            f'viewBox="0 0 {width} {height}" aria-label="Online. {peaks}">'
        )
        yield f"<style>{STYLE}</style>"
        yield f'<rect class="paper" width="{width}" height="{height}"/>'
        yield from self._counts()
        yield from self._times()
        if len(self._lines) == 1:
            yield from self._single(self._lines[0])
        else:
            for number, line in enumerate(self._lines):
                yield from self._keyed(number, line)
        yield "</svg>"

    def _single(self, line: Line) -> Iterator[str]:
        yield f'<g class="c{line.colour % COLOURS}">'
        runs = list(self._runs(line.points))
        bottom = f"{self._bottom:.1f}"
        for run in runs:
            first, last = run[0].partition(" ")[0], run[-1].partition(" ")[0]
            yield f'<path class="area" d="M{first} {bottom}L{"L".join(run)}L{last} {bottom}z"/>'
        yield from self._drawn(runs, line)
        yield "</g>"
        if line.peak:
            at, count = line.peak
            x = self._x(at)
            anchor = "end" if x > self._right - 60 else "start" if x < self._left + 60 else "middle"
            label = f"{_count(count)} at {self._time(at, '%H:%M')}"
            yield _text(x, self._y(count) - 10, anchor, "label", label)

    def _keyed(self, number: int, line: Line) -> Iterator[str]:
        x = self._left + number % self._keys * KEY_WIDTH
        y = 18 + number // self._keys * 20
        yield f'<g class="c{line.colour % COLOURS}"><path class="key" d="M{x} {y}h18"/>'
        yield f'<text x="{x + 26}" y="{y + 4}">{escape(self._peak_text(line))}</text>'
        yield from self._drawn(self._runs(line.points), line)
        yield "</g>"

    def _drawn(self, runs: Iterable[list[str]], line: Line) -> Iterator[str]:
        # A run of a single point is drawn as a dot.
        path = "".join(f"M{'L'.join(run)}{'' if len(run) > 1 else 'h0'}" for run in runs)
        yield f'<path class="line" d="{path}"/>'
        if line.peak:
            at, count = line.peak
            place = f'cx="{self._x(at):.1f}" cy="{self._y(count):.1f}"'
            yield f'<circle class="peak" r="4" {place} data-at="{at}" data-count="{count}"/>'

    def _counts(self) -> Iterator[str]:
        for count in range(0, self._most + 1, self._unit):
            y = self._y(count)
            yield f'<path class="grid" d="M{self._left} {y:.1f}H{self._right}"/>'
            yield _text(self._left - 8, y + 4, "end", "axis", _count(count))

    def _times(self) -> Iterator[str]:
        most = max(2, (self._right - self._left) // LABEL_WIDTH)
        length, shift = self._end - self._start, self._offset * 60
        step = next((step for step in STEPS if length <= step * most), 0)
        step = step or math.ceil(length / most / DAY) * DAY
        first = math.ceil((self._start + shift) / step) * step - shift
        for at in range(first, self._end + 1, step):
            x, form = self._x(at), "%H:%M" if (at + shift) % DAY else "%d %b"
            yield f'<path class="grid" d="M{x:.1f} {self._bottom}v5"/>'
            yield _text(x, self._bottom + 20, "middle", "axis", self._time(at, form))
        zone = self._zone.tzname(None)
        yield _text(self._right, self._height - 4, "end", "axis zone", str(zone))

    def _runs(self, points: Sequence[Point]) -> Iterator[list[str]]:
        """Yield the places of points as `x y`, in a list for each run without a gap."""
        run: list[str] = []
        before = -math.inf
        x0, a_second = self._left - self._start * self._pixels_a_second, self._pixels_a_second
        y0, a_head = self._bottom, self._pixels_a_head
        for at, count in points:
            if run and at - before > self._gap:
                yield run
                run = []
            run.append(f"{x0 + at * a_second:.1f} {y0 - count * a_head:.1f}")
            before = at
        yield run

    def _x(self, at: float) -> float:
        return self._left + (at - self._start) * self._pixels_a_second

    def _y(self, count: int) -> float:
        return self._bottom - count * self._pixels_a_head

    def _time(self, at: int, form: str) -> str:
        return f'<tspan data-at="{at}">{datetime.fromtimestamp(at, self._zone):{form}}</tspan>'

    def _peak_text(self, line: Line) -> str:
        if line.peak is None:
            return f"{line.kind}: nobody"
        at, count = line.peak
        moment = datetime.fromtimestamp(at, self._zone)
        return f"{line.kind}: {count:,} at most, {moment:%d %b %Y %H:%M}"


def _round_unit(most: int) -> int:
    """Return a round number of which three to five reach `most`."""
    size: int = 10 ** max(0, len(str(most)) - 2)
    return next(n * size for n in (1, 2, 5, 10, 20, 50) if n * size * 5 >= most)


def _count(count: int) -> str:
    return f'<tspan data-count="{count}">{count:,}</tspan>'


def _text(x: float, y: float, anchor: str, name: str, content: str) -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{content}</text>'
