"""What can be asked, as plans: checks the question, names the time, asks the kind's store.

`Presence` and `AsyncPresence` run the same plans; all that they share is here.
"""

import math
from collections.abc import Iterable
from datetime import datetime

from . import values
from .connections import ServerClock
from .errors import QueryError, UnsupportedQuery
from .identity import as_kept, known_kind
from .settings import Settings
from .stores import Plan, Sample, Shards, Sighting, moment_of

Id = str | int
Window = float | str | object


class Queries:
    """The questions about one site."""

    def __init__(self, settings: Settings, clock: ServerClock) -> None:
        self._clock = clock
        self._window = settings.window
        self._kinds = settings.kinds
        self._stores = settings.stores()
        self._layout = settings.layout()
        self._history = settings.samples()

    def count(self, kind: str | None, window: Window) -> Plan[int]:
        store, seconds = self._within(kind, window)
        return (yield from store.count((yield from self._now()), seconds))

    def counts(self, window: Window) -> Plan[dict[str, int]]:
        counts = {}
        for kind in self._kinds:
            counts[kind] = yield from self.count(kind, window)
        return counts

    def online(
        self, kind: str | None, window: Window, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        store, seconds = self._within(kind, window)
        if limit is not None and limit < 1:
            raise QueryError(f"limit is {limit!r}: at least 1, or None for everyone")
        now = yield from self._now()
        return (yield from store.online(now, seconds, limit, before))

    def is_online(self, id: Id, kind: str | None, window: Window) -> Plan[bool]:
        return bool((yield from self.online_among([id], kind, window)))

    def online_among(self, ids: Iterable[Id], kind: str | None, window: Window) -> Plan[list[str]]:
        store, seconds = self._within(kind, window)
        if not (kept := list(dict.fromkeys(map(_kept, ids)))):
            return []
        online = yield from store.online_among(kept, (yield from self._now()), seconds)
        return [sighting.id for sighting in online]

    def online_friends(self, key: str, kind: str | None, window: Window) -> Plan[list[str]]:
        store, seconds = self._within(kind, window)
        online = yield from store.online_friends(key, (yield from self._now()), seconds)
        return [sighting.id for sighting in online]

    def last_seen(self, id: Id, kind: str | None) -> Plan[datetime | None]:
        store, kept = self._store(kind), _kept(id)
        stamp = yield from store.of(kept).last_seen(kept, (yield from self._now()))
        return None if stamp is None else moment_of(stamp)

    def history(self, hours: float, kind: str | None) -> Plan[list[Sample]]:
        name = self._known(kind)
        if not 0 < hours < math.inf:
            raise QueryError(f"hours is {hours!r}: a number above zero")
        now = yield from self._now()
        return (yield from self._history.samples(name, now - hours * 3600, now))

    def peak(self, kind: str | None) -> Plan[Sample | None]:
        return (yield from self._history.peak(self._known(kind)))

    def reset_peak(self, kind: str | None) -> Plan[None]:
        yield from self._history.reset_peak(self._known(kind))

    def touch(self, id: Id, kind: str | None) -> Plan[None]:
        store, kept = self._store(kind), _kept(id)
        yield from store.of(kept).touch(kept, (yield from self._latest()))

    def leave(self, id: Id, kind: str | None) -> Plan[None]:
        store, kept = self._store(kind), _kept(id)
        yield from store.of(kept).leave(kept, (yield from self._latest()))

    def forget(self, id: Id, kind: str | None) -> Plan[None]:
        store, kept = self._store(kind), _kept(id)
        yield from store.of(kept).forget(kept, (yield from self._latest()))

    def _now(self) -> Plan[float]:
        """The time for a read, once it is known where to read."""
        yield from self._layout.check(self._clock.stamp())
        return (yield from self._clock.now())

    def _latest(self) -> Plan[float]:
        """The time for a write, once it is known where to write."""
        yield from self._layout.claim(self._clock.stamp())
        return (yield from self._clock.latest())

    def _within(self, kind: str | None, window: Window) -> tuple[Shards, float]:
        """The store of a kind, and a window that it can answer for, in seconds."""
        store = self._store(kind)
        if window is None:
            return store, self._window
        try:
            seconds = values.duration(window)
        except ValueError as error:
            raise QueryError(f"window is {window!r}: {error}") from None
        if seconds > store.keep:
            raise UnsupportedQuery(
                f"kind {kind or self._kinds[0]!r} is kept for {values.spoken(store.keep)}, not for "
                f"{values.spoken(seconds)}: see PRESENCE_WINDOW and PRESENCE_RETENTION"
            )
        return store, seconds

    def _store(self, kind: str | None) -> Shards:
        return self._stores[self._known(kind)]

    def _known(self, kind: str | None) -> str:
        return known_kind(self._kinds[0] if kind is None else kind, self._kinds)


def _kept(id: Id) -> str:
    kept = as_kept(str(id))
    if not kept:
        raise QueryError("an id is text that is not empty")
    return kept
