"""Who came online and who went offline, as the scripts of a `SortedSet` announce it. No I/O.

Each shard has a stream of its own. Its entries are numbered, so that a reader notices what it
missed: entries that were trimmed, or that a server lost. `presence.lua` describes an entry.
"""

import json
import math
import time
from typing import Any, NamedTuple

from ..logs import warn
from . import keys
from .plan import Batch, Plan, decoded, score, seconds_of

ENTRIES_A_READ = 100  # less than a millisecond of server time
ENTRY_BYTES = 32  # that are counted for each entry beside its changes
STREAM_SECONDS = 300
ROUND_TRIP = 0.02  # in which a server answers over an open connection
TIME = "return redis.call('TIME')"
RESET = "null"
NOBODY_BEFORE = "{}"


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
    packed: str
    """The changes as they are stored."""

    @property
    def changes(self) -> list[Change]:
        """The changes, decoded now."""
        words = json.loads(self.packed)
        return [
            Change(name[1:], name[0] == "+", float(moment))
            for name, moment in zip(words[::2], words[1::2], strict=True)
        ]


class EventPage(NamedTuple):
    """The outcome of reading a stream."""

    announcements: list[Announcement]
    position: Position
    has_more: bool
    is_lost: bool = False
    """True if entries before the position are missing."""


class EventStream:
    """The stream of a kind in one shard."""

    def __init__(self, key: keys.ShardKeys, kind: str) -> None:
        """Create the stream of `kind` in the shard with the keys `key`."""
        self._kind, self._warned_at = kind, -math.inf
        self._key, self._progress_key = key.changes, key.progress

    def warn_of_size(self) -> None:
        """Log, once a minute, that the stream is too large to hold five minutes."""
        if time.monotonic() < self._warned_at + 60:
            return
        self._warned_at = time.monotonic()
        warn(
            "the events of %s in the last five minutes are more than 64 MB in a shard, and the "
            "oldest are dropped: readers that are behind lose events; raise PRESENCE_SHARDS",
            self._kind,
        )

    def cut(self) -> Plan[float | None]:
        """Return up to which last-seen time it was announced who has gone; None if nothing was."""
        (moment,) = yield Batch((("HGET", self._progress_key, "announced_until"),))
        return score(moment)

    def seconds_left(self) -> Plan[float]:
        """Return after how many seconds a sweep has to remove the oldest entry."""
        now, first = yield Batch(
            (("EVAL", TIME, 1, self._key), ("XRANGE", self._key, "-", "+", "COUNT", 1))
        )
        if not first:
            return float(STREAM_SECONDS)
        return int(decoded(first[0][0]).partition("-")[0]) / 1000 + STREAM_SECONDS - seconds_of(now)

    def position(self, until: float = math.inf) -> Plan[Position]:
        """Return the position after everything that was announced until a moment.

        `until` is a time of `time.monotonic()`, by default now. Nothing after it is missed, so the
        position may lie as much earlier as the server takes to answer.
        """
        since = "+"
        for _ in range(0 if until == math.inf else 2):
            asked_at = time.monotonic()
            # The clock of the node that wrote the entries: those of a Cluster may differ.
            (now,) = yield Batch((("EVAL", TIME, 1, self._key),))
            answered_at = time.monotonic()
            since = str(int((seconds_of(now) - (answered_at - until)) * 1000))
            # The first question may have had to wait for a new connection.
            if answered_at - asked_at < ROUND_TRIP:
                break
        # In this order, an entry that is added between these commands comes after the position.
        number, last, following = yield Batch(
            (
                ("HGET", self._progress_key, "n"),
                ("XREVRANGE", self._key, since if since == "+" else f"({since}-0", "-", "COUNT", 1),
                ("XRANGE", self._key, since, "+", "COUNT", 1),
            )
        )
        # Without a number, nothing counts that is still stored.
        if number and last:
            return Position(decoded(last[0][0]), _fields(last[0])[0])
        if not (number and following):
            return Position("0", int(number or 0))
        number, packed = _fields(following[0])
        return Position("0", 0 if packed == NOBODY_BEFORE else number - _size(packed))

    def read(self, after: Position, until: Position | None = None) -> Plan[EventPage]:
        """Return what was announced after a position, at most `ENTRIES_A_READ` entries.

        Return nothing beyond `until` if `after` lies before it. If entries are missing, or if the
        server began again, the reading is lost.
        """
        end = until
        if end is None or end.number < after.number:
            (last,) = yield Batch((("HGET", self._progress_key, "n"),))
            number = int(last or 0)
            end = after if number == after.number else Position("+", number)
        if end.number == after.number:
            # If the entries differ, that of `after` was lost, and others have taken its number.
            is_lost = "0" not in (after.entry, end.entry) and after.entry != end.entry
            return EventPage([], end, has_more=False, is_lost=is_lost)
        command = ("XRANGE", self._key, f"({after.entry}", end.entry, "COUNT", ENTRIES_A_READ)
        (entries,) = yield Batch((command,))
        announcements: list[Announcement] = []
        has_more, is_lost = len(entries) == ENTRIES_A_READ, not entries
        for entry in entries:
            number, packed = _fields(entry)
            is_first = packed == NOBODY_BEFORE and after.number == 0
            follows = is_first or number == after.number + _size(packed)
            is_lost = is_lost or not follows or packed == RESET
            after = Position(decoded(entry[0]), number)
            if packed != NOBODY_BEFORE:
                announcements.append(Announcement(after, packed))
        if is_lost:
            end = until or (yield from self.position())
            return EventPage([], end, has_more=False, is_lost=True)
        return EventPage(announcements, after, has_more)


def _fields(entry: Any) -> tuple[int, str]:
    """Return the number of an entry, and its changes as they are stored."""
    fields = entry[1]
    # Clients reply with a mapping or a list.
    number, packed = next(iter(fields.items())) if hasattr(fields, "items") else fields
    return int(number), decoded(packed)


def _size(packed: str) -> int:
    return len(packed.encode()) + ENTRY_BYTES
