"""Readings of a site for `presence watch`: counts now and then, and the history once a minute."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ..connections.clients import forget
from ..errors import PresenceUnavailable
from ..presence import Presence
from ..settings import Settings
from ..stores import Sample
from . import context

HISTORY_INTERVAL = timedelta(minutes=1)  # the site records a sample a minute


class Reading(NamedTuple):
    """The counts of each kind at a moment, or the error that Redis caused."""

    at: datetime
    counts: dict[str, int]
    samples: list[Sample] | None = None
    """The history that the site recorded; None if it was not read this time."""
    peaks: dict[str, Sample | None] | None = None
    """The recorded peaks by kind; None if they were not read this time."""
    error: str | None = None


def read_site(
    settings: Settings, window: str | None, kind: str | None = None, hours: float = 1
) -> Iterator[Reading]:
    """Yield a reading each time the iterator is continued, without an end.

    Counts are those of `window`, by default the site's. `kind` is the kind of the history, and
    `hours` its length. Without a kind, no history is read. A reading in an outage has an error and
    no counts. Raises `QueryError` for an invalid window.
    """
    history_read = datetime.min.replace(tzinfo=UTC)
    while True:
        at = datetime.now(UTC)
        try:
            reader = Presence(settings, client=context.site_client(settings))
            reading = Reading(at, reader.counts(window=window))
            if kind is not None and at - history_read >= HISTORY_INTERVAL:
                peaks = {each: reader.peak(each) for each in settings.kinds}
                reading = reading._replace(samples=reader.history(hours, kind), peaks=peaks)
                history_read = at
        except PresenceUnavailable as error:
            # A restarted server may have another address.
            forget(settings.redis_url)
            reading = Reading(at, {}, error=str(error))
        yield reading
