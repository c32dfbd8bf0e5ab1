"""The queries of all readers, as plans.

Each query checks its arguments, asks for the time, and runs the plan of the kind's store. The
readers run the same plans and get their signatures and docstrings from here.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import Any, Protocol, TypeVar

from .connections.server import ServerClock
from .errors import QueryError, UnsupportedQuery
from .identity.ids import Id, Who, quoted, stored_id
from .identity.rules import known_kind
from .parsers import duration, format_duration
from .rooms import Rooms
from .settings import Settings
from .stores import Act, History, Plan, Position, Sample, Shards, Sighting, Store
from .stores.agreement import Layout
from .stores.plan import merge_plans, to_microseconds
from .stores.store import moment_of

PERIODS = "1d", "7d", "30d"  # for which sites ask how many were active
MAX_HISTORY_HOURS = 10 * 366 * 24  # the longest PRESENCE_HISTORY
MAX_AMONG = 1000  # ids of an iterator over events
_READER_NAME = re.compile(r"[\w.:-]{1,64}", re.ASCII)

T = TypeVar("T")


class Informed(Protocol):
    """Whoever must know who left, or was touched after it: what readers use of a recorder."""

    def departed(self, who: Who, act: Act, at: float, moment: int) -> None: ...
    def touched(self, who: Who) -> None: ...


Window = float | str | timedelta | None


# Arguments may come from query strings and forms. An invalid argument raises `QueryError` here,
# before Redis is asked, so that it never looks like an invalid reply.


@dataclass(eq=False, repr=False)
class Arguments:
    """What the arguments of queries mean on one site. One that is not valid raises `QueryError`."""

    settings: Settings
    stores: Mapping[str, Shards]
    """By kind. The first kind is the default of each query."""
    rooms: Rooms | None

    def kind(self, kind: str | None) -> str:
        """Return a kind, by default the first of the site. Raises `QueryError` for others."""
        if kind is None:
            return next(iter(self.stores))
        return known_kind(kind, tuple(self.stores))

    def _store_and_seconds(
        self, kind: str | None, window: Window, argument: str = "window"
    ) -> tuple[Shards, float]:
        """Return the store of a kind and a window in seconds, by default `PRESENCE_WINDOW`."""
        kind = self.kind(kind)
        store = self.stores[kind]
        if window is None:
            return store, self.settings.window
        try:
            seconds = duration(window)
        except ValueError as error:
            raise QueryError(f"{argument} is {quoted(window)}: pass {error}") from None
        if seconds > store.keep_seconds:
            raise UnsupportedQuery(
                f"kind {kind!r} is stored for {format_duration(store.keep_seconds)}, not for "
                f"{format_duration(seconds)}: see PRESENCE_WINDOW and PRESENCE_RETENTION"
            )
        return store, seconds

    def _counter(
        self, kind: str | None, window: Window, room: str | None
    ) -> Callable[[float], Plan[int]]:
        """Return what counts the ids of a kind at a time: in a window, or in a room."""
        if room is not None:
            number = self._room_number(room, window=window)
            return partial(self._store_with_rooms(kind).count_in_room, number)
        store, seconds = self._store_and_seconds(kind, window)
        return partial(store.count, window=seconds)

    def _store_with_rooms(self, kind: str | None) -> Shards:
        """Return the store of a kind whose ids may be in rooms."""
        kind = self.kind(kind)
        if kind not in self.settings.kinds_with_rooms:
            raise UnsupportedQuery(
                f"kind {kind!r} has no rooms: they need the store sorted-set, see PRESENCE_STORE"
            )
        return self.stores[kind]

    def _room_number(self, room: str, **others: object) -> int:
        """Return the number of a room, with which no `others` are valid."""
        if not is_text(room):
            raise QueryError(f"room is {quoted(room)}: pass the name of a room, or a path in it")
        for name, value in others.items():
            if value is not None:
                raise QueryError(f"{name} is {quoted(value)}: with room, pass no {name}")
        if self.rooms is None:
            raise UnsupportedQuery(
                "this site has no rooms: set PRESENCE_ROOMS to paths such as /t/{topic}/*, or to "
                "named for rooms that only visit.enter() names"
            )
        return self.rooms.number_of(room)


@dataclass(eq=False, repr=False)
class Queries(Arguments):
    """The queries of one site.

    A method returns a plan. Its docstring is that of the method of the readers, and describes the
    result and the errors of the plan.
    """

    clock: ServerClock
    layout: Layout
    samples: History
    departures: Iterable[Informed]
    """Whoever must know who left."""

    def count(
        self, kind: str | None = None, *, window: Window = None, room: str | None = None
    ) -> Plan[int]:
        """Return the number of ids online.

        `kind` is the kind to count, by default the first of `PRESENCE_IDENTITY`. `window` counts
        the ids seen in the last seconds, by default `PRESENCE_WINDOW`; it may also be a timedelta
        or text such as `"15m"`. `room` counts the ids that were last seen in a room: its name, or
        any path in it. A room has no other `window`.

        Raises `PresenceUnavailable`, `QueryError`, and `UnsupportedQuery` if the window is longer
        than the retention of the kind, or the kind has no rooms.
        """
        return self._read(self._counter(kind, window, room))

    def counts(self, *, window: Window = None, room: str | None = None) -> Plan[dict[str, int]]:
        """Return the number of ids online of each kind, by kind.

        `window` counts the ids seen in the last seconds, by default `PRESENCE_WINDOW`; it may also
        be a timedelta or text such as `"15m"`. `room` counts the ids that were last seen in a room:
        its name, or any path in it. Kinds that cannot be in rooms are left out then, and the room
        has no other `window`.

        Raises `PresenceUnavailable`, `QueryError`, and `UnsupportedQuery` if the window is longer
        than the retention of a kind, or the site has no rooms.
        """
        kinds = tuple(self.stores)
        if room is not None:  # without rooms, the first kind raises the error
            kinds = self.settings.kinds_with_rooms or kinds
        counters = [self._counter(kind, window, room) for kind in kinds]
        counts = yield from self._read(lambda now: merge_plans([count(now) for count in counters]))
        return dict(zip(kinds, counts, strict=True))

    def active(self, period: Window = "1d", kind: str | None = None) -> Plan[int]:
        """Return how many ids were seen in a period, each once: also those who logged out since.

        `period` is seconds, a timedelta, or text such as `"1d"`, `"7d"` or `"30d"`. `kind` is by
        default the first of `PRESENCE_IDENTITY`. Ids that were erased do not count.

        Raises `PresenceUnavailable`, `QueryError`, and `UnsupportedQuery` if the period is longer
        than the retention of the kind, or shorter than two windows.
        """
        store, seconds = self._store_and_seconds(kind, period, "period")
        return self._read(partial(store.active, period=seconds))

    def active_in_periods(self, kind: str) -> Plan[dict[str, int]]:
        """Return how many were active in each of `PERIODS` that a kind can answer."""
        store = self.stores[self.kind(kind)]
        longest = store.keep_seconds
        periods = [each for each in PERIODS if store.min_period <= duration(each) <= longest]
        numbers = yield from merge_plans([self.active(period, kind) for period in periods])
        return dict(zip(periods, numbers, strict=True))

    def online(
        self,
        kind: str | None = None,
        *,
        limit: int | None = 100,
        before: Sighting | None = None,
        window: Window = None,
        room: str | None = None,
    ) -> Plan[list[Sighting]]:
        """Return who is online, newest first. A store without times sorts by id.

        `kind` is by default the first of `PRESENCE_IDENTITY`. `limit` is the most to return, None
        for all. `before` is the last `Sighting` of the previous page, to read the next page.
        `window` returns the ids seen in the last seconds, by default `PRESENCE_WINDOW`; it may also
        be a timedelta or text such as `"15m"`. `room` returns the ids that were last seen in a
        room: its name, or any path in it. They are sorted by id and have no pages, so `before` and
        `window` must be None.

        Raises `PresenceUnavailable`, `QueryError`, and `UnsupportedQuery` if the store has no ids,
        the window is longer than the retention of the kind, or the kind has no rooms.
        """
        if limit is not None:
            if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
                raise QueryError(f"limit is {quoted(limit)}: pass at least 1, or None for everyone")
            limit = min(limit, sys.maxsize)
        if room is not None:
            number = self._room_number(room, window=window, before=before)
            in_room = self._store_with_rooms(kind).online_in_room
            return self._read(partial(in_room, number, limit=limit))
        store, seconds = self._store_and_seconds(kind, window)
        match before:
            case None:
                pass
            case Sighting(id, None | datetime(tzinfo=tzinfo())) if is_text(id):
                pass
            case _:
                raise QueryError(f"before is {quoted(before)}: pass the last Sighting of a page")
        return self._read(partial(store.online, window=seconds, limit=limit, before=before))

    def is_online(self, id: Id, kind: str | None = None, *, window: Window = None) -> Plan[bool]:
        """Return whether `id` is online.

        `id` is text or a value with a text, such as an int, bytes or a UUID. `kind` is by default
        the first of `PRESENCE_IDENTITY`. `window` is how many seconds ago the id was seen at most,
        by default `PRESENCE_WINDOW`; it may also be a timedelta or text such as `"15m"`.

        Raises `PresenceUnavailable`, `QueryError`, and `UnsupportedQuery` if the store has no ids,
        or the window is longer than the retention of the kind.
        """
        return bool((yield from self.online_among([id], kind, window=window)))

    def last_seen(self, id: Id, kind: str | None = None) -> Plan[datetime | None]:
        """Return when `id` was last seen, in UTC, also if it is offline.

        Returns None if that is longer ago than the retention of the kind. `id` is text or a value
        with a text, such as an int, bytes or a UUID. `kind` is by default the first of
        `PRESENCE_IDENTITY`.

        Raises `PresenceUnavailable`, `QueryError`, and `UnsupportedQuery` if the store has no ids.
        """
        moments = yield from self.last_seen_among([id], kind)
        return next(iter(moments.values()))

    def last_seen_among(
        self, ids: Iterable[Id], kind: str | None = None
    ) -> Plan[dict[str, datetime | None]]:
        """Return when each of `ids` was last seen, in their order, in one round trip.

        The keys are the ids as text. A value is a time in UTC, or None if it is longer ago than the
        retention of the kind. `ids` are texts or values with a text, such as ints, bytes or UUIDs.
        `kind` is by default the first of `PRESENCE_IDENTITY`.

        Raises `PresenceUnavailable`, `QueryError`, and `UnsupportedQuery` if the store has no ids.
        """
        store = self.stores[self.kind(kind)]
        if not (stored_ids := _stored_ids(ids)):
            return {}
        stamps = yield from self._read(partial(store.last_seen, stored_ids))
        return {id: moment_of(stamps[id]) if id in stamps else None for id in stored_ids}

    def online_among(
        self, ids: Iterable[Id], kind: str | None = None, *, window: Window = None
    ) -> Plan[list[str]]:
        """Return which of `ids` are online, as text, in their order, in one round trip.

        `ids` are texts or values with a text, such as ints, bytes or UUIDs. `kind` is by default
        the first of `PRESENCE_IDENTITY`. `window` is how many seconds ago an id was seen at most,
        by default `PRESENCE_WINDOW`; it may also be a timedelta or text such as `"15m"`.

        Raises `PresenceUnavailable`, `QueryError`, and `UnsupportedQuery` if the store has no ids,
        or the window is longer than the retention of the kind.
        """
        store, seconds = self._store_and_seconds(kind, window)
        if not (stored_ids := _stored_ids(ids)):
            return []
        online = yield from self._read(partial(store.online_among, stored_ids, window=seconds))
        return [sighting.id for sighting in online]

    def online_friends(
        self, key: str, kind: str | None = None, *, window: Window = None
    ) -> Plan[list[str]]:
        """Return which members of a set of the site are online, newest first, in one read.

        `key` is the Redis key of a set or sorted set of ids. On a Cluster, a key in the slot of the
        kind is read fastest. `kind` is by default the first of `PRESENCE_IDENTITY`. `window` is how
        many seconds ago a member was seen at most, by default `PRESENCE_WINDOW`; it may also be a
        timedelta or text such as `"15m"`.

        Raises `PresenceUnavailable`, `QueryError` also if the key has another type, and
        `UnsupportedQuery` if the store has no ids, or the window is longer than the retention of
        the kind.
        """
        store, seconds = self._store_and_seconds(kind, window)
        if not is_text(key):
            raise QueryError(f"key is {quoted(key)}: pass the name of a set or sorted set, as text")
        online = yield from self._read(partial(store.online_friends, key, window=seconds))
        return [sighting.id for sighting in online]

    def watched(
        self, kind: str | None, among: Iterable[Id] | None
    ) -> tuple[str, frozenset[str] | None]:
        """Check the arguments of `events`; return the kind, and the ids that are followed."""
        kind = self.kind(kind)
        if kind not in self.settings.events:
            kinds = ", ".join([*self.settings.events, kind])
            has_ids = self.settings.store_of(kind) == "sorted-set"
            store = "" if has_ids else f", and {kind}=sorted-set in PRESENCE_STORE,"
            raise UnsupportedQuery(
                f"kind {kind!r} has no events: set PRESENCE_EVENTS={kinds}{store} in all processes"
            )
        if among is None:
            return kind, None
        ids = _stored_ids(among, "among")
        if len(ids) > MAX_AMONG:
            raise QueryError(f"among has {len(ids)} ids: at most {MAX_AMONG} are possible")
        return kind, frozenset(ids)

    def announced(self, kind: str, limit: int) -> Plan[tuple[list[Position], list[Sighting]]]:
        """Return positions in the events of a kind, and who was online before the next events.

        The sightings are the newest, at most `limit`. An id stays announced for some seconds after
        its window. Raises `PresenceUnavailable`, and `UnsupportedQuery` for a kind without
        events.
        """
        store = self.stores[self.kind(kind)]
        # In this order: whoever comes or goes in between is announced after the positions, too.
        asked = [shard.event_stream().position() for shard in store.all]
        positions = yield from merge_plans(asked)
        ask = partial(store.online, window=store.gone_after, limit=limit, before=None)
        return positions, (yield from self._read(ask))

    def sweep_lag(self, kind: str) -> Plan[float | None]:
        """Return how late users of `kind` are announced to have gone, in seconds.

        They are announced when their window has ended and late writes have arrived. The lag is
        that of the slowest shard, at least 0; None if nothing was announced lately. Raises
        `UnsupportedQuery` if the kind has no events.
        """
        store = self.stores[kind]
        plans = [_first_announced(shard) for shard in store.all]
        now = yield from self.clock.now()
        firsts = [first for first in (yield from merge_plans(plans)) if first is not None]
        return max(0.0, now - store.gone_after - min(firsts)) if firsts else None

    def history(self, hours: float = 24, kind: str | None = None) -> Plan[list[Sample]]:
        """Return how many ids were online in each sampled minute, oldest first.

        `hours` is how far to look back, any number above zero; samples older than
        `PRESENCE_HISTORY` are gone. Minutes without a sample are left out. `kind` is by default the
        first of `PRESENCE_IDENTITY`. Raises `PresenceUnavailable` and `QueryError`.
        """
        kind = self.kind(kind)
        is_number = isinstance(hours, (int, float)) and not isinstance(hours, bool)
        if not is_number or not 0 < hours < math.inf:
            raise QueryError(f"hours is {quoted(hours)}: pass a number above zero, such as 24")
        now = yield from self.clock.now()
        since = now - min(hours, MAX_HISTORY_HOURS) * 3600
        return (yield from self.samples.samples(kind, since, now))

    def peak(self, kind: str | None = None) -> Plan[Sample | None]:
        """Return the highest sample since the last reset, or None before the first sample.

        `kind` is by default the first of `PRESENCE_IDENTITY`. Raises `PresenceUnavailable` and
        `QueryError`.
        """
        return self.samples.peak(self.kind(kind))

    def reset_peak(self, kind: str | None = None) -> Plan[None]:
        """Delete the peak; the next sample becomes the peak.

        `kind` is by default the first of `PRESENCE_IDENTITY`. Raises `PresenceUnavailable` and
        `QueryError`.
        """
        return self.samples.reset_peak(self.kind(kind))

    def touch(self, id: Id | None, kind: str | None = None) -> Plan[None]:
        """Record `id` as seen now, for activity without a request.

        `id` is text or a value with a text, such as an int, bytes or a UUID; None is ignored.
        `kind` is by default the first of `PRESENCE_IDENTITY`. Raises `QueryError`, and
        `PresenceUnavailable` also if the kind has `PRESENCE_MAX_MEMBERS` members.
        """
        kind = self.kind(kind)
        if id is None:
            return
        stored = stored_id(id)
        latest = yield from self._write_time()
        now = yield from self.clock.now()
        yield from self.stores[kind].shard_for(stored).touch(stored, now, latest)
        for recorder in self.departures:
            recorder.touched((kind, stored))

    def leave(self, id: Id | None, kind: str | None = None) -> Plan[None]:
        """Take `id` offline at once, on all processes.

        Requests from before no longer count, and open connections stop counting until their
        handler calls `identify` again. `id` is text or a value with a text, such as an int, bytes
        or a UUID; None is ignored. `kind` is by default the first of `PRESENCE_IDENTITY`.

        Raises `QueryError`, `UnsupportedQuery` if the store cannot do it, and
        `PresenceUnavailable`. The reader of a request never raises the last: if Redis does not
        answer, the departure waits with the sightings.
        """
        return self._depart(id, kind, Act.LEFT)

    def forget(self, id: Id | None, kind: str | None = None) -> Plan[None]:
        """Erase `id` with its last-seen time.

        Requests from before and connections that are still open do not record it again. `id` is
        text or a value with a text, such as an int, bytes or a UUID; None is ignored. `kind` is by
        default the first of `PRESENCE_IDENTITY`.

        Raises `QueryError`, `UnsupportedQuery` if the store cannot do it, and
        `PresenceUnavailable`. The reader of a request never raises the last: if Redis does not
        answer, the erasure waits with the sightings.
        """
        return self._depart(id, kind, Act.ERASED)

    def departing(self, id: Id | None, kind: str | None, act: Act) -> tuple[str, str] | None:
        """Check the arguments of `leave`, or of `forget` for `Act.ERASED`; write nothing.

        Returns the kind and the id as they are stored, or None if `id` is None. Raises `QueryError`
        for an unknown kind or an invalid id, and `UnsupportedQuery` if the store cannot do it.
        """
        kind = self.kind(kind)
        if id is None:
            return None
        stored = stored_id(id)
        self.stores[kind].shard_for(stored).check_departure(act)
        return kind, stored

    def _depart(self, id: Id | None, kind: str | None, act: Act) -> Plan[None]:
        who = self.departing(id, kind, act)
        if who is None:
            return
        kind, stored = who
        stamp = self.clock.stamp()
        moment = to_microseconds((yield from self._write_time()))
        shard = self.stores[kind].shard_for(stored)
        yield from shard.write((), [(act, stored, moment, None)])
        for recorder in self.departures:
            recorder.departed(who, act, stamp, moment)

    def _read(self, ask: Callable[[float], Plan[T]]) -> Plan[T]:
        """Run the plan that `ask` returns for the server's time.

        Every few seconds, check `PRESENCE_SHARDS` in the same round trip.
        """
        plan = ask((yield from self.clock.now()))
        stamp = self.clock.stamp()
        if stamp <= self.layout.known_until:
            return (yield from plan)
        checks: list[Plan[Any]] = [self.layout.check(stamp), plan]
        _, answer = yield from merge_plans(checks)
        return answer  # type: ignore[no-any-return]

    def _write_time(self) -> Plan[float]:
        """Return the server's time for a write, after checking `PRESENCE_SHARDS`."""
        stamp = self.clock.stamp()
        if stamp > self.layout.known_until:
            yield from self.layout.claim(stamp)
        return (yield from self.clock.latest())


def _first_announced(shard: Store) -> Plan[float | None]:
    """Return the lowest last-seen time of those who are announced online, infinity if nobody is.

    Return None if nothing was announced lately.
    """
    cut = yield from shard.event_stream().cut()
    if cut is None:
        return None
    first = yield from shard.first_seen_after(cut)
    return math.inf if first is None else first


def checked_name(name: str) -> str:
    """Return the name of a reader of events. Raises `QueryError` if it is not valid."""
    if isinstance(name, str) and _READER_NAME.fullmatch(name):
        return name
    raise QueryError(
        f"name is {quoted(name)}: pass 1 to 64 letters, digits, or characters of _.:-, such as "
        "mailer"
    )


def _stored_ids(ids: Iterable[Id], argument: str = "ids") -> list[str]:
    """Return the ids of an argument as they are stored, each once."""
    # A single text is iterable, too, but its letters are not the ids that the caller means.
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise QueryError(f"{argument} is {quoted(ids)}: pass several ids, such as a list")
    return list(dict.fromkeys(map(stored_id, ids)))


def is_text(value: object) -> bool:
    """Return whether a value is text that is not empty and can be sent to Redis."""
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False
