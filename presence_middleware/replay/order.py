"""Lines far ahead of their log are set aside, so that one wrong clock does not end a replay.

A replay counts minutes in order and cannot go back: what follows a line of the year 2125 would be
late. So a line that is a day ahead of all before it is compared with the lines that follow it. A
log that was quiet for days or years goes on at the new time; a log with a wrong line goes back.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

from .combined import Request

AHEAD = 86400  # seconds
FOLLOWING = 100  # lines that are compared, if the log has as many left
SEVERAL = 10  # lines that must agree with one that is still to come


def without_lines_ahead(
    requests: Iterable[Request], set_aside: Callable[[Request], object], now: float
) -> Iterator[Request]:
    """Yield the requests of one log, but those far ahead of it.

    `set_aside` receives the others. `now` is the time in seconds since the epoch: no log can end
    after it, unless the clock of this machine is wrong.
    """
    coming = iter(requests)
    following: deque[Request] = deque()
    newest: int | None = None
    while request := following.popleft() if following else next(coming, None):
        if newest is None or request.at > newest + AHEAD:
            following.extend(islice(coming, FOLLOWING - len(following)))
            is_future = newest is not None and request.at > now + AHEAD
            if not _agree(following, request.at, SEVERAL if is_future else 0):
                set_aside(request)
                continue
        newest = request.at if newest is None else max(newest, request.at)
        yield request


def _agree(following: Collection[Request], at: int, least: int) -> bool:
    """Return whether a log goes on at a time: at least half of its next lines, and `least`."""
    agreeing = sum(request.at >= at - AHEAD for request in following)
    return agreeing >= least and 2 * agreeing >= len(following)
