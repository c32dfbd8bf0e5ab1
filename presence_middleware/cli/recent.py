"""What `presence watch` sees of a site, and what the site recorded before."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ..connections import forget
from ..errors import PresenceUnavailable
from ..presence import Presence
from ..settings import Settings
from ..stores import Sample
from .chart import Span, by_time
from .site import client

MINUTE = timedelta(minutes=1)
_SLOTS = 1000  # more than a terminal has columns


@dataclass(frozen=True)
class Past:
    """What the site recorded: the samples of one kind, the peaks of all that have one."""

    samples: list[Sample]
    peaks: dict[str, Sample]


@dataclass(frozen=True)
class Reading:
    """How many of each kind were online at a moment, or why nobody knows."""

    at: datetime
    counts: dict[str, int] = field(default_factory=dict)
    past: Past | None = None
    error: str | None = None


class Question:
    """Asks a site for the counts, and once a minute for the past of a kind if one is named."""

    def __init__(
        self, settings: Settings, window: str | None, kind: str | None = None, hours: float = 1
    ) -> None:
        self._settings, self._window = settings, window
        self._kind, self._hours = kind, hours
        self._due = datetime.min.replace(tzinfo=UTC)

    def __call__(self) -> Reading:
        """Asks once; an outage is an answer as well."""
        at = datetime.now(UTC)
        try:
            presence = Presence(self._settings, client=client(self._settings))
            counts = presence.counts(window=self._window)
            return Reading(at, counts, self._past(presence, at))
        except PresenceUnavailable as error:
            forget(self._settings.redis_url)  # a server that is started anew may be elsewhere
            return Reading(at, error=str(error))

    def _past(self, presence: Presence, at: datetime) -> Past | None:
        if self._kind is None or at < self._due:
            return None
        peaks = {kind: presence.peak(kind) for kind in self._settings.kinds}
        samples = presence.history(self._hours, self._kind)
        self._due = at + MINUTE
        return Past(samples, {kind: peak for kind, peak in peaks.items() if peak})


class Recent:
    """The counts of one kind in the last hours."""

    def __init__(self, hours: float) -> None:
        self._length = timedelta(hours=hours)
        self._recorded: list[Sample] = []
        self._seen: dict[int, Sample] = {}

    def recorded(self, samples: Iterable[Sample]) -> None:
        """Takes what the site recorded, in place of what it had before."""
        self._recorded = list(samples)

    def saw(self, sample: Sample) -> None:
        """Adds a count; of those close together the highest stays."""
        slot = int(sample.at.timestamp() // (self._length.total_seconds() / _SLOTS))
        former = self._seen.pop(slot, sample)
        self._seen[slot] = max(former, sample, key=lambda each: each.count)
        if len(self._seen) > _SLOTS:
            del self._seen[min(self._seen)]

    def samples(self) -> list[Sample]:
        """All there is, oldest first."""
        return sorted([*self._recorded, *self._seen.values()], key=by_time)

    def span(self, now: datetime) -> Span:
        """The last hours; at first, from the first count on."""
        first = min((sample.at for sample in self.samples()), default=now)
        return Span(max(now - self._length, min(first, now - MINUTE)), now)
