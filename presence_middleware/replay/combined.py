"""Lines of an access log in the common or the combined format.

A log holds only a part of each request. It has no cookies and only two headers, so rules that read
others find no id, and prefetches and CORS preflights count as visits. Every response counts, also a
304, a 404 or a 5xx, as it does on a site. A line without a request, such as the `-` of a connection
that timed out, cannot be read.
"""

import re
from collections.abc import Callable
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
    fields = dict(zip(FIELDS, (address, method, target, user, referer, agent), strict=True))
    return line_of(at, status, fields, _unescaped)


def line_of(
    at: int, status: str, fields: dict[str, str | None], unescaped: Callable[[str], str] = str
) -> Line:
    """Return a line of a log. `fields` has the keys of `FIELDS`, and the target as the path.

    `unescaped` removes the escapes that the format has in its fields.
    """
    target = fields["PATH_INFO"] or ""
    path = target.partition("?")[0]
    if not path.startswith("/"):
        # A target may be a whole URL. Any other, such as `*`, is unchanged.
        with suppress(ValueError):
            path = urlsplit(path).path or "/"
    # The path that the application received: decoded, and without the query.
    fields["PATH_INFO"] = unquote(unescaped(path), "latin-1")
    if status == "401":
        fields["REMOTE_USER"] = None  # the user whose password was refused
    for field in _OPTIONAL:
        # A log has `-` in place of a field that was absent.
        written = fields[field]
        fields[field] = None if written in {None, "-", "", '""'} else unescaped(written or "")
    return Line(at, WsgiRequest({key: value for key, value in fields.items() if value is not None}))


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
