"""A site's Redis: its connection, clock and health, and how each kind is kept there.

Built once from the settings, and used by the recorder, readers, board, metrics and doctor alike.
"""

import math
from functools import cache, cached_property
from typing import Any, TypeVar

from .connections import (
    AsyncRunner,
    Clock,
    Driver,
    RedisHealth,
    ServerClock,
    async_driver,
    driver,
)
from .departed import Departed
from .queries import Queries
from .settings import Settings
from .stores import STORES, History, Layout, Shards, SharedSettings
from .stores.keys import spread

T = TypeVar("T")


class Backend:
    """Everything that depends on where and how a site keeps its data."""

    def __init__(
        self, settings: Settings, *, client: Any = None, clock: Clock | None = None
    ) -> None:
        """`client` is a `redis.Redis`, `redis.RedisCluster` or `redis.asyncio.Redis` to use.

        `clock` returns seconds since the epoch, and is used in place of the server's time. Raises
        `SettingsError` for a client that does not fit the settings; never connects.
        """
        self.settings = settings
        self._client = client
        self.health = RedisHealth(settings.flush_interval)
        self.clock = ServerClock(self.health, clock)
        self.stores = {kind: self._shards(kind) for kind in settings.kinds}
        self.layout = Layout(
            settings.prefix,
            settings.shards,
            max(store.keep for store in self.stores.values()),
        )
        self.shared_settings = SharedSettings(
            settings.prefix,
            settings.shared(),
            {kind: store.keep for kind, store in self.stores.items()},
        )
        self.history = History(settings.prefix, settings.history)
        self.departed = Departed(settings.window, settings.max_pending)
        self.queries = Queries(
            settings,
            clock=self.clock,
            stores=self.stores,
            layout=self.layout,
            history=self.history,
            departed=self.departed,
        )

    @cached_property
    def driver(self) -> Driver:
        """Runs plans, and waits for Redis. Raises `SettingsError` if the client is for `await`."""
        return driver(self.settings.redis_url, self.health, self._client)

    @cached_property
    def writing_driver(self) -> Driver:
        """Runs the plans of the recorder: however many read, it never waits for them."""
        return driver(self.settings.redis_url, self.health, self._client, is_writer=True)

    @cached_property
    def async_driver(self) -> AsyncRunner:
        """Runs plans from coroutines."""
        return async_driver(self.settings.redis_url, self.health, self._client)

    def _shards(self, kind: str) -> Shards:
        settings = self.settings
        is_cluster = settings.redis_url.is_cluster
        store, most = (
            STORES[settings.store_of(kind)],
            math.ceil(settings.max_members / settings.shards),
        )
        prefixes = spread(settings.prefix, settings.shards, is_cluster=is_cluster)
        keep = settings.keep(kind)
        return Shards(
            [store(prefix, kind, settings.window, keep, most) for prefix in prefixes],
            on_one_server=not is_cluster,
        )


def backend_for(
    settings: Settings | None = None, client: Any = None, clock: Clock | None = None
) -> Backend:
    """Return the backend for these settings, by default the environment's.

    Equal settings share one in a process; with a client or a clock, the backend is new.
    """
    settings = Settings.from_env() if settings is None else settings
    if client is None and clock is None:
        return _shared(settings)
    return Backend(settings, client=client, clock=clock)


@cache
def _shared(settings: Settings) -> Backend:
    return Backend(settings)
