"""Lines of an access log, in the common or the combined format, as requests.

A log does not have all of a request: cookies and other headers are not in it, so that sources which
read them find nobody, and prefetches and CORS preflights count. Every response counts, 304, 404 and
5xx too, as it does on a site: somebody asked. What is no request, such as the `-` of a connection
that timed out, cannot be read.
"""

import re
from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import ClassVar
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


@dataclass(slots=True, eq=False)
class Request:
    """A line as a request, with its time in seconds since the epoch."""

    at: int
    peer: str | None
    address: str | None
    user: str | None
    method: str
    path: str
    referer: str | None
    user_agent: str | None
    session: ClassVar[None] = None

    def is_plain(self, excluded: Container[str]) -> bool:
        """Whether its path is none of these: nothing else in a log is unusual."""
        return self.path not in excluded

    def header(self, name: str) -> str | None:
        """The two headers that a log has."""
        if name == "user-agent":
            return self.user_agent
        return self.referer if name == "referer" else None

    def cookie(self, name: str, *, last: bool = False) -> str | None:
        """Return None: a log has no cookies."""
        return None

    def get(self, key: str) -> object:
        """Nothing: there is no environ and no scope."""
        return None


def parse(line: bytes) -> Request | None:
    """The request of a line; None if it is in neither format."""
    match = _LINE(line.decode("latin-1"))
    if match is None:
        return None
    address, user, minute, second, zone, method, target, status, referer, agent = match.groups()
    try:
        at = _moment(minute, zone) + int(second)
    except ValueError:  # the 31st of February
        return None
    # The user that a 401 names is the one who was refused.
    name = None if status == "401" else _said(user)
    path, referer, agent = _path(target), _said(referer), _said(agent)
    return Request(at, address, address, name, method, path, referer, agent)


def _said(field: str | None) -> str | None:
    """A field as the request had it; None for the `-` of one that it had not."""
    if field is None or field in {"-", "", '""'}:
        return None
    return field if field.isascii() and "\\" not in field else _unescaped(field)


def _unescaped(field: str) -> str:
    return text(_ESCAPE.sub(_escaped, field))


def _escaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) == 3 else _CONTROLS.get(code, code)


def _path(target: str) -> str:
    """The path that the application sees: without the query, and decoded."""
    path = target.partition("?")[0]
    if not path.startswith("/"):
        path = _of_url(path)
    if not path.isascii() or "\\" in path:
        path = _unescaped(path)
    return unquote(path, errors="surrogateescape") if "%" in path else path


def _of_url(target: str) -> str:
    """The path of a target that is a whole URL; or the target, such as the `*` of OPTIONS."""
    try:
        return urlsplit(target).path or "/"
    except ValueError:
        return target


@lru_cache(maxsize=1024)
def _moment(minute: str, zone: str) -> int:
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
