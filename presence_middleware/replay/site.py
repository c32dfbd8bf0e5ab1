"""A site that a log is read into: its exclusions, rules and quotas are the middleware's own."""

import itertools
import time
from collections.abc import Callable

from ..identity.hashing import Who
from ..people import People, Room
from ..recorder import Recorder
from ..recorder.guests import QUOTA, Guests
from ..recorder.recorder import resolver_for
from ..recorder.request_filter import matching_paths
from ..settings import Settings
from .lines import Line
from .timeline import Moment, Timeline

AHEAD_SECONDS = 1.0  # by which the clock of a log may be ahead without a word


class Visitors:
    """Finds whom the lines of a log count for, in the order of the log."""

    def __init__(
        self, settings: Settings, report: Callable[[str], object] = lambda _: None
    ) -> None:
        """Go by `settings`, and call `report` with a sentence about the first refused guest.

        Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names cannot be imported.
        """
        self._excluded = matching_paths(settings.exclude)
        # Days of a log pass in a second. A clock that ticks at each call gives every new User-Agent
        # a budget of its own, so all of them are looked up.
        self._resolver = resolver_for(settings, monotonic=itertools.count().__next__)
        self._people = People(settings.max_pending, settings.window)
        self._guests = Guests(self._people, settings.window, settings.trusted_proxies)
        self._report = report
        self.refused = 0
        """The number of visits that were not counted because of the quota of their address."""

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
        self.refused += 1
        if self.refused == 1:
            self._report(
                f"more than {QUOTA} new guests from one address: the rest is not recorded. If it "
                "is a proxy, have the server log the addresses of its clients"
            )
        return None


class Replay(Visitors):
    """Counts who would have been online at each full minute of a log."""

    def __init__(self, settings: Settings, report: Callable[[Moment], object]) -> None:
        """Count by `settings`, and call `report` with each minute in order.

        Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names cannot be imported.
        """
        super().__init__(settings)
        self.timeline = Timeline(settings.kinds, settings.window, report)
        """Counts the lines. `finish` reports the minutes that remain."""

    def add(self, line: Line) -> Who | None:
        """Count a line; return the kind and id that it counts for, or None.

        Lines may be out of order by as much as the window.
        """
        who = self.who(line)
        self.timeline.add(line.at, who)
        return who


class Follower(Visitors):
    """Records lines of a log by their own time. Nothing is written until `write` is called."""

    def __init__(
        self,
        settings: Settings,
        report: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Record by `settings`, and call `report` with a sentence about the first odd line.

        `clock` replaces the clocks of this host and of the server. Raises `SettingsError` as
        `Recorder` does.
        """
        super().__init__(settings, report)
        self._now, self._settings = clock or time.time, settings
        self.recorder = Recorder(settings, clock=clock, background=False)
        # Advice about cookies and logins does not fit a log.
        self.recorder.hints.check = lambda *_: None  # type: ignore[method-assign]
        self.old = 0
        """The number of lines that were as old as the window, and counted nobody."""
        self.ahead = 0
        """The number of lines of the future, which counted as now."""
        self._due = 0.0

    def add(self, line: Line) -> None:
        """Note whom a line counts for."""
        age = self._now() - line.at
        if age >= self._settings.window:
            self.old += 1
            if self.old == 1:
                self._report(
                    f"a line is {age:.0f} seconds old; older than the window counts nobody"
                )
            return
        if age < -AHEAD_SECONDS:
            self.ahead += 1
            if self.ahead == 1:
                self._report(f"a line is {-age:.0f} seconds ahead of this clock; it counts as now")
        if (who := self.who(line)) is None:
            return
        at, rooms = self.recorder.stamp() - max(0.0, age), self.recorder.backend.rooms
        number = None if rooms is None else rooms.number_for(line.request)
        self.recorder.record(who, at, room=None if number is None else Room(number, at))

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
