"""`PRESENCE_REDIS_URL`: where Redis is. Parsed and checked without connecting."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from . import cluster, sentinel

FORMS = (
    "redis://[user:password@]host:6379/0, rediss://… (TLS), unix:///path/to/socket (each also as "
    "valkey://, valkeys://, valkey+unix://), redis+sentinel://host1,host2/service[/0], "
    "redis+cluster://host1,host2, embedded://[directory] or memory://"
)
_NETWORK = {
    "redis": "redis",
    "valkey": "redis",
    "rediss": "rediss",
    "valkeys": "rediss",
    "unix": "unix",
    "valkey+unix": "unix",
}
_SENTINEL = {"redis+sentinel", "valkey+sentinel"}
_CLUSTER = {
    "redis+cluster": "redis+cluster",
    "valkey+cluster": "redis+cluster",
    "rediss+cluster": "rediss+cluster",
    "valkeys+cluster": "rediss+cluster",
}
_OPTION = re.compile(r"(\w+=)?[^&]+")
_ESCAPES = "host or port is none; write / ? # @ in a password as %2F %3F %23 %40"
# What a URL's query may say: redis-py's own names; another one would only fail at the first use.
_OPTIONS = re.compile(
    r"db|username|password|protocol|client_name|max_connections|health_check_interval"
    r"|socket_(timeout|connect_timeout|keepalive)|ssl_\w+"
)

_MAX_CONNECTIONS = re.compile(r"[?&]max_connections=0*([1-9]\d{0,8})(?:&|$)")


class MissingPart(ValueError):
    """The address is well-formed; what it needs is not installed."""


@dataclass(frozen=True)
class RedisURL:
    """Where Redis is. `str()` and `repr()` show no credentials."""

    scheme: str
    """`redis`, `rediss`, `unix`, `redis+sentinel`, `redis+cluster`, `rediss+cluster`, `embedded` or
    `memory`."""
    target: str
    """A URL that redis-py understands; what is behind `://` of a Sentinel's or Cluster's; a
    directory if embedded; a name if in memory."""

    @property
    def is_cluster(self) -> bool:
        """Whether keys are on several nodes."""
        return self.scheme.endswith("+cluster")

    @property
    def max_connections(self) -> int | None:
        """How many readers may use a client at once; None if the address does not name a number."""
        found = _MAX_CONNECTIONS.search(self.target)
        return int(found[1]) if found else None

    def __str__(self) -> str:
        return hide_credentials(
            self.target if "://" in self.target else f"{self.scheme}://{self.target}"
        )

    __repr__ = __str__


def hide_credentials(url: str) -> str:
    """A URL, well-formed or not, without user, password and option values."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    place, question, query = rest.partition("?")
    if "@" in query:  # a password with a question mark, or an option with an @: nothing is sure
        return f"{scheme}{mark}***"
    _, at, host = place.rpartition("@")
    hidden = _OPTION.sub(r"\1***", query)
    return f"{scheme}{mark}{at and '***@'}{host}{question}{hidden}"


def parse_url(value: object) -> RedisURL:
    """The `RedisURL` of a text. Raises `ValueError` with the accepted forms."""
    if isinstance(value, RedisURL):
        return value
    try:
        return _parse(str(value).strip())
    except MissingPart:
        raise
    except (ValueError, OSError) as error:
        raise ValueError(f"{FORMS}{_reason(error)}") from None


def _parse(url: str) -> RedisURL:
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise ValueError
    if scheme in _NETWORK:
        return _network(_NETWORK[scheme], rest)
    if scheme in _SENTINEL:
        return _sentinel(rest)
    if scheme in _CLUSTER:
        return _cluster(_CLUSTER[scheme], rest)
    if scheme == "embedded":
        return _embedded(rest)
    if scheme == "memory":
        return _memory(rest)
    raise ValueError


def _network(scheme: str, rest: str) -> RedisURL:
    url = f"{scheme}://{rest}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # whose text repeats what may be a password
        raise ValueError(_ESCAPES) from None
    if scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise ValueError(_ESCAPES)
    options = parse_qs(parts.query, keep_blank_values=True)
    if not all(map(_OPTIONS.fullmatch, options)):
        raise ValueError("an unknown option")  # not by its name, which may be a password
    if scheme == "unix":
        if not parts.path.startswith("/") or parts.hostname:
            raise ValueError("a socket needs an absolute path: unix:///path")
    elif not parts.hostname or port == 0:
        raise ValueError("no host")
    elif not re.fullmatch(r"/?\d*", parts.path):
        raise ValueError("the database is a number")
    return RedisURL(scheme, url)


def _sentinel(rest: str) -> RedisURL:
    if not all(map(_OPTIONS.fullmatch, sentinel.parse(rest).options)):
        raise ValueError("an unknown option")
    return RedisURL("redis+sentinel", rest)


def _cluster(scheme: str, rest: str) -> RedisURL:
    if not all(map(_OPTIONS.fullmatch, cluster.parse(rest).options)):
        raise ValueError("an unknown option")
    return RedisURL(scheme, rest)


def _embedded(rest: str) -> RedisURL:
    from . import embedded  # needs a POSIX system

    if embedded.find_server() is None:
        raise MissingPart(embedded.NO_SERVER)
    directory = Path(rest) if rest.startswith("/") else embedded.default_directory(rest)
    return RedisURL("embedded", str(directory))


def _memory(name: str) -> RedisURL:
    if find_spec("fakeredis") is None:
        raise MissingPart("fakeredis is not installed: pip install 'presence_middleware[memory]'")
    return RedisURL("memory", name)


def _reason(error: Exception) -> str:
    return f" ({error})" if str(error) else ""
