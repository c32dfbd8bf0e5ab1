"""`PRESENCE_REDIS_URL`: parsed and checked without connecting."""

import re
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from ..parsers import InvalidValue
from .limits import CONNECTIONS

FORMS = (
    "redis://[user:password@]host:6379/0, rediss://… (TLS), unix:///path/to/socket (each also as "
    "valkey://, valkeys://, valkey+unix://), redis+sentinel://host1,host2/service[/0], "
    "redis+cluster://host1,host2, embedded://[directory] or memory://"
)
SENTINEL_FORM = "redis+sentinel://[user:password@]sentinel1[:26379],sentinel2…/service[/0]"
CLUSTER_FORM = (
    "redis+cluster://[user:password@]node1[:6379],node2…, or rediss+cluster://… (TLS); a Cluster "
    "has no databases"
)

_NETWORK = {"redis", "rediss", "unix"}
_CLUSTER = {"redis+cluster", "rediss+cluster"}
_ESCAPES = "the host or the port is not valid; write / ? # @ in a password as %2F %3F %23 %40"
_QUERY_OPTION = re.compile(r"(\w+=)?[^&]+")
# The options that a query may contain. redis-py would reject others at the first use only.
_OPTION = re.compile(
    r"(username|password|credential_provider|client_name|socket_keepalive)=.*"
    r"|(db|health_check_interval)=\d+|max_connections=0*[1-9]\d{0,8}|protocol=[23]"
    r"|socket_(connect_)?timeout=(?=.*[1-9])(\d+(\.\d*)?|\.\d+)",
    re.DOTALL,
)
_TLS_OPTION = re.compile(
    r"ssl_((certfile|keyfile|password|ca_certs|ca_path|ca_data|ciphers|check_hostname"
    r"|(in|ex)clude_verify_flags|validate_ocsp(_stapled)?|ocsp_expected_cert)=.+"
    r"|min_version=\d+|cert_reqs=(none|optional|required))",
    re.DOTALL,
)
_NOT_AN_OPTION = (
    "an option or its value is not valid: timeouts are seconds above zero, as socket_timeout=1; "
    "db, max_connections and health_check_interval are whole numbers, protocol is 2 or 3; "
    "ssl_ options need rediss://"
)
_PROVIDER = re.compile(r"\w+(\.\w+)*:\w+")
_MAX_CONNECTIONS = re.compile(r"[?&]max_connections=0*([1-9]\d{0,8})(?:&|$)")
_SEVERAL_HOSTS = re.compile(
    r"(?:(?P<user>[^/?@]*)@)?(?P<hosts>[^/?@]+)(?P<path>/[^?@]*)?(?:\?(?P<options>[^@]*))?"
)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:,]+)(?::(\d{1,5}))?")
# The default port, the path and the form of a URL with several hosts.
_SENTINELS = 26379, re.compile(r"(?P<service>[^/]+)(?:/(?P<db>\d+))?"), SENTINEL_FORM
_NODES = 6379, re.compile(r"(?P<service>)(?P<db>0?)"), CLUSTER_FORM

Options = dict[str, str | None]
"""Options of redis-py, as text: `username`, `password` and the options of the query."""


@dataclass(frozen=True)
class RedisURL:
    """The address of Redis. `str()` and `repr()` show no credentials."""

    scheme: str
    """`redis`, `rediss`, `unix`, `redis+sentinel`, `redis+cluster`, `rediss+cluster`, `embedded` or
    `memory`."""
    target: str
    """For `redis`, `rediss` and `unix`, a URL for redis-py. For Sentinels and Clusters, the part
    after `://`. For `embedded`, a directory. For `memory`, a name."""
    may_start: bool = True
    """False if connections do not start an embedded server."""

    def joining(self) -> "RedisURL":
        """Return the URL of the same server for those who must not start it."""
        return replace(self, may_start=self.scheme != "embedded")

    @property
    def is_cluster(self) -> bool:
        """True if the keys are on several nodes."""
        return self.scheme in _CLUSTER

    @property
    def max_readers(self) -> int:
        """The most readers that may use a client at once: the option `max_connections`."""
        match = _MAX_CONNECTIONS.search(self.target)
        return int(match[1]) if match else CONNECTIONS

    def __str__(self) -> str:
        return hide_credentials(
            self.target if "://" in self.target else f"{self.scheme}://{self.target}"
        )

    __repr__ = __str__


@dataclass(frozen=True)
class Hosts:
    """The parts of a URL with several hosts. `repr()` shows no passwords."""

    addresses: tuple[tuple[str, int], ...]
    """The nodes of a Cluster, or the Sentinels."""
    service: str
    """The service that the Sentinels name; empty for a Cluster."""
    options: Options = field(repr=False)
    """The options of connections to servers, for Sentinels `db` among them."""
    sentinel_options: Options = field(repr=False)
    """The options of connections to Sentinels, whose names in the query begin with `sentinel_`."""


def parse_url(value: object) -> RedisURL:
    """Return the `RedisURL` of a text. Raises `ValueError` with the accepted forms."""
    if isinstance(value, RedisURL):
        return value
    try:
        return _parse(str(value).strip())
    except InvalidValue:
        raise
    except (ValueError, OSError) as error:
        reason = f" ({error})" if str(error) else ""
        raise ValueError(f"{FORMS}{reason}") from None


def _parse(url: str) -> RedisURL:
    spelling, mark, rest = url.partition("://")
    if not mark:
        raise ValueError
    scheme = "unix" if spelling == "valkey+unix" else spelling.replace("valkey", "redis")
    if scheme in _NETWORK:
        return _network(scheme, rest)
    if scheme in {"redis+sentinel", *_CLUSTER}:
        hosts = parse_hosts(scheme, rest)
        for options in (hosts.options, hosts.sentinel_options):
            _check_options(scheme, options)
        return RedisURL(scheme, rest)
    if scheme == "embedded":
        # This module needs a POSIX system.
        from .. import embedded

        if embedded.find_server() is None:
            raise InvalidValue(embedded.NO_SERVER)
        is_path = rest.startswith("/")
        directory = Path(unquote(rest)) if is_path else embedded.default_directory(rest)
        return RedisURL(scheme, str(directory))
    if scheme == "memory":
        if find_spec("fakeredis") is None:
            raise InvalidValue(
                "fakeredis is not installed: pip install 'presence_middleware[memory]'"
            )
        return RedisURL(scheme, rest)
    raise ValueError


def _check_options(scheme: str, options: Options) -> None:
    for name, value in options.items():
        is_tls = scheme.startswith("rediss") and _TLS_OPTION.fullmatch(f"{name}={value}")
        if not (is_tls or _OPTION.fullmatch(f"{name}={value}")):
            # Without the option, which may be a part of a password.
            raise ValueError(_NOT_AN_OPTION)
    provider = options.get("credential_provider")
    has_others = options.get("username") or options.get("password")
    if provider is not None and (has_others or not _PROVIDER.fullmatch(provider)):
        raise ValueError("credential_provider=module:object takes the place of user and password")


def _network(scheme: str, rest: str) -> RedisURL:
    url = f"{scheme}://{rest}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # The text of this error repeats a part of the URL, which may be a password.
        raise ValueError(_ESCAPES) from None
    if scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise ValueError(_ESCAPES)
    user = {"username": parts.username, "password": parts.password}
    _check_options(scheme, user | options_of(parts.query))
    if scheme == "unix":
        if not parts.path.startswith("/") or parts.hostname:
            raise ValueError("a socket needs an absolute path: unix:///path")
    elif not parts.hostname or port == 0:
        raise ValueError("no host")
    elif not re.fullmatch(r"/?\d*", parts.path):
        raise ValueError("the database is a number")
    return RedisURL(scheme, url)


def options_of(query: str) -> Options:
    """Return the options of the query of a URL."""
    return dict(parse_qsl(query, keep_blank_values=True))


def parse_hosts(scheme: str, rest: str) -> Hosts:
    """Parse the part of a URL after `://`: `[user:password@]h1[:port],h2…[/path][?options]`.

    Raises `ValueError` with the form of the scheme.
    """
    default_port, path, form = _NODES if scheme in _CLUSTER else _SENTINELS
    parts = _SEVERAL_HOSTS.fullmatch(rest)
    hosts = [_HOST.fullmatch(host.strip()) for host in parts["hosts"].split(",")] if parts else []
    service = path.fullmatch((parts["path"] or "/")[1:]) if parts else None
    addresses = [(host[1].strip("[]"), int(host[2] or default_port)) for host in hosts if host]
    if not (parts and service and all(hosts) and all(0 < port < 65536 for _, port in addresses)):
        raise ValueError(form)
    options: Options = {"db": service["db"] or "0"}
    options |= options_of(parts["options"] or "")
    if parts["user"]:
        username, _, password = parts["user"].partition(":")
        options |= {"username": unquote(username) or None, "password": unquote(password) or None}
    sentinel_options: Options = {}
    if scheme in _CLUSTER:
        if options.pop("db") != "0":
            raise ValueError(form)
    else:
        for name in [name for name in options if name.startswith("sentinel_")]:
            sentinel_options[name.removeprefix("sentinel_")] = options.pop(name)
    return Hosts(tuple(addresses), service["service"], options, sentinel_options)


def hide_credentials(url: str) -> str:
    """Return a URL, valid or not, without its user, password and option values."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    location, question, query = rest.partition("?")
    _, at, host = location.rpartition("@")
    authority = host.partition("/")[0]
    has_hosts = at or not authority or all(map(_HOST.fullmatch, authority.split(",")))
    if "@" in query or not has_hosts:
        # A password with a question mark, an option with an @, or a password without a host.
        return f"{scheme}{mark}***"
    hidden = _QUERY_OPTION.sub(r"\1***", query)
    return f"{scheme}{mark}{at and '***@'}{host}{question}{hidden}"
