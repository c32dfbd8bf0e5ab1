"""Queries about who is online: `Presence` for threads and `AsyncPresence` for coroutines.

All methods of both classes raise

- `PresenceUnavailable` if Redis does not answer,
- `UnsupportedQuery` if the store of the kind cannot answer, and
- `QueryError` for an argument that is not valid.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Self, TypeVar

from .backend import Backend, backend_for
from .connections import close_async_clients
from .errors import QueryError
from .events import AsyncEvents, Events, Hub, NamedSubscription, Subscription
from .queries import Id, Window, checked_name
from .settings import Settings
from .stores import Plan, Sample, Sighting

T = TypeVar("T")
Clock = Callable[[], float]


class Presence:
    """Reads who is online, in a process of the site or in any program with the same settings."""

    backend: Backend
    """The Redis of the site."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        client: Any = None,
        clock: Clock | None = None,
        backend: Backend | None = None,
    ) -> None:
        """Create a reader. This opens no connection.

        `settings` are by default read from the environment. `client` is a `redis.Redis` to use
        instead of `PRESENCE_REDIS_URL`. `clock` returns seconds since the epoch and replaces the
        time of the server. `backend` replaces the three other arguments. Raises
        `SettingsError` if the settings or the client cannot be used.
        """
        self.backend = backend or backend_for(settings, client, clock)
        # A client that cannot be used raises an error here, not at the first query.
        _ = self.backend.driver

    @classmethod
    def from_env(cls) -> Self:
        """Return a reader with the settings of the environment. Raises `SettingsError`."""
        return cls()

    def count(
        self, kind: str | None = None, *, window: Window = None, room: str | None = None
    ) -> int:
        """Return the number of ids online.

        `kind` is the kind to count, by default the first of `PRESENCE_IDENTITY`. `window` counts
        ids seen in the last seconds, by default `PRESENCE_WINDOW`; it may also be a timedelta or
        text such as `"15m"`. `room` counts the ids that were last seen in a room: its name, or any
        path in it; it has no other `window`. Raises `PresenceUnavailable`, `UnsupportedQuery` if
        the window is longer than the retention of the kind or the kind has no rooms, and
        `QueryError`.
        """
        return self.run(self.backend.queries.count(kind, window, room))

    def counts(self, *, window: Window = None, room: str | None = None) -> dict[str, int]:
        """Return the number of ids online of each kind, by kind.

        With `room`, kinds that cannot be in rooms are left out. `window`, `room` and the errors are
        as for `count`.
        """
        return self.run(self.backend.queries.counts(window, room))

    def online(
        self,
        kind: str | None = None,
        *,
        limit: int | None = 100,
        before: Sighting | None = None,
        window: Window = None,
        room: str | None = None,
    ) -> list[Sighting]:
        """Return who is online, newest first.

        `limit` is the most to return, None for all. `before` is the last `Sighting` of the
        previous page, to read the next page. `kind`, `window` and the errors are as for `count`.
        `room` is as for `count`; who is in a room is sorted by id, and has no pages: `before` must
        be None. A store without times sorts by id. Raises `UnsupportedQuery` if the store has no
        ids.
        """
        return self.run(self.backend.queries.online(kind, window, limit, before, room))

    def is_online(self, id: Id, kind: str | None = None, *, window: Window = None) -> bool:
        """Return whether `id` is online.

        `id` is text or a value with a text, such as an int, bytes or a UUID. `kind`, `window` and
        the errors are as for `count`. Raises `UnsupportedQuery` if the store has no ids.
        """
        return self.run(self.backend.queries.is_online(id, kind, window))

    def last_seen(self, id: Id, kind: str | None = None) -> datetime | None:
        """Return when `id` was last seen, in UTC, also if it is offline.

        Returns None if that is longer ago than the retention of the kind. `id` is as for
        `is_online`, and `kind` and the errors are as for `count`.
        """
        return self.run(self.backend.queries.last_seen(id, kind))

    def last_seen_among(
        self, ids: Iterable[Id], kind: str | None = None
    ) -> dict[str, datetime | None]:
        """Return when each of `ids` was last seen, in their order, in one round trip.

        The keys are the ids as text. The values are as for `last_seen`: in UTC, or None. `ids` are
        several ids as for `is_online`, and `kind` and the errors are as for `count`. Raises
        `UnsupportedQuery` if the store has no ids.
        """
        return self.run(self.backend.queries.last_seen_among(ids, kind))

    def online_among(
        self, ids: Iterable[Id], kind: str | None = None, *, window: Window = None
    ) -> list[str]:
        """Return which of `ids` are online, in their order.

        `ids` are several ids as for `is_online`. `kind`, `window` and the errors are as for
        `count`. Raises `UnsupportedQuery` if the store has no ids.
        """
        return self.run(self.backend.queries.online_among(ids, kind, window))

    def online_friends(
        self, key: str, kind: str | None = None, *, window: Window = None
    ) -> list[str]:
        """Return which members of a set of the site are online, newest first, in one read.

        `key` is the Redis key of a set or sorted set of ids. On a Cluster, a key in the slot of
        the kind is read fastest. `kind`, `window` and the errors are as for `count`. Raises
        `QueryError` if the key has another type.
        """
        return self.run(self.backend.queries.online_friends(key, kind, window))

    def events(
        self,
        kind: str | None = None,
        *,
        among: Iterable[Id] | None = None,
        after: str | None = None,
        name: str | None = None,
    ) -> Events:
        """Return an endless iterator over who comes online and who goes offline, from now on.

        `kind` is by default the first of `PRESENCE_IDENTITY`; it must be in `PRESENCE_EVENTS`.
        With `among`, only events of these ids, at most 1000. `after` is the cursor of an event: go
        on after it, if that was in the last five minutes. Each user comes and goes once, over all
        tabs, devices and processes.

        With `name`, up to 64 letters, digits, and `_.:-`, only one process of all that use the name
        receives events at a time, in order. An event is handled when the iterator is asked for the
        next. If the process dies, another goes on after the last event that was handled, so that
        each is handled at least once. A name is remembered for an hour. With `among`, pass the same
        ids in all processes.

        The iterator raises `EventsLost` where events were missed; then ask `online` again and go
        on with the same iterator. It raises `PresenceUnavailable` if Redis stays away. This method
        does no I/O. It raises `UnsupportedQuery` for a kind without events, and `QueryError`.
        """
        return Events(*_subscription(self.backend, kind, among, after, name))

    def history(self, hours: float = 24, kind: str | None = None) -> list[Sample]:
        """Return how many ids were online in each sampled minute, oldest first.

        `hours` is how far to look back, any number above zero; samples older than
        `PRESENCE_HISTORY` are gone. Minutes without a sample are left out. `kind` and the errors
        are as for `count`.
        """
        return self.run(self.backend.queries.history(hours, kind))

    def peak(self, kind: str | None = None) -> Sample | None:
        """Return the highest sample since the last reset, or None before the first sample.

        `kind` and the errors are as for `count`.
        """
        return self.run(self.backend.queries.peak(kind))

    def reset_peak(self, kind: str | None = None) -> None:
        """Delete the peak; the next sample becomes the peak.

        `kind` and the errors are as for `count`.
        """
        self.backend.driver.run(self.backend.queries.reset_peak(kind))

    def touch(self, id: Id | None, kind: str | None = None) -> None:
        """Record `id` as seen now, for activity without a request.

        `id` is as for `is_online`; None is ignored. `kind` and the errors are as for `count`.
        Also raises `PresenceUnavailable` if the kind has `PRESENCE_MAX_MEMBERS` members.
        """
        self.backend.driver.run(self.backend.queries.touch(id, kind))

    def leave(self, id: Id | None, kind: str | None = None) -> None:
        """Take `id` offline at once, on all processes.

        Requests from before no longer count, and open connections stop counting until their
        handler calls `identify` again. `id` is as for `is_online`; None is ignored. `kind` and the
        errors are as for `count`. The reader of a request never raises `PresenceUnavailable`
        here: if Redis does not answer, the departure waits with the sightings.
        """
        self.backend.driver.run(self.backend.queries.leave(id, kind))

    def forget(self, id: Id | None, kind: str | None = None) -> None:
        """Erase `id` with its last-seen time.

        Requests from before and connections that are still open do not record it again. `id` is as
        for `is_online`; None is ignored. `kind` and the errors are as for `count`. The reader of a
        request waits for Redis as `leave` does.
        """
        self.backend.driver.run(self.backend.queries.forget(id, kind))

    def run(self, plan: Plan[T]) -> T:
        """Run a plan on the Redis of this site and return its result.

        Raises `PresenceUnavailable`, and the errors of the plan.
        """
        return self.backend.driver.run(plan)


class AsyncPresence:
    """`Presence` for coroutines: the same methods, with `await`."""

    backend: Backend
    """The Redis of the site."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        client: Any = None,
        clock: Clock | None = None,
        backend: Backend | None = None,
    ) -> None:
        """Create a reader. This opens no connection.

        `client` is a `redis.asyncio.Redis`, or a `redis.Redis`, which is then used in threads. The
        other arguments are as for `Presence`. Raises `SettingsError` if the settings or the client
        cannot be used.
        """
        self.backend = backend or backend_for(settings, client, clock)
        # A client that cannot be used raises an error here, not at the first query.
        _ = self.backend.async_driver

    @classmethod
    def from_env(cls) -> Self:
        """Return a reader with the settings of the environment. Raises `SettingsError`."""
        return cls()

    async def count(
        self, kind: str | None = None, *, window: Window = None, room: str | None = None
    ) -> int:
        """Return the number of ids online.

        `kind` is the kind to count, by default the first of `PRESENCE_IDENTITY`. `window` counts
        ids seen in the last seconds, by default `PRESENCE_WINDOW`; it may also be a timedelta or
        text such as `"15m"`. `room` counts the ids that were last seen in a room: its name, or any
        path in it; it has no other `window`. Raises `PresenceUnavailable`, `UnsupportedQuery` if
        the window is longer than the retention of the kind or the kind has no rooms, and
        `QueryError`.
        """
        return await self.run(self.backend.queries.count(kind, window, room))

    async def counts(self, *, window: Window = None, room: str | None = None) -> dict[str, int]:
        """Return the number of ids online of each kind, by kind.

        With `room`, kinds that cannot be in rooms are left out. `window`, `room` and the errors are
        as for `count`.
        """
        return await self.run(self.backend.queries.counts(window, room))

    async def online(
        self,
        kind: str | None = None,
        *,
        limit: int | None = 100,
        before: Sighting | None = None,
        window: Window = None,
        room: str | None = None,
    ) -> list[Sighting]:
        """Return who is online, newest first.

        `limit` is the most to return, None for all. `before` is the last `Sighting` of the
        previous page, to read the next page. `kind`, `window` and the errors are as for `count`.
        `room` is as for `count`; who is in a room is sorted by id, and has no pages: `before` must
        be None. A store without times sorts by id. Raises `UnsupportedQuery` if the store has no
        ids.
        """
        return await self.run(self.backend.queries.online(kind, window, limit, before, room))

    async def is_online(self, id: Id, kind: str | None = None, *, window: Window = None) -> bool:
        """Return whether `id` is online.

        `id` is text or a value with a text, such as an int, bytes or a UUID. `kind`, `window` and
        the errors are as for `count`. Raises `UnsupportedQuery` if the store has no ids.
        """
        return await self.run(self.backend.queries.is_online(id, kind, window))

    async def last_seen(self, id: Id, kind: str | None = None) -> datetime | None:
        """Return when `id` was last seen, in UTC, also if it is offline.

        Returns None if that is longer ago than the retention of the kind. `id` is as for
        `is_online`, and `kind` and the errors are as for `count`.
        """
        return await self.run(self.backend.queries.last_seen(id, kind))

    async def last_seen_among(
        self, ids: Iterable[Id], kind: str | None = None
    ) -> dict[str, datetime | None]:
        """Return when each of `ids` was last seen, in their order, in one round trip.

        The keys are the ids as text. The values are as for `last_seen`: in UTC, or None. `ids` are
        several ids as for `is_online`, and `kind` and the errors are as for `count`. Raises
        `UnsupportedQuery` if the store has no ids.
        """
        return await self.run(self.backend.queries.last_seen_among(ids, kind))

    async def online_among(
        self, ids: Iterable[Id], kind: str | None = None, *, window: Window = None
    ) -> list[str]:
        """Return which of `ids` are online, in their order.

        `ids` are several ids as for `is_online`. `kind`, `window` and the errors are as for
        `count`. Raises `UnsupportedQuery` if the store has no ids.
        """
        return await self.run(self.backend.queries.online_among(ids, kind, window))

    async def online_friends(
        self, key: str, kind: str | None = None, *, window: Window = None
    ) -> list[str]:
        """Return which members of a set of the site are online, newest first, in one read.

        `key` is the Redis key of a set or sorted set of ids. On a Cluster, a key in the slot of
        the kind is read fastest. `kind`, `window` and the errors are as for `count`. Raises
        `QueryError` if the key has another type.
        """
        return await self.run(self.backend.queries.online_friends(key, kind, window))

    def events(
        self,
        kind: str | None = None,
        *,
        among: Iterable[Id] | None = None,
        after: str | None = None,
        name: str | None = None,
    ) -> AsyncEvents:
        """Return an endless asynchronous iterator, as `Presence.events` does: `async for`."""
        return AsyncEvents(*_subscription(self.backend, kind, among, after, name))

    async def history(self, hours: float = 24, kind: str | None = None) -> list[Sample]:
        """Return how many ids were online in each sampled minute, oldest first.

        `hours` is how far to look back, any number above zero; samples older than
        `PRESENCE_HISTORY` are gone. Minutes without a sample are left out. `kind` and the errors
        are as for `count`.
        """
        return await self.run(self.backend.queries.history(hours, kind))

    async def peak(self, kind: str | None = None) -> Sample | None:
        """Return the highest sample since the last reset, or None before the first sample.

        `kind` and the errors are as for `count`.
        """
        return await self.run(self.backend.queries.peak(kind))

    async def reset_peak(self, kind: str | None = None) -> None:
        """Delete the peak; the next sample becomes the peak.

        `kind` and the errors are as for `count`.
        """
        await self.backend.async_driver.run(self.backend.queries.reset_peak(kind))

    async def touch(self, id: Id | None, kind: str | None = None) -> None:
        """Record `id` as seen now, for activity without a request.

        `id` is as for `is_online`; None is ignored. `kind` and the errors are as for `count`.
        Also raises `PresenceUnavailable` if the kind has `PRESENCE_MAX_MEMBERS` members.
        """
        await self.backend.async_driver.run(self.backend.queries.touch(id, kind))

    async def leave(self, id: Id | None, kind: str | None = None) -> None:
        """Take `id` offline at once, on all processes.

        Requests from before no longer count, and open connections stop counting until their
        handler calls `identify` again. `id` is as for `is_online`; None is ignored. `kind` and the
        errors are as for `count`. The reader of a request never raises `PresenceUnavailable`
        here: if Redis does not answer, the departure waits with the sightings.
        """
        await self.backend.async_driver.run(self.backend.queries.leave(id, kind))

    async def forget(self, id: Id | None, kind: str | None = None) -> None:
        """Erase `id` with its last-seen time.

        Requests from before and connections that are still open do not record it again. `id` is as
        for `is_online`; None is ignored. `kind` and the errors are as for `count`. The reader of a
        request waits for Redis as `leave` does.
        """
        await self.backend.async_driver.run(self.backend.queries.forget(id, kind))

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The next read opens new ones."""
        await close_async_clients()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan on the Redis of this site and return its result.

        Raises `PresenceUnavailable`, and the errors of the plan.
        """
        return await self.backend.async_driver.run(plan)


def _subscription(
    backend: Backend,
    kind: str | None,
    among: Iterable[Id] | None,
    after: str | None,
    name: str | None,
) -> tuple[Hub, Subscription | NamedSubscription]:
    """Return the hub of a kind, and a subscription to it. Raises the errors of `events`."""
    kind, ids = backend.queries.watched(kind, among)
    hub = backend.hub(kind)
    if name is None:
        return hub, Subscription(ids, None if after is None else hub.streams.parse_cursor(after))
    if after is not None:
        raise QueryError("pass name or after, not both: a name goes on from where it was")
    return hub, NamedSubscription(checked_name(name), ids)
