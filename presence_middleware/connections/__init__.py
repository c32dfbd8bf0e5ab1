"""From a URL to a running plan: addresses, clients, the server's clock and health, drivers."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import SettingsError
from .clients import async_client, close_async_clients, forget, sync_client
from .clock import TRUSTED, ServerClock
from .cluster import ClusterDriver
from .drivers import AsyncDriver, AsyncRunner, Driver, ThreadDriver
from .health import RedisHealth
from .loops import in_thread, is_in_loop
from .server import eviction_policy, facts
from .slots import CONNECTIONS
from .url import RedisURL

__all__ = [
    "TRUSTED",
    "AsyncDriver",
    "AsyncRunner",
    "Clock",
    "Driver",
    "RedisHealth",
    "RedisURL",
    "ServerClock",
    "async_driver",
    "close_async_clients",
    "driver",
    "eviction_policy",
    "facts",
    "forget",
    "in_thread",
    "is_async",
    "is_in_loop",
]

Clock = Callable[[], float]


def driver(
    url: RedisURL, health: RedisHealth, client: Any = None, *, is_writer: bool = False
) -> Driver:
    """Return a driver for the site's Redis, or for a `redis.Redis` or `RedisCluster` of its own.

    `is_writer` is for whatever records: it never waits for those who read. Raises `SettingsError`
    for a client of another sort.
    """
    kind: type[Driver] = ClusterDriver if url.is_cluster else Driver
    if client is None:
        return kind(
            partial(sync_client, url),
            health,
            join=partial(sync_client, url, start=False),
            forget=partial(forget, url),
            readers=url.max_connections or CONNECTIONS,
            is_writer=is_writer,
        )
    if is_async(client):
        raise SettingsError("client must be a synchronous redis.Redis, because a thread uses it")
    _check(client, url)
    return kind(lambda: client, health, is_writer=is_writer)


def async_driver(url: RedisURL, health: RedisHealth, client: Any = None) -> AsyncRunner:
    """Return the same for coroutines; `client` may also be a `redis.asyncio.Redis`.

    A Cluster is asked in threads.
    """
    if client is not None and is_async(client):
        if url.is_cluster:
            raise SettingsError(
                "client must be a redis.RedisCluster: a Cluster is asked in threads"
            )
        _check(client, url)
        return AsyncDriver(partial(_given, client), health)
    threads = ThreadDriver(driver(url, health, client))
    if client is not None or url.is_cluster:
        return threads
    return AsyncDriver(
        partial(async_client, url),
        health,
        forget=partial(forget, url),
        readers=url.max_connections or CONNECTIONS,
        under_trio=threads,
    )


async def _given(client: Any) -> Any:
    return client


def is_async(client: Any) -> bool:
    """Return whether a client is one for coroutines."""
    return inspect.iscoroutinefunction(getattr(client, "execute_command", None))


def _check(client: Any, url: RedisURL) -> None:
    from redis import RedisCluster, asyncio

    if isinstance(client, (RedisCluster, asyncio.RedisCluster)) != url.is_cluster:
        raise SettingsError(
            "client is of a Cluster, or PRESENCE_REDIS_URL is redis+cluster://…, but not both: "
            "the URL decides how keys are named"
        )
