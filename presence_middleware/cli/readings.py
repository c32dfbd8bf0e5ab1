"""Readings of a site for `presence watch`: counts now and then, and the history once a minute."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from .. import connections
from ..errors import PresenceUnavailable
from ..presence import Presence
from ..settings import Settings
from ..stores import Sample
from . import context

PAST_INTERVAL = timedelta(minutes=1)  # the site records a sample a minute


@dataclass(frozen=True)
class Past:
    """The history of the site: the samples of a kind, and the peaks by kind."""

    samples: list[Sample]
    peaks: dict[str, Sample]


@dataclass(frozen=True)
class Reading:
    """The counts of each kind at a moment, or the error that Redis caused."""

    at: datetime
    counts: dict[str, int] = field(default_factory=dict)
    past: Past | None = None
    error: str | None = None


class Poller:
    """Reads the counts of a site, and once a minute the history of a kind."""

    def __init__(
        self, settings: Settings, window: str | None, kind: str | None = None, hours: float = 1
    ) -> None:
        """Create a poller that reads counts within `window`, by default the site's.

        `kind` is the kind of the history, `hours` its length. Without a kind, no history is read.
        """
        self._settings, self._window = settings, window
        self._kind, self._hours = kind, hours
        self.past_due = datetime.min.replace(tzinfo=UTC)

    def read(self) -> Reading:
        """Return a reading. In an outage, it contains an error and no counts.

        Raises `QueryError` for an invalid window.
        """
        at = datetime.now(UTC)
        try:
            reader = Presence(self._settings, client=context.site_client(self._settings))
            counts = reader.counts(window=self._window)
            return Reading(at, counts, self._past(reader, at))
        except PresenceUnavailable as error:
            # A restarted server may have another address.
            connections.forget(self._settings.redis_url)
            return Reading(at, error=str(error))

    def _past(self, reader: Presence, at: datetime) -> Past | None:
        if self._kind is None or at < self.past_due:
            return None
        peaks = {kind: reader.peak(kind) for kind in self._settings.kinds}
        samples = reader.history(self._hours, self._kind)
        self.past_due = at + PAST_INTERVAL
        return Past(samples, {kind: peak for kind, peak in peaks.items() if peak})
