"""The history of a kind: a bounded number of points, encoded once for all readers.

A chart shows no more than some 1,500 points, and a day has 1,440 minutes. A longer history is read
in steps of several minutes. The point of a step is its highest minute, so no peak disappears. The
server picks these minutes, so what is not shown is neither sent nor parsed. The round trips are so
small that none of them holds an event loop for more than a millisecond.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from ..queries import Queries
from ..stores import Batch, Command, Plan, keys, moment_of
from ..stores.plan import text
from .messages import to_json
from .reads import Read

MAX_POINTS = 1500
DAY = 1440  # minutes
# In minutes. Either they divide a day or a day divides them, so each begins where a day does. The
# last one covers the longest history that can be kept, which is ten years.
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 4320)
SHARED = 10.0  # seconds for each minute of a step: the longer its steps, the longer it serves
POINTS_A_TRIP = 360  # a round trip: few enough for an event loop to parse at once
COMMANDS_A_TRIP = 16

_SCRIPT = files(__package__).joinpath("history.lua").read_text("utf-8")
_TIMES = [f"{minute // 60:02}:{minute % 60:02}:00" for minute in range(DAY)]


def read_for(prefix: str, kind: str, keep: float, hours: int) -> Read:
    """Return the read that covers the last `hours` of a kind.

    `keep` is how many seconds samples are kept. All hours that have the same step share one read,
    so readers cannot cause more reads than there are steps.
    """
    step = step_for(hours)
    return Read(history, (prefix, kind, keep, step), SHARED * step)


def step_for(hours: int) -> int:
    """Return the shortest step, in minutes, in which `hours` have at most `MAX_POINTS` points."""
    return next((step for step in STEPS if hours * 60 <= span_of(step)), STEPS[-1])


def span_of(step: int) -> int:
    """Return how many minutes are read in a step, the first and the last of which may be cut."""
    return (MAX_POINTS - 1) * step


def history(ask: Queries, prefix: str, kind: str, keep: float, step: int) -> "Plan[EncodedHistory]":
    """Read the points of a kind, as far back as the step is used and samples are kept."""
    now = yield from ask.now()
    last = keys.minute_of(now)
    oldest = 1 + max(last - span_of(step), keys.minute_of(now - keep))
    first = -(-oldest // step) * step  # where a step begins
    encoded = EncodedHistory(kind, step)
    for trip in trips(step, first, last):
        replies = yield Batch(tuple(part.command(prefix, kind, step) for part in trip))
        for part, reply in zip(trip, replies, strict=True):
            encoded.add(part.day, text(reply))
    encoded.finish(last)
    return encoded


class Part(NamedTuple):
    """Some minutes of a day, which one command reads."""

    day: int
    first: int
    last: int

    def command(self, prefix: str, kind: str, step: int) -> Command:
        """Return the command that picks the highest minutes."""
        key = keys.history(prefix, kind, self.day)
        return ("EVAL", _SCRIPT, 1, key, min(step, DAY), self.first, self.last)


def trips(step: int, first: int, last: int) -> Iterator[list[Part]]:
    """Split the minutes from `first` to `last` into the commands of each round trip."""
    size = min(DAY, POINTS_A_TRIP * step)
    commands = min(COMMANDS_A_TRIP, max(1, POINTS_A_TRIP * step // size))
    parts = _parts(size, first, last)
    while trip := list(islice(parts, commands)):
        yield trip


def _parts(size: int, first: int, last: int) -> Iterator[Part]:
    for start in range(first // size * size, last + 1, size):
        day, within = divmod(start, DAY)
        midnight = day * DAY
        yield Part(day, max(within, first - midnight), min(within + size - 1, last - midnight))


class EncodedHistory:
    """The points of a history as JSON, of which each reader is sent the last hours."""

    def __init__(self, kind: str, step: int) -> None:
        """`step` is in minutes."""
        self._step = step
        self._head = to_json({"kind": kind, "step": step * keys.MINUTE})[:-1] + b',"samples":['
        self._open: tuple[int, int] | None = None  # the point of a step that may go on
        self._minutes: list[int] = []
        self._points: list[str] = []
        self._starts = [0]  # where the points begin once they are joined

    def add(self, day: int, reply: str) -> None:
        """Add the points of a reply: minutes of a day since the epoch, each with its count."""
        numbers = list(map(int, reply.split()))
        for within, count in zip(numbers[::2], numbers[1::2], strict=True):
            minute = day * DAY + within
            if self._open and self._open[0] // self._step == minute // self._step:
                # A step of several days: its highest point is kept.
                self._open = max(self._open, (minute, count), key=itemgetter(1))
            else:
                self._encode()
                self._open = (minute, count)

    def finish(self, now: int) -> None:
        """Join the points once all are there; `now` is in minutes since the epoch."""
        self._encode()
        self._now = now
        self._joined = ",".join(self._points).encode()
        self._digest = blake2b(self._head + self._joined, digest_size=12).hexdigest()
        self._points.clear()

    def last(self, hours: int) -> tuple[bytes, str]:
        """Return the JSON of the last hours, and its ETag."""
        first = bisect_right(self._minutes, self._now - hours * 60)
        body = b"".join((self._head, self._joined[self._starts[first] :], b"]}"))
        return body, f'"{self._digest}-{first}"'

    def _encode(self) -> None:
        if self._open is None:
            return
        minute, count = self._open
        day, within = divmod(minute, DAY)
        point = f'["{_date(day)}T{_TIMES[within]}Z",{count}]'
        self._minutes.append(minute)
        self._points.append(point)
        self._starts.append(self._starts[-1] + len(point) + 1)


@lru_cache(maxsize=1024)
def _date(day: int) -> str:
    """Return the date of a day since the epoch."""
    return moment_of(day * DAY * keys.MINUTE).date().isoformat()
