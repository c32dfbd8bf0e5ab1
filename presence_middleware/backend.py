"""The Redis of a site: its connections, its clock, its health, and the store of each kind.

A backend is built once from the settings. The recorder, readers, board, metrics and doctor share
it.
"""

import os
from functools import cache
from typing import Any
from weakref import WeakSet

from .connections import Clock, driver, require_sync
from .connections.health import RedisHealth
from .connections.server import ServerClock
from .errors import SettingsError
from .events.feed import Feed
from .events.iterators import RELEASE_SECONDS
from .events.streams import Streams
from .queries import Informed, Queries
from .rooms import Rooms
from .settings import Settings, settings_or_env
from .stores import STORES, History, Plan, Shards, Store
from .stores.agreement import Layout, SharedSettings
from .stores.keys import shard_prefixes
from .upkeep import Upkeep


class Backend:
    """The parts of the package that depend on the Redis of a site."""

    def __init__(
        self, settings: Settings, *, client: Any = None, clock: Clock | None = None
    ) -> None:
        """Build the backend for `settings`. This opens no connection.

        `client` is a `redis.Redis`, `redis.RedisCluster` or `redis.asyncio.Redis` to use instead of
        `PRESENCE_REDIS_URL`. `clock` returns seconds since the epoch and replaces the time of the
        server. Raises `SettingsError` if the client does not fit the settings.
        """
        self.settings = settings
        self.health = RedisHealth(settings.flush_interval)
        self.driver = driver(settings.redis_url, self.health, client)
        """Runs the plans of readers and waits for Redis."""
        self.writing_driver = driver(settings.redis_url, self.health, client, is_writer=True)
        """Runs the plans of the recorder and never waits for readers."""
        self.clock = ServerClock(self.health, clock)
        self.stores = {kind: self._shards(kind) for kind in settings.kinds}
        keep_seconds = {kind: store.keep_seconds for kind, store in self.stores.items()}
        self.layout = Layout(settings.prefix, settings.shards, max(keep_seconds.values()))
        self.shared_settings = SharedSettings(settings.prefix, settings.shared(), keep_seconds)
        self.history = History(settings.prefix, settings.history)
        self.departures: WeakSet[Informed] = WeakSet()
        """Whoever must know who left: the recorders of this process."""
        self.upkeep = Upkeep(settings, self.stores, self.history, self.clock)
        self._feeds: dict[tuple[int, str], Feed] = {}  # by process id and kind
        self.rooms = Rooms(settings.rooms) if settings.rooms else None
        """The rooms of the site; None if it has none."""
        self.queries = Queries(
            settings,
            self.stores,
            self.rooms,
            self.clock,
            self.layout,
            self.history,
            self.departures,
        )

    def feed(self, kind: str) -> Feed:
        """Return the feed of the events of `kind`.

        Raises `UnsupportedQuery` if there are none, and `SettingsError` if the client is for
        coroutines.
        """
        require_sync(self.driver)
        key = os.getpid(), kind
        feed = self._feeds.get(key)
        if feed is None:
            streams = Streams(kind, self.stores[kind], self.driver)
            feed = Feed(
                streams,
                lambda: self.upkeep.run(self.driver),
                lambda: self.driver.run(self.is_announced(kind)),
            )
            self.upkeep.hurry()
            feed = self._feeds.setdefault(key, feed)
        return feed

    def is_announced(self, kind: str) -> Plan[bool]:
        """Return False if another process records and does not announce the events of `kind`."""
        now = yield from self.clock.now()
        others = (yield from self.shared_settings.read(now)).differing
        return kind in others.get("PRESENCE_EVENTS", kind).split(", ")

    def close_events(self) -> None:
        """End all iterators over events of this process, and give up all leases."""
        feeds = [each for each in list(self._feeds.values()) if each.pid == os.getpid()]
        for feed in feeds:
            feed.close(RELEASE_SECONDS)
        if feeds:
            self.upkeep.give_up(self.driver)

    def _shards(self, kind: str) -> Shards:
        settings = self.settings
        is_cluster = settings.redis_url.is_cluster
        prefixes = shard_prefixes(settings.prefix, settings.shards, is_cluster=is_cluster)
        given: dict[str, Any] = {"is_server_time": self.clock.is_server_time}
        if settings.is_swept(kind):  # then it is a sorted set
            given |= {
                "grace": settings.grace_seconds,
                "has_rooms": bool(settings.rooms),
                "lag": settings.lag_seconds(kind),
            }
        store = STORES[settings.store_of(kind)]
        keep_seconds = settings.keep_seconds(kind)
        max_members = max(1, settings.max_members // settings.shards)
        shards: list[Store] = [
            store(prefix, kind, settings.window, keep_seconds, max_members, **given)
            for prefix in prefixes
        ]
        return Shards(shards, on_one_server=not is_cluster)


shared_backend = cache(Backend)
"""Returns the backend that all users of equal settings share."""


def backend_for(
    settings: Settings | None = None, client: Any = None, clock: Clock | None = None
) -> Backend:
    """Return the backend for `settings`, by default the settings of the environment.

    Within a process, equal settings share a backend. It is new with a `client`, which is used
    instead of `PRESENCE_REDIS_URL`, or with a `clock`, which replaces the time of the server.
    Raises `SettingsError` if the environment has invalid settings, the client cannot be used, or
    the clock returns no number.
    """
    settings = settings_or_env(settings)
    if client is None and clock is None:
        return shared_backend(settings)
    # Here, because it is read in each request.
    if clock is not None and not (callable(clock) and isinstance(clock(), (int, float))):
        raise SettingsError("clock must be a function that returns seconds, such as time.time")
    return Backend(settings, client=client, clock=clock)
