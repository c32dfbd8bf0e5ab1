"""Who came online and who went offline, as the scripts of a `SweptSet` announce it. No I/O.

Each shard has a stream of its own. Its entries are numbered, so that a reader notices what it
missed: entries that were trimmed, or that a server lost.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import EventsLost
from . import keys
from .plan import Batch, Command, Plan, text

ENTRIES_A_READ = 1000


class Position(NamedTuple):
    """A place in the stream of a shard: the last entry that was read."""

    entry: str
    """The id of the entry in the stream."""
    number: int
    """The number of the entry; 0 if nothing was announced yet."""


class Change(NamedTuple):
    """An id that came online or went offline."""

    id: str
    is_online: bool
    moment: float
    """Since when it is online, or when it was last seen, in seconds since the epoch."""


class Reading(NamedTuple):
    """The outcome of reading a stream."""

    changes: list[Change]
    position: Position
    has_more: bool


class EventStream:
    """The stream of a kind in one shard."""

    def __init__(self, prefix: str, kind: str) -> None:
        """Create the stream of `kind` in the shard whose keys begin with `prefix`."""
        self._stream_key, self._edge_key = keys.events(prefix, kind), keys.edge(prefix, kind)

    def position(self) -> Plan[Position]:
        """Return the position after everything that was announced so far."""
        last, number = yield Batch(
            (("XREVRANGE", self._stream_key, "+", "-", "COUNT", 1), self._number_command),
            atomic=True,
        )
        return Position(text(last[0][0]) if last else "0", int(number or 0))

    def read(self, after: Position) -> Plan[Reading]:
        """Return what was announced after a position, at most `ENTRIES_A_READ` entries.

        Raises `EventsLost` if entries are missing, or if the server began anew.
        """
        entries, number = yield Batch(
            (
                ("XRANGE", self._stream_key, f"({after.entry}", "+", "COUNT", ENTRIES_A_READ),
                self._number_command,
            ),
            atomic=True,
        )
        changes: list[Change] = []
        expected = after.number
        for entry, reply in entries:
            (_, entry_number), *fields = _pairs(reply)
            expected += 1
            if int(entry_number) != expected:
                raise EventsLost("events are missing: they were trimmed, or the server lost them")
            after = Position(text(entry), expected)
            if text(fields[0][0]) != "reset":
                changes += map(_change, fields)
            elif expected > 1:
                raise EventsLost("the server lost who is online, or its clock was set back")
        has_more = len(entries) == ENTRIES_A_READ
        if not has_more and int(number or 0) != expected:
            raise EventsLost("events are missing: they were trimmed, or the server lost them")
        return Reading(changes, after, has_more)

    @property
    def _number_command(self) -> Command:
        return ("HGET", self._edge_key, "n")


def _pairs(reply: Any) -> Sequence[tuple[Any, Any]]:
    """Return the names and values of an entry. Clients reply with a mapping or a list."""
    if hasattr(reply, "items"):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))


def _change(field: Iterable[Any]) -> Change:
    name, moment = field
    name = text(name)
    return Change(name[1:], name[0] == "+", float(moment))
