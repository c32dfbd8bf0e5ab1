"""Lines of an access log in the common or the combined format.

A log holds only a part of each request. It has no cookies and only two headers, so rules that read
others find no id, and prefetches and CORS preflights count as visits. Every response counts, also a
304, a 404 or a 5xx, as it does on a site. A line without a request, such as the `-` of a connection
that timed out, cannot be read.
"""

import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..request import text

_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_LINE = re.compile(
    r"(\S++) \S++ (?!- [^[])(.+?) "  # address, and user: a name may have blanks in it
    r"\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d):([0-6]\d) ([+-]\d{4})\] "
    r'"([^\s"\\]++) ([^\s"\\]++(?:\\.[^\s"\\]*+)*+)[^"\\]*+(?:\\.[^"\\]*+)*+" '
    r"(\d{3}) (?:\d++|-)"
    rf"(?: {_QUOTED} {_QUOTED}(?: .*)?)?\s*",
    re.ASCII | re.DOTALL,
).fullmatch
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "b": "\b", "f": "\f"}
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


class Line(NamedTuple):
    """The request of a line."""

    at: int
    """The time of the line, in seconds since the epoch."""
    address: str
    user: str | None
    method: str
    path: str
    """The path that the application received: decoded, and without the query."""
    referer: str | None
    user_agent: str | None


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
    # A 401 names the user whose password was refused.
    name = None if status == "401" else _field(user)
    return Line(at, address, name, method, _path(target), _field(referer), _field(agent))


def _field(written: str | None) -> str | None:
    """Return a field as the request had it; None where the log has `-` because it was absent."""
    if written is None or written in {"-", "", '""'}:
        return None
    return written if written.isascii() and "\\" not in written else _unescaped(written)


def _unescaped(field: str) -> str:
    return text(_ESCAPE.sub(_escaped, field))


def _escaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) == 3 else _CONTROLS.get(code, code)


def _path(target: str) -> str:
    path = target.partition("?")[0]
    if not path.startswith("/"):
        path = _path_of_url(path)
    if not path.isascii() or "\\" in path:
        path = _unescaped(path)
    return unquote(path, errors="surrogateescape") if "%" in path else path


def _path_of_url(target: str) -> str:
    """Return the path of a target that is a whole URL; return any other, such as `*`, unchanged."""
    try:
        return urlsplit(target).path or "/"
    except ValueError:
        return target


@lru_cache(maxsize=1024)
def _seconds(minute: str, zone: str) -> int:
    """Return the seconds since the epoch of a minute such as `05/Jan/2026:12:00`."""
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:]))
    moment = datetime(
        year=int(minute[7:11]),
        month=_MONTHS.index(minute[3:6]) + 1,
        day=int(minute[:2]),
        hour=int(minute[12:14]),
        minute=int(minute[15:]),
        tzinfo=timezone(-offset if zone[0] == "-" else offset),
    )
    return int(moment.timestamp())
