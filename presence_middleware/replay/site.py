"""A site that a log is read into: the filter, the rules and the quotas of the middleware."""

import itertools
import math
from collections.abc import Callable

from ..identity import Who
from ..recorder.recorder import resolver_for
from ..recorder.request_filter import RequestFilter
from ..recorder.setup_hints import SetupHints
from ..settings import Settings
from .combined import Request
from .timeline import Moment, Timeline


class Replay:
    """Takes the requests of a log, and tells how many are online at each full minute."""

    def __init__(self, settings: Settings, tell: Callable[[Moment], object]) -> None:
        """Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names is not there."""
        hints = SetupHints(settings)
        hints.look_at = math.inf  # they are about headers that no log has
        self._filter = RequestFilter(settings, hints)
        # In a log, days go by in a second: each User-Agent is looked up as if it had one to itself.
        self._resolver = resolver_for(settings, monotonic=itertools.count().__next__)
        self._timeline = Timeline(settings.kinds, settings.window, tell)
        self.refused = 0
        """How many visits were of one guest too many of an address."""

    @property
    def late(self) -> int:
        """How many requests are out of order by more than the window, and do not count."""
        return self._timeline.late

    def saw(self, request: Request) -> Who | None:
        """Take a request of the log; return who it counts for."""
        who = self._who(request) if self._filter.admit(request, request.at) else None
        self._timeline.saw(request.at, who)
        return who

    def end(self) -> None:
        """The log is over."""
        self._timeline.end()

    def _who(self, request: Request) -> Who | None:
        match = self._resolver.resolve(request)
        if match is None:
            return None
        matcher, id = match
        if matcher.kind is None:
            return None
        if matcher.has_quota and not self._resolver.guests.admit(request, id, request.at):
            self.refused += 1
            return None
        return matcher.kind, id
