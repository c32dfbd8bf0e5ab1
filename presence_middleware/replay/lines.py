"""Lines of an access log: in the common or the combined format, or JSON.

JSON is the log of Caddy, or that of nginx with `escape=json` and usual field names. A log holds
only a part of each request. It has no cookies and only two headers, so rules that read others find
no id, and prefetches and CORS preflights count as visits. Every response counts, also a 304, a 404
or a 5xx, as it does on a site. A line without a request, such as the `-` of a connection that timed
out, cannot be read.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ..request import WsgiRequest

MAX_LINE = 1 << 17  # bytes: more than web servers accept in all fields of a request
EXAMPLE_BYTES = 100  # that are shown of a line that cannot be read
_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_TIME = r"(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d):([0-6]\d) ([+-]\d{4})"
_LOCAL_TIME = re.compile(_TIME, re.ASCII).fullmatch
_LINE = re.compile(
    r"(\S++) \S++ (?!- [^[])(.+?) "  # address, and user: a name may have blanks in it
    rf"\[{_TIME}\] "
    r'"([^\s"\\]++) ([^\s"\\]++(?:\\.[^\s"\\]*+)*+)[^"\\]*+(?:\\.[^"\\]*+)*+" '
    r"(\d{3}) (?:\d++|-)"
    rf"(?: {_QUOTED} {_QUOTED}(?: .*)?)?\s*",
    re.ASCII | re.DOTALL,
).fullmatch
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "b": "\b", "f": "\f"}
_ABSENT = {"-", "", '""'}
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TIMES = ("ts", "time", "time_iso8601", "timestamp", "@timestamp", "msec", "time_local")
MOST_SECONDS = 1e11  # since the epoch: a number above it is in milliseconds, a date unreadable
# Halves of a character that is written as two escapes. The others stand for bytes.
_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
FIELDS = {
    "REMOTE_ADDR": ("client_ip", "remote_ip", "remote_addr"),
    "REQUEST_METHOD": ("method", "request_method"),
    "PATH_INFO": ("uri", "request_uri", "url", "path"),
    "REMOTE_USER": ("user_id", "remote_user", "user"),
    "HTTP_REFERER": ("Referer", "http_referer", "referer", "referrer"),
    "HTTP_USER_AGENT": ("User-Agent", "http_user_agent", "user_agent", "agent"),
}
"""By the keys of a WSGI environ that a line may hold, their names in lines of JSON."""


class Line(NamedTuple):
    """A line that can be read."""

    at: int
    """The time of the line, in seconds since the epoch."""
    request: WsgiRequest
    """The request, whose environ has some of `FIELDS`: those that the line holds."""


def parse(line: bytes) -> Line | None:
    """Return the request of a line; None if it is in no known format."""
    parsed = _parse_json(line) if line.startswith(b"{") else _parse_text(line)
    return parsed if parsed and 0 <= parsed.at <= MOST_SECONDS else None


class Tally:
    """Parses the lines of logs, and counts those that are odd, by the reason."""

    def __init__(self, report: Callable[[str], object] = lambda _: None) -> None:
        """Call `report` with the format, and with a sentence about the first line of a reason."""
        self._report = report
        self.lines = 0
        """The number of lines so far."""
        self.odd: Counter[str] = Counter()
        """The number of odd lines by the reason, such as `unreadable`."""
        self.example = ""
        """The beginning of the first line that cannot be read, in quotes and printable."""
        self.broken: dict[str, str] = {}
        """By path, why a log could not be read to its end."""

    def parse(self, raw: bytes) -> Line | None:
        """Return the request of a line; None if it cannot be read."""
        self.lines += 1
        line = parse(raw) if len(raw) <= MAX_LINE else None
        if line is None:
            example = repr(raw[:EXAMPLE_BYTES].decode(errors="replace").strip())
            self.example = self.example or example
            self.note("unreadable", f"a line is in no known format: {example}")
        elif self.lines - self.odd["unreadable"] == 1:
            name = "combined" if raw.count(b'"') > len('""') else "common"
            self._report(f"the format is {'JSON' if raw.startswith(b'{') else name}")
        return line

    def note(self, reason: str, sentence: str = "") -> None:
        """Count an odd line. The `sentence` about the first of its reason is reported."""
        self.odd[reason] += 1
        if self.odd[reason] == 1:
            self._report(sentence)


def _parse_text(line: bytes) -> Line | None:
    """Return the request of a line in the common or combined format; None if it is in neither."""
    match = _LINE(line.decode("latin-1"))
    if match is None:
        return None
    address, user, minute, second, zone, method, target, status, referer, agent = match.groups("-")
    try:
        at = _minute_seconds(minute, zone) + int(second)
    except ValueError:  # such as the 31st of February
        return None
    written = map(_unescaped, (address, method, target, user, referer, agent))
    return _line_of(at, status, dict(zip(FIELDS, written, strict=True)))


def _line_of(at: int, status: str, fields: dict[str, str]) -> Line:
    """Return a line of a log. `fields` has the keys of `FIELDS`, and the target as the path."""
    environ = {key: text for key, text in fields.items() if text not in _ABSENT}
    path = environ.get("PATH_INFO", "-").partition("?")[0]
    if not path.startswith("/"):
        # A target may be a whole URL. Any other, such as `*`, is unchanged.
        with suppress(ValueError):
            path = urlsplit(path).path or "/"
    # The path that the application received: decoded, and without the query.
    environ["PATH_INFO"] = unquote(path, "latin-1")
    if status == "401":
        environ.pop("REMOTE_USER", None)  # the user whose password was refused
    return Line(at, WsgiRequest(environ))


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _CONTROLS.get(escape[2], escape[2])


_unescaped = partial(_ESCAPE.sub, _character)


@lru_cache(maxsize=1024)
def _minute_seconds(minute: str, zone: str) -> int:
    """Return the seconds since the epoch of a minute such as `05/Jan/2026:12:00`.

    Names of months are English, whatever the locale of this process. Raises `ValueError`.
    """
    day, month, rest = minute.split("/")
    moment = f"{day} {_MONTHS.index(month) + 1} {rest} {zone}"
    return int(datetime.strptime(moment, "%d %m %Y:%H:%M %z").timestamp())


def _parse_json(line: bytes) -> Line | None:
    """Return the request of a line of JSON; None if there is none in it."""
    try:
        fields = json.loads(line.decode(errors="surrogateescape"))
        request = fields.get("request")
        if isinstance(request, str):  # nginx: "GET / HTTP/1.1"
            fields["method"], fields["uri"] = request.split(" ")[:2]
        elif request is not None:  # Caddy
            headers = request.get("headers") or {}  # a filter of the log may remove them
            fields |= request | {name: values[0] for name, values in headers.items() if values}
        at = _seconds(next(fields[name] for name in _TIMES if name in fields))
        found = {field: _text(fields, names) for field, names in FIELDS.items()}
        if not (found["REMOTE_ADDR"] and found["REQUEST_METHOD"] and found["PATH_INFO"]):
            return None
        return _line_of(at, str(fields.get("status")), found)
    except Exception:  # anything may be in a line: numbers for objects, or a thousand brackets
        return None


def _text(fields: dict[str, Any], names: Iterable[str]) -> str:
    """Return the first field with a text, in the form of a WSGI environ: a character for a byte."""
    text = next((value for name in names if isinstance(value := fields.get(name), str)), "")
    return _HALVES.sub("\ufffd", text).encode(errors="surrogateescape").decode("latin-1")


def _seconds(time: Any) -> int:
    """Return the seconds since the epoch of a number, an ISO 8601 text or that of `$time_local`."""
    try:
        seconds = float(time)
    except ValueError:
        if local := _LOCAL_TIME(time):
            minute, second, zone = local.groups()
            return _minute_seconds(minute, zone) + int(second)
        seconds = datetime.fromisoformat(time).timestamp()
    # Caddy may write milliseconds.
    return int(seconds / 1000 if seconds > MOST_SECONDS else seconds)
