"""The streams of a kind in all shards, read as events, and the page of the newest of them."""

import math
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, TypeVar

from ..connections.drivers import Driver
from ..errors import QueryError
from ..stores import Plan, Shards, merge_plans, moment_of, run_all
from ..stores.events import STREAM_SECONDS, Announcement, EventStream, Position
from ..stores.plan import first_error

CHUNK_BYTES = 10_000  # about 250 events: less than a millisecond of an event loop
ENTRY_OVERHEAD = 200  # that an entry takes in memory beside its changes
PAGE_BYTES = 4_000_000  # about 100,000 events in entries of many
DECODED_CHUNKS = 16  # at most 4,000 events: the garbage collector looks at each

# At most 19 digits, because a server refuses ids of entries that have more than 64 bits.
_POSITION = r"[0-9]{1,19}(?:-[0-9]{1,19})?\.[0-9]{1,16}"
_CURSOR = re.compile(f"{_POSITION}(?:,{_POSITION})*")

Positions = tuple[Position, ...]
"""A place in the events of a kind: the position in the stream of each shard."""
T = TypeVar("T")


class Event(NamedTuple):
    """A user who came online or went offline."""

    kind: str
    id: str
    online: bool
    """True if the user came, False if they went."""
    at: datetime
    """When the user was first seen again, or last seen, in UTC."""
    cursor: str
    """The place from which `events(after=cursor)` goes on."""


def cursor_of(positions: Sequence[Position]) -> str:
    """Return the cursor of the positions in all shards."""
    return ",".join(f"{position.entry}.{position.number}" for position in positions)


class Chunk:
    """Entries of the streams that an iterator takes at once, as the events in them.

    The entries are decoded when the events are asked for.
    """

    def __init__(self, kind: str, start: Positions, *, is_lost: bool = False) -> None:
        """Create a chunk without entries, after `start`.

        With `is_lost`, it stands for the events before `start`, which are missing.
        """
        self.kind, self.start, self.end, self.is_lost = kind, start, start, is_lost
        self.read_at = time.monotonic()
        self.size = 0
        """How much memory it takes, in bytes."""
        self._entries: list[tuple[int, Announcement]] = []
        """The shard of each entry, and the entry."""

    def add(self, shard: int, entry: Announcement) -> None:
        """Add an entry of a shard."""
        self._entries.append((shard, entry))
        self.end = (*self.end[:shard], entry.position, *self.end[shard + 1 :])
        self.size += len(entry.packed) + ENTRY_OVERHEAD

    def __iter__(self) -> Iterator[Event]:
        """Yield each event, made now.

        Events that are kept, even for a second, let the garbage collector look at every object of
        the process sooner: that stops an event loop for longer than all else here.
        """
        positions = list(self.start)
        for shard, entry in self._entries:
            # Whoever goes on within an entry gets the whole entry again, rather than miss some.
            before = cursor_of(positions)
            positions[shard] = entry.position
            *changes, last = entry.changes
            for id, is_online, moment in changes:
                yield Event(self.kind, id, is_online, moment_of(moment), before)
            id, is_online, moment = last
            yield Event(self.kind, id, is_online, moment_of(moment), cursor_of(positions))


@lru_cache(maxsize=DECODED_CHUNKS)
def events_of(chunk: Chunk) -> list[Event]:
    """Return the events of a chunk. All iterators share what was decoded last."""
    return list(chunk)


@lru_cache(maxsize=64)
def ids_of(chunk: Chunk) -> frozenset[str]:
    """Return the ids of the events of a chunk."""
    return frozenset(event.id for event in chunk)


class Read(NamedTuple):
    """The outcome of reading the streams of all shards."""

    chunks: list[Chunk]
    end: Positions
    has_more: bool


class Streams:
    """Reads the streams of a kind."""

    def __init__(self, kind: str, shards: Shards, driver: Driver) -> None:
        """Create the streams of `kind`. Raises `UnsupportedQuery` if it announces nobody."""
        self.kind, self._driver = kind, driver
        self.prefix = shards.all[0].prefix
        self._streams: list[EventStream] = [shard.event_stream() for shard in shards.all]

    def run(self, plan: Plan[T]) -> T:
        """Run a plan. Raises `PresenceUnavailable`."""
        return self._driver.run(plan)

    def positions(self, until: float = math.inf) -> Positions:
        """Return the positions of all shards at a moment. Raises if a shard is away."""
        plans = [stream.position(until) for stream in self._streams]
        return tuple(self.run(merge_plans(plans)))

    def parse_cursor(self, cursor: str) -> Positions:
        """Return the positions of a cursor. Raises `QueryError` for any other text."""
        parts = cursor.split(",") if isinstance(cursor, str) and _CURSOR.fullmatch(cursor) else []
        if len(parts) != len(self._streams):
            raise QueryError(
                f"after is {str(cursor)[:100]!r}: pass the cursor of an event of this kind"
            )
        pairs = [part.rpartition(".")[::2] for part in parts]
        return tuple(Position(entry, int(number)) for entry, number in pairs)

    def resume(self, cursor: str) -> Positions:
        """Return the positions of a cursor that a process stored.

        If the number of shards was changed since, they are too old to go on from.
        """
        try:
            return self.parse_cursor(cursor)
        except QueryError:
            return (Position("0", -1),) * len(self._streams)

    def read(self, after: Positions, until: Positions | None = None) -> Read:
        """Return what was announced after some positions, of each shard at most some entries.

        `until` are positions from which the caller can go on otherwise. If events of a shard were
        lost, a chunk that is lost comes first, and the shard is read from there on. A shard that is
        away has no events for now. Raises `PresenceUnavailable` if no shard can be read.
        """
        limits = until or (None,) * len(after)
        plans = list(map(EventStream.read, self._streams, after, limits))
        readings = self.run(run_all(plans))
        found = [(n, each) for n, each in enumerate(readings) if not isinstance(each, Exception)]
        if not found and (error := first_error(readings)):
            raise error
        start, end = list(after), list(after)
        for shard, reading in found:
            end[shard] = reading.position
            if reading.is_lost:
                start[shard] = reading.position
        is_lost = any(reading.is_lost for _, reading in found)
        chunks = [Chunk(self.kind, tuple(start), is_lost=is_lost)]
        for shard, reading in found:
            for entry in reading.announcements:
                if chunks[-1].is_lost or chunks[-1].size > CHUNK_BYTES:
                    chunks.append(Chunk(self.kind, chunks[-1].end))
                chunks[-1].add(shard, entry)
        has_more = any(reading.has_more for _, reading in found)
        return Read([each for each in chunks if each.is_lost or each.size], tuple(end), has_more)


class Place:
    """A place in the events of a kind. All iterators that are as far share it."""

    __slots__ = ("next", "positions")

    def __init__(self, positions: Positions | None) -> None:
        self.positions = positions
        """None until the feed has read where it begins."""
        self.next: tuple[Chunk, Place] | None = None
        """What comes after it, and the place after that.

        None if nothing has come yet, and of a place that is behind the page.
        """


class Page:
    """The newest events of a kind. A thread reads on, and iterators take from it without a lock."""

    def __init__(self, streams: Streams) -> None:
        """Create a page that begins now. The streams are read later."""
        self.end = Place(None)
        """The place after everything that was read."""
        # Whether an iterator could not catch up, and tries again after the next read.
        self._has_retries = False
        # Whether the last read failed: others who are behind do not try before the next.
        self._is_away = False
        self._streams = streams
        self._began_at = time.monotonic()
        # The chunks, the oldest first, and the place before each.
        self._chunks: deque[tuple[Chunk, Place]] = deque()
        self._size = 0

    def read_on(self) -> tuple[bool, bool]:
        """Read what is new; return whether iterators have to look, and whether there may be more.

        Raises `PresenceUnavailable` if nothing can be read.
        """
        if self.end.positions is None:
            self.end.positions = self._streams.positions(self._began_at)
        read = self._streams.read(self.end.positions)
        for chunk in read.chunks:
            place = self.end
            place.next = chunk, Place(chunk.end)
            self.end = place.next[1]  # only now, or the place would seem to be behind
            self._chunks.append((chunk, place))
            self._size += chunk.size
        self.end.positions, self._is_away = read.end, False
        oldest = time.monotonic() - STREAM_SECONDS
        while self._chunks and (self._size > PAGE_BYTES or self._chunks[0][0].read_at < oldest):
            chunk, place = self._chunks.popleft()
            place.next = None
            self._size -= chunk.size
        is_news, self._has_retries = bool(read.chunks) or self._has_retries, False
        return is_news, read.has_more

    def is_behind(self, place: Place) -> bool:
        """Return whether what comes after a place has to be read, because it is not in the page."""
        return place is not self.end and place.next is None

    def catch_up(self, place: Place) -> Place | None:
        """Read the streams after a place that is behind; return it with what comes after it.

        Return None if nothing can be read before the page has been read on. For any thread.
        """
        end, after, read = self.end, place.positions, None
        until = end.positions
        if after is not None and until is not None and not self._is_away:
            try:
                read = self._streams.read(after, until)
            except Exception:  # whoever reads the page on reports outages
                self._is_away = True
        if read is None or read.end == after != until:
            self._has_retries = True
            return None
        following = end if read.end == until else Place(read.end)
        for chunk in reversed(read.chunks):
            place = Place(chunk.start)
            place.next, following = (chunk, following), place
        return following
