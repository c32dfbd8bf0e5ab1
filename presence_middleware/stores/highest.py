"""The highest minute of each step of a history, read with few and small replies.

The server picks the minutes, so all others are neither sent nor parsed. A round trip is so small
that none holds an event loop for more than a millisecond.
"""

from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from . import keys
from .plan import Batch, Command, Plan, text

DAY = 1440  # minutes
POINTS_A_TRIP = 360  # a round trip: few enough for an event loop to parse at once
COMMANDS_A_TRIP = 16

_SCRIPT = files(__package__).joinpath("highest.lua").read_text("utf-8")


def highest(
    prefix: str, kind: str, *, step: int, first: int, last: int, add: Callable[[int, int], object]
) -> Plan[None]:
    """Call `add` with the highest minute of each step, and its count, oldest first.

    Minutes are numbered since the epoch. A step is `step` minutes, and `first` begins a step.
    Either steps divide a day or a day divides them. Of equal counts, the first minute is the
    highest. A step without samples is left out.
    """
    waiting: tuple[int, int] | None = None  # a step of several days may go on in the next day
    for trip in trips(step, first, last):
        replies = yield Batch(tuple(part.command(prefix, kind, step) for part in trip))
        for part, reply in zip(trip, replies, strict=True):
            for minute, count in part.points(text(reply)):
                if waiting and waiting[0] // step == minute // step:
                    waiting = max(waiting, (minute, count), key=itemgetter(1))
                    continue
                if waiting:
                    add(*waiting)
                waiting = (minute, count)
    if waiting:
        add(*waiting)


class Part(NamedTuple):
    """Minutes of a day that a command reads."""

    day: int
    first: int
    last: int

    def command(self, prefix: str, kind: str, step: int) -> Command:
        """Return the command that picks the highest minutes."""
        key = keys.history(prefix, kind, self.day)
        return ("EVAL", _SCRIPT, 1, key, min(step, DAY), self.first, self.last)

    def points(self, reply: str) -> Iterator[tuple[int, int]]:
        """Yield the minutes of a reply, since the epoch, each with its count."""
        numbers = list(map(int, reply.split()))
        for within, count in zip(numbers[::2], numbers[1::2], strict=True):
            yield self.day * DAY + within, count


def trips(step: int, first: int, last: int) -> Iterator[list[Part]]:
    """Split the minutes from `first` to `last` into the commands of each round trip."""
    # A command reads of one day alone, so its minutes divide a day.
    size = next(size for size in (DAY, DAY // 2, DAY // 4) if size <= POINTS_A_TRIP * step)
    commands = min(COMMANDS_A_TRIP, max(1, POINTS_A_TRIP * step // size))
    parts = _parts(size, first, last)
    while trip := list(islice(parts, commands)):
        yield trip


def _parts(size: int, first: int, last: int) -> Iterator[Part]:
    for start in range(first // size * size, last + 1, size):
        day, within = divmod(start, DAY)
        midnight = day * DAY
        yield Part(day, max(within, first - midnight), min(within + size - 1, last - midnight))
