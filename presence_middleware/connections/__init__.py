"""Connections to Redis: URLs, clients, the server's clock and health, and drivers of plans."""

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import SettingsError
from .cluster import ClusterDriver
from .drivers import Driver, LoopDriver
from .health import RedisHealth
from .url import RedisURL

NOT_SYNC = "client must be a synchronous redis.Redis or RedisCluster, because a thread uses it"

Clock = Callable[[], float]
"""Returns the time in seconds since the epoch."""


def driver(
    url: RedisURL, health: RedisHealth, client: Any = None, *, is_writer: bool = False
) -> Driver:
    """Return a driver.

    It uses `client`, a `redis.Redis`, `redis.RedisCluster` or `redis.asyncio.Redis`, or else the
    client of this process for `url`. With `is_writer`, the driver never waits for readers. Raises
    `SettingsError` if the client does not fit the URL.
    """
    if client is not None:
        if not hasattr(client, "execute_command"):
            raise SettingsError(
                f"client is a {type(client).__name__}: pass a redis.Redis, or no client and the "
                "URL as PRESENCE_REDIS_URL"
            )
        # Of its class: a proxy of a client names that of the client, and a mock has any attribute.
        if hasattr(client.__class__, "get_primaries") != url.is_cluster:
            raise SettingsError(
                "client is of a Cluster, or PRESENCE_REDIS_URL is redis+cluster://…, but not both: "
                "set both, because the URL decides how keys are named"
            )
    is_async = inspect.iscoroutinefunction(getattr(client, "execute_command", None))
    if is_async and url.is_cluster:
        raise SettingsError(NOT_SYNC)
    driver_class = LoopDriver if is_async else ClusterDriver if url.is_cluster else Driver
    return driver_class(url, health, client, is_writer=is_writer)


def require_sync(driver: Driver) -> None:
    """Raise `SettingsError` if the client of a driver is for coroutines."""
    if isinstance(driver, LoopDriver):
        raise SettingsError(NOT_SYNC)
