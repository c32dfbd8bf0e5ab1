"""From a URL to a running plan: addresses, clients, the server's clock, drivers."""

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from ..errors import SettingsError
from .clients import async_client, close_async_clients, doubt, sync_client
from .clock import ServerClock
from .cluster import ClusterDriver
from .drivers import AsyncDriver, AsyncRunner, Driver, ThreadDriver
from .loops import in_thread, is_in_loop
from .server import eviction_policy, facts
from .url import RedisURL

__all__ = [
    "AsyncDriver",
    "AsyncRunner",
    "Clock",
    "Driver",
    "RedisURL",
    "ServerClock",
    "async_driver",
    "close_async_clients",
    "driver",
    "eviction_policy",
    "facts",
    "in_thread",
    "is_in_loop",
]

Clock = Callable[[], float]


def driver(url: RedisURL, client: Any = None, clock: Clock | None = None) -> Driver:
    """A driver for the site's Redis, or for a `redis.Redis` or `RedisCluster` of the caller's own.

    Raises `SettingsError` for a client of another sort.
    """
    kind: type[Driver] = ClusterDriver if url.is_cluster else Driver
    if client is not None:
        if _is_async(client):
            raise SettingsError("client= wants a redis.Redis here: what writes is a thread")
        _check(client, url)
        return kind(lambda: client, ServerClock(clock))
    return kind(
        partial(sync_client, url),
        ServerClock(clock) if clock else _clock(url),
        join=partial(sync_client, url, start=False),
        doubt=partial(doubt, url),
    )


def async_driver(url: RedisURL, client: Any = None, clock: Clock | None = None) -> AsyncRunner:
    """The same for coroutines; of the caller's own, a `redis.asyncio.Redis` or any for `driver`.

    A Cluster is asked in threads.
    """
    if client is not None and _is_async(client):
        if url.is_cluster:
            raise SettingsError("client= wants a redis.RedisCluster here: it is asked in threads")
        _check(client, url)
        return AsyncDriver(partial(_given, client), ServerClock(clock))
    threads = ThreadDriver(driver(url, client, clock))
    if client is not None or url.is_cluster:
        return threads
    return AsyncDriver(partial(async_client, url), threads.clock, partial(doubt, url), threads)


async def _given(client: Any) -> Any:
    return client


@cache
def _clock(url: RedisURL) -> ServerClock:
    """One for all who ask the same server, so that its time is asked for once."""
    return ServerClock()


def _is_async(client: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(client, "execute_command", None))


def _check(client: Any, url: RedisURL) -> None:
    from redis import RedisCluster, asyncio

    if isinstance(client, (RedisCluster, asyncio.RedisCluster)) != url.is_cluster:
        raise SettingsError(
            "client= is of a Cluster, or PRESENCE_REDIS_URL is redis+cluster://…, but not both: "
            "the URL decides how keys are named"
        )
