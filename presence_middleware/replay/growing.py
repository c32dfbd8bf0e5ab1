"""Logs that grow: files, also through rotations, and pipes."""

import math
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from .lines import MAX_LINE, parse

CHUNK = 1 << 16  # bytes that are read at once
COMPARED = 256  # bytes before a position, which show whether the file is still the same
ROTATED_SECONDS = 60.0  # for which a file that was renamed is read: servers reopen their log late


class _Splitter:
    """Splits what is read into lines. The last waits for its end."""

    rest = b""

    def split(self, chunk: bytes) -> list[bytes]:
        *lines, rest = (self.rest + chunk).split(b"\n")
        self.rest = rest[: MAX_LINE + 1]  # a longer line cannot be read
        return lines


class Pipe(_Splitter):
    """The lines of a pipe, such as standard input."""

    has_ended = False

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor

    def read(self) -> list[bytes]:
        """Return the whole lines that have come, a bounded number of them. Never waits."""
        if self.has_ended or not select.select([self._descriptor], [], [], 0)[0]:
            return []
        chunk = os.read(self._descriptor, CHUNK)
        self.has_ended = not chunk
        return self.split(chunk or b"\n" * bool(self.rest))


class GrowingLog:
    """The lines of a log as it grows, also after it was renamed or truncated."""

    has_ended = False

    def __init__(
        self,
        path: str,
        since: float | None = None,
        report: Callable[[str], object] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the lines since a time in seconds since the epoch, by default at the end.

        Call `report` if a file after a rotation cannot be opened. Raises `OSError` if the first
        cannot.
        """
        self._path, self._monotonic, self._report = Path(path), monotonic, report
        self._files = [_File(self._path)]
        """The newest is the last. Those before it were renamed, and are read until their time."""
        self._files[0].seek_time(since)

    def read(self) -> list[bytes]:
        """Return the whole lines that have come, a bounded number of them. Never waits."""
        now = self._monotonic()
        while self._files[0].until <= now:
            os.close(self._files.pop(0).descriptor)
        lines = [line for file in self._files for line in file.read()]
        if not lines:
            newest = self._files[-1]
            try:
                if not os.path.samestat(os.fstat(newest.descriptor), self._path.stat()):
                    self._files.append(_File(self._path))
                    newest.until = now + ROTATED_SECONDS
            except FileNotFoundError:  # between two names
                pass
            except OSError as error:
                self._report(f"{self._path} cannot be read after a rotation: {error.strerror}")
                self._report = lambda _: None  # once
        return lines

    def close(self) -> None:
        """Close all files."""
        for file in self._files:
            os.close(file.descriptor)


class _File(_Splitter):
    """An open file, and how far it is read."""

    until = math.inf
    """When it is no longer read, by the clock of its log."""
    _position = 0
    _before = b""
    """What is in front of the position."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> list[bytes]:
        # By its size alone, a file that was truncated and has grown since would seem the same.
        before = self._position - len(self._before)
        if os.pread(self.descriptor, len(self._before), before) != self._before:
            self._seek(0)
        chunk = os.pread(self.descriptor, CHUNK, self._position)
        self._position += len(chunk)
        self._before = (self._before + chunk)[-COMPARED:]
        return self.split(chunk)

    def _seek(self, position: int) -> None:
        start = max(0, position - COMPARED)
        self._position = position
        self._before = os.pread(self.descriptor, position - start, start)
        self.rest = self._before.rpartition(b"\n")[2]  # of a line that has no end yet

    def seek_time(self, at: float | None) -> None:
        """Go to the lines of a time, or to the end. Lines are nearly in order, so it halves."""
        low, high = 0, os.fstat(self.descriptor).st_size
        if at is None:
            self._seek(high)
            return
        while high - low > CHUNK:
            middle = (low + high) // 2
            lines = os.pread(self.descriptor, CHUNK, middle).split(b"\n")[1:-1]
            line = next(filter(None, map(parse, lines)), None)
            if line is None or line.at >= at:
                high = middle
            else:
                low = middle
        low = low and low + os.pread(self.descriptor, CHUNK, low).find(b"\n") + 1
        end = low
        for text in os.pread(self.descriptor, high - low, low).splitlines(keepends=True):
            end += len(text)
            line = parse(text)
            if line is not None and line.at >= at:
                break
            low = end if line else low
        self._seek(low)
