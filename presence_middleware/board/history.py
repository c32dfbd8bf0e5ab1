"""The history of a kind, as JSON and as a chart: few points, read once for all readers.

A day has 1,440 minutes, and a chart shows no more than some hundred points. A longer history is
read in steps of several minutes. The point of a step is its highest minute, so no peak disappears.
"""

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter

from ..queries import Queries
from ..stores import Plan, keys, moment_of
from ..stores.highest import DAY, highest
from ..svg import Line, Point, draw
from .messages import etag_of, to_json
from .reads import Read

MAX_POINTS = 1500  # of a history as JSON
MAX_CHART_POINTS = 500  # of a chart: a point for each two pixels, drawn in half a millisecond
# In minutes. Either they divide a day or a day divides them, so each begins where a day does. The
# last is for charts of the longest history that can be stored, which is ten years.
STEPS = (1, 2, 3, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 4320, 8640)
SHARED = 10.0  # seconds for each minute of a step: the longer its steps, the longer it serves
MIN_GAP = 5  # minutes without samples that interrupt the line of a chart
MAX_CHARTS = 32  # charts of a read, of different sizes, hours and clocks

_time_of, _count_of = itemgetter(0), itemgetter(1)
_TIMES = [f"{minute // 60:02}:{minute % 60:02}:00" for minute in range(DAY)]


def read_for(prefix: str, kind: str, keep: float, hours: int) -> Read:
    """Return the read of the last `hours` of a kind as JSON.

    `keep` is the time that samples are stored, in seconds. All hours with the same step share a
    read, so readers cannot cause more reads than there are steps.
    """
    step = step_for(hours, MAX_POINTS)
    return Read(history, (prefix, kind, keep, step), SHARED * step)


def chart_read_for(prefix: str, kind: str, keep: float, hours: int) -> Read:
    """Return the read of the last `hours` of a kind as a chart, by the rules of `read_for`."""
    step = step_for(hours, MAX_CHART_POINTS)
    return Read(charted_history, (prefix, kind, keep, step), SHARED * step)


def step_for(hours: int, most: int) -> int:
    """Return the shortest step, in minutes, in which `hours` have at most `most` points."""
    return next((step for step in STEPS if hours * 60 <= span_of(step, most)), STEPS[-1])


def span_of(step: int, most: int) -> int:
    """Return how many minutes `most` points cover, the first and the last of which may be cut."""
    return (most - 1) * step


def history(ask: Queries, prefix: str, kind: str, keep: float, step: int) -> "Plan[EncodedHistory]":
    """Read the points of a kind as JSON, as far back as the step is used and samples are stored."""
    points = EncodedHistory(kind, step)
    read = _read(ask, prefix, kind, keep=keep, step=step, most=MAX_POINTS, add=points.add)
    points.finish((yield from read))
    return points


def charted_history(
    ask: Queries, prefix: str, kind: str, keep: float, step: int
) -> "Plan[ChartedHistory]":
    """Read the points of a kind for charts, as far back as `history` does."""
    points = ChartedHistory(kind, step)
    most = MAX_CHART_POINTS
    read = _read(ask, prefix, kind, keep=keep, step=step, most=most, add=points.add)
    points.finish((yield from read))
    return points


def _read(
    ask: Queries,
    prefix: str,
    kind: str,
    *,
    keep: float,
    step: int,
    most: int,
    add: Callable[[int, int], object],
) -> Plan[int]:
    """Call `add` with each of at most `most` points; return the current minute."""
    now = yield from ask.now()
    last = keys.minute_of(now)
    oldest = 1 + max(last - span_of(step, most), keys.minute_of(now - keep))
    first = -(-oldest // step) * step  # where a step begins
    yield from highest(prefix, kind, step=step, first=first, last=last, add=add)
    return last


class EncodedHistory:
    """The points of a history as JSON, of which each reader is sent the last hours."""

    def __init__(self, kind: str, step: int) -> None:
        """`step` is in minutes."""
        self._head = to_json({"kind": kind, "step": step * keys.MINUTE})[:-1] + b',"samples":['
        self._minutes: list[int] = []
        self._points: list[str] = []
        self._starts = [0]  # where the points begin once they are joined

    def add(self, minute: int, count: int) -> None:
        """Add a point; minutes are numbered since the epoch and come in order."""
        day, within = divmod(minute, DAY)
        point = f'["{_date(day)}T{_TIMES[within]}Z",{count}]'
        self._minutes.append(minute)
        self._points.append(point)
        self._starts.append(self._starts[-1] + len(point) + 1)

    def finish(self, now: int) -> None:
        """Join the points once all are there; `now` is in minutes since the epoch."""
        self._now = now
        self._joined = ",".join(self._points).encode()
        self._digest = blake2b(self._head + self._joined, digest_size=12).hexdigest()
        self._points.clear()

    def last(self, hours: int) -> tuple[bytes, str]:
        """Return the JSON of the last hours, and its ETag."""
        first = bisect_right(self._minutes, self._now - hours * 60)
        body = b"".join((self._head, self._joined[self._starts[first] :], b"]}"))
        return body, f'"{self._digest}-{first}"'


class ChartedHistory:
    """The points of a history, of which each reader is sent a chart of the last hours."""

    def __init__(self, kind: str, step: int) -> None:
        """`step` is in minutes."""
        self._kind = kind
        self._gap = max(MIN_GAP, 2 * step) * keys.MINUTE
        self._points: list[Point] = []
        self._charts: dict[tuple[int, int, int, int], tuple[bytes, str]] = {}

    def add(self, minute: int, count: int) -> None:
        """Add a point; minutes are numbered since the epoch and come in order."""
        self._points.append((minute * keys.MINUTE, count))

    def finish(self, now: int) -> None:
        """End the points; `now` is in minutes since the epoch."""
        self._now = now * keys.MINUTE

    def last(self, hours: int, width: int, offset: int, colour: int) -> tuple[bytes, str]:
        """Return the chart of the last hours, and its ETag.

        `width` is in pixels. `offset` is how many minutes the reader's clock is ahead of UTC.
        `colour` is the number of the line's colour.
        """
        form = hours, width, offset, colour
        chart = self._charts.get(form)
        if chart is None:
            if len(self._charts) >= MAX_CHARTS:
                self._charts = {}
            body = self._draw(*form).encode()
            chart = self._charts[form] = (body, etag_of(body))
        return chart

    def __len__(self) -> int:
        return len(self._charts)

    def _draw(self, hours: int, width: int, offset: int, colour: int) -> str:
        start = self._now - hours * 3600
        points = self._points[bisect_right(self._points, start, key=_time_of) :]
        peak = max(points, key=_count_of, default=None)
        line = Line(self._kind, points, peak if peak and peak[1] else None, colour)
        return draw([line], start, self._now, gap=self._gap, width=width, offset=offset)


@lru_cache(maxsize=1024)
def _date(day: int) -> str:
    """Return the date of a day since the epoch."""
    return moment_of(day * DAY * keys.MINUTE).date().isoformat()
