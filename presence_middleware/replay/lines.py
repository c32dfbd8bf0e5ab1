"""Lines of an access log in any known format: common, combined, or JSON."""

from collections.abc import Callable

from . import combined
from .combined import Line
from .json_lines import parse_json

MAX_LINE = 1 << 17  # bytes: more than web servers accept in all fields of a request
EXAMPLE_BYTES = 100  # that are shown of a line that cannot be read


def parse(line: bytes) -> Line | None:
    """Return the request of a line; None if it is in no known format."""
    return parse_json(line) if line.startswith(b"{") else combined.parse(line)


class Parser:
    """Parses lines, and counts those that cannot be read."""

    def __init__(self, report: Callable[[str], object] = lambda _: None) -> None:
        """Call `report` with the format, and with the first line that cannot be read."""
        self._report = report
        self.lines = 0
        """The number of lines so far."""
        self.unreadable = 0
        """The number of lines in no known format."""
        self.example = ""
        """The beginning of the first of these, in quotes and without control characters."""

    def parse(self, raw: bytes) -> Line | None:
        """Return the request of a line; None if it cannot be read."""
        self.lines += 1
        line = parse(raw) if len(raw) <= MAX_LINE else None
        if line is None:
            self.unreadable += 1
            if self.unreadable == 1:
                self.example = repr(raw[:EXAMPLE_BYTES].decode(errors="replace").strip())
                self._report(f"a line is in no known format: {self.example}")
        elif self.lines - self.unreadable == 1:
            name = "combined" if raw.count(b'"') > len('""') else "common"
            self._report(f"the format is {'JSON' if raw.startswith(b'{') else name}")
        return line
