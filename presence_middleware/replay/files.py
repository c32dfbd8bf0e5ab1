"""The lines of log files, also gzip, and of standard input, merged by time.

Lines far ahead of their log are set aside, so that a wrong clock does not end a replay.
A replay counts minutes in order and cannot go back: after a line of the year 2125, all others would
be late. A line that is a day ahead of all before it is therefore compared with the lines that
follow. A log that was quiet for days or years goes on at the new time; after a wrong line, it goes
back.
"""

import gzip
import heapq
import io
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..parsers import DAY
from .lines import MAX_LINE, Line, Parser

BUFFER = 1 << 16  # bytes
AHEAD = DAY
FOLLOWING = 100  # lines that are compared, if the log has as many left
SEVERAL = 10  # lines that must agree with a line of the future
GZIP = b"\x1f\x8b"
STDIN = "-"


class CountedFile(io.FileIO):
    """A file, or standard input, that reports how many bytes are read."""

    def __init__(self, path: str, report: Callable[[int], object]) -> None:
        super().__init__(0 if path == STDIN else path, closefd=path != STDIN)
        self._report = report

    def readinto(self, buffer: Any, /) -> int | None:
        count = super().readinto(buffer)
        self._report(count or 0)
        return count


class Logs:
    """The requests of several logs."""

    def __init__(
        self, paths: Iterable[str], report: Callable[[int], object] = lambda _: None
    ) -> None:
        """Read the files at `paths`, of which `-` is standard input.

        `report` is called with the number of bytes each time some are read from disk.
        """
        self._paths, self._report = list(paths), report
        self.parser = Parser()
        """Counts the lines read so far."""
        self.ahead = 0
        """The number of lines set aside because they are more than a day ahead of their log."""
        self.broken: dict[str, str] = {}
        """The reason for each log that could not be read to its end."""

    def __iter__(self) -> Iterator[Line]:
        """Yield lines nearly in order: those of a log as they stand in it, logs merged by time."""
        now = time.time()

        def set_aside(_: Line) -> None:
            self.ahead += 1

        logs = (without_lines_ahead(self._parsed(path), set_aside, now) for path in self._paths)
        return heapq.merge(*logs, key=attrgetter("at"))

    def _parsed(self, path: str) -> Iterator[Line]:
        try:
            with io.BufferedReader(CountedFile(path, self._report), BUFFER) as stored:
                is_packed = stored.peek(len(GZIP)).startswith(GZIP)
                file: io.BufferedIOBase = gzip.GzipFile(fileobj=stored) if is_packed else stored
                # Of a truncated gzip, this reads all lines before the end.
                while raw := file.readline(MAX_LINE + 1):
                    rest = raw if len(raw) > MAX_LINE else b"\n"
                    while rest and not rest.endswith(b"\n"):
                        rest = file.readline(MAX_LINE)
                    line = self.parser.parse(raw)
                    if line is not None:
                        yield line
        except (OSError, EOFError, zlib.error) as error:  # such as a truncated gzip
            self.broken[path] = str(error)


def size_of(paths: Sequence[str]) -> int | None:
    """Return the size of all logs in bytes; None if a path is no file, such as standard input."""
    if not all(Path(path).is_file() for path in paths):
        return None
    return sum(Path(path).stat().st_size for path in paths)


def without_lines_ahead(
    lines: Iterable[Line], set_aside: Callable[[Line], object], now: float
) -> Iterator[Line]:
    """Yield the lines of a log, except those far ahead of it.

    `set_aside` is called with each of the others. `now` is the time in seconds since the epoch: no
    log can end after it, unless the clock of this machine is wrong.
    """
    coming = iter(lines)
    following: deque[Line] = deque()
    newest: int | None = None
    while line := following.popleft() if following else next(coming, None):
        if newest is None or line.at > newest + AHEAD:
            following.extend(islice(coming, FOLLOWING - len(following)))
            is_future = newest is not None and line.at > now + AHEAD
            # A log goes on at a time if at least half of its next lines do.
            agreeing = sum(each.at >= line.at - AHEAD for each in following)
            if agreeing < max(SEVERAL if is_future else 0, len(following) / 2):
                set_aside(line)
                continue
        newest = line.at if newest is None else max(newest, line.at)
        yield line
