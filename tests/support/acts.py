"""What people did, written to a store without a recorder; and any other command."""

from collections.abc import Iterable, Mapping
from typing import Any

from presence_middleware.stores import Act, Batch, Move, Plan, Store, Write, Written
from presence_middleware.stores.plan import to_microseconds

Stamped = tuple[str, int, int]
"""An id, when it was seen and when it arrived, in microseconds since the epoch."""


def record(
    store: Store,
    sightings: Iterable[Stamped],
    write: Write | None = None,
    moves: Mapping[str, Move] | None = None,
) -> Plan[Written]:
    """Write sightings, and the rooms that some of these ids entered."""
    return store.write([(*each, (moves or {}).get(each[0])) for each in sightings], (), write)


def depart(store: Store, act: Act, id: str, moment: float) -> Plan[Written]:
    """Write a departure, at a moment in seconds since the epoch."""
    return store.write((), [(act, id, to_microseconds(moment), None)])


def send(*command: Any) -> Plan[Any]:
    """Send a command, and return its reply."""
    (reply,) = yield Batch((command,))
    return reply
