"""The queries of `Presence` and `AsyncPresence`, as plans.

Each query checks its arguments, asks for the time, and runs the plan of the kind's store. Both
classes run the same plans, so this module contains everything that they share.
"""

import math
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from .connections import ServerClock
from .departed import Departed, Departure, Manner
from .errors import QueryError, UnsupportedQuery
from .identity import known_kind, normalize_id
from .parsers import duration, format_duration
from .rooms import Rooms
from .settings import Settings
from .stores import (
    History,
    Layout,
    Plan,
    Position,
    Sample,
    Shards,
    Sighting,
    Store,
    merge_plans,
    moment_of,
    run_all,
)

MAX_HISTORY_HOURS = 10 * 366 * 24  # the longest PRESENCE_HISTORY
MAX_AMONG = 1000  # ids of an iterator over events
MAX_SHOWN_CHARACTERS = 100  # of an invalid argument in an error
_READER_NAME = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_NO_IDS = (bool, bytearray, list, tuple, set, frozenset, dict)

T = TypeVar("T")
Id = str | int | bytes | UUID
Window = float | str | object


class Queries:
    """The queries of one site. `Presence` describes their arguments, results and errors."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: ServerClock,
        stores: Mapping[str, Shards],
        layout: Layout,
        history: History,
        departed: Departed,
        rooms: Rooms | None,
    ) -> None:
        """Create the queries on the given parts of a `Backend`."""
        self._clock, self._departed = clock, departed
        self._window = settings.window
        self._kinds = settings.kinds
        self._rooms, self._kinds_with_rooms = rooms, settings.kinds_with_rooms
        self._stores, self._layout, self._history = stores, layout, history
        self._lags = {kind: settings.lag_seconds(kind) or 0.0 for kind in settings.events}

    def now(self) -> Plan[float]:
        """Return the server's time for a read, in seconds since the epoch."""
        return (yield from self._clock.now())

    def count(self, kind: str | None, window: Window, room: str | None = None) -> Plan[int]:
        """Run `Presence.count` as a plan: same arguments, result and errors."""
        if room is not None:
            number = self._room_number(room, window=window)
            store = self._store_with_rooms(kind)
            now = yield from self.now()
            return (yield from self._checked(store.count_in_room(number, now)))
        store, seconds = self._store_and_seconds(kind, window)
        now = yield from self.now()
        return (yield from self._checked(store.count(now, seconds)))

    def counts(self, window: Window, room: str | None = None) -> Plan[dict[str, int]]:
        """Run `Presence.counts` as a plan: same arguments, result and errors."""
        if room is not None:
            return (yield from self._counts_in_room(self._room_number(room, window=window)))
        queried = [self._store_and_seconds(kind, window) for kind in self._kinds]
        now = yield from self.now()
        plans = [store.count(now, seconds) for store, seconds in queried]
        return dict(zip(self._kinds, (yield from self._checked(merge_plans(plans))), strict=True))

    def _counts_in_room(self, number: int) -> Plan[dict[str, int]]:
        now = yield from self.now()
        kinds = self._kinds_with_rooms
        plans = [self._stores[kind].count_in_room(number, now) for kind in kinds]
        return dict(zip(kinds, (yield from self._checked(merge_plans(plans))), strict=True))

    def online(
        self,
        kind: str | None,
        window: Window,
        limit: int | None,
        before: Sighting | None,
        room: str | None = None,
    ) -> Plan[list[Sighting]]:
        """Run `Presence.online` as a plan: same arguments, result and errors."""
        if room is not None:
            number = self._room_number(room, window=window, before=before)
            in_room, limit = self._store_with_rooms(kind), _checked_limit(limit)
            now = yield from self.now()
            return (yield from self._checked(in_room.online_in_room(number, now, limit)))
        store, seconds = self._store_and_seconds(kind, window)
        limit, before = _checked_limit(limit), _checked_page(before)
        now = yield from self.now()
        return (yield from self._checked(store.online(now, seconds, limit, before)))

    def is_online(self, id: Id, kind: str | None, window: Window) -> Plan[bool]:
        """Run `Presence.is_online` as a plan: same arguments, result and errors."""
        return bool((yield from self.online_among([id], kind, window)))

    def online_among(self, ids: Iterable[Id], kind: str | None, window: Window) -> Plan[list[str]]:
        """Run `Presence.online_among` as a plan: same arguments, result and errors."""
        store, seconds = self._store_and_seconds(kind, window)
        if not (stored_ids := _stored_ids(ids)):
            return []
        now = yield from self.now()
        online = yield from self._checked(store.online_among(stored_ids, now, seconds))
        return [sighting.id for sighting in online]

    def online_friends(self, key: str, kind: str | None, window: Window) -> Plan[list[str]]:
        """Run `Presence.online_friends` as a plan: same arguments, result and errors."""
        store, seconds = self._store_and_seconds(kind, window)
        if not _is_text(key):
            raise QueryError(f"key is {_shown(key)}: pass the name of a set or sorted set, as text")
        now = yield from self.now()
        online = yield from self._checked(store.online_friends(key, now, seconds))
        return [sighting.id for sighting in online]

    def last_seen(self, id: Id, kind: str | None) -> Plan[datetime | None]:
        """Run `Presence.last_seen` as a plan: same arguments, result and errors."""
        moments = yield from self.last_seen_among([id], kind)
        return next(iter(moments.values()))

    def last_seen_among(
        self, ids: Iterable[Id], kind: str | None
    ) -> Plan[dict[str, datetime | None]]:
        """Run `Presence.last_seen_among` as a plan: same arguments, result and errors."""
        store = self._stores[self._checked_kind(kind)]
        if not (stored_ids := _stored_ids(ids)):
            return {}
        now = yield from self.now()
        stamps = yield from self._checked(store.last_seen(stored_ids, now))
        return {id: moment_of(stamps[id]) if id in stamps else None for id in stored_ids}

    def watched(
        self, kind: str | None, among: Iterable[Id] | None
    ) -> tuple[str, frozenset[str] | None]:
        """Check the arguments of `events`; return the kind, and the ids that are followed."""
        kind = self._checked_kind(kind)
        if kind not in self._lags:
            kinds = ", ".join([*self._lags, kind])
            raise UnsupportedQuery(
                f"kind {kind!r} has no events: set PRESENCE_EVENTS={kinds} in all processes"
            )
        if among is None:
            return kind, None
        ids = _stored_ids(among, "among")
        if len(ids) > MAX_AMONG:
            raise QueryError(f"among has {len(ids)} ids: at most {MAX_AMONG} are possible")
        return kind, frozenset(ids)

    def announced(
        self, kind: str, lag: float, limit: int
    ) -> Plan[tuple[list[Position], list[Sighting]]]:
        """Return positions in the events of a kind, and who was online before the next events.

        The sightings are the newest, at most `limit`. An id stays announced for `lag` seconds
        after its window. Raises `PresenceUnavailable`, and `UnsupportedQuery` for a kind without
        events.
        """
        store = self._stores[self._checked_kind(kind)]
        # In this order: whoever comes or goes in between is announced after the positions, too.
        positions = yield from store.event_positions()
        now = yield from self.now()
        online = yield from self._checked(store.online(now, self._window + lag, limit, None))
        return positions, online

    def sweep_lag(self, kind: str) -> Plan[float | None]:
        """Return how late users of `kind` are announced to have gone, in seconds.

        They are announced when their window has ended and late writes have arrived. The lag is
        that of the slowest shard, at least 0; None if nothing was announced lately. Raises
        `UnsupportedQuery` if the kind has no events.
        """
        plans = [_first_announced(shard) for shard in self._stores[kind].all]
        now = yield from self.now()
        firsts = [first for first in (yield from merge_plans(plans)) if first is not None]
        if not firsts:
            return None
        return max(0.0, now - self._window - self._lags[kind] - min(firsts))

    def history(self, hours: float, kind: str | None) -> Plan[list[Sample]]:
        """Run `Presence.history` as a plan: same arguments, result and errors."""
        kind = self._checked_kind(kind)
        seconds = _seconds_of(hours)
        now = yield from self.now()
        return (yield from self._history.samples(kind, now - seconds, now))

    def peak(self, kind: str | None) -> Plan[Sample | None]:
        """Run `Presence.peak` as a plan: same arguments, result and errors."""
        return (yield from self._history.peak(self._checked_kind(kind)))

    def reset_peak(self, kind: str | None) -> Plan[None]:
        """Run `Presence.reset_peak` as a plan: same arguments, result and errors."""
        yield from self._history.reset_peak(self._checked_kind(kind))

    def touch(self, id: Id | None, kind: str | None) -> Plan[None]:
        """Run `Presence.touch` as a plan: same arguments, result and errors."""
        store = self._stores[self._checked_kind(kind)]
        if id is None:
            return
        stored_id = _stored_id(id)
        latest = yield from self._write_time()
        now = yield from self._clock.now()
        yield from store.shard_for(stored_id).touch(stored_id, now, latest)

    def leave(self, id: Id | None, kind: str | None) -> Plan[None]:
        """Run `Presence.leave` as a plan: same arguments, result and errors."""
        yield from self._depart(self.departing(id, kind), erase=False)

    def forget(self, id: Id | None, kind: str | None) -> Plan[None]:
        """Run `Presence.forget` as a plan: same arguments, result and errors."""
        yield from self._depart(self.departing(id, kind, erase=True), erase=True)

    def departing(
        self, id: Id | None, kind: str | None, *, erase: bool = False
    ) -> tuple[str, str] | None:
        """Check the arguments of `leave`, or of `forget` with `erase`; write nothing.

        Returns the kind and the id as they are stored, or None if `id` is None. Raises `QueryError`
        for an unknown kind or an invalid id, and `UnsupportedQuery` if the store cannot do it.
        """
        kind = self._checked_kind(kind)
        if id is None:
            return None
        stored_id = _stored_id(id)
        # A store that cannot do it raises before its plan starts.
        self._stores[kind].shard_for(stored_id).depart(stored_id, 0.0, erase=erase).close()
        return kind, stored_id

    def _depart(self, who: tuple[str, str] | None, *, erase: bool) -> Plan[None]:
        if who is None:
            return
        kind, id = who
        stamp = self._clock.stamp()
        latest = yield from self._write_time()
        moment = yield from (
            self._stores[kind]
            .shard_for(id)
            .depart(id, latest, is_server_time=self._clock.is_server_time, erase=erase)
        )
        self._departed.note(who, Departure(stamp, moment, Manner.FORGET if erase else Manner.LEAVE))

    def _checked(self, plan: Plan[T]) -> Plan[T]:
        """Run a read. Every few seconds, check `PRESENCE_SHARDS` in the same round trip."""
        stamp = self._clock.stamp()
        if self._layout.is_known(stamp):
            return (yield from plan)
        answer, problem = yield from run_all([plan, self._layout.check(stamp)])
        if isinstance(problem, Exception):
            if not self._layout.is_agreed:
                raise problem
            # The node with the number is away. The last answer remains valid.
            self._layout.trust(stamp)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    def _write_time(self) -> Plan[float]:
        """Return the server's time for a write, after checking `PRESENCE_SHARDS`."""
        stamp = self._clock.stamp()
        if not self._layout.is_known(stamp):
            yield from self._layout.claim(stamp)
        return (yield from self._clock.latest())

    def _store_and_seconds(self, kind: str | None, window: Window) -> tuple[Shards, float]:
        kind = self._checked_kind(kind)
        store = self._stores[kind]
        if window is None:
            return store, self._window
        try:
            seconds = duration(window)
        except (ValueError, OverflowError) as error:
            raise QueryError(f"window is {_shown(window)}: {error}") from None
        if seconds > store.keep_seconds:
            raise UnsupportedQuery(
                f"kind {kind!r} is stored for {format_duration(store.keep_seconds)}, not for "
                f"{format_duration(seconds)}: see PRESENCE_WINDOW and PRESENCE_RETENTION"
            )
        return store, seconds

    def _store_with_rooms(self, kind: str | None) -> Shards:
        kind = self._checked_kind(kind)
        if kind not in self._kinds_with_rooms:
            raise UnsupportedQuery(
                f"kind {kind!r} has no rooms: they need the store sorted-set, see PRESENCE_STORE"
            )
        return self._stores[kind]

    def _room_number(self, room: str, **others: object) -> int:
        """Return the number of a room. `others` are arguments that a room cannot have."""
        if not _is_text(room):
            raise QueryError(f"room is {_shown(room)}: pass the name of a room, or a path in it")
        for name, value in others.items():
            if value is not None:
                raise QueryError(f"{name} is {_shown(value)}: with room, pass no {name}")
        if self._rooms is None:
            raise UnsupportedQuery(
                "this site has no rooms: set PRESENCE_ROOMS to paths such as /t/{topic}/*, or to "
                "named for rooms that only visit.enter() names"
            )
        return self._rooms.number_of(room)

    def _checked_kind(self, kind: str | None) -> str:
        if kind is None:
            return self._kinds[0]
        if not isinstance(kind, str):
            raise QueryError(f"kind is {_shown(kind)}: pass {' or '.join(self._kinds)}")
        return known_kind(kind, self._kinds)


def _first_announced(shard: Store) -> Plan[float | None]:
    """Return the lowest last-seen time of those who are announced online, infinity if nobody is.

    Return None if nothing was announced lately.
    """
    cut = yield from shard.event_stream().cut()
    if cut is None:
        return None
    first = yield from shard.first_seen_after(cut)
    return math.inf if first is None else first


# Arguments may come from query strings and forms. An invalid argument raises `QueryError` here,
# before Redis is asked, so that it never looks like an invalid reply.


def checked_name(name: str) -> str:
    """Return the name of a reader of events. Raises `QueryError` if it is not valid."""
    if isinstance(name, str) and _READER_NAME.fullmatch(name):
        return name
    raise QueryError(
        f"name is {_shown(name)}: pass 1 to 64 letters, digits, or characters of _.:-, such as "
        "mailer"
    )


def _stored_id(id: Id) -> str:
    """Return an id as it is stored: bytes are decoded, and other values become their text."""
    if id is None or isinstance(id, _NO_IDS):
        raise QueryError(f"an id is {_shown(id)}: pass text that is not empty, or a number")
    try:
        stored = normalize_id(id.decode() if isinstance(id, bytes) else str(id))
    except Exception:
        raise QueryError(f"an id is {_shown(id)}, which has no text") from None
    if not stored:
        raise QueryError("an id is text that is not empty")
    return stored


def _stored_ids(ids: Iterable[Id], argument: str = "ids") -> list[str]:
    """Return the ids of an argument as they are stored, each once."""
    return list(dict.fromkeys(map(_stored_id, _checked_ids(ids, argument))))


def _checked_ids(ids: Iterable[Id], argument: str) -> Iterable[Id]:
    # A single text is iterable, too, but its letters are not the ids that the caller means.
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise QueryError(f"{argument} is {_shown(ids)}: pass several ids, such as a list")
    return ids


def _checked_limit(limit: int | None) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise QueryError(f"limit is {_shown(limit)}: pass at least 1, or None for everyone")
    return min(limit, sys.maxsize)


def _checked_page(before: Sighting | None) -> Sighting | None:
    if before is None:
        return None
    if isinstance(before, Sighting) and _is_text(before.id):
        last_seen = before.last_seen
        if last_seen is None or (isinstance(last_seen, datetime) and last_seen.tzinfo is not None):
            return before
    raise QueryError(f"before is {_shown(before)}: pass the last Sighting of a page")


def _seconds_of(hours: float) -> float:
    is_number = isinstance(hours, (int, float)) and not isinstance(hours, bool)
    if not is_number or not 0 < hours < math.inf:
        raise QueryError(f"hours is {_shown(hours)}: pass a number above zero, such as 24")
    return min(hours, MAX_HISTORY_HOURS) * 3600


def _is_text(value: object) -> bool:
    """Return whether a value is text that is not empty and can be sent to Redis."""
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False


def _shown(value: object) -> str:
    """Return a value for an error message, shortened, or its type if it cannot be shown."""
    try:
        shown = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    if len(shown) <= MAX_SHOWN_CHARACTERS:
        return shown
    return f"{shown[:MAX_SHOWN_CHARACTERS]}…"
