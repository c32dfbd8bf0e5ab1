"""`redis+sentinel://h1,h2/service/db`: the primary that Sentinels name, also after a failover."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

PORT = 26379
FORM = "redis+sentinel://[user:password@]sentinel1[:26379],sentinel2…/service[/0]"
_URL = re.compile(
    r"(?:(?P<user>[^/?@]*)@)?(?P<hosts>[^/?@]+)/(?P<service>[^/?@]+)(?:/(?P<db>\d+))?(?:\?(?P<options>[^@]*))?"
)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:,]+)(?::(\d{1,5}))?")


@dataclass(frozen=True)
class Service:
    """What the URL names. Its passwords are not shown."""

    sentinels: tuple[tuple[str, int], ...]
    name: str
    options: dict[str, Any] = field(repr=False)
    """Of connections to the primary: `db`, `username`, `password` and those of the query."""
    sentinel_options: dict[str, Any] = field(repr=False)
    """Of connections to Sentinels: the query's `sentinel_username` and `sentinel_password`."""


def parse(rest: str) -> Service:
    """The service of the part behind `://`. Raises `ValueError`."""
    match = _URL.fullmatch(rest)
    if not match:
        raise ValueError(FORM)
    given = dict(parse_qsl(match["options"] or "", keep_blank_values=True))
    own = {
        k.removeprefix("sentinel_"): given.pop(k) for k in list(given) if k.startswith("sentinel_")
    }
    options: dict[str, Any] = {"db": int(match["db"] or 0), **given}
    if match["user"]:
        username, _, password = match["user"].partition(":")
        options |= {"username": unquote(username) or None, "password": unquote(password) or None}
    return Service(tuple(map(_host, match["hosts"].split(","))), match["service"], options, own)


def _host(text: str) -> tuple[str, int]:
    match = _HOST.fullmatch(text.strip())
    if not match or not 0 < int(match[2] or PORT) < 65536:
        raise ValueError(FORM)
    return match[1].strip("[]"), int(match[2] or PORT)


def client(service: Service, common: dict[str, Any]) -> Any:
    """A client of the primary; it asks the Sentinels for each connection that it opens."""
    from redis.sentinel import Sentinel

    return _sentinels(Sentinel, service, common).master_for(service.name)


def async_client(service: Service, common: dict[str, Any]) -> Any:
    """The same for coroutines."""
    from redis.asyncio.sentinel import Sentinel

    return _sentinels(Sentinel, service, common).master_for(service.name)


def _sentinels(kind: Any, service: Service, common: dict[str, Any]) -> Any:
    from redis import connection

    parsers: dict[str, Any] = connection.URL_QUERY_ARGUMENT_PARSERS

    given = {name: parsers.get(name, same)(value) for name, value in service.options.items()}
    # Both with `common`: a Sentinel's own defaults are ten retries and timeouts of minutes.
    return kind(
        list(service.sentinels),
        sentinel_kwargs={**common, **service.sentinel_options},
        **{**common, **given},
    )


def same(value: Any) -> Any:
    """An option that needs no parser."""
    return value


def of(client: Any) -> list[Any]:
    """The clients of the Sentinels that a client asks; none for one of another sort."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return manager.sentinels if manager else []
