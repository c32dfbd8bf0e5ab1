"""Lines of an access log in the common or the combined format.

A log holds only a part of each request. It has no cookies and only two headers, so rules that read
others find no id, and prefetches and CORS preflights count as visits. Every response counts, also a
304, a 404 or a 5xx, as it does on a site. A line without a request, such as the `-` of a connection
that timed out, cannot be read.
"""

import re
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..request import WsgiRequest

_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_LINE = re.compile(
    r"(\S++) \S++ (?!- [^[])(.+?) "  # address, and user: a name may have blanks in it
    r"\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d):([0-6]\d) ([+-]\d{4})\] "
    r'"([^\s"\\]++) ([^\s"\\]++(?:\\.[^\s"\\]*+)*+)[^"\\]*+(?:\\.[^"\\]*+)*+" '
    r"(\d{3}) (?:\d++|-)"
    rf"(?: {_QUOTED} {_QUOTED}(?: .*)?)?\s*",
    re.ASCII | re.DOTALL,
).fullmatch
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "b": "\b", "f": "\f"}
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_OPTIONAL = ("REMOTE_USER", "HTTP_REFERER", "HTTP_USER_AGENT")
FIELDS = ("REMOTE_ADDR", "REQUEST_METHOD", "PATH_INFO", *_OPTIONAL)
"""The keys of a WSGI environ that a line may hold."""


MAX_LINE = 1 << 17  # bytes: more than web servers accept in all fields of a request
EXAMPLE = 100  # bytes that are shown of a line that cannot be read


class Line(NamedTuple):
    """A line that can be read."""

    at: int
    """The time of the line, in seconds since the epoch."""
    request: WsgiRequest
    """The request, whose environ has some of `FIELDS`: those that the line holds."""


def parse(line: bytes) -> Line | None:
    """Return the request of a line; None if it is in neither format."""
    match = _LINE(line.decode("latin-1"))
    if match is None:
        return None
    address, user, minute, second, zone, method, target, status, referer, agent = match.groups()
    try:
        at = _seconds(minute, zone) + int(second)
    except ValueError:  # such as the 31st of February
        return None
    path = target.partition("?")[0]
    if not path.startswith("/"):
        # A target may be a whole URL. Any other, such as `*`, is unchanged.
        with suppress(ValueError):
            path = urlsplit(path).path or "/"
    environ = {
        "REMOTE_ADDR": address,
        "REQUEST_METHOD": method,
        # The path that the application received: decoded, and without the query.
        "PATH_INFO": unquote(_unescaped(path), "latin-1"),
    }
    # A 401 names the user whose password was refused.
    user = None if status == "401" else user
    for field, written in zip(_OPTIONAL, (user, referer, agent), strict=True):
        # A log has `-` in place of a field that was absent.
        if written not in {None, "-", "", '""'}:
            environ[field] = _unescaped(written)
    return Line(at, WsgiRequest(environ))


class Parser:
    """Parses lines, and counts those that cannot be read."""

    def __init__(self) -> None:
        self.lines = 0
        """The number of lines so far."""
        self.unreadable = 0
        """The number of lines in neither format."""
        self.example = ""
        """The beginning of the first of these, without control characters."""

    def parse(self, raw: bytes) -> Line | None:
        """Return the request of a line; None if it cannot be read."""
        self.lines += 1
        line = parse(raw) if len(raw) <= MAX_LINE else None
        if line is None:
            self.unreadable += 1
            shown = raw[:EXAMPLE].decode(errors="replace").strip()
            self.example = self.example or repr(shown)
        return line


def _unescaped(written: str) -> str:
    if "\\" not in written:
        return written
    return _ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _CONTROLS.get(found[2], found[2]),
        written,
    )


@lru_cache(maxsize=1024)
def _seconds(minute: str, zone: str) -> int:
    """Return the seconds since the epoch of a minute such as `05/Jan/2026:12:00`.

    Names of months are English, whatever the locale of this process.
    """
    day, month, rest = minute.split("/")
    moment = f"{day} {_MONTHS.index(month) + 1} {rest} {zone}"
    return int(datetime.strptime(moment, "%d %m %Y:%H:%M %z").timestamp())
