"""Records the visits of a log that grows, as the middleware records those of a site."""

import time
from collections.abc import Callable

from ..people import Room
from ..recorder import Recorder
from ..settings import Settings
from .lines import Line
from .site import Visitors

AHEAD_SECONDS = 1.0  # by which the clock of a log may be ahead without a word


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
