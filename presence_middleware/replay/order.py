"""Removes lines far ahead of their log, so that a wrong clock does not end a replay.

A replay counts minutes in order and cannot go back: after a line of the year 2125, all others would
be late. A line that is a day ahead of all before it is therefore compared with the lines that
follow. A log that was quiet for days or years goes on at the new time; after a wrong line, it goes
back.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from ..parsers import DAY
from .combined import Line

AHEAD = DAY
FOLLOWING = 100  # lines that are compared, if the log has as many left
SEVERAL = 10  # lines that must agree with a line of the future


def without_lines_ahead(
    lines: Iterable[Line], set_aside: Callable[[Line], object], now: float
) -> Iterator[Line]:
    """Yield the lines of a log, except those far ahead of it.

    `set_aside` is called with each of the others. `now` is the time in seconds since the epoch: no
    log can end after it, unless the clock of this machine is wrong.
    """
    coming = iter(lines)
    following: deque[Line] = deque()
    newest: int | None = None
    while line := following.popleft() if following else next(coming, None):
        if newest is None or line.at > newest + AHEAD:
            following.extend(islice(coming, FOLLOWING - len(following)))
            is_future = newest is not None and line.at > now + AHEAD
            # A log goes on at a time if at least half of its next lines do.
            agreeing = sum(each.at >= line.at - AHEAD for each in following)
            if agreeing < max(SEVERAL if is_future else 0, len(following) / 2):
                set_aside(line)
                continue
        newest = line.at if newest is None else max(newest, line.at)
        yield line
