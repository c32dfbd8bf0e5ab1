"""`PRESENCE_REDIS_URL`: parsed and checked without connecting."""

import re
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from ..parsers import InvalidValue
from .limits import CONNECTIONS

DEFAULT_URL = "redis://localhost:6379/0"
FORMS = (
    "redis://[user:password@]host:6379/0, rediss://… (TLS), unix:///path/to/socket (each also as "
    "valkey://, valkeys://, valkey+unix://), redis+sentinel://host1,host2/service[/0], "
    "redis+cluster://host1,host2, embedded://[directory] or memory://"
)
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
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^][:,/?#@\s]+)(?::(\d{0,5}))?")
_USER = "(?:(?P<user>[^/?]*)@)?"
_SERVER = f"{_USER}(?P<hosts>{_HOST.pattern})"
_SERVERS = rf"(?:(?P<user>[^/?@]*)@)?(?P<hosts>{_HOST.pattern}(?:,\s*{_HOST.pattern})*)"
_OPTIONS = r"(?:\?(?P<options>[^@]*))?"


# The default port, the pattern and the remedy of what comes after `://`.
_ONE = (
    6379,
    rf"{_SERVER}(?P<name>)/?(?P<db>\d*)(?:\?(?P<options>[^#@]*))?(?:#[^@]*)?",
    "the host, the port or the database is not valid; write / ? # @ in a password as "
    "%2F %3F %23 %40",
)
_CLUSTER = (
    6379,
    rf"{_SERVERS}(?P<name>)/?(?P<db>0?){_OPTIONS}",
    "redis+cluster://[user:password@]node1[:6379],node2…, or rediss+cluster://… (TLS); a Cluster "
    "has no databases",
)
_SOCKET = (
    0,
    rf"{_USER}(?P<hosts>)(?P<name>/[^?#]+)(?P<db>)(?:\?(?P<options>[^#]*))?(?:#.*)?",
    "a socket needs an absolute path: unix:///path",
)
_SENTINELS = (
    26379,
    rf"{_SERVERS}/(?P<name>[^/?#@]+)(?:/(?P<db>\d+))?{_OPTIONS}",
    "redis+sentinel://[user:password@]sentinel1[:26379],sentinel2…/service[/0]",
)
_FORMS = {
    "redis": _ONE,
    "rediss": _ONE,
    "unix": _SOCKET,
    "redis+sentinel": _SENTINELS,
    "redis+cluster": _CLUSTER,
    "rediss+cluster": _CLUSTER,
}

Options = dict[str, str]
"""Options of redis-py, as text: `username`, `password` and the options of the query."""


@dataclass(frozen=True)
class RedisURL:
    """The address of Redis. `str()` and `repr()` show no credentials."""

    scheme: str
    """`redis`, `rediss`, `unix`, `redis+sentinel`, `redis+cluster`, `rediss+cluster`, `embedded` or
    `memory`."""
    target: str
    """The part after `://`. For `embedded`, a directory. For `memory`, a name."""
    may_start: bool = True
    """False if connections do not start an embedded server."""

    def joining(self) -> "RedisURL":
        """Return the URL of the same server for those who must not start it."""
        return replace(self, may_start=self.scheme != "embedded")

    @property
    def is_cluster(self) -> bool:
        """True if the keys are on several nodes."""
        return self.scheme.endswith("+cluster")

    @property
    def max_readers(self) -> int:
        """The most readers that may use a client at once: the option `max_connections`."""
        return int(self.address.options.get("max_connections", CONNECTIONS))

    @property
    def address(self) -> "Address":
        """The parts of the target. All of it is the name for `embedded` and `memory`."""
        if self.scheme in _FORMS:
            return parse_address(self.scheme, self.target)
        return Address((), self.target, {}, {})

    def __str__(self) -> str:
        return hide_credentials(f"{self.scheme}://{self.target}")

    __repr__ = __str__


@dataclass(frozen=True)
class Address:
    """The parts of a URL. `repr()` shows no passwords."""

    hosts: tuple[tuple[str, int], ...]
    """The server, the nodes of a Cluster, or the Sentinels, with their ports."""
    name: str
    """The path of a socket, or the service that the Sentinels name."""
    options: Options = field(repr=False)
    """The options of connections to servers, among them `db`."""
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
    except (ImportError, ValueError, OSError) as error:
        reason = f" ({error})" if str(error) else ""
        raise ValueError(f"{FORMS}{reason}") from None


def _parse(url: str) -> RedisURL:
    spelling, mark, rest = url.partition("://")
    if not mark:
        raise ValueError
    scheme = "unix" if spelling == "valkey+unix" else spelling.replace("valkey", "redis")
    if scheme in _FORMS:
        address = parse_address(scheme, rest)
        for options in (address.options, address.sentinel_options):
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


def parse_address(scheme: str, rest: str) -> Address:
    """Parse the part of a URL after `://`. Raises `ValueError` with the form of the scheme."""
    port, pattern, remedy = _FORMS[scheme]
    parts = re.fullmatch(pattern, rest)
    if parts is None:
        raise ValueError(remedy)
    found = _HOST.findall(parts["hosts"])
    hosts = tuple((unquote(host.strip("[]")), int(given or port)) for host, given in found)
    options: Options = {"db": parts["db"] or "0"}
    options |= parse_qsl(parts["options"] or "", keep_blank_values=True)
    username, _, password = (parts["user"] or "").partition(":")
    user = {"username": unquote(username), "password": unquote(password)}
    options |= {name: value for name, value in user.items() if value}
    sentinel_options: Options = {}
    if scheme == "redis+sentinel":
        for name in [name for name in options if name.startswith("sentinel_")]:
            sentinel_options[name.removeprefix("sentinel_")] = options.pop(name)
    has_database = scheme.endswith("+cluster") and options.pop("db") != "0"
    if has_database or not all(0 < port < 65536 for _, port in hosts):
        raise ValueError(remedy)
    return Address(hosts, unquote(parts["name"]), options, sentinel_options)


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
