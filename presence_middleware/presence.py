"""Who is online: the questions a site asks, once plain and once with `await`.

Every method takes `kind=` (default: the first of `PRESENCE_IDENTITY`). Those about being online
take `window=` (default: `PRESENCE_WINDOW`): seconds, a timedelta or text such as `"15m"`. All raise
`PresenceUnavailable` when Redis cannot answer, `UnsupportedQuery` when the kind's store cannot, and
`QueryError` for a question that makes no sense.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Self, TypeVar

from .backend import Backend, backend_for
from .connections import close_async_clients
from .queries import Id, Window
from .settings import Settings
from .stores import Plan, Sample, Sighting

T = TypeVar("T")
Clock = Callable[[], float]


class Presence:
    """Answers from any process of the site, or from another program with the same settings."""

    backend: Backend
    """The site's Redis."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        client: Any = None,
        clock: Clock | None = None,
        backend: Backend | None = None,
    ) -> None:
        """Read with `settings`, by default those of the environment.

        `client` is a `redis.Redis` to use. `clock` returns seconds since the epoch, and is used in
        place of the server's time. `backend` is one that is there already, in place of the others.
        Raises `SettingsError`; never connects.
        """
        self.backend = backend or backend_for(settings, client, clock)
        _ = self.backend.driver  # of a client that does not fit, now

    @classmethod
    def from_env(cls) -> Self:
        """Return one with the settings of the environment."""
        return cls()

    def count(self, kind: str | None = None, *, window: Window = None) -> int:
        """How many are online."""
        return self.run(self.backend.queries.count(kind, window))

    def counts(self, *, window: Window = None) -> dict[str, int]:
        """How many of each kind are online."""
        return self.run(self.backend.queries.counts(window))

    def online(
        self,
        kind: str | None = None,
        *,
        limit: int | None = 100,
        before: Sighting | None = None,
        window: Window = None,
    ) -> list[Sighting]:
        """Who is online, newest first; `limit=None`: everyone; `before=`: the last of a page."""
        return self.run(self.backend.queries.online(kind, window, limit, before))

    def is_online(self, id: Id, kind: str | None = None, *, window: Window = None) -> bool:
        """Whether one is online."""
        return self.run(self.backend.queries.is_online(id, kind, window))

    def last_seen(self, id: Id, kind: str | None = None) -> datetime | None:
        """When one was last seen, in UTC, also if offline; None when that is not kept any more."""
        return self.run(self.backend.queries.last_seen(id, kind))

    def online_among(
        self, ids: Iterable[Id], kind: str | None = None, *, window: Window = None
    ) -> list[str]:
        """Which of these are online, in their order."""
        return self.run(self.backend.queries.online_among(ids, kind, window))

    def online_friends(
        self, key: str, kind: str | None = None, *, window: Window = None
    ) -> list[str]:
        """Which members of the set or sorted set at `key` are online, newest first, in one read."""
        return self.run(self.backend.queries.online_friends(key, kind, window))

    def history(self, hours: float = 24, kind: str | None = None) -> list[Sample]:
        """How many were online, for each minute that was sampled, oldest first."""
        return self.run(self.backend.queries.history(hours, kind))

    def peak(self, kind: str | None = None) -> Sample | None:
        """The most that were ever online in a minute, and when; None before the first sample."""
        return self.run(self.backend.queries.peak(kind))

    def reset_peak(self, kind: str | None = None) -> None:
        """Forgets the peak: it is counted from now on."""
        self.backend.driver.run(self.backend.queries.reset_peak(kind))

    def touch(self, id: Id | None, kind: str | None = None) -> None:
        """Record `id` as seen now, where no request does; None is nobody.

        Raises `PresenceUnavailable` if there is no room for it (`PRESENCE_MAX_MEMBERS`).
        """
        self.backend.driver.run(self.backend.queries.touch(id, kind))

    def leave(self, id: Id | None, kind: str | None = None) -> None:
        """Take `id` offline at once: nothing from before counts any more, on any worker.

        Nor do connections that stay open, until their handler calls `identify` again. None is
        nobody. Through the reader of a request it never raises `PresenceUnavailable`: where Redis
        does not answer, the departure waits as sightings do.
        """
        self.backend.driver.run(self.backend.queries.leave(id, kind))

    def forget(self, id: Id | None, kind: str | None = None) -> None:
        """Erase `id`, last-seen time included; nothing from before, or still open, brings it back.

        None is nobody. Through the reader of a request it waits for Redis, as `leave` does.
        """
        self.backend.driver.run(self.backend.queries.forget(id, kind))

    def run(self, plan: Plan[T]) -> T:
        """Run a plan of this site's Redis and return its result."""
        return self.backend.driver.run(plan)


class AsyncPresence:
    """`Presence` for coroutines: the same names, with `await`."""

    backend: Backend
    """The site's Redis."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        client: Any = None,
        clock: Clock | None = None,
        backend: Backend | None = None,
    ) -> None:
        """Read with `settings`, by default those of the environment.

        `client` is a `redis.asyncio.Redis`, or a `redis.Redis`, which then runs in threads. `clock`
        and `backend` are as for `Presence`. Raises `SettingsError`; never connects.
        """
        self.backend = backend or backend_for(settings, client, clock)
        _ = self.backend.async_driver  # of a client that does not fit, now

    @classmethod
    def from_env(cls) -> Self:
        """Return one with the settings of the environment."""
        return cls()

    async def count(self, kind: str | None = None, *, window: Window = None) -> int:
        """How many are online."""
        return await self.run(self.backend.queries.count(kind, window))

    async def counts(self, *, window: Window = None) -> dict[str, int]:
        """How many of each kind are online."""
        return await self.run(self.backend.queries.counts(window))

    async def online(
        self,
        kind: str | None = None,
        *,
        limit: int | None = 100,
        before: Sighting | None = None,
        window: Window = None,
    ) -> list[Sighting]:
        """Who is online, newest first; `limit=None`: everyone; `before=`: the last of a page."""
        return await self.run(self.backend.queries.online(kind, window, limit, before))

    async def is_online(self, id: Id, kind: str | None = None, *, window: Window = None) -> bool:
        """Whether one is online."""
        return await self.run(self.backend.queries.is_online(id, kind, window))

    async def last_seen(self, id: Id, kind: str | None = None) -> datetime | None:
        """When one was last seen, in UTC, also if offline; None when that is not kept any more."""
        return await self.run(self.backend.queries.last_seen(id, kind))

    async def online_among(
        self, ids: Iterable[Id], kind: str | None = None, *, window: Window = None
    ) -> list[str]:
        """Which of these are online, in their order."""
        return await self.run(self.backend.queries.online_among(ids, kind, window))

    async def online_friends(
        self, key: str, kind: str | None = None, *, window: Window = None
    ) -> list[str]:
        """Which members of the set or sorted set at `key` are online, newest first, in one read."""
        return await self.run(self.backend.queries.online_friends(key, kind, window))

    async def history(self, hours: float = 24, kind: str | None = None) -> list[Sample]:
        """How many were online, for each minute that was sampled, oldest first."""
        return await self.run(self.backend.queries.history(hours, kind))

    async def peak(self, kind: str | None = None) -> Sample | None:
        """The most that were ever online in a minute, and when; None before the first sample."""
        return await self.run(self.backend.queries.peak(kind))

    async def reset_peak(self, kind: str | None = None) -> None:
        """Forgets the peak: it is counted from now on."""
        await self.backend.async_driver.run(self.backend.queries.reset_peak(kind))

    async def touch(self, id: Id | None, kind: str | None = None) -> None:
        """Record `id` as seen now, where no request does; None is nobody.

        Raises `PresenceUnavailable` if there is no room for it (`PRESENCE_MAX_MEMBERS`).
        """
        await self.backend.async_driver.run(self.backend.queries.touch(id, kind))

    async def leave(self, id: Id | None, kind: str | None = None) -> None:
        """Take `id` offline at once: nothing from before counts any more, on any worker.

        Nor do connections that stay open, until their handler calls `identify` again. None is
        nobody. Through the reader of a request it never raises `PresenceUnavailable`: where Redis
        does not answer, the departure waits as sightings do.
        """
        await self.backend.async_driver.run(self.backend.queries.leave(id, kind))

    async def forget(self, id: Id | None, kind: str | None = None) -> None:
        """Erase `id`, last-seen time included; nothing from before, or still open, brings it back.

        None is nobody. Through the reader of a request it waits for Redis, as `leave` does.
        """
        await self.backend.async_driver.run(self.backend.queries.forget(id, kind))

    async def aclose(self) -> None:
        """Closes the connections of the running event loop; the next read opens new ones."""
        await close_async_clients()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan of this site's Redis and return its result."""
        return await self.backend.async_driver.run(plan)
