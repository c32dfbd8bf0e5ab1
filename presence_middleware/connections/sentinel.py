"""`redis+sentinel://h1,h2/service/db`: the primary that Sentinels name, also after a failover."""

import re
from dataclasses import dataclass, field
from typing import Any

from . import hosts

PORT = 26379
FORM = "redis+sentinel://[user:password@]sentinel1[:26379],sentinel2…/service[/0]"
_PATH = re.compile(r"(?P<service>[^/]+)(?:/(?P<db>\d+))?")


@dataclass(frozen=True)
class Service:
    """What the URL names. Its passwords are not shown."""

    sentinels: tuple[tuple[str, int], ...]
    name: str
    options: dict[str, str | None] = field(repr=False)
    """Of connections to the primary: `db`, `username`, `password` and those of the query."""
    sentinel_options: dict[str, str | None] = field(repr=False)
    """Of connections to Sentinels: the query's `sentinel_username` and `sentinel_password`."""


def parse(rest: str) -> Service:
    """The service of the part behind `://`. Raises `ValueError`."""
    try:
        found = hosts.parse(rest, PORT)
    except ValueError:
        raise ValueError(FORM) from None
    path = _PATH.fullmatch(found.path)
    if not path:
        raise ValueError(FORM)
    given = found.options
    own = {
        name.removeprefix("sentinel_"): given.pop(name)
        for name in list(given)
        if name.startswith("sentinel_")
    }
    return Service(found.addresses, path["service"], {"db": path["db"] or "0", **given}, own)


def client(service: Service, common: dict[str, Any]) -> Any:
    """A client of the primary; it asks the Sentinels for each connection that it opens."""
    from redis.sentinel import Sentinel

    from .timed import TimedConnection, TimedSentinelConnection

    sentinels = _sentinels(Sentinel, service, common)
    for each in sentinels.sentinels:
        each.connection_pool.connection_class = TimedConnection
    return sentinels.master_for(service.name, connection_class=TimedSentinelConnection)


def async_client(service: Service, common: dict[str, Any]) -> Any:
    """The same for coroutines."""
    from redis.asyncio.sentinel import Sentinel

    return _sentinels(Sentinel, service, common).master_for(service.name)


def _sentinels(kind: Any, service: Service, common: dict[str, Any]) -> Any:
    # Both with `common`: a Sentinel's own defaults are ten retries and timeouts of minutes.
    return kind(
        list(service.sentinels),
        sentinel_kwargs={**common, **service.sentinel_options},
        **{**common, **hosts.typed(service.options)},
    )


def of(client: Any) -> list[Any]:
    """The clients of the Sentinels that a client asks; none for one of another sort."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return manager.sentinels if manager else []
