"""Lines of an access log in any known format: common, combined, or JSON."""

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

    def __init__(self) -> None:
        self.lines = 0
        """The number of lines so far."""
        self.unreadable = 0
        """The number of lines in no known format."""
        self.example = ""
        """The beginning of the first of these, in quotes and without control characters."""
        self.format = ""
        """The format of the first line that could be read."""

    def parse(self, raw: bytes) -> Line | None:
        """Return the request of a line; None if it cannot be read."""
        self.lines += 1
        line = parse(raw) if len(raw) <= MAX_LINE else None
        if line is None:
            self.unreadable += 1
            shown = raw[:EXAMPLE_BYTES].decode(errors="replace").strip()
            self.example = self.example or repr(shown)
        elif not self.format:
            quotes = raw.count(b'"')
            is_json = raw.startswith(b"{")
            self.format = "JSON" if is_json else "combined" if quotes > 2 else "common"
        return line
