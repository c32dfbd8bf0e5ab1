"""Connections to Redis: URLs, clients, the server's clock and health, and drivers of plans."""

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import SettingsError
from .cluster import ClusterDriver
from .drivers import AsyncDriver, Driver
from .health import RedisHealth
from .url import RedisURL

Clock = Callable[[], float]
"""Returns the time in seconds since the epoch."""


def driver(
    url: RedisURL, health: RedisHealth, client: Any = None, *, is_writer: bool = False
) -> Driver:
    """Return a driver for threads.

    It uses `client`, a `redis.Redis` or `redis.RedisCluster`, or else the client of this process
    for `url`. With `is_writer`, the driver never waits for readers. Raises `SettingsError` if the
    client is for coroutines, or does not fit the URL.
    """
    if is_async(client):
        raise SettingsError("client must be a synchronous redis.Redis, because a thread uses it")
    _check_client(client, url)
    driver_class = ClusterDriver if url.is_cluster else Driver
    return driver_class(url, health, client, is_writer=is_writer)


def async_driver(url: RedisURL, health: RedisHealth, client: Any = None) -> AsyncDriver:
    """Return a driver for coroutines.

    It uses `client`, a `redis.asyncio.Redis` or a synchronous client of a server or Cluster, or
    else the client of this process for `url`. Synchronous clients are used in threads. Raises
    `SettingsError` if the client does not fit the URL.
    """
    if not is_async(client):
        return AsyncDriver(url, health, threads=driver(url, health, client))
    if url.is_cluster:
        raise SettingsError(
            "client must be a synchronous redis.RedisCluster, because threads use it"
        )
    _check_client(client, url)
    return AsyncDriver(url, health, client)


def is_async(client: Any) -> bool:
    """Return whether a client is for coroutines."""
    return inspect.iscoroutinefunction(getattr(client, "execute_command", None))


def _check_client(client: Any, url: RedisURL) -> None:
    if client is None:
        return
    if not hasattr(client, "execute_command"):
        raise SettingsError(
            f"client is a {type(client).__name__}: pass a redis.Redis, or no client and the URL as "
            "PRESENCE_REDIS_URL"
        )
    # Of its class: a proxy of a client names that of the client, and a mock has any attribute.
    if hasattr(client.__class__, "get_primaries") != url.is_cluster:
        raise SettingsError(
            "client is of a Cluster, or PRESENCE_REDIS_URL is redis+cluster://…, but not both: "
            "set both, because the URL decides how keys are named"
        )
