"""A site that a log is read into: its exclusions, rules and quotas are the middleware's own."""

import itertools
from collections.abc import Callable

from ..identity.ids import Who
from ..people import People
from ..recorder.guests import QUOTA, Guests
from ..recorder.recorder import resolver_for
from ..recorder.request_filter import matching_paths
from ..settings import Settings
from .lines import Line
from .timeline import Moment, Timeline


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
