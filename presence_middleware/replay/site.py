"""A site that a log is read into: the chain, the visits and the quotas of the middleware itself."""

import itertools
import math
from collections.abc import Callable

from ..identity import Found, View, Who
from ..recorder.notices import Notices
from ..recorder.reception import Reception
from ..recorder.visit import Visit
from ..settings import Settings
from .combined import Request
from .timeline import Moment, Timeline


class Replay:
    """Where the visits of a log report, as those of a site do to its recorder (`visit.Sink`)."""

    def __init__(self, settings: Settings, tell: Callable[[Moment], object]) -> None:
        """`tell` hears how many are online at each full minute.

        Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names is not there.
        """
        notices = Notices(settings)
        notices.look_at = math.inf  # they are about headers that no log has
        # In a log, days go by in a second: each User-Agent is looked up as if it had one to itself.
        self._reception = Reception(settings, notices, itertools.count().__next__)
        self.chain = self._reception.chain
        self.open_visits: dict[Visit, None] = {}
        self._timeline = Timeline(settings.kinds, settings.window, tell)
        self._now = 0
        self.now: Callable[[], float] = lambda: self._now
        self._who: Who | None = None
        self.refused = 0
        """How many visits were of one guest too many of an address."""

    @property
    def late(self) -> int:
        """How many requests are out of order by more than the window, and do not count."""
        return self._timeline.late

    def saw(self, request: Request) -> None:
        """Takes a request of the log."""
        self._now, self._who = request.at, None
        self._reception.receive(request, request.at)
        if request.counts:
            Visit(self, request, request.at).end()
        self._timeline.saw(request.at, self._who)

    def end(self) -> None:
        """The log is over."""
        self._timeline.end()

    def record(self, who: Who, stamp: float, arrival: float) -> None:
        self._who = who

    def admit(self, view: View, guest: Found, stamp: float) -> bool:
        if self._reception.guests.admit(view, guest, stamp):
            return True
        self.refused += 1
        return False

    def finished(self, id: Found) -> str | None:
        return id if isinstance(id, str) else id.hex()

    def write_for_reader(self) -> None:
        """Nobody reads meanwhile."""

    def abandoned(self, visit: Visit) -> None:
        """None is: each ends at once."""
