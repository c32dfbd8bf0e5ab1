"""Opens Redis clients: one a process and address, and for async code one a running loop besides.

Timeouts and retries are explicit: the library's defaults block for seconds to minutes. Only a
connection that turns out to be dead is tried again, once, so that a restarted server is no error;
a silent one costs a single timeout. The URL's own options win.
"""

import asyncio
import os
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from . import cluster, sentinel
from .loops import is_trio
from .slots import CONNECTIONS, RESERVED
from .url import RedisURL

TIMEOUT = 0.5  # seconds, for a connection and for a reply
_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": TIMEOUT,
    "socket_timeout": TIMEOUT,
    "health_check_interval": 15,
    "client_name": "presence",
    "decode_responses": False,
    "protocol": 2,
}
Key = tuple[int, RedisURL]
"""A process id and an address: after a fork, clients are opened anew."""

_sync: dict[Key, Any] = {}
_async: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, Any]] = WeakKeyDictionary()
_sockets: dict[Key, Path] = {}


def sync_client(url: RedisURL, *, start: bool = True) -> Any:
    """The sync client of this process. `start=False` joins an embedded server but starts none."""
    key = (os.getpid(), url)
    address = _address(key, start)
    client = _sync.get(key)  # another thread may take it out
    if client is None:
        # Of threads that come here together, all use the client of the first.
        client = _sync.setdefault(key, _open_sync(url, address))
    return client


async def async_client(url: RedisURL) -> Any:
    """The async client of this process's running loop; a client belongs to one loop."""
    key = (os.getpid(), url)
    is_ready = url.scheme != "embedded" or key in _sockets
    address = _address(key) if is_ready else await asyncio.to_thread(_address, key)
    clients = _clients_of(asyncio.get_running_loop())
    if key not in clients:
        clients[key] = _open_async(url, address)
    return clients[key]


def _clients_of(loop: asyncio.AbstractEventLoop) -> dict[Key, Any]:
    if loop not in _async:
        for closed in [other for other in _async if other.is_closed()]:
            del _async[closed]  # its clients hold it: it would never go by itself
        _async[loop] = {}
    return _async[loop]


async def close_async_clients() -> None:
    """Closes what the running loop's tasks opened; the next read opens anew."""
    if is_trio():
        return  # its reads use the client of the process
    for client in _async.pop(asyncio.get_running_loop(), {}).values():
        for each in (client, *sentinel.of(client)):
            await each.aclose()


def forget(url: RedisURL) -> None:
    """Forget where a server is: before the next use, an embedded one is looked after.

    And a Cluster, none of whose nodes answers, is looked for from the start.
    """
    key = (os.getpid(), url)
    _sockets.pop(key, None)
    if url.is_cluster:
        _sync.pop(key, None)


def _address(key: Key, start: bool = True) -> str:
    """What to connect to; an embedded server is looked after first if there is any doubt of it."""
    url = key[1]
    if url.scheme != "embedded":
        return url.target
    from . import embedded

    socket = _sockets.get(key) or embedded.serve(Path(url.target), start=start)
    _sockets[key] = socket
    return f"unix://{socket}"


def _open_sync(url: RedisURL, address: str) -> Any:
    if url.scheme == "memory":
        return _memory("FakeRedis", url.target)
    from redis import Redis, exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from .timed import CLASSES

    retry = Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))
    options = {"retry": retry, **_OPTIONS}
    if url.scheme == "redis+sentinel":
        return _with_room(sentinel.client(sentinel.parse(address), options), url)
    if url.is_cluster:
        common = {**_OPTIONS, "connection_class": CLASSES[url.scheme]}
        return cluster.client(cluster.parse(address), common, room_for(url))
    scheme = address.partition("://")[0]
    if scheme == "unix":
        options |= _without_notifications()
    return _with_room(Redis.from_url(address, **options, connection_class=CLASSES[scheme]), url)


def _without_notifications() -> dict[str, Any]:
    """Return the option with which redis-py 7 speaks RESP3 over a unix socket: else it raises."""
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:  # before redis-py 7
        return {}
    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


def _open_async(url: RedisURL, address: str) -> Any:
    if url.scheme == "memory":
        return _memory("FakeAsyncRedis", url.target)
    from redis import exceptions
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    retry = Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))
    options = {"retry": retry, **_OPTIONS}
    if url.scheme == "redis+sentinel":
        return _with_room(sentinel.async_client(sentinel.parse(address), options), url)
    return _with_room(Redis.from_url(address, **options), url)


def _with_room(client: Any, url: RedisURL) -> Any:
    client.connection_pool.max_connections = room_for(url)
    return client


def room_for(url: RedisURL) -> int:
    """Return how many connections a pool may have: for readers, and for whatever writes."""
    return (url.max_connections or CONNECTIONS) + RESERVED


def _memory(client: str, name: str) -> Any:
    import fakeredis

    return getattr(fakeredis, client)(server=_fake_server(os.getpid(), name))


@cache
def _fake_server(pid: int, name: str) -> Any:
    import fakeredis

    return fakeredis.FakeServer()
