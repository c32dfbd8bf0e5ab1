"""The history of a kind, as JSON and as a chart: few points, read once for all readers.

A day has 1,440 minutes, and a chart shows no more than some hundred points. A longer history is
read in steps of several minutes. The point of a step is its highest minute, so no peak disappears.
The server picks these minutes: to send and parse all 527,040 of a year takes this process seventy
times as long.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from operator import itemgetter

from ..queries import Queries
from ..stores import Batch, Plan, keys, moment_of
from ..stores.history import MINUTES_A_DAY
from ..stores.plan import chunks, decoded
from ..svg import Series, draw
from . import Response, content, facts, iso

MAX_POINTS = 1500  # of a history as JSON
MAX_CHART_POINTS = 500  # of a chart: a point for each two pixels, drawn in half a millisecond
# In minutes. Either they divide a day or a day divides them, so each begins where a day does. The
# last is for charts of the longest history that can be stored, which is ten years.
STEPS = (1, 2, 3, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 4320, 11520)
SHARED = 10.0  # cache time in seconds for each minute of a step
# Of a round trip. An event loop parses so many points at once, and the server picks them at once.
POINTS_A_TRIP = 360
COMMANDS_A_TRIP = 16
MIN_GAP = 5  # minutes without samples that interrupt the line of a chart
MAX_RESPONSES = 64  # of different histories, hours, sizes and clocks

REVALIDATED = "private, no-cache"

_HIGHEST = files(__package__).joinpath("highest.lua").read_text("utf-8")


def step_for(hours: int, most: int) -> int:
    """Return the shortest step, in minutes, in which `hours` have at most `most` points."""
    # The first and the last point may be cut.
    return next((step for step in STEPS if hours * 60 <= (most - 1) * step), STEPS[-1])


@dataclass(eq=False)
class HighestMinutes:
    """The highest minutes of a kind, of which each reader is sent those of the last hours."""

    kind: str
    step: int
    """In minutes."""
    now: int
    """When it was read, in seconds since the epoch; a full minute."""
    points: list[tuple[int, int, str]]
    """Oldest first: the time, the count, and the time as text."""

    def last(self, hours: int) -> list[tuple[int, int, str]]:
        """Return the points of the last hours."""
        return self.points[bisect_right(self.points, self.now - hours * 3600, key=itemgetter(0)) :]


def read_history(ask: Queries, kind: str, step: int) -> Plan[HighestMinutes]:
    """Read the highest minute of each step of a kind, at most `MAX_POINTS`.

    `step` is in minutes. Of equal minutes, the first is the highest. A step without samples has no
    point.
    """
    prefix, keep = ask.settings.prefix, ask.settings.history
    now = yield from ask.clock.now()
    last = keys.minute_of(now)
    oldest = 1 + max(last - (MAX_POINTS - 1) * step, keys.minute_of(now - keep))
    start = -(-oldest // step) * step  # where a step begins
    # By the number of the step, because a step may be several days.
    points: dict[int, tuple[int, int, str]] = {}
    days: list[tuple[int, int, int]] = []  # each with a first and a last minute
    while start <= last:
        day, minute = divmod(start, MINUTES_A_DAY)
        size = min(POINTS_A_TRIP * step, MINUTES_A_DAY - minute, last + 1 - start)
        days.append((day, minute, minute + size - 1))
        start += size
    for trip in chunks(days, min(COMMANDS_A_TRIP, max(1, POINTS_A_TRIP * step // MINUTES_A_DAY))):
        replies = yield Batch(
            tuple(
                ("EVAL", _HIGHEST, 1, keys.history(prefix, kind, day), step, *minutes)
                for day, *minutes in trip
            )
        )
        for (day, *_), reply in zip(trip, replies, strict=True):
            midnight = day * MINUTES_A_DAY * keys.MINUTE
            numbers = list(map(int, decoded(reply).split()))
            for minute, count in zip(numbers[::2], numbers[1::2], strict=True):
                at, place = midnight + minute * keys.MINUTE, (day * MINUTES_A_DAY + minute) // step
                if place not in points or count > points[place][1]:
                    points[place] = at, count, iso(moment_of(at))
    return HighestMinutes(kind, step, last * keys.MINUTE, [*points.values()])


@lru_cache(maxsize=MAX_RESPONSES)
def as_json(history: HighestMinutes, hours: int) -> Response:
    """Return the response with the last hours of a history."""
    samples = [(at, count) for _, count, at in history.last(hours)]
    step = history.step * keys.MINUTE
    return facts({"kind": history.kind, "step": step, "samples": samples}, REVALIDATED)


@lru_cache(maxsize=MAX_RESPONSES)
def as_chart(history: HighestMinutes, hours: int, width: int, offset: int, colour: int) -> Response:
    """Return the response with a chart of the last hours of a history.

    `width` is in pixels. `offset` is how many minutes the reader's clock is ahead of UTC. `colour`
    is the number of the line's colour.
    """
    points, end = [(at, count) for at, count, _ in history.last(hours)], history.now
    peak = max(points, key=itemgetter(1), default=None)
    line = Series(history.kind, points, peak if peak and peak[1] else None, colour)
    gap = max(MIN_GAP, 2 * history.step) * keys.MINUTE
    body = draw([line], end - hours * 3600, end, gap=gap, width=width, offset=offset)
    return content("image/svg+xml", body.encode(), REVALIDATED)
