"""A site that a log is read into: the reception, the chain and the quotas of the middleware."""

import itertools
import math
from collections.abc import Callable

from ..identity import Who
from ..recorder.notices import Notices
from ..recorder.reception import Reception
from ..settings import Settings
from .combined import Request
from .timeline import Moment, Timeline


class Replay:
    """Takes the requests of a log, and tells how many are online at each full minute."""

    def __init__(self, settings: Settings, tell: Callable[[Moment], object]) -> None:
        """Raises `SettingsError` if a function that `PRESENCE_IDENTITY` names is not there."""
        notices = Notices(settings)
        notices.look_at = math.inf  # they are about headers that no log has
        # In a log, days go by in a second: each User-Agent is looked up as if it had one to itself.
        reception = Reception(settings, notices, itertools.count().__next__)
        self._receive, self._admit = reception.receive, reception.guests.admit
        self._early, self._late = reception.chain.early, reception.chain.late
        self._timeline = Timeline(settings.kinds, settings.window, tell)
        self.refused = 0
        """How many visits were of one guest too many of an address."""

    @property
    def late(self) -> int:
        """How many requests are out of order by more than the window, and do not count."""
        return self._timeline.late

    def saw(self, request: Request) -> None:
        """Takes a request of the log."""
        self._receive(request, request.at)
        self._timeline.saw(request.at, self._who(request) if request.counts else None)

    def end(self) -> None:
        """The log is over."""
        self._timeline.end()

    def _who(self, request: Request) -> Who | None:
        """Whom a visit finds (`recorder.Visit`) that ends as soon as it has arrived."""
        for read, kind, late, is_minted in self._early:
            if found := read(request):
                break
        else:
            found, kind, late, is_minted = None, None, self._late, False
        for reader in late:
            id = reader.read(request)
            if id is not None:
                return reader.kind, id
        if found is None or kind is None:
            return None
        if is_minted and not self._admit(request, found, request.at):
            self.refused += 1
            return None
        return kind, found
