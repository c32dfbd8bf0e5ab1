"""The interface of all stores: what people did, as they write it, and the plans that they share.

Times are seconds since the epoch by the server's clock. The moments of what people did are
microseconds.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from itertools import chain
from typing import Any, ClassVar, NamedTuple, NoReturn

from ..errors import PresenceUnavailable, UnsupportedQuery
from . import keys
from .agreement import SharedSettings
from .events import EventStream
from .plan import Argument, Batch, Plan, Script, as_seconds, pairs, score, texts, to_microseconds

CLEANED = 1000  # members of each key that a clean-up removes or lowers at once
_NO_EVENTS = "events need a kind of PRESENCE_EVENTS"
_NO_ROOMS = "rooms need PRESENCE_ROOMS, and a kind with the store sorted-set"


class Act(IntEnum):
    """What somebody did."""

    SEEN = 0
    """A request, or as a departure: the last departure of the id is undone."""
    GOODBYE = 1
    """A page was closed: the id is offline soon, unless another page or device is in use."""
    LEFT = 2
    """The user logged out: the id is offline at once."""
    ERASED = 3
    """The id is erased, and only a hash of it stays for a window."""


Move = tuple[int, int]
"""The number of the room that an id entered (0: it left its room), and the moment of that."""

Seen = tuple[str, int, int, Move | None]
"""An id, the moment at which it was seen, the moment at which it arrived, and the room it entered.

The moments differ for a connection that stays open: it is seen repeatedly but arrived once.
"""

Departure = tuple[Act, str, int, int | None]
"""An act, an id, the moment, and the last-seen time of the id if this process knows it.

The moment is an upper bound. The last-seen time is used if the server has lost it.
"""


class Write(NamedTuple):
    """A write of a process, noted in Redis so that the process notices lost data."""

    process: str
    moment: int
    previous: int | None = None
    """The moment of the last write that was answered; None if it need not be there any more.

    If the server has lost it, it notes none: its reply may get lost too, and the next shows the
    loss."""


class Written(NamedTuple):
    """The outcome of a write."""

    refused: Collection[str]
    """The ids that left, or were erased, after their sightings arrived."""
    full: int
    """The number of new ids refused because the kind has its maximum number of members."""
    wrote_before: float | None
    """The previous write of this process in the shard, in seconds since the epoch, or None."""
    came: int
    """The number of ids that the write announced to have come online."""
    went: int
    """The number of ids that the write announced to have gone offline."""
    has_more: bool = False
    """True if a sweep has left something to do."""


class Sighting(NamedTuple):
    """An id and its last-seen time."""

    id: str
    last_seen: datetime | None
    """In UTC; None if the store records no times."""


Ranked = tuple[bytes | str, Any]
"""An id and its last-seen time as a client returned them; None for the time if there is none."""


Rank = tuple[float, bytes]
"""A time and an id, as members of a sorted set are compared."""


def rank(ranked: Ranked) -> Rank:
    """Return the rank of an id with a time: the newer is greater, of equal times the greater id."""
    member, time = ranked
    return float(time), member if isinstance(member, bytes) else member.encode()


def moment_of(stamp: float) -> datetime:
    """Return seconds since the epoch as a datetime in UTC."""
    return datetime.fromtimestamp(stamp, UTC)


@dataclass(eq=False)
class Store(ABC):
    """The data of one kind of identity, or of one shard of it.

    Methods return plans. Methods that a store cannot support raise `UnsupportedQuery`. To create a
    store does no I/O.
    """

    prefix: str
    """The beginning of the keys of all kinds in this shard."""
    kind: str
    window: float
    """`PRESENCE_WINDOW` in seconds."""
    keep_seconds: float
    """The retention: an id can be queried for this long after its last sighting."""
    max_members: int
    is_server_time: bool = field(default=True, kw_only=True)
    """True if the clock of the server decides, and False if a clock was passed as an argument."""

    acts: ClassVar[Collection[Act]] = (Act.SEEN, Act.LEFT, Act.ERASED)
    """What it records of an id."""
    resolution: ClassVar[int] = 0
    """For how many seconds from its own a stored moment stands."""
    needs_sweep: bool = field(default=False, init=False)
    """True if its ids may be in rooms, say goodbye, or are announced."""
    lowered_by: float = field(default=0.0, init=False)
    """How many seconds before its moment a goodbye lowers the last-seen time."""
    min_period: float = field(default=0.0, init=False)
    """The shortest period for `active`, in seconds."""
    swept: int = field(default=0, init=False)
    """The number of ids that sweeps of this process announced to have gone."""

    def __post_init__(self) -> None:
        self.name = f"{self.prefix}:{self.kind}"
        """The beginning of its keys."""
        self.ttl = keys.ttl(self.keep_seconds)
        """The lifetime of its keys after a write, in seconds."""
        self.gone_after = self.window
        """After how many seconds without a sighting an id has gone."""
        self.key = keys.ShardKeys(self.prefix, self.kind)
        self._timed: tuple[str, ...] = (self.key.left,)
        """Its sorted sets by moments that must not lie ahead."""

    def _refuse(
        self, operation: str, alternative: str = "sorted-set and minute-sets can"
    ) -> NoReturn:
        """Raise `UnsupportedQuery`, because no ids are stored."""
        raise UnsupportedQuery(
            f"kind {self.kind!r} is stored as a hyperloglog, which cannot {operation}: "
            f"{alternative} (PRESENCE_STORE)"
        )

    @abstractmethod
    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None = None
    ) -> Plan[Written]:
        """Write sightings and departures. Whoever was seen after a departure stays online.

        A sighting is refused if its id left, or was erased, at its arrival or later. Departures are
        lowered to the server's clock if `is_server_time`. With `write`, also note the write, which
        later shows whether data was lost. A store ignores what it cannot store: rooms, goodbyes, or
        departures.
        """

    def check_departure(self, act: Act) -> None:
        """Raise `UnsupportedQuery` if ids cannot depart in this way. Write nothing."""
        if act not in self.acts:
            self._refuse("take an id offline")

    def last_write(self, process: str) -> Plan[float | None]:
        """Return the moment of the last write of a process, or None if there is none."""
        (moment,) = yield Batch((("ZSCORE", self.key.writers, process),))
        return score(moment)

    def touch(self, id: str, now: float, latest: float) -> Plan[None]:
        """Record an id as seen at `now`, also if it left before.

        `now` and `latest` are the bounds of the server's time: the id is seen before all departures
        that are yet to come, and it arrives after all that there were. Raises `PresenceUnavailable`
        if there is no room.
        """
        last = to_microseconds(latest)
        arrival = to_microseconds(latest + keys.SLACK)  # also after those of a clock that is ahead
        seen, undone = (id, to_microseconds(now), arrival, None), (Act.SEEN, id, last, None)
        written = yield from self.write([seen], [undone])
        if written.full:
            raise PresenceUnavailable(
                f"{self.name} has all the members that PRESENCE_MAX_MEMBERS allows, and all are "
                "online: raise PRESENCE_MAX_MEMBERS"
            )

    @abstractmethod
    def count(self, now: float, window: float) -> Plan[int]:
        """Return how many ids were seen in the `window` seconds before `now`."""

    def active(self, now: float, period: float) -> Plan[int]:
        """Return how many ids were seen in the `period` seconds before `now`, also who left since.

        By default, nobody who left is known.
        """
        return self.count(now, period)

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Ranked]]:
        """Return the ids seen in the window: newest first, or by id if the store has no times.

        `limit` is the most to return, None for all. `before` is the last sighting of the previous
        page. Only the ids that a caller uses are worth decoding.
        """
        self._refuse("list who is online")

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        """Return the given ids that were seen in the window, in the given order."""
        self._refuse("look up whether an id is online")

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        """Return the members of the set or sorted set `friends` that were seen in the window."""
        self._refuse("look up which friends are online")

    def last_seen(self, ids: Sequence[str], now: float) -> Plan[dict[str, float]]:
        """Return the last-seen times of ids, without those older than the retention."""
        self._refuse("look up when an id was seen", "sorted-set can, minute-sets to the minute")

    def goodbyes(self, ids: Sequence[str]) -> Plan[dict[str, float]]:
        """Return the true last-seen times of those ids that said goodbye.

        A goodbye lowers the time by which `online` sorts an id, to `lowered_by` before this. Asked
        only of a store that needs sweeps.
        """
        raise NotImplementedError

    def count_in_room(self, room: int, now: float) -> Plan[int]:
        """Return how many ids that are online were last seen in a room, by its number."""
        raise UnsupportedQuery(_NO_ROOMS)

    def online_in_room(self, room: int, now: float, limit: int | None) -> Plan[list[Sighting]]:
        """Return the ids that are online and were last seen in a room, sorted by id.

        `limit` is the most to return, None for all.
        """
        raise UnsupportedQuery(_NO_ROOMS)

    def first_seen_after(self, moment: float) -> Plan[float | None]:
        """Return the lowest last-seen time above `moment`, None if there is none or no times."""
        yield from ()
        return None

    def sweep(self, now: float) -> Plan[bool]:
        """Announce a bounded number of ids that have gone, and take them out of their rooms.

        Return whether there may be more.
        """
        raise UnsupportedQuery(_NO_EVENTS)

    def event_stream(self) -> EventStream:
        """Return the stream of who comes and goes.

        Raises `UnsupportedQuery` if this is not announced.
        """
        raise UnsupportedQuery(_NO_EVENTS)

    @abstractmethod
    def keys(self, now: float) -> list[str]:
        """Return the keys that contain the current data of the kind."""

    def keep_longer(self, seconds: float) -> None:
        """Remove nothing younger than `seconds`, because another process retains it so long."""
        self.ttl = keys.ttl(max(self.keep_seconds, seconds))

    def clean_up(self, now: float) -> Plan[bool]:
        """Remove a bounded number of stale members; return whether there may be more.

        If `is_server_time`, members in the future were written before the server's clock was set
        back, and are moved to `now`. A clock that was passed as an argument may jump, so then such
        members stay.
        """
        # Without this they would stay online for too long, and departed ids could not return.
        # Clocks may differ by `keys.SLACK`, so smaller differences are left alone.
        ahead = (f"({now + keys.SLACK!r}", "BYSCORE", "REV", "LIMIT", 0, CLEANED)
        names = self._timed if self.is_server_time else ()
        # Of processes that have ended. One that is idle and has a longer window would else notice a
        # loss, and write again whoever left since.
        silent_since = now - max(self.window, SharedSettings.EXPIRY_SECONDS) - 2 * keys.SLACK
        *pages, _ = yield Batch(
            (
                *(("ZRANGE", name, "+inf", *ahead) for name in names),
                ("ZREMRANGEBYSCORE", self.key.writers, "-inf", silent_since),
            )
        )
        # Not all at the same moment: a sweep takes all members of a moment together.
        lowered = tuple(
            ("ZADD", name, "XX", *chain(*((now - i * 1e-6, each) for i, each in enumerate(page))))
            for name, page in zip(names, pages, strict=True)
            if page
        )
        if lowered:
            yield Batch(lowered)
        has_more, _ = yield from self._remove_stale(self.key.gone, now)
        return has_more or any(len(page) == CLEANED for page in pages)

    def _remove_stale(self, name: str, now: float) -> Plan[tuple[bool, bool]]:
        """Remove stale members of a sorted set: about `CLEANED`, and all of a moment together.

        Return whether there may be more, and whether that emptied the set.
        """
        # Remove by score, never by rank: if two workers do this at once, the ranks have changed
        # for the second, which would remove ids that are online.
        # Nobody can ask for moments up to this one.
        cut = now - (self.ttl - keys.SLACK) - self.resolution
        limits = "LIMIT", CLEANED - 1, 1, "WITHSCORES"
        (last,) = yield Batch((("ZRANGE", name, "-inf", cut, "BYSCORE", *limits),))
        end = pairs(last)[0][1] if last else cut
        members, removed = yield Batch(
            (("ZCARD", name), ("ZREMRANGEBYSCORE", name, "-inf", end)), atomic=True
        )
        return bool(last), 0 < removed == members


class Part(NamedTuple):
    """A part of a write, in one command."""

    seen: Sequence[Seen]
    departures: Sequence[Departure]
    names: Sequence[str]
    """The keys of the script."""
    extra: Sequence[Argument] = ()
    """The last arguments, those of a sweep or of sightings in minute sets."""


class ScriptedStore(Store):
    """A store with a script that compares sightings with departures, and writes both."""

    has_rooms: bool = False
    _script: ClassVar[Script]

    def _send(self, parts: Sequence[Part], write: Write | None) -> Plan[Written]:
        """Send all parts of a write; return its outcome."""
        if not parts:
            return Written((), 0, None, 0, 0)
        calls: list[tuple[Sequence[str], Sequence[Argument]]] = []
        for seen, departures, names, extra in parts:
            ids, moments, arrivals, moves = zip(*seen, strict=True) if seen else ((), (), (), ())
            note = write or Write("", max([*moments, *(each[2] for each in departures)]))
            now = note.moment
            words: list[Argument] = []
            for id, moment in zip(ids, moments, strict=True):
                words += f"{moment}e-6", id
            for act, id, moment, last_seen in departures:
                known = "" if last_seen is None else as_seconds(last_seen)
                words += int(act), id, as_seconds(moment), known
            earliest = min(arrivals, default=now)
            for number, move in enumerate(moves if self.has_rooms else (), 1):
                if move is not None:
                    words.append(f"{number} {move[0]} {as_seconds(move[1])}")
                    earliest = min(earliest, move[1])
            head = (
                self.ttl,
                self.window,
                self.lowered_by,
                keys.SLACK,
                int(self.is_server_time),
                self.max_members,
                note.process,
                as_seconds(now - note.previous + 1) if note.previous else "",
                as_seconds(now),
                as_seconds(earliest),
                len(seen),
                len(departures),
                *(() if arrivals == moments else map(as_seconds, arrivals)),
            )
            header = " ".join(map(str, head))
            calls.append((names, (f"{header} ", *words, *extra)))
        replies = yield from self._script.run(*calls)
        refused, full, before, came, went, cuts, more = zip(*replies, strict=True)
        if any(cuts):
            self.event_stream().warn_of_size()
        who_left = frozenset(texts(chain(*refused)))
        return Written(who_left, sum(full), score(before[0]), sum(came), sum(went), any(more))
