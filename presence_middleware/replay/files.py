"""The requests of logs: of files, also gzip, and of standard input, merged by their time."""

import gzip
import heapq
import io
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from .combined import Request, parse
from .order import without_lines_ahead

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER = 1 << 16  # bytes
LONGEST = 1 << 17  # bytes of a line: more than web servers take in all its fields
GZIP = b"\x1f\x8b"
STDIN = "-"


class Counted(io.FileIO):
    """A file, or standard input, that tells how many bytes are read."""

    def __init__(self, path: str, tell: Callable[[int], object]) -> None:
        super().__init__(0 if path == STDIN else path, closefd=path != STDIN)
        self._tell = tell

    def readinto(self, buffer: "WriteableBuffer", /) -> int | None:
        count = super().readinto(buffer)
        self._tell(count or 0)
        return count


class Logs:
    """The requests of some logs."""

    def __init__(
        self, paths: Iterable[str], tell: Callable[[int], object] = lambda _: None
    ) -> None:
        """`tell` hears of bytes as they are read from disk."""
        self._paths, self._tell = list(paths), tell
        self.lines = 0
        self.unreadable = 0
        """Lines in neither format."""
        self.ahead = 0
        """Lines set aside because they are more than a day ahead of their log."""
        self.broken: dict[str, str] = {}
        """Logs that could not be read to their end, and why."""

    def __iter__(self) -> Iterator[Request]:
        """Nearly in order: those of one log as they are in it, those of several merged by time."""
        return heapq.merge(*map(self._ordered, self._paths), key=attrgetter("at"))

    def _ordered(self, path: str) -> Iterator[Request]:
        return without_lines_ahead(self._requests(path), self._set_aside, time.time())

    def _set_aside(self, _: Request) -> None:
        self.ahead += 1

    def _requests(self, path: str) -> Iterator[Request]:
        for line in self._lines(path):
            self.lines += 1
            request = parse(line)
            if request is None:
                self.unreadable += 1
            else:
                yield request

    def _lines(self, path: str) -> Iterator[bytes]:
        try:
            with _opened(path, self._tell) as file:
                yield from _bounded(file)
        except (OSError, EOFError, zlib.error) as error:  # such as a gzip that is cut off
            self.broken[path] = str(error)


def size_of(paths: Sequence[str]) -> int | None:
    """The bytes of all logs, if that can be told."""
    if not all(Path(path).is_file() for path in paths):
        return None  # such as standard input
    return sum(Path(path).stat().st_size for path in paths)


@contextmanager
def _opened(path: str, tell: Callable[[int], object]) -> Iterator[io.BufferedIOBase]:
    with io.BufferedReader(Counted(path, tell), BUFFER) as file:
        if not file.peek(len(GZIP)).startswith(GZIP):
            yield file
            return
        with gzip.GzipFile(fileobj=file) as inflated:
            yield inflated  # what is before the end of a file that is cut off, too


def _bounded(file: io.BufferedIOBase) -> Iterator[bytes]:
    """The lines of a file; an empty one for each that is too long."""
    while line := file.readline(LONGEST):
        if len(line) < LONGEST or line.endswith(b"\n"):
            yield line
            continue
        while (rest := file.readline(LONGEST)) and not rest.endswith(b"\n"):
            pass
        yield b""
