"""What the board asks Redis, as plans."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from ..queries import Queries
from ..stores import Plan, Sample, moment_of

MOST = 100  # of a kind are shown
SAMPLED = 10.0  # seconds for which a history serves, to which each minute adds one number


class Read(NamedTuple):
    """A question that readers share, and for how many seconds its answer serves."""

    question: Callable[..., Plan[Any]]
    arguments: tuple[Any, ...] = ()
    seconds: float = 1.0

    def plan(self, ask: Queries) -> Plan[Any]:
        """What it takes to answer it."""
        return self.question(ask, *self.arguments)


class Found(NamedTuple):
    """What was found, and when, by the server's clock."""

    now: datetime
    what: Any


def counts(ask: Queries) -> Plan[dict[str, int]]:
    """How many of each kind are online."""
    return ask.counts(None)


def online(ask: Queries, kind: str) -> Plan[Found]:
    """Sightings of the newest of a kind."""
    now = moment_of((yield from ask.now()))
    return Found(now, (yield from ask.online(kind, None, MOST, None)))


def search(ask: Queries, kind: str, id: str, has_times: bool) -> Plan[Found]:
    """Whether one is online, and when last seen, where that is kept."""
    now = moment_of((yield from ask.now()))
    is_online = yield from ask.is_online(id, kind, None)
    last_seen = (yield from ask.last_seen(id, kind)) if has_times else None
    return Found(now, (is_online, last_seen))


def history(ask: Queries, kind: str, hours: float) -> Plan[Found]:
    """The samples of a kind."""
    now = moment_of((yield from ask.now()))
    return Found(now, (yield from ask.history(hours, kind)))


def peak(ask: Queries, kind: str) -> Plan[Sample | None]:
    """The most of a kind that there ever were."""
    return ask.peak(kind)
