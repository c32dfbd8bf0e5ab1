"""A site that a log is read into: the reception, the chain and the quotas of the middleware."""

import itertools
import math
from collections.abc import Callable

from ..identity import Who
from ..identity.chain import Early
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
        chain = reception.chain
        self._links = (*chain.early, Early(lambda _: "anybody", None, chain.late))
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
        self._timeline.saw(request.at, self.who(request) if request.counts else None)

    def end(self) -> None:
        """The log is over."""
        self._timeline.end()

    def who(self, request: Request) -> Who | None:
        """Whom a visit finds (`recorder.Visit`) that ends as soon as it has arrived."""
        for read, kind, late, is_minted in self._links:
            if found := read(request):
                for reader in late:
                    id = reader.read(request)
                    if id is not None:
                        return reader.kind, id
                if kind is None:
                    return None
                if is_minted and not self._admit(request, found, request.at):
                    self.refused += 1
                    return None
                return kind, found
        return None
