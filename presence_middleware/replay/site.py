"""A site that a log is read into: its exclusions, rules and quotas are the middleware's own."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator

from ..identity.ids import Who
from ..people import People
from ..recorder import Recorder
from ..recorder.guests import QUOTA, Guests
from ..recorder.recorder import resolver_for
from ..recorder.request_filter import matching_paths
from ..settings import Settings
from .lines import Line, Tally
from .timeline import Moment, count_minutes

AHEAD_SECONDS = 1.0  # by which the clock of a log may be ahead without a word


class Visitors:
    """Finds whom the lines of a log count for, in the order of the log."""

    def __init__(self, settings: Settings, tally: Tally) -> None:
        """Go by `settings`. The `tally` counts guests who are refused by their address's quota.

        Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names cannot be imported.
        """
        self._excluded = matching_paths(settings.exclude)
        # Days of a log pass in a second. A clock that ticks at each call gives every new User-Agent
        # a budget of its own, so all of them are looked up.
        self._resolver = resolver_for(settings, monotonic=itertools.count().__next__)
        self._people = People(settings.max_pending, settings.window)
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


class Follower(Visitors):
    """Records lines of a log by their own time. Nothing is written until `write` is called."""

    def __init__(
        self,
        settings: Settings,
        tally: Tally,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Record by `settings`. The `tally` counts lines that are old, or of the future.

        `clock` replaces the clocks of this host and of the server. Raises `SettingsError` as
        `Recorder` does.
        """
        super().__init__(settings, tally)
        self._now, self._settings = clock or time.time, settings
        self.recorder = Recorder(settings, clock=clock, background=False)
        # Advice about cookies and logins does not fit a log.
        self.recorder.hints.check = lambda *_: None  # type: ignore[method-assign]
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
