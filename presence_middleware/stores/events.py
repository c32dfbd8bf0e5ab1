"""Who came online and who went offline, as the scripts of a `SortedSet` announce it. No I/O.

Each shard has a stream of its own. Its entries are numbered, so that a reader notices what it
missed: entries that were trimmed, or that a server lost.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import EventsLost
from . import keys
from .lease import Lease
from .plan import Batch, Command, Plan, score, text

ENTRIES_A_READ = 1000
TIME = "return redis.call('TIME')"
MISSING = "events are missing: the reader was away for too long, or the server lost them"


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


class Announcement(NamedTuple):
    """An entry of a stream: the changes that a script made at once."""

    position: Position
    changes: list[Change]


class Reading(NamedTuple):
    """The outcome of reading a stream."""

    announcements: list[Announcement]
    position: Position
    has_more: bool


class EventStream:
    """The stream of a kind in one shard."""

    def __init__(self, prefix: str, kind: str) -> None:
        """Create the stream of `kind` in the shard whose keys begin with `prefix`."""
        self._prefix, self._kind = prefix, kind
        self._stream_key, self._progress_key = (
            keys.events(prefix, kind),
            keys.progress(prefix, kind),
        )

    def lease(self, name: str) -> Lease:
        """Return the lease of those who read the events of this kind under `name`."""
        return Lease(self._prefix, self._kind, name)

    def cut(self) -> Plan[float | None]:
        """Return up to which last-seen time it was announced who has gone; None if nothing was."""
        (moment,) = yield Batch((("HGET", self._progress_key, "announced_until"),))
        return score(moment)

    def position(self, age: float) -> Plan[Position]:
        """Return the position after everything that was announced until `age` seconds ago."""
        # The clock of the node that wrote the entries: those of a Cluster may differ.
        ((seconds, microseconds),) = yield Batch((("EVAL", TIME, 1, self._stream_key),))
        since = int((int(seconds) + int(microseconds) / 1e6 - age) * 1000)
        last, following, number = yield Batch(
            (
                ("XREVRANGE", self._stream_key, f"({since}", "-", "COUNT", 1),
                ("XRANGE", self._stream_key, since, "+", "COUNT", 1),
                self._number_command,
            ),
            atomic=True,
        )
        if last:
            return Position(text(last[0][0]), _number(last[0]))
        return Position("0", _number(following[0]) - 1 if following else int(number or 0))

    def last_position(self) -> Plan[Position]:
        """Return the position after everything that was announced."""
        last, number = yield Batch(
            (("XREVRANGE", self._stream_key, "+", "-", "COUNT", 1), self._number_command),
            atomic=True,
        )
        return Position(text(last[0][0]) if last else "0", int(number or 0))

    def read(self, after: Position, until: Position | None = None) -> Plan[Reading]:
        """Return what was announced after a position, at most `ENTRIES_A_READ` entries.

        With `until`, return nothing that was announced after that position. Raises `EventsLost` if
        entries are missing, or if the server began again.
        """
        end = "+" if until is None else until.entry
        batch = Batch(
            (
                ("XRANGE", self._stream_key, f"({after.entry}", end, "COUNT", ENTRIES_A_READ),
                self._number_command,
            ),
            atomic=True,
        )
        entries, number = yield batch
        last = int(number or 0) if until is None else until.number
        end_number = _number(entries[-1]) if entries else after.number
        if end_number < last and len(entries) < ENTRIES_A_READ:
            # With `memory://`, a write of another thread may run amid a MULTI: look once more.
            entries, _ = yield batch
        is_ahead = after.number > last
        announcements: list[Announcement] = []
        for entry in entries:
            expected = after.number + 1
            if _number(entry) != expected:
                raise EventsLost(MISSING)
            after = Position(text(entry[0]), expected)
            _, *fields = _pairs(entry[1])
            if text(fields[0][0]) != "reset":
                announcements.append(Announcement(after, [_change(*field) for field in fields]))
            elif expected > 1:
                raise EventsLost("the server lost who is online, or its clock was set back")
        has_more = len(entries) == ENTRIES_A_READ
        if is_ahead or (not has_more and after.number < last):
            raise EventsLost(MISSING)
        return Reading(announcements, after, has_more)

    @property
    def _number_command(self) -> Command:
        return ("HGET", self._progress_key, "n")


def _pairs(reply: Any) -> Sequence[tuple[Any, Any]]:
    """Return the names and values of an entry. Clients reply with a mapping or a list."""
    if hasattr(reply, "items"):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))


def _number(entry: Any) -> int:
    """Return the number of an entry: the value of its first field."""
    return int(_pairs(entry[1])[0][1])


def _change(name: Any, moment: Any) -> Change:
    name = text(name)
    return Change(name[1:], name[0] == "+", float(moment))
