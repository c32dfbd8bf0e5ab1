"""Records the visits of a log that grows, as the middleware records those of a site."""

import time
from collections.abc import Callable

from ..people import Room
from ..recorder import Recorder
from ..settings import Settings
from .combined import Line
from .site import Visitors

AHEAD_SECONDS = 1.0  # by which the clock of a log may be ahead without a word


class Follower:
    """Records lines of a log by their own time. Nothing is written until `write` is called."""

    def __init__(self, settings: Settings, clock: Callable[[], float] | None = None) -> None:
        """Record by `settings`. `clock` replaces the clocks of this host and of the server.

        Raises `SettingsError` as `Recorder` does.
        """
        self._now, self._visitors = clock or time.time, Visitors(settings)
        self.recorder = Recorder(settings, clock=clock, background=False)
        # Advice about cookies and logins does not fit a log.
        self.recorder.hints.check = lambda *_: None  # type: ignore[method-assign]
        self.old = 0
        """The number of lines that were as old as the window, and counted nobody."""
        self.ahead = 0
        """The number of lines of the future, which counted as now."""

    @property
    def refused(self) -> int:
        """The number of visits that were not counted because of the quota of their address."""
        return self._visitors.refused

    def add(self, line: Line) -> None:
        """Note whom a line counts for."""
        age = self._now() - line.at
        if age >= self.recorder.settings.window:
            self.old += 1
            return
        self.ahead += age < -AHEAD_SECONDS
        who = self._visitors.who(line)
        if who is None:
            return
        at, room, rooms = self.recorder.stamp() - max(0.0, age), None, self.recorder.rooms
        if rooms is not None and (number := rooms.number_for(line.request)) is not None:
            room = Room(number, at)
        self.recorder.record(who, at, room=room)

    @property
    def is_nearly_full(self) -> bool:
        """Return whether half of the people that may wait do, so that `write` is due."""
        return 2 * self.recorder.people.pending > self.recorder.settings.max_pending

    def write(self) -> None:
        """Write what was noted, and do the upkeep of the site. Never raises."""
        self.recorder.run_once()

    def close(self) -> None:
        """Write everything that waits, in at most two seconds. Never raises."""
        self.recorder.close()
