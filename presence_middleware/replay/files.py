"""The lines of logs: of whole files, also gzip, merged by time; and of files and pipes that grow.

Lines far ahead of a whole file are set aside, so that a wrong clock does not end a replay. It
counts minutes in order and cannot go back: after a line of the year 2125, all others would be late.
A line that is a day ahead of all before it is therefore compared with the lines that
follow. A log that was quiet for days or years goes on at the new time; after a wrong line, it goes
back.
"""

import gzip
import heapq
import io
import math
import os
import select
import time
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..connections import Clock
from ..parsers import DAY
from .lines import MAX_LINE, Line, Tally, parse

AHEAD = DAY
FOLLOWING = 100  # lines that are compared, if the log has as many left
SEVERAL = 10  # lines that must agree with a line of the future
GZIP = b"\x1f\x8b"
STDIN = "-"
READ_BYTES = 1 << 16  # bytes that are read at once
COMPARED_BYTES = 256  # bytes before a position, which show whether the file is still the same
ROTATED_SECONDS = 60.0  # for which a file that was renamed is read: servers reopen their log late


class CountedFile(io.FileIO):
    """A file, or standard input, that reports how many bytes are read."""

    def __init__(self, path: str, report: Callable[[int], object]) -> None:
        super().__init__(0 if path == STDIN else path, closefd=path != STDIN)
        self._report = report

    def readinto(self, buffer: Any, /) -> int | None:
        count = super().readinto(buffer)
        self._report(count or 0)
        return count


def read_logs(
    paths: Iterable[str], tally: Tally, report: Callable[[int], object] = lambda _: None
) -> Iterator[Line]:
    """Return the lines of logs nearly in order: as they stand in each log, logs merged by time.

    The path of standard input is `-`. `report` is called with the number of bytes each time some
    are read from disk.
    """
    now = time.time()
    logs = (without_lines_ahead(_read_log(path, tally, report), tally, now) for path in paths)
    return heapq.merge(*logs, key=attrgetter("at"))


def _read_log(path: str, tally: Tally, report: Callable[[int], object]) -> Iterator[Line]:
    try:
        with io.BufferedReader(CountedFile(path, report), READ_BYTES) as stored:
            is_packed = stored.peek(len(GZIP)).startswith(GZIP)
            file: io.BufferedIOBase = gzip.GzipFile(fileobj=stored) if is_packed else stored
            # Of a truncated gzip, this reads all lines before the end.
            while raw := file.readline(MAX_LINE + 1):
                rest = raw if len(raw) > MAX_LINE else b"\n"
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_LINE)
                if line := tally.parse(raw):
                    yield line
    except (OSError, EOFError, zlib.error) as error:  # such as a truncated gzip
        tally.broken[path] = str(error)


def size_of(paths: Sequence[str]) -> int | None:
    """Return the size of all logs in bytes; None if a path is no file, such as standard input."""
    if not all(Path(path).is_file() for path in paths):
        return None
    return sum(Path(path).stat().st_size for path in paths)


def without_lines_ahead(lines: Iterable[Line], tally: Tally, now: float) -> Iterator[Line]:
    """Yield the lines of a log, except those far ahead of it, which the `tally` counts.

    `now` is the time in seconds since the epoch: no log can end after it, unless the clock of this
    machine is wrong.
    """
    coming = iter(lines)
    following: deque[Line] = deque()
    newest = -math.inf
    while line := following.popleft() if following else next(coming, None):
        if line.at > newest + AHEAD:
            following.extend(islice(coming, FOLLOWING - len(following)))
            is_future = newest > -math.inf and line.at > now + AHEAD
            # A log goes on at a time if at least half of its next lines do.
            agreeing = sum(each.at >= line.at - AHEAD for each in following)
            if agreeing < max(SEVERAL if is_future else 0, len(following) / 2):
                tally.note("ahead")
                continue
        newest = max(newest, line.at)
        yield line


def _split(text: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole lines of a text, and its last line, which has no end yet."""
    *lines, rest = text.split(b"\n")
    return lines, rest[: MAX_LINE + 1]  # a longer line cannot be read


class Pipe:
    """The lines of a pipe, such as standard input."""

    has_ended = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""

    def read(self) -> list[bytes]:
        """Return the whole lines that have come, a bounded number of them. Never waits."""
        if not select.select([self._descriptor], [], [], 0)[0]:
            return []
        chunk = os.read(self._descriptor, READ_BYTES)
        self.has_ended = not chunk
        lines, self._rest = _split(self._rest + (chunk or b"\n" * bool(self._rest)))
        return lines


class GrowingLog:
    """The lines of a log as it grows, also after it was renamed or truncated."""

    has_ended = False

    def __init__(
        self, path: str, since: float | None, report: Callable[[str], object], monotonic: Clock
    ) -> None:
        """Begin with the lines since a time in seconds since the epoch; None: at the end.

        Call `report` if a file after a rotation cannot be opened. Raises `OSError` for the first.
        """
        self._path, self._monotonic, self._report = Path(path), monotonic, report
        self._files = [_File(self._path, since)]
        """The newest is the last. Those before it were renamed, and are read until their time."""

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
                    self._files.append(_File(self._path, since=-math.inf))
                    newest.until = now + ROTATED_SECONDS
            except FileNotFoundError:  # between two names
                pass
            except OSError as error:
                self._report(f"{self._path} cannot be read after a rotation: {error.strerror}")
                self._report = lambda _: None  # once
        return lines


class _File:
    """An open file, and how far it is read."""

    until = math.inf
    """When it is no longer read, by the clock of its log."""

    def __init__(self, path: Path, since: float | None) -> None:
        """Begin with the lines since a time, or at the end."""
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._position, self._rest = self._start(since), b""
        before = max(0, self._position - COMPARED_BYTES)
        self._before = os.pread(self.descriptor, self._position - before, before)

    def read(self) -> list[bytes]:
        # By its size alone, a file that was truncated and has grown since would seem the same.
        before = self._position - len(self._before)
        if os.pread(self.descriptor, len(self._before), before) != self._before:
            self._position, self._before, self._rest = 0, b"", b""
        chunk = os.pread(self.descriptor, READ_BYTES, self._position)
        self._position += len(chunk)
        self._before = (self._before + chunk)[-COMPARED_BYTES:]
        lines, self._rest = _split(self._rest + chunk)
        return lines

    def _start(self, since: float | None) -> int:
        """Return where the first line since a time begins, or the last line, if it has no end."""
        size = os.fstat(self.descriptor).st_size
        if since is None:
            low = max(0, size - MAX_LINE)
            return size - len(os.pread(self.descriptor, size - low, low).rpartition(b"\n")[2])
        # Lines are nearly in order.
        position = bisect_left(range(size), since, key=self._time_from)
        return position + max(0, self._text_from(position).find(b"\n"))

    def _text_from(self, position: int) -> bytes:
        """Return the text at a position, after the byte that ends the line before it."""
        if position == 0:
            return b"\n" + os.pread(self.descriptor, READ_BYTES, 0)
        return os.pread(self.descriptor, READ_BYTES, position - 1)

    def _time_from(self, position: int) -> float:
        """Return the time of the first line that begins at a position or after it, or infinity."""
        lines = self._text_from(position).split(b"\n")[1:-1]
        return next((line.at for line in map(parse, lines) if line), math.inf)
