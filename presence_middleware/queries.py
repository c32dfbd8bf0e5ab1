"""What can be asked, as plans: checks the question, names the time, asks the kind's store.

`Presence` and `AsyncPresence` run the same plans; all that they share is here.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from .connections import ServerClock
from .departed import Departed, Departure
from .errors import QueryError, UnsupportedQuery
from .identity import known_kind, normalize_id
from .settings import Settings
from .stores import History, Layout, Plan, Sample, Shards, Sighting, merge_plans, moment_of, run_all
from .values import duration, format_duration

T = TypeVar("T")
Id = str | int | bytes | UUID
Window = float | str | object


class Queries:
    """The questions about one site."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: ServerClock,
        stores: Mapping[str, Shards],
        layout: Layout,
        history: History,
        departed: Departed,
    ) -> None:
        self._clock, self._departed = clock, departed
        self._window = settings.window
        self._kinds = settings.kinds
        self._stores, self._layout, self._history = stores, layout, history

    def now(self) -> Plan[float]:
        """Return the time in seconds since the epoch by the server's clock, for a read."""
        return (yield from self._clock.now())

    def count(self, kind: str | None, window: Window) -> Plan[int]:
        store, seconds = self._within(kind, window)
        now = yield from self.now()
        return (yield from self._read(store.count(now, seconds)))

    def counts(self, window: Window) -> Plan[dict[str, int]]:
        asked = [self._within(kind, window) for kind in self._kinds]
        now = yield from self.now()
        plans = [store.count(now, seconds) for store, seconds in asked]
        return dict(zip(self._kinds, (yield from self._read(merge_plans(plans))), strict=True))

    def online(
        self, kind: str | None, window: Window, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        store, seconds = self._within(kind, window)
        if limit is not None and limit < 1:
            raise QueryError(f"limit is {limit!r}: at least 1, or None for everyone")
        now = yield from self.now()
        return (yield from self._read(store.online(now, seconds, limit, before)))

    def is_online(self, id: Id, kind: str | None, window: Window) -> Plan[bool]:
        return bool((yield from self.online_among([id], kind, window)))

    def online_among(self, ids: Iterable[Id], kind: str | None, window: Window) -> Plan[list[str]]:
        store, seconds = self._within(kind, window)
        if not (stored := list(dict.fromkeys(map(_stored, ids)))):
            return []
        now = yield from self.now()
        online = yield from self._read(store.online_among(stored, now, seconds))
        return [sighting.id for sighting in online]

    def online_friends(self, key: str, kind: str | None, window: Window) -> Plan[list[str]]:
        store, seconds = self._within(kind, window)
        now = yield from self.now()
        online = yield from self._read(store.online_friends(key, now, seconds))
        return [sighting.id for sighting in online]

    def last_seen(self, id: Id, kind: str | None) -> Plan[datetime | None]:
        store, stored = self._store(kind), _stored(id)
        now = yield from self.now()
        stamp = yield from self._read(store.shard_for(stored).last_seen(stored, now))
        return None if stamp is None else moment_of(stamp)

    def history(self, hours: float, kind: str | None) -> Plan[list[Sample]]:
        name = self._known(kind)
        if not 0 < hours < math.inf:
            raise QueryError(f"hours is {hours!r}: a number above zero")
        now = yield from self.now()
        return (yield from self._history.samples(name, now - hours * 3600, now))

    def peak(self, kind: str | None) -> Plan[Sample | None]:
        return (yield from self._history.peak(self._known(kind)))

    def reset_peak(self, kind: str | None) -> Plan[None]:
        yield from self._history.reset_peak(self._known(kind))

    def touch(self, id: Id | None, kind: str | None) -> Plan[None]:
        store = self._store(kind)
        if id is None:
            return
        stored = _stored(id)
        yield from store.shard_for(stored).touch(stored, (yield from self._latest()))

    def leave(self, id: Id | None, kind: str | None) -> Plan[None]:
        yield from self._depart(self.departing(id, kind), erase=False)

    def forget(self, id: Id | None, kind: str | None) -> Plan[None]:
        yield from self._depart(self.departing(id, kind, erase=True), erase=True)

    def departing(
        self, id: Id | None, kind: str | None, *, erase: bool = False
    ) -> tuple[str, str] | None:
        """Return the kind and id of somebody who is to leave, or to be erased; None for nobody.

        Raises `QueryError` for an unknown kind, `UnsupportedQuery` if its store cannot do that.
        """
        name = self._known(kind)
        if id is None:
            return None
        stored = _stored(id)
        self._stores[name].shard_for(stored).depart(stored, 0.0, erase=erase).close()
        return name, stored

    def _depart(self, who: tuple[str, str] | None, *, erase: bool) -> Plan[None]:
        if who is None:
            return
        stamp = self._clock.stamp()
        shard = self._stores[who[0]].shard_for(who[1])
        latest = yield from self._latest()
        is_server_time = self._clock.is_server_time
        moment = yield from shard.depart(who[1], latest, is_server_time=is_server_time, erase=erase)
        self._departed.note(who, Departure(stamp, moment, erase))

    def _read(self, plan: Plan[T]) -> Plan[T]:
        """Run a plan; every few seconds, also check in the same round trip where to read."""
        stamp = self._clock.stamp()
        if self._layout.is_known(stamp):
            return (yield from plan)
        answer, problem = yield from run_all([plan, self._layout.check(stamp)])
        if isinstance(problem, Exception):
            if not self._layout.is_agreed:
                raise problem
            self._layout.trust(stamp)  # it stands while the node that keeps it is away
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    def _latest(self) -> Plan[float]:
        """Return the time for a write, once it is known where to write."""
        stamp = self._clock.stamp()
        if not self._layout.is_known(stamp):
            yield from self._layout.claim(stamp)
        return (yield from self._clock.latest())

    def _within(self, kind: str | None, window: Window) -> tuple[Shards, float]:
        """The store of a kind, and a window that it can answer for, in seconds."""
        store = self._store(kind)
        if window is None:
            return store, self._window
        try:
            seconds = duration(window)
        except ValueError as error:
            raise QueryError(f"window is {window!r}: {error}") from None
        if seconds > store.keep:
            raise UnsupportedQuery(
                f"kind {kind or self._kinds[0]!r} is kept for {format_duration(store.keep)}, "
                f"not for {format_duration(seconds)}: see PRESENCE_WINDOW and PRESENCE_RETENTION"
            )
        return store, seconds

    def _store(self, kind: str | None) -> Shards:
        return self._stores[self._known(kind)]

    def _known(self, kind: str | None) -> str:
        return known_kind(self._kinds[0] if kind is None else kind, self._kinds)


def _stored(id: Id) -> str:
    """Return an id as it is stored. Raises `QueryError` for what is none."""
    try:
        stored = normalize_id(id.decode() if isinstance(id, bytes) else str(id))
    except UnicodeDecodeError:
        stored = ""
    if not stored:
        raise QueryError("an id is text that is not empty")
    return stored
