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

from . import embedded
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
_sync: dict[tuple[int, RedisURL], Any] = {}
_async: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, RedisURL], Any]]
_async = WeakKeyDictionary()


def sync_client(url: RedisURL, *, start: bool = True) -> Any:
    """The sync client of this process. `start=False` joins an embedded server but starts none."""
    key = (os.getpid(), url)
    if url.scheme == "embedded":
        embedded.serve(Path(url.target), start=start)
    if key not in _sync:
        _sync[key] = _open_sync(url)
    return _sync[key]


def async_client(url: RedisURL) -> Any:
    """The async client of this process's running loop; a client belongs to one loop."""
    clients = _async.setdefault(asyncio.get_running_loop(), {})
    key = (os.getpid(), url)
    if url.scheme == "embedded":
        embedded.serve(Path(url.target))
    if key not in clients:
        clients[key] = _open_async(url)
    return clients[key]


async def close_async_clients() -> None:
    """Closes what the running loop's tasks opened; the next read opens anew."""
    for client in _async.pop(asyncio.get_running_loop(), {}).values():
        await client.aclose()


def _open_sync(url: RedisURL) -> Any:
    if url.scheme == "memory":
        return _memory("FakeRedis", url.target)
    from redis import Redis, exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    retry = Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))
    return Redis.from_url(_address(url), retry=retry, **_OPTIONS)


def _open_async(url: RedisURL) -> Any:
    if url.scheme == "memory":
        return _memory("FakeAsyncRedis", url.target)
    from redis import exceptions
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    retry = Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,))
    return Redis.from_url(_address(url), retry=retry, **_OPTIONS)


def _address(url: RedisURL) -> str:
    if url.scheme == "embedded":
        return f"unix://{embedded.serve(Path(url.target))}"
    return url.target


def _memory(client: str, name: str) -> Any:
    import fakeredis

    return getattr(fakeredis, client)(server=_fake_server(os.getpid(), name))


@cache
def _fake_server(pid: int, name: str) -> Any:
    import fakeredis

    return fakeredis.FakeServer()
