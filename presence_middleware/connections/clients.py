"""Opens Redis clients.

Timeouts and retries are explicit, because the defaults of redis-py block for seconds to minutes. A
command is sent again, once, only if its connection turns out to be dead. So a restarted server
causes no error, and a silent server costs a single timeout. Options in the URL win.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partialmethod
from importlib import import_module
from typing import Any

from .limits import RESERVED
from .url import Options, RedisURL

TIMEOUT = 0.5  # seconds, to open a connection and to wait for a reply
_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": TIMEOUT,
    "socket_timeout": TIMEOUT,
    # Longer than an idle process is silent, or each of its few commands needs a PING before it.
    "health_check_interval": 30,
    "client_name": "presence",
    "protocol": 2,
}
# A child that is forked while another thread imports a module could never import it. So a fork
# waits for the import.
_importing = threading.RLock()


def _release_in_child() -> None:
    with suppress(RuntimeError):  # uWSGI calls this hook alone, with --py-call-osafterfork
        _importing.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire,
        after_in_parent=_importing.release,
        after_in_child=_release_in_child,
    )


@cache
def import_library(scheme: str) -> None:
    """Import what clients of a URL scheme need, before a lock is held or a deadline begins.

    In a small container, that takes longer than a page may wait for Redis. If it fails,
    `open_client` raises the error.
    """
    with _importing, suppress(Exception):
        import_module("fakeredis" if scheme == "memory" else f"{__package__}.redis_py")


def open_client(url: RedisURL) -> Any:
    """Return a new client. This opens no connection, except to a Cluster."""
    if url.scheme == "memory":
        import fakeredis

        client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
        # If threads were the first to connect at once, each would get a database of its own.
        client.ping()
        return client
    import redis

    from . import redis_py

    parsers: dict[str, Any] = {
        "ssl_min_version": int,  # redis-py before 8 leaves it a text, which it then refuses
        **redis.connection.URL_QUERY_ARGUMENT_PARSERS,
        "credential_provider": redis_py.ImportedCredentials,
    }
    classes: dict[str, Any] = {**redis_py.CLASSES}
    if not url.may_start:
        classes["embedded"] = redis_py.JoiningConnection
    no_backoff = redis.backoff.NoBackoff()
    most = url.max_readers + RESERVED
    address = url.address
    given = _typed(address.options, parsers)
    given.pop("max_connections", None)
    if url.is_cluster:
        (host, port), *others = address.hosts
        base = classes[url.scheme.removesuffix("+cluster")]
        # redis-py drops options that it does not expect of a Cluster, among them some of TLS.
        fitted = {"__init__": partialmethod(base.__init__, **given)}
        # This asks the nodes of the URL for all other nodes.
        return redis.RedisCluster(
            # redis-py uses a connection class only if it gets a URL as well.
            url=f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}",
            startup_nodes=[redis.cluster.ClusterNode(*each) for each in others],  # type: ignore[no-untyped-call]
            require_full_coverage=False,  # while a node is away, the others still answer
            **{
                **_OPTIONS,
                "connection_class": type(base.__name__, (base,), fitted),
                **given,
                # The node that redis-py asks first may be away.
                "retry": redis.retry.Retry(no_backoff, 1),
                "max_connections": most,
            },
        )
    retry = redis.retry.Retry(no_backoff, 1, (redis.exceptions.ConnectionError,))
    options = {"retry": retry, **_OPTIONS}
    pool = {"connection_class": classes[url.scheme], "max_connections": most}
    if url.scheme == "redis+sentinel":
        # Connections to Sentinels get the same options: their defaults are ten retries, and
        # timeouts of minutes.
        manager: Any = redis.Sentinel(  # type: ignore[no-untyped-call]
            list(address.hosts),
            sentinel_kwargs={**options, **_typed(address.sentinel_options, parsers)},
            **{**options, **given},
        )
        for sentinel in manager.sentinels:
            sentinel.connection_pool.connection_class = classes["redis"]
        # This asks the Sentinels for each connection to the primary.
        return manager.master_for(address.name, **pool)
    if address.hosts:
        options["host"], options["port"] = address.hosts[0]
    else:
        options["path"] = address.name
        # Without this option, redis-py 7 cannot use RESP3 over a unix socket.
        with suppress(ImportError):  # before redis-py 7
            from redis.maint_notifications import MaintNotificationsConfig

            options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    return redis.Redis.from_pool(redis.ConnectionPool(**{**options, **given, **pool}))


def _typed(options: Options, parsers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a query as redis-py expects them: numbers, switches or text."""
    return {name: parsers.get(name, str)(value) for name, value in options.items()}
