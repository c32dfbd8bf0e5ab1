"""A site that a log is read into: its exclusions, rules and quotas are the middleware's own.

`count_online` returns the number of people online at each full minute of a log's clock, exactly. A
line may be late by as much as the window. Sightings therefore wait by minute, and a minute is
counted once the clock is a window past it. At most the sightings of two windows are in memory,
however long the log is.
"""

import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from ..connections import Clock
from ..identity.ids import Who
from ..people import People
from ..recorder import Recorder
from ..recorder.guests import QUOTA, Guests
from ..recorder.recorder import resolver_for
from ..recorder.request_filter import matching_paths
from ..settings import Settings
from ..stores import Sample, moment_of
from ..svg import Series, draw
from .lines import Line, Tally

AHEAD_SECONDS = 1.0  # by which the clock of a log may be ahead without a word
MINUTE = 60
MAX_QUIET = 1440  # minutes without a visit that are reported; the gap after them is not
# A point for each minute of a day. A longer log has a point every 2, 4, 8 … minutes.
MAX_POINTS = 1440

LoggedVisit = tuple[int, Who | None]
"""When, in seconds since the epoch, and who. A line that counts nobody only moves the clock."""


class Moment(NamedTuple):
    """The number of people online at a moment, by kind."""

    at: int
    """Seconds since the epoch."""
    counts: tuple[int, ...]
    """In the order of the kinds."""


class Visitors:
    """Finds whom the lines of a log count for, in the order of the log."""

    def __init__(self, settings: Settings, tally: Tally) -> None:
        """Go by `settings`. The `tally` counts guests past a quota. Raises `SettingsError`."""
        self._excluded = matching_paths(settings.exclude)
        # Days of a log pass in a second. A clock that ticks at each call gives every new User-Agent
        # a budget of its own, so all of them are looked up.
        self._resolver = resolver_for(settings, monotonic=itertools.count().__next__)
        self._people = People(settings.max_pending, settings.window, settings.grace_seconds)
        self._guests = Guests(self._people, settings.window, settings.trusted_proxies)
        self._tally = tally

    def who(self, line: Line) -> Who | None:
        """Return the kind and id that a line counts for, or None."""
        request = line.request
        request.locate = self._resolver.locate
        if request.path in self._excluded:
            return None
        # A log does not show whether the site accepted a login, so checked rules find no id.
        who, matcher = self._resolver.resolve(request, is_refused=True)
        if who is None or not matcher.has_quota:
            return who
        if self._guests.admit(request, who, line.at):
            if who not in self._people.recent:
                self._people.remember(who)
            return who
        self._tally.note(
            "refused",
            f"more than {QUOTA} new guests from one address: the rest is not recorded. If it is a "
            "proxy, have the server log the addresses of its clients",
        )
        return None


def count_online(lines: Iterable[Line], settings: Settings, tally: Tally) -> Iterator[Moment]:
    """Return who would have been online at each full minute of a log, in order.

    Lines may be out of order by as much as the window. The `tally` counts those that do not count.
    Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names cannot be imported.
    """
    visitors = Visitors(settings, tally)
    sightings = ((line.at, visitors.who(line)) for line in lines)
    return count_minutes(sightings, settings.kinds, settings.window, tally)


def count_minutes(
    sightings: Iterable[LoggedVisit], kinds: tuple[str, ...], window: float, tally: Tally
) -> Iterator[Moment]:
    """Yield the numbers of each minute, from the first sighting to the last.

    A user is online for `window` seconds. Sightings may be out of order by as much. Those that are
    later do not count, and the `tally` has their number.
    """
    counts = dict.fromkeys(kinds, 0)
    # Who is online, by last-seen time, the latest at the end.
    online: OrderedDict[Who, int] = OrderedDict()
    for minute, seen in _by_minute(sightings, math.ceil(window / MINUTE), tally):
        now = int(minute) * MINUTE
        for who, at in sorted(seen.items(), key=itemgetter(1)):
            counts[who[0]] += who not in online
            online[who] = at
            online.move_to_end(who)
        while online and next(iter(online.values())) <= now - window:
            (kind, _), _ = online.popitem(last=False)
            counts[kind] -= 1
        yield Moment(now, tuple(counts.values()))


def _by_minute(
    sightings: Iterable[LoggedVisit], patience: int, tally: Tally
) -> Iterator[tuple[float, dict[Who, int]]]:
    """Yield each minute in order, and when who was last seen in it, until a day without visits.

    A minute waits until the log is `patience` minutes past it.
    """
    waiting: dict[float, dict[Who, int]] = {}
    oldest, newest, quiet = math.inf, -math.inf, 0
    for at, who in sightings:
        minute = -(-at // MINUTE)  # the first full minute that includes it
        if minute < newest - patience:
            tally.note("late")
            continue
        oldest, newest = min(oldest, minute), max(newest, minute)
        if who is not None:
            seen = waiting.setdefault(minute, {})
            seen[who] = max(at, seen.get(who, at))
        while oldest < newest - patience:
            seen = waiting.pop(oldest, {})
            yield oldest, seen
            quiet = 0 if seen else quiet + 1
            is_gap = quiet >= MAX_QUIET + patience - 1
            oldest = min(waiting, default=newest - patience) if is_gap else oldest + 1
    while oldest <= newest:
        yield oldest, waiting.get(oldest, {})
        oldest += 1


class Summary:
    """The peaks of a replay, and the highest counts of equal steps of time.

    The steps double so that they stay few.
    """

    def __init__(self, kinds: tuple[str, ...]) -> None:
        """Begin without a point."""
        self.step = MINUTE
        """The length of a step, in seconds."""
        self.points: dict[int, tuple[int, ...]] = {}
        """By the time when a step begins, the highest count of each kind in it."""
        self.peaks: dict[str, Sample | None] = dict.fromkeys(kinds)
        """The first highest minute of each kind; None if none of the kind came."""

    def add(self, moment: Moment) -> None:
        """Add the next moment; moments come in order."""
        for (kind, peak), count in zip(self.peaks.items(), moment.counts, strict=True):
            if count > (peak.count if peak else 0):
                self.peaks[kind] = Sample(moment_of(moment.at), count)
        at = moment.at // self.step * self.step
        self.points[at] = tuple(map(max, self.points.get(at, moment.counts), moment.counts))
        if len(self.points) > MAX_POINTS:
            self.step *= 2
            shorter, self.points = self.points, {}
            for point in shorter.items():
                self.add(Moment(*point))

    def chart(self) -> str:
        """Return an SVG with a line for each kind that came; its times are in UTC."""
        lines = []
        for place, (kind, peak) in enumerate(self.peaks.items()):
            if peak:
                points = [(at, counts[place]) for at, counts in self.points.items()]
                lines.append(Series(kind, points, (int(peak.at.timestamp()), peak.count), place))
        start, end = min(self.points, default=0), max(self.points, default=0)
        return draw(lines, start, max(end, start + self.step), gap=self.step)


class Follower(Visitors):
    """Records lines of a log by their own time. Nothing is written until `write` is called."""

    def __init__(self, settings: Settings, tally: Tally, clock: Clock | None = None) -> None:
        """Record by `settings`. The `tally` counts lines that are old, or of the future.

        `clock` replaces those of this host and of the server. Raises `SettingsError`.
        """
        super().__init__(settings, tally)
        self._now, self._settings = clock or time.time, settings
        self.recorder = Recorder(settings, clock=clock, background=False)
        self._due = 0.0

    def add(self, line: Line) -> None:
        """Note whom a line counts for."""
        age = self._now() - line.at
        if age >= self._settings.window:
            sentence = f"a line is {age:.0f} seconds old; older than the window counts nobody"
            self._tally.note("old", sentence)
            return
        if age < -AHEAD_SECONDS:
            sentence = f"a line is {-age:.0f} seconds ahead of this clock; it counts as now"
            self._tally.note("ahead", sentence)
        if (who := self.who(line)) is None:
            return
        at, rooms = self.recorder.stamp() - max(0.0, age), self.recorder.backend.rooms
        room = None if rooms is None else rooms.entered(line.request, at)
        self.recorder.record(who, at, room=room)

    def write_if_due(self) -> bool:
        """Write what was noted and do the upkeep, once a flush interval. Never raises.

        Also if half of the people that may wait do. Return whether it was due.
        """
        is_nearly_full = 2 * self.recorder.people.pending > self._settings.max_pending
        if time.monotonic() < self._due and not is_nearly_full:
            return False
        self.recorder.run_once()
        self._due = time.monotonic() + self._settings.flush_interval
        return True
