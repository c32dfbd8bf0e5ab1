"""The interface of all stores, and the plans that they share.

All times are seconds since the epoch, by the server's clock.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import NamedTuple, Protocol

from ..errors import UnsupportedQuery
from . import keys
from .changes import Act, Departure, Seen, Written
from .events import EventStream
from .plan import Batch, Plan, score
from .record import NO_MOVES, Move, Recorded, Stamped, Write

CLAMPED_MEMBERS = 1000  # of each key in one call of `clamp_future_scores`


class Sighting(NamedTuple):
    """An id and its last-seen time."""

    id: str
    last_seen: datetime | None
    """In UTC; None if the store records no times."""


def moment_of(stamp: float) -> datetime:
    """Return seconds since the epoch as a datetime in UTC."""
    return datetime.fromtimestamp(stamp, UTC)


class Swept(NamedTuple):
    """The outcome of a sweep."""

    has_more: bool
    """True if there may be more ids that have gone."""
    went: int
    """The number of ids that were announced."""


class Store(Protocol):
    """The data of one kind of identity, or of one shard of it.

    A store is created with the prefix of its keys, the kind, `PRESENCE_WINDOW` and the retention
    of the kind in seconds, and the maximum number of members. Methods return plans. Methods that
    a store cannot support raise `UnsupportedQuery`.
    """

    name: str
    """The beginning of its keys."""
    ttl: int
    """The lifetime of its keys after a write, in seconds."""
    keep_seconds: float
    """The retention: an id can be queried for this long after its last sighting."""
    swept: int
    """The number of ids that sweeps of this process announced to have gone."""

    def record(
        self,
        sightings: Sequence[Stamped],
        write: Write | None = None,
        moves: Mapping[str, Move] = NO_MOVES,
    ) -> Plan[Recorded]:
        """Record sightings. With `write`, also note it, which later shows whether data was lost.

        `moves` are the rooms that some of the ids entered. A store without rooms ignores them.
        """

    def last_write(self, process: str) -> Plan[float | None]:
        """Return the moment of the last write of a process, or None if there is none."""

    def touch(self, id: str, now: float, latest: float) -> Plan[None]:
        """Record an id as seen at `now`, also if it left before.

        `now` and `latest` are the bounds of the server's time: the id is seen before all departures
        that are yet to come, and after all that there were. Raises `PresenceUnavailable` if there
        is no room.
        """

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None = None
    ) -> Plan[Written]:
        """Write what people did."""

    def count(self, now: float, window: float) -> Plan[int]:
        """Return how many ids were seen in the `window` seconds before `now`."""

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        """Return the ids seen in the window, newest first.

        `limit` is the most to return, None for all. `before` is the last sighting of the previous
        page.
        """

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        """Return the given ids that were seen in the window, in the given order."""

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        """Return the members of the set or sorted set `friends` that were seen in the window."""

    def last_seen(self, ids: Sequence[str], now: float) -> Plan[dict[str, float]]:
        """Return the last-seen times of ids, without those older than the retention."""

    def depart(
        self, id: str, moment: float, *, is_server_time: bool = True, erase: bool = False
    ) -> Plan[float]:
        """Take an id offline, or erase it; return the moment at which the departure counts.

        Sightings that arrived up to that moment are removed, and refused if they are written
        later. Newer sightings stay. With `is_server_time`, the moment is lowered to the server's
        clock.
        """

    def say_goodbye(self, id: str, moment: float, *, is_server_time: bool = True) -> Plan[float]:
        """Let the window of an id end soon, unless it is seen again; return when that counts.

        `is_server_time` is as for `depart`.
        """

    def as_sorted(self, sighting: Sighting) -> Plan[Sighting]:
        """Return a sighting of `as_seen` with the time by which `online` sorts it."""

    def as_seen(self, sightings: Sequence[Sighting]) -> Plan[list[Sighting]]:
        """Return sightings of `online` with the last-seen times that goodbyes have lowered."""

    def count_in_room(self, room: int, now: float) -> Plan[int]:
        """Return how many ids that are online were last seen in a room, by its number."""

    def online_in_room(self, room: int, now: float, limit: int | None) -> Plan[list[Sighting]]:
        """Return the ids that are online and were last seen in a room, sorted by id.

        `limit` is the most to return, None for all.
        """

    def first_seen_after(self, moment: float) -> Plan[float | None]:
        """Return the lowest last-seen time above `moment`, None if there is none or no times."""

    def sweep(self, now: float) -> Plan[Swept]:
        """Announce a bounded number of ids that have gone, and take them out of their rooms."""

    def event_stream(self) -> EventStream:
        """Return the stream of who comes and goes.

        Raises `UnsupportedQuery` if this is not announced.
        """

    def keys(self, now: float) -> list[str]:
        """Return the keys that contain the current data of the kind."""

    def keep_longer(self, seconds: float) -> None:
        """Remove nothing younger than `seconds`, because another process retains it so long."""

    def clean_up(self, now: float, *, is_server_time: bool = True) -> Plan[bool]:
        """Remove a bounded number of stale members; return whether there may be more.

        With `is_server_time`, members in the future were written before the server's clock was
        set back, and are moved to `now`. A clock that was passed as an argument may jump, so
        without `is_server_time` such members stay.
        """


class WithoutRooms:
    """The answers of a store that knows neither rooms nor goodbyes."""

    swept = 0
    is_server_time = True

    def write(self, seen, departures, write=None):
        def departs():
            for act, id, moment, _ in departures:
                if act is Act.GOODBYE:
                    yield from self.say_goodbye(
                        id, moment / 1e6, is_server_time=self.is_server_time
                    )
                else:
                    yield from self.depart(
                        id,
                        moment / 1e6,
                        is_server_time=self.is_server_time,
                        erase=act is Act.ERASED,
                    )

        first = type(self).__name__ == "MinuteSets"
        if first:
            yield from departs()
        stamped = [each[:3] for each in seen]
        moves = {each[0]: each[3] for each in seen if each[3] is not None}
        recorded = (yield from self.record(stamped, write, moves)) if stamped else Recorded()
        if not first:
            yield from departs()
        refused = [n for n, each in enumerate(seen) if each[0] in recorded.left]
        return Written(refused, recorded.full, recorded.wrote_before, recorded.came, recorded.went)

    def say_goodbye(self, id: str, moment: float, *, is_server_time: bool = True) -> Plan[float]:
        raise UnsupportedQuery("a goodbye needs a kind with the store sorted-set")

    def as_sorted(self, sighting: Sighting) -> Plan[Sighting]:
        yield from ()
        return sighting

    def as_seen(self, sightings: Sequence[Sighting]) -> Plan[list[Sighting]]:
        yield from ()
        return list(sightings)

    def first_seen_after(self, moment: float) -> Plan[float | None]:
        yield from ()
        return None

    def sweep(self, now: float) -> Plan[Swept]:
        raise UnsupportedQuery(NO_EVENTS)

    def event_stream(self) -> EventStream:
        raise UnsupportedQuery(NO_EVENTS)

    def count_in_room(self, room: int, now: float) -> Plan[int]:
        raise UnsupportedQuery(_NO_ROOMS)

    def online_in_room(self, room: int, now: float, limit: int | None) -> Plan[list[Sighting]]:
        raise UnsupportedQuery(_NO_ROOMS)


NO_EVENTS = "events need a kind of PRESENCE_EVENTS"
_NO_ROOMS = "rooms need PRESENCE_ROOMS, and a kind with the store sorted-set"


def last_write(writers: str, process: str) -> Plan[float | None]:
    """Return the moment of a process in the sorted set `writers`, or None."""
    (moment,) = yield Batch((("ZSCORE", writers, process),))
    return score(moment)


def clamp_future_scores(names: Sequence[str], now: float) -> Plan[bool]:
    """Lower scores ahead of `now` to `now`; return whether there may be more of them.

    `names` are the keys of sorted sets. Such members were written before the server's clock was
    set back. Without this they would stay online for too long, and departed ids could not return.
    Clocks may differ by `keys.SLACK`, so smaller differences are left alone.
    """
    ahead = (f"({now + keys.SLACK!r}", "BYSCORE", "REV", "LIMIT", 0, CLAMPED_MEMBERS)
    pages = yield Batch(tuple(("ZRANGE", name, "+inf", *ahead) for name in names))
    # Not all at the same moment: a sweep takes all members of a moment together.
    moves = tuple(
        (
            "ZADD",
            name,
            "XX",
            *chain.from_iterable((now - i * 1e-6, member) for i, member in enumerate(page)),
        )
        for name, page in zip(names, pages, strict=True)
        if page
    )
    if moves:
        yield Batch(moves)
    return any(len(page) == CLAMPED_MEMBERS for page in pages)
