"""Lines of JSON: the access log of Caddy, and of nginx with `escape=json` and usual field names."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from .combined import Line, line_of

_TIMES = ("ts", "time", "time_iso8601", "timestamp", "@timestamp", "msec", "time_local")
MOST_SECONDS = 1e11  # since the epoch: a number above it is in milliseconds
_NGINX_TIME = "%d/%b/%Y:%H:%M:%S %z"
# Anything may be in a line: numbers in place of objects, or a thousand brackets.
_MALFORMED = (AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)
_NAMES = {
    "REMOTE_ADDR": ("client_ip", "remote_ip", "remote_addr"),
    "REQUEST_METHOD": ("method", "request_method"),
    "PATH_INFO": ("uri", "request_uri", "url", "path"),
    "REMOTE_USER": ("user_id", "remote_user", "user"),
    "HTTP_REFERER": ("Referer", "http_referer", "referer", "referrer"),
    "HTTP_USER_AGENT": ("User-Agent", "http_user_agent", "user_agent", "agent"),
}


def parse_json(line: bytes) -> Line | None:
    """Return the request of a line of JSON; None if there is none in it."""
    try:
        fields = json.loads(line.decode("latin-1"))
        request = fields.get("request")
        if isinstance(request, str):  # nginx: "GET / HTTP/1.1"
            fields["method"], fields["uri"] = request.split(" ")[:2]
        elif request is not None:  # Caddy
            headers = request.get("headers") or {}  # a filter of the log may remove them
            fields |= request | {name: values[0] for name, values in headers.items() if values}
        at = _seconds(next(fields[name] for name in _TIMES if name in fields))
        found = {field: _text(fields, names) for field, names in _NAMES.items()}
        if not (found["REMOTE_ADDR"] and found["REQUEST_METHOD"] and found["PATH_INFO"]):
            return None
        return line_of(at, str(fields.get("status")), found)
    except _MALFORMED:
        return None


def _text(fields: dict[str, Any], names: Iterable[str]) -> str | None:
    """Return the first field with a text, in the form of a WSGI environ: a character for a byte."""
    text = next((value for name in names if isinstance(value := fields.get(name), str)), None)
    if text is None or max(text, default="") <= "\xff":
        return text
    return text.encode(errors="replace").decode("latin-1")  # it was written as \\uXXXX


def _seconds(time: Any) -> int:
    """Return the seconds since the epoch of a number, an ISO 8601 text or that of `$time_local`."""
    try:
        seconds = float(time)
    except ValueError:
        is_local = time[2:3] == "/"
        moment = datetime.strptime(time, _NGINX_TIME) if is_local else datetime.fromisoformat(time)
        seconds = moment.timestamp()
    seconds = seconds / 1000 if seconds > MOST_SECONDS else seconds  # Caddy may write milliseconds
    if not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(time)
    return int(seconds)
