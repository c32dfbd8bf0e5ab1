"""A site that a log is read into: its visits, rules and quotas are the middleware's own."""

import itertools
import math
from collections.abc import Callable, Container, Mapping
from typing import Any

from ..backend import Backend
from ..identity import Id, Who
from ..recorder import Visit
from ..recorder.buffer import Entrance
from ..recorder.recorder import resolver_for
from ..recorder.request_filter import RequestFilter
from ..recorder.setup_hints import SetupHints
from ..request import OVER, Request
from ..settings import Settings
from ..signals import Signal
from .combined import Line
from .timeline import Moment, Timeline


class Replay:
    """Counts who would have been online at each full minute of a log."""

    def __init__(self, settings: Settings, report: Callable[[Moment], object]) -> None:
        """Count by `settings`, and call `report` with each minute in order.

        Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names cannot be imported.
        """
        self._recorder = LogRecorder(settings)
        self._timeline = Timeline(settings.kinds, settings.window, report)

    @property
    def refused(self) -> int:
        """The number of visits that were not counted because of the quota of their address."""
        return self._recorder.refused

    @property
    def late(self) -> int:
        """The number of lines that were not counted because they are a window or more late."""
        return self._timeline.late

    def add(self, line: Line) -> Who | None:
        """Count a line; return the kind and id that it counts for, or None.

        Lines may be out of order by as much as the window.
        """
        who = self._recorder.visit(line)
        self._timeline.add(line.at, who)
        return who

    def finish(self) -> None:
        """Report the minutes that remain: up to the full minute after the last line."""
        self._timeline.finish()


class LogRecorder:
    """The recorder of a log: admits its visits as a site would, and writes nothing."""

    def __init__(self, settings: Settings) -> None:
        """Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names is missing."""
        hints = SetupHints(settings)
        hints.look_at = math.inf  # the hints are about headers that no log has
        self._filter = RequestFilter(settings, hints)
        # Days of a log pass in a second. A clock that ticks at each call gives every new User-Agent
        # a budget of its own, so all of them are looked up.
        ticks = itertools.count().__next__
        self.resolver = resolver_for(settings, monotonic=ticks)
        self.backend = Backend(settings)  # visits have it; it never connects
        self.open_visits: dict[Visit, None] = {}
        self.refused = 0
        """The number of visits that a quota refused."""
        self._now = 0
        self._who: Who | None = None

    def visit(self, line: Line) -> Who | None:
        """Begin and end the visit of a line; return the kind and id that it was recorded for."""
        self._now, self._who = line.at, None
        LogVisit(self, line).end()
        return self._who

    def stamp(self) -> float:
        """Return the time of the current line, in seconds since the epoch."""
        return self._now

    def admit(self, visit: Visit) -> bool:
        """Return whether an arriving request counts as a visit."""
        if not self._filter.looks_at_all and visit.is_plain(self._filter.paths):
            return True  # as in the recorder of a site: the filter would admit it
        return self._filter.admit(visit, visit.arrival)

    def room_number(self, room: str) -> int | None:
        """Return None: a replay counts in no rooms."""
        return None

    def admit_signal(self, visit: Visit, signal: Signal) -> bool:
        """Return whether a signal counts as a visit."""
        return self.admit(visit)

    def note_signal(self, who: Who | None) -> None:
        """Do nothing: the hints are about requests that no log has."""

    def admit_guest(self, request: Request, guest: Id, stamp: float) -> bool:
        """Return whether a guest is within the quota of its network; count the others."""
        is_admitted = self.resolver.guests.admit(request, guest, stamp)
        self.refused += not is_admitted
        return is_admitted

    def record(self, who: Who, stamp: float, arrival: float, entrance: Entrance | None) -> None:
        """Note the kind and id of the current visit."""
        self._who = who

    def abandoned(self, visit: Visit) -> None:
        """End a visit whose response was dropped."""
        visit.end()

    def log_out(self, who: Who, stamp: float) -> None:
        """Do nothing: the visit of a line has no status, so it logs no user out."""

    def say_goodbye(self, who: Who, stamp: float) -> None:
        """Do nothing: a log does not show when a page was closed."""

    def is_leaving(self, who: Who, arrival: float) -> bool:
        """Return False, because no user leaves."""
        return False

    def write_for_reader(self) -> None:
        """Do nothing: a replay holds no sightings that wait to be written."""


class LogRequest:
    """A request with the few fields that a line has."""

    __slots__ = ("address", "method", "path", "peer", "referer", "user", "user_agent")
    peer: str | None
    address: str | None

    def __init__(self, line: Line) -> None:
        _, address, self.user, self.method, self.path, self.referer, self.user_agent = line
        self.peer = self.address = address

    @property
    def session(self) -> Mapping[str, Any] | None:
        return None

    def is_plain(self, excluded: Container[str]) -> bool:
        return self.path not in excluded

    def header(self, name: str) -> str | None:
        if name == "user-agent":
            return self.user_agent
        return self.referer if name == "referer" else None

    def cookie(self, name: str, *, last: bool = False) -> str | None:
        return None

    def get(self, key: str) -> object:
        return None


class LogVisit(LogRequest, Visit):
    """The visit of a line."""

    state: Mapping[str, Any] = {}

    def __init__(self, recorder: LogRecorder, line: Line) -> None:
        LogRequest.__init__(self, line)
        Visit.__init__(self, recorder)

    def release(self) -> None:
        self.state = OVER
