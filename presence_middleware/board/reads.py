"""The questions that the board asks Redis, as plans."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from ..queries import Queries
from ..stores import Plan, Sample, moment_of

LISTED = 100  # people of a kind, at most
SAMPLED = 10.0  # seconds that a peak is shared: it changes once a minute at most


class Read(NamedTuple):
    """A question whose result readers share."""

    question: Callable[..., Plan[Any]]
    arguments: tuple[Any, ...] = ()
    seconds: float = 1.0
    """How long the result is shared."""

    def plan(self, ask: Queries) -> Plan[Any]:
        """Return the plan that asks Redis."""
        return self.question(ask, *self.arguments)


class Dated(NamedTuple):
    """A reply, and the server's time at which it was read."""

    now: datetime
    reply: Any


def counts(ask: Queries) -> Plan[dict[str, int]]:
    """Count who is online, by kind."""
    return ask.counts(None)


def online(ask: Queries, kind: str) -> Plan[Dated]:
    """List the newest sightings of a kind."""
    now = moment_of((yield from ask.now()))
    return Dated(now, (yield from ask.online(kind, None, LISTED, None)))


def search(ask: Queries, kind: str, id: str, has_times: bool) -> Plan[Dated]:
    """Return whether an id is online, and when it was last seen if its store has times."""
    now = moment_of((yield from ask.now()))
    is_online = yield from ask.is_online(id, kind, None)
    last_seen = (yield from ask.last_seen(id, kind)) if has_times else None
    return Dated(now, (is_online, last_seen))


def peak(ask: Queries, kind: str) -> Plan[Sample | None]:
    """Return the highest sample of a kind."""
    return ask.peak(kind)
