"""Logs that grow: files, also through rotations, and pipes."""

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from .lines import MAX_LINE, parse

CHUNK = 1 << 16  # bytes that are read at once
COMPARED = 256  # bytes before a position, which show whether the file is still the same
ROTATED_SECONDS = 60.0  # for which a file that was renamed is read: servers reopen their log late


class Source(Protocol):
    """Where lines come from."""

    has_ended: bool
    """True if no more lines can come."""

    def read(self) -> list[bytes]:
        """Return the whole lines that have come, a bounded number of them. Never waits."""


class _Splitter:
    """Splits what is read into lines. The last waits for its end."""

    def __init__(self) -> None:
        self.rest = b""

    def split(self, chunk: bytes) -> list[bytes]:
        *lines, rest = (self.rest + chunk).split(b"\n")
        self.rest = rest[: MAX_LINE + 1]  # a longer line cannot be read
        return lines


class Pipe:
    """The lines of a pipe, such as standard input."""

    def __init__(self, descriptor: int = 0) -> None:
        self.has_ended = False
        self._descriptor, self._splitter = descriptor, _Splitter()

    def read(self) -> list[bytes]:
        """Return the whole lines that have come. Never waits."""
        if self.has_ended or not select.select([self._descriptor], [], [], 0)[0]:
            return []
        chunk = os.read(self._descriptor, CHUNK)
        if chunk:
            return self._splitter.split(chunk)
        self.has_ended = True
        return [self._splitter.rest] if self._splitter.rest else []


class GrowingLog:
    """The lines of a log as it grows, also after it was renamed or truncated."""

    has_ended = False

    def __init__(
        self,
        path: str,
        since: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the lines since a time in seconds since the epoch, by default at the end.

        Raises `OSError` if the file cannot be opened.
        """
        self._path, self._monotonic = Path(path), monotonic
        self._current = _File(self._path)
        self._current.seek(
            self._current.size if since is None else self._current.position_of(since)
        )
        self._rotated: list[tuple[_File, float]] = []

    def read(self) -> list[bytes]:
        """Return the whole lines that have come. Never waits."""
        now = self._monotonic()
        while self._rotated and self._rotated[0][1] <= now:
            self._rotated.pop(0)[0].close()
        lines = [line for file, _ in self._rotated for line in file.read()]
        lines += self._current.read()
        if not lines:
            with suppress(OSError):  # between two names, there is no file
                if self._current.is_another(self._path.stat()):
                    new = _File(self._path)
                    self._rotated.append((self._current, now + ROTATED_SECONDS))
                    self._current = new
        return lines

    def close(self) -> None:
        """Close all files."""
        for file in (self._current, *(file for file, _ in self._rotated)):
            file.close()


class _File:
    """An open file, and how far it is read."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.close = self._file.close
        self.seek(0)

    def seek(self, position: int) -> None:
        self._position, self._splitter = position, _Splitter()
        start = max(0, position - COMPARED)
        self._before = self._pread(position - start, start)
        self._splitter.split(self._before)  # the beginning of a line that has no end yet

    def _pread(self, count: int, position: int) -> bytes:
        return os.pread(self._file.fileno(), count, position)

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def is_another(self, status: os.stat_result) -> bool:
        return not os.path.samestat(os.fstat(self._file.fileno()), status)

    def read(self) -> list[bytes]:
        # By its size alone, a file that was truncated and has grown since would seem the same.
        if self._pread(len(self._before), self._position - len(self._before)) != self._before:
            self.seek(0)
        chunk = self._pread(CHUNK, self._position)
        self._position += len(chunk)
        self._before = (self._before + chunk)[-COMPARED:]
        return self._splitter.split(chunk)

    def position_of(self, at: float) -> int:
        """Return where the lines of a time begin. Lines are nearly in order, so it halves."""
        low, high = 0, self.size
        while high - low > CHUNK:
            middle = (low + high) // 2
            lines = map(parse, self._pread(CHUNK, middle).split(b"\n")[1:-1])
            line = next(filter(None, lines), None)
            if line is None or line.at >= at:
                high = middle
            else:
                low = middle
        return low + self._pread(CHUNK, low).find(b"\n") + 1 if low else 0
