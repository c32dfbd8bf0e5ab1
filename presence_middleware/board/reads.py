"""The reads of the board, as plans."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from ..events import cursor_of
from ..queries import Queries
from ..stores import Plan, Sample, Sighting, moment_of

MAX_LISTED = 100  # ids of a kind
SAMPLED = 10.0  # seconds that a peak is shared, because it changes once a minute at most


class Read(NamedTuple):
    """A read whose result readers share."""

    question: Callable[..., Plan[Any]]
    arguments: tuple[Any, ...] = ()
    seconds: float = 1.0
    """The number of seconds for which the result is shared."""

    def plan(self, ask: Queries) -> Plan[Any]:
        """Return the plan that reads from Redis."""
        return self.question(ask, *self.arguments)


class Dated(NamedTuple):
    """A reply, and the server's time at which it was read."""

    now: datetime
    reply: Any


class Announced(NamedTuple):
    """Who was online, the server's time of the read, and the cursor of the next events."""

    now: datetime
    reply: list[Sighting]
    cursor: str


def counts(ask: Queries) -> Plan[dict[str, int]]:
    """Return how many are online, by kind."""
    return ask.counts()


def counts_in_room(ask: Queries, room: str) -> Plan[dict[str, int]]:
    """Return how many are online in a room, by kind."""
    return ask.counts(room=room)


def online(ask: Queries, kind: str) -> Plan[Dated]:
    """Return the newest sightings of a kind, at most `MAX_LISTED`."""
    now = moment_of((yield from ask.now()))
    return Dated(now, (yield from ask.online(kind, limit=MAX_LISTED)))


def announced(ask: Queries, kind: str, lag: float) -> Plan[Announced]:
    """Return the newest ids that were announced online, at most `MAX_LISTED`, and a cursor.

    `lag` is how long an id stays announced after its window, in seconds.
    """
    positions, sightings = yield from ask.announced(kind, lag, MAX_LISTED)
    now = moment_of((yield from ask.now()))
    return Announced(now, sightings, cursor_of(positions))


def search(ask: Queries, kind: str, id: str, has_times: bool) -> Plan[Dated]:
    """Return whether an id is online, and when it was last seen if its store has times."""
    now = moment_of((yield from ask.now()))
    is_online = yield from ask.is_online(id, kind)
    last_seen = (yield from ask.last_seen(id, kind)) if has_times else None
    return Dated(now, (is_online, last_seen))


def last_seen_among(ask: Queries, kind: str, ids: tuple[str, ...]) -> Plan[Dated]:
    """Return when each id was last seen."""
    now = moment_of((yield from ask.now()))
    return Dated(now, (yield from ask.last_seen_among(ids, kind)))


def peak(ask: Queries, kind: str) -> Plan[Sample | None]:
    """Return the highest sample of a kind."""
    return ask.peak(kind)
