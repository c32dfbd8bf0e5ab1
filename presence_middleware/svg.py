"""A chart of counts over time, as an SVG that needs no other file, in light and in dark.

The board and `presence replay --chart` draw the same chart. Times are data (`data-at`, in seconds
since the epoch) as well as text, so a page can show them by its reader's clock; so are counts.
"""

import math
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from .parsers import DAY

WIDTH = 960  # pixels, unless the caller chooses
MIN_HEIGHT = 230
LABEL_WIDTH = 80  # of the times below, with the room between two of them
MARGIN = 34  # on both sides, of which half a label of the times below needs most
SMALL = 100  # counts of a chart in which a single visitor is seen
SPELL_WIDTH = 8  # of a point in such a chart
FOOT = 40  # below the plot: the times, and the time zone
# The distance of times below, in seconds. Longer ones are whole days.
STEPS = [60 * minutes for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)]
COLOURS = 4
STYLE = files(__package__).joinpath("chart.css").read_text("utf-8")
STYLE_HASH = f"'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"
"""The source expression that allows the chart's style in a Content-Security-Policy."""


Point = tuple[int, int]
"""A time in seconds since the epoch, and a count."""


class Series(NamedTuple):
    """The counts of a kind."""

    kind: str
    points: Sequence[Point]
    """Oldest first."""
    peak: Point | None
    """The point to mark; None if none of the kind came."""
    colour: int = 0
    """The number of its colour, from 0."""


def draw(
    lines: Sequence[Series],
    start: int,
    end: int,
    *,
    gap: int,
    width: int = WIDTH,
    offset: int = 0,
) -> str:
    """Return the SVG of lines from `start` to the later `end`, in seconds since the epoch.

    A line has a gap where two of its points are more than `gap` seconds apart. A single line is
    filled and its peak is labelled; several lines have a legend. `width` is in pixels, and the
    height follows from it. `offset` is how many minutes the clock of the times is ahead of UTC.
    """
    lines = [line for line in lines if line.points]
    highest = max((line.peak[1] for line in lines if line.peak), default=1)
    # A round number of which three to five reach the highest count.
    unit = next(n * 10**e for e in range(20) for n in (1, 2, 5) if 5 * n * 10**e >= highest)
    most = math.ceil(highest / unit) * unit
    height = max(MIN_HEIGHT, width // 3)
    left, right = max(MARGIN, 10 + 8 * len(f"{most:,}")), width - MARGIN
    zone = timezone(timedelta(minutes=offset))  # of the reader's clock
    keys = [_peak(line, zone) for line in lines]
    key_width = 40 + 7 * max(map(len, keys), default=0)  # of an entry of the legend
    columns = max(1, (right - left) // key_width)
    top, bottom = 16 + 20 * math.ceil(len(lines) / columns), height - FOOT
    # Where the points are, in pixels.
    a_second, a_head = (right - left) / (end - start), (bottom - top) / most
    x0 = left - start * a_second

    def time_at(at: int, form: str) -> str:
        return f'<tspan data-at="{at}">{datetime.fromtimestamp(at, zone):{form}}</tspan>'

    svg = [
        '<svg xmlns="http://www.w3.org/2000/svg" class="presence-chart" role="img" '
        f'viewBox="0 0 {width} {height}" '
        f'aria-label="Online. {"; ".join(keys) or "Nobody"}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    for count in range(0, most + 1, unit):
        y = bottom - count * a_head
        svg.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
        svg.append(_text(left - 8, y + 4, "end", "axis", _count(count)))
    shift, labels = offset * 60, max(2, (right - left) // LABEL_WIDTH)
    days = math.ceil((end - start) / labels / DAY)
    step = next((step for step in STEPS if end - start <= step * labels), days * DAY)
    for at in range(math.ceil((start + shift) / step) * step - shift, end + 1, step):
        x, form = x0 + at * a_second, "%H:%M" if (at + shift) % DAY else "%d %b"
        svg.append(f'<path class="grid" d="M{x:.1f} {bottom}v5"/>')
        svg.append(_text(x, bottom + 20, "middle", "axis", time_at(at, form)))
    svg.append(_text(right, height - 4, "end", "axis zone", str(zone.tzname(None))))
    # Each visitor is a spike in a line of small numbers, so of such a line few points are drawn.
    spell = next((step for step in STEPS if step * a_second >= SPELL_WIDTH), DAY)
    for number, line in enumerate(lines):
        runs = [
            [f"{x0 + at * a_second:.1f} {bottom - count * a_head:.1f}" for at, count in run]
            for run in _runs(line.points, gap, spell if most <= SMALL else 1)
        ]
        svg.append(f'<g class="c{line.colour % COLOURS}">')
        if len(lines) == 1:
            for run in runs:
                first, last = run[0].partition(" ")[0], run[-1].partition(" ")[0]
                area = f"M{first} {bottom:.1f}L{'L'.join(run)}L{last} {bottom:.1f}z"
                svg.append(f'<path class="area" d="{area}"/>')
        else:
            x, y = left + number % columns * key_width, 18 + number // columns * 20
            svg.append(f'<path class="key" d="M{x} {y}h18"/>')
            svg.append(f'<text x="{x + 26}" y="{y + 4}">{keys[number]}</text>')
        # A run of a single point is drawn as a dot.
        path = "".join(f"M{'L'.join(run)}{'' if len(run) > 1 else 'h0'}" for run in runs)
        svg.append(f'<path class="line" d="{path}"/>')
        if line.peak:
            at, count = line.peak
            x, y = x0 + at * a_second, bottom - count * a_head
            place = f'cx="{x:.1f}" cy="{y:.1f}"'
            svg.append(f'<circle class="peak" r="4" {place} data-at="{at}" data-count="{count}"/>')
            if len(lines) == 1:
                anchor = "end" if x > right - 60 else "start" if x < left + 60 else "middle"
                label = f"{_count(count)} at {time_at(at, '%H:%M')}"
                svg.append(_text(x, y - 10, anchor, "label", label))
        svg.append("</g>")
    return "\n".join([*svg, "</svg>\n"])


def _runs(points: Sequence[Point], gap: int, spell: int) -> list[list[Point]]:
    """Return the points between gaps: the highest of each `spell` seconds, and both ends."""
    breaks = [number for number, (a, b) in enumerate(pairwise(points), 1) if b[0] - a[0] > gap]
    runs = []
    for first, last in pairwise([0, *breaks, len(points)]):
        run = points[first:last]
        spells = groupby(run, lambda point: point[0] // spell)
        highest = [max(group, key=itemgetter(1)) for _, group in spells]
        runs.append(sorted({run[0], *highest, run[-1]}))
    return runs


def _peak(line: Series, zone: timezone) -> str:
    if line.peak is None:
        return escape(f"{line.kind}: nobody")
    moment = datetime.fromtimestamp(line.peak[0], zone)
    return escape(f"{line.kind}: {line.peak[1]:,} at most, {moment:%d %b %Y %H:%M}")


def _count(count: int) -> str:
    return f'<tspan data-count="{count}">{count:,}</tspan>'


def _text(x: float, y: float, anchor: str, name: str, content: str) -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{content}</text>'
