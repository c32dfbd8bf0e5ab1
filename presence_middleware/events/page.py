"""The newest events of a kind, and the places in them at which iterators are."""

import time
from collections import deque
from contextlib import suppress

from ..stores import STREAM_SECONDS
from .streams import Chunk, Positions, Streams

PAGE_BYTES = 4_000_000  # about 100,000 events in entries of many


class Place:
    """A place in the events of a kind. All iterators that are as far share it."""

    __slots__ = ("is_behind", "next", "positions")

    def __init__(self, positions: Positions | None, *, is_behind: bool = False) -> None:
        self.positions = positions
        """None until the feed has read where it begins."""
        self.next: tuple[Chunk, Place] | None = None
        """What comes after it, and the place after that. None if nothing has come yet."""
        self.is_behind = is_behind
        """True if what comes after it has to be read, because the feed has it no longer."""


class Page:
    """The newest events of a kind. A thread reads on, and iterators take from it without a lock."""

    def __init__(self, streams: Streams) -> None:
        """Create a page that begins now. The streams are read later."""
        self.end = Place(None)
        """The place after everything that was read."""
        # Whether an iterator could not catch up, and tries again after the next read.
        self._has_retries = False
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
            place, self.end = self.end, Place(chunk.end)
            place.next = chunk, self.end
            self._chunks.append((chunk, place))
            self._size += chunk.size
        self.end.positions = read.end
        oldest = time.monotonic() - STREAM_SECONDS
        while self._chunks and (self._size > PAGE_BYTES or self._chunks[0][0].read_at < oldest):
            chunk, place = self._chunks.popleft()
            place.is_behind, place.next = True, None
            self._size -= chunk.size
        is_news, self._has_retries = bool(read.chunks) or self._has_retries, False
        return is_news, read.has_more

    def catch_up(self, place: Place) -> Place | None:
        """Read the streams after a place that is behind; return it with what comes after it.

        Return None if nothing can be read before the page has been read on. For any thread.
        """
        end, after, read = self.end, place.positions, None
        until = end.positions
        if after is not None and until is not None:
            with suppress(Exception):  # whoever reads the page on reports outages
                read = self._streams.read(after, until)
        if read is None or read.end == after != until:
            self._has_retries = True
            return None
        following = end if read.end == until else Place(read.end, is_behind=True)
        for chunk in reversed(read.chunks):
            place = Place(chunk.start)
            place.next, following = (chunk, following), place
        return following
