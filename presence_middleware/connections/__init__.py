"""From a URL to a running plan: addresses, clients, the server's clock, drivers."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from ..errors import SettingsError
from .clients import async_client, close_async_clients, doubt, sync_client
from .clock import ServerClock
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
    """A driver for the site's Redis, or for a `redis.Redis` of the caller's own."""
    if client is not None and _is_async(client):
        raise SettingsError("client= wants a redis.Redis here: what writes is a thread")
    if client is not None:
        return Driver(lambda: client, ServerClock(clock))
    return Driver(
        partial(sync_client, url),
        ServerClock(clock) if clock else _clock(url),
        join=partial(sync_client, url, start=False),
        doubt=partial(doubt, url),
    )


def async_driver(url: RedisURL, client: Any = None, clock: Clock | None = None) -> AsyncRunner:
    """The same for coroutines; of the caller's own, a `redis.asyncio.Redis` or a `redis.Redis`."""
    if client is None:
        threads = ThreadDriver(driver(url, clock=clock))
        return AsyncDriver(partial(async_client, url), threads.clock, partial(doubt, url), threads)
    if _is_async(client):
        return AsyncDriver(partial(_given, client), ServerClock(clock))
    return ThreadDriver(driver(url, client, clock))


async def _given(client: Any) -> Any:
    return client


@cache
def _clock(url: RedisURL) -> ServerClock:
    """One for all who ask the same server, so that its time is asked for once."""
    return ServerClock()


def _is_async(client: Any) -> bool:
    from redis.asyncio import Redis, RedisCluster

    return isinstance(client, (Redis, RedisCluster))
