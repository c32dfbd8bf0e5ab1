"""Opens Redis clients: one for each process and URL, and async clients for each running loop too.

Timeouts and retries are explicit, because the defaults of redis-py block for seconds to minutes. A
command is sent again, once, only if its connection turns out to be dead. So a restarted server
causes no error, and a silent server costs a single timeout. Options in the URL win.
"""

import asyncio
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from .limits import CONNECTIONS, RESERVED
from .loops import is_trio
from .url import Options, RedisURL, SentinelService, parse_cluster, parse_sentinel

TIMEOUT = 0.5  # seconds, to open a connection and to wait for a reply
_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": TIMEOUT,
    "socket_timeout": TIMEOUT,
    "health_check_interval": 15,
    "client_name": "presence",
    "decode_responses": False,
    "protocol": 2,
}
Key = tuple[int, RedisURL]
"""A process id and a URL: a forked child opens its own clients."""

_sync: dict[Key, Any] = {}
_async: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, Any]] = WeakKeyDictionary()
_sockets: dict[Key, Path] = {}

# A child that is forked while another thread imports a module could never import it. So a fork
# waits for the import.
_importing = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire,
        after_in_parent=_importing.release,
        after_in_child=_importing.release,
    )


def sync_client(url: RedisURL, *, start: bool = True) -> Any:
    """Return the sync client of this process.

    Without `start`, an embedded server is not started. Raises `PresenceUnavailable` or
    `SettingsError` if there is no embedded server.
    """
    key = (os.getpid(), url)
    address = _address(key, start)
    # Another thread may remove the client at any time. If several threads open a client at once,
    # all use the first.
    client = _sync.get(key)
    if client is None:
        client = _sync.setdefault(key, _open_sync(url, address))
    return client


async def async_client(url: RedisURL) -> Any:
    """Return the async client of this process and of the running loop.

    Raises `PresenceUnavailable` or `SettingsError` as `sync_client` does.
    """
    key = (os.getpid(), url)
    is_ready = url.scheme != "embedded" or key in _sockets
    address = _address(key) if is_ready else await asyncio.to_thread(_address, key)
    clients = _clients_of(asyncio.get_running_loop())
    if key not in clients:
        clients[key] = _open_async(url, address)
    return clients[key]


def _clients_of(loop: asyncio.AbstractEventLoop) -> dict[Key, Any]:
    if loop not in _async:
        # The clients of a closed loop refer to it, so it would never be collected.
        for closed in [other for other in _async if other.is_closed()]:
            del _async[closed]
        _async[loop] = {}
    return _async[loop]


async def close_async_clients() -> None:
    """Close the clients of the running loop. The next read opens new ones."""
    if is_trio():
        return  # Under trio, reads use the sync client of the process.
    for client in _async.pop(asyncio.get_running_loop(), {}).values():
        manager = getattr(client.connection_pool, "sentinel_manager", None)
        for each in (client, *(manager.sentinels if manager else ())):
            await each.aclose()


def forget(url: RedisURL) -> None:
    """Drop the cached address of a server that may be gone.

    Before its next use, an embedded server is checked and started again if necessary, and the
    nodes of a Cluster are looked up from its URL.
    """
    key = (os.getpid(), url)
    _sockets.pop(key, None)
    if url.is_cluster:
        _sync.pop(key, None)


def _address(key: Key, start: bool = True) -> str:
    """Return the address to connect to. An embedded server is started first if necessary."""
    url = key[1]
    if url.scheme != "embedded":
        return url.target
    from .. import embedded

    socket = _sockets.get(key) or embedded.serve(Path(url.target), start=start)
    _sockets[key] = socket
    return f"unix://{quote(str(socket))}"


def _open_sync(url: RedisURL, address: str) -> Any:
    if url.scheme == "memory":
        return _memory("FakeRedis", url.target)
    with _importing:
        from redis import Redis, exceptions
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        from .timed import CLASSES

    retry = Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))
    options = {"retry": retry, **_OPTIONS}
    if url.scheme == "redis+sentinel":
        return _with_pool_size(_sync_primary(parse_sentinel(address), options), url)
    if url.is_cluster:
        return _cluster(url, address)
    scheme = address.partition("://")[0]
    if scheme == "unix":
        options |= _without_notifications()
    client = Redis.from_url(address, **options, connection_class=CLASSES[scheme])
    return _with_pool_size(client, url)


def _open_async(url: RedisURL, address: str) -> Any:
    if url.scheme == "memory":
        return _memory("FakeAsyncRedis", url.target)
    from redis import exceptions
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff

    from .prompt_close import prompt_close

    retry = Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))
    options = {"retry": retry, **_OPTIONS}
    if url.scheme == "redis+sentinel":
        service = parse_sentinel(address)
        manager = _sentinels(Sentinel, service, options)
        client = manager.master_for(service.name)
        clients = [client, *manager.sentinels]
    else:
        client = Redis.from_url(address, **options)
        clients = [client]
    for each in clients:
        pool = each.connection_pool
        pool.connection_class = prompt_close(pool.connection_class)
    return _with_pool_size(client, url)


def _without_notifications() -> dict[str, Any]:
    """Return the option that redis-py 7 needs to use RESP3 over a unix socket."""
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:  # before redis-py 7
        return {}
    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


def _sync_primary(service: SentinelService, options: dict[str, Any]) -> Any:
    """Return a client of the primary. It asks the Sentinels for each connection that it opens."""
    from redis.sentinel import Sentinel

    from .timed import TimedConnection, TimedSentinelConnection

    manager = _sentinels(Sentinel, service, options)
    for sentinel in manager.sentinels:
        sentinel.connection_pool.connection_class = TimedConnection
    return manager.master_for(service.name, connection_class=TimedSentinelConnection)


def _sentinels(sentinel_class: Any, service: SentinelService, options: dict[str, Any]) -> Any:
    # Connections to Sentinels get the same options: their defaults are ten retries, and timeouts
    # of minutes.
    return sentinel_class(
        list(service.sentinels),
        sentinel_kwargs={**options, **service.sentinel_options},
        **{**options, **_typed(service.options)},
    )


def _cluster(url: RedisURL, address: str) -> Any:
    """Return a client of a Cluster. Raises an error of redis-py unless a node of the URL answers.

    redis-py asks these nodes for all other nodes.
    """
    from redis import RedisCluster
    from redis.backoff import NoBackoff
    from redis.cluster import ClusterNode
    from redis.retry import Retry

    from .timed import CLASSES

    nodes = parse_cluster(address)
    options = {
        **_OPTIONS,
        "connection_class": CLASSES[url.scheme],
        **_typed(nodes.options),
        "retry": Retry(NoBackoff(), 1),  # the node that redis-py asks first may be away
        "max_connections": pool_size(url),
    }
    (host, port), *others = nodes.addresses
    return RedisCluster(
        # redis-py uses a connection class only if it gets a URL as well.
        url=f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}",
        startup_nodes=[ClusterNode(*address) for address in others],  # type: ignore[no-untyped-call]
        require_full_coverage=False,  # while a node is away, the others still answer
        **options,
    )


def _typed(options: Options) -> dict[str, Any]:
    """Return the options of a query as redis-py expects them: numbers, switches or text."""
    from redis import connection

    parsers: dict[str, Any] = connection.URL_QUERY_ARGUMENT_PARSERS
    return {
        name: parsers[name](value) if name in parsers else value for name, value in options.items()
    }


def _with_pool_size(client: Any, url: RedisURL) -> Any:
    client.connection_pool.max_connections = pool_size(url)
    return client


def pool_size(url: RedisURL) -> int:
    """Return how many connections a pool may have, for readers and for whatever writes."""
    return (url.max_connections or CONNECTIONS) + RESERVED


def _memory(client: str, name: str) -> Any:
    import fakeredis

    return getattr(fakeredis, client)(server=_fake_server(os.getpid(), name))


@cache
def _fake_server(pid: int, name: str) -> Any:
    import fakeredis

    return fakeredis.FakeServer()
