"""What can be asked, as plans: checks the question, names the time, asks the kind's store.

`Presence` and `AsyncPresence` run the same plans; all that they share is here.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from .connections import ServerClock
from .departed import Departed, Departure
from .errors import QueryError, UnsupportedQuery
from .identity import known_kind, normalize_id
from .parsers import duration, format_duration
from .settings import Settings
from .stores import History, Layout, Plan, Sample, Shards, Sighting, merge_plans, moment_of, run_all

MOST_HOURS = 10 * 366 * 24  # for how long history is kept at most
LONGEST_SHOWN = 100  # characters of a wrong argument in an error
_NO_IDS = (bool, bytearray, list, tuple, set, frozenset, dict)

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
        limit, before = _checked_limit(limit), _checked_page(before)
        now = yield from self.now()
        return (yield from self._read(store.online(now, seconds, limit, before)))

    def is_online(self, id: Id, kind: str | None, window: Window) -> Plan[bool]:
        return bool((yield from self.online_among([id], kind, window)))

    def online_among(self, ids: Iterable[Id], kind: str | None, window: Window) -> Plan[list[str]]:
        store, seconds = self._within(kind, window)
        if not (stored := list(dict.fromkeys(map(_stored, _several(ids))))):
            return []
        now = yield from self.now()
        online = yield from self._read(store.online_among(stored, now, seconds))
        return [sighting.id for sighting in online]

    def online_friends(self, key: str, kind: str | None, window: Window) -> Plan[list[str]]:
        store, seconds = self._within(kind, window)
        if not _is_text(key):
            raise QueryError(f"key is {_shown(key)}: the name of a set or sorted set, as text")
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
        seconds = _seconds(hours)
        now = yield from self.now()
        return (yield from self._history.samples(name, now - seconds, now))

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
        except (ValueError, OverflowError) as error:
            raise QueryError(f"window is {_shown(window)}: {error}") from None
        if seconds > store.keep:
            raise UnsupportedQuery(
                f"kind {kind or self._kinds[0]!r} is kept for {format_duration(store.keep)}, "
                f"not for {format_duration(seconds)}: see PRESENCE_WINDOW and PRESENCE_RETENTION"
            )
        return store, seconds

    def _store(self, kind: str | None) -> Shards:
        return self._stores[self._known(kind)]

    def _known(self, kind: str | None) -> str:
        if kind is not None and not isinstance(kind, str):
            raise QueryError(f"kind is {_shown(kind)}: one of {', '.join(self._kinds)}")
        return known_kind(self._kinds[0] if kind is None else kind, self._kinds)


# Arguments come from queries and forms: what is wrong with them is a `QueryError` here, before
# anything is asked, and never an error of the parser of an answer.


def _stored(id: Id) -> str:
    """Return an id as it is stored: bytes are text, and so is whatever has one, as a UUID."""
    if id is None or isinstance(id, _NO_IDS):
        raise QueryError(f"an id is {_shown(id)}: text that is not empty, or a number")
    try:
        stored = normalize_id(id.decode() if isinstance(id, bytes) else str(id))
    except Exception:
        raise QueryError(f"an id is {_shown(id)}, which has no text") from None
    if not stored:
        raise QueryError("an id is text that is not empty")
    return stored


def _several(ids: Iterable[Id]) -> Iterable[Id]:
    """Return ids, unless they are none or a single text, whose letters nobody means."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise QueryError(f"ids is {_shown(ids)}: several ids, such as a list")
    return ids


def _checked_limit(limit: int | None) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise QueryError(f"limit is {_shown(limit)}: at least 1, or None for everyone")
    return min(limit, sys.maxsize)


def _checked_page(before: Sighting | None) -> Sighting | None:
    if before is None:
        return None
    if isinstance(before, Sighting) and _is_text(before.id):
        at = before.last_seen
        if at is None or (isinstance(at, datetime) and at.tzinfo is not None):
            return before
    raise QueryError(f"before is {_shown(before)}: the last Sighting of a page")


def _seconds(hours: float) -> float:
    is_number = isinstance(hours, (int, float)) and not isinstance(hours, bool)
    if not is_number or not 0 < hours < math.inf:
        raise QueryError(f"hours is {_shown(hours)}: a number above zero, such as 24")
    return min(hours, MOST_HOURS) * 3600


def _is_text(value: object) -> bool:
    """Return whether a value is text that Redis can be sent."""
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False


def _shown(value: object) -> str:
    """Return a value for an error: shortened, and by its type where it cannot be shown."""
    try:
        shown = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}…"
