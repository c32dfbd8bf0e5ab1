"""Queries about who is online: `Presence` for threads and `AsyncPresence` for coroutines.

All methods of both classes raise

- `PresenceUnavailable` if Redis does not answer,
- `UnsupportedQuery` if the store of the kind cannot answer, and
- `QueryError` for an argument that is not valid.

A method is a question: it runs the plan of the method of `Queries` with the same name.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterable
from types import NoneType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args

from .backend import Backend, backend_for
from .connections import Clock, require_sync
from .connections.drivers import run_in_thread
from .errors import QueryError
from .events.feed import NameLease
from .events.iterators import AsyncEvents, Events
from .identity.ids import Id
from .queries import Queries, checked_name
from .settings import Settings
from .stores import Plan

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", Events, AsyncEvents)
Query = Callable[Concatenate[Queries, P], Plan[T]]
"""A method of `Queries`."""


def question(
    query: Query[P, T], *, is_write: bool = False
) -> Callable[Concatenate["Presence", P], T]:
    """Return the method of `Presence` that returns the result of a query.

    The reader of a request runs it with the sightings that wait, unless `is_write`.
    """

    def ask(reader: "Presence", /, *arguments: P.args, **named: P.kwargs) -> T:
        plan = query(reader.backend.queries, *arguments, **named)
        return reader.backend.driver.run(plan) if is_write else reader.run(plan)

    return presented(ask, "Presence", query)


def async_question(
    query: Query[P, T], *, is_write: bool = False
) -> Callable[Concatenate["AsyncPresence", P], Coroutine[Any, Any, T]]:
    """Return the method of `AsyncPresence` that returns the result of a query.

    The reader of a request runs it with the sightings that wait, unless `is_write`.
    """

    async def ask(reader: "AsyncPresence", /, *arguments: P.args, **named: P.kwargs) -> T:
        plan = query(reader.backend.queries, *arguments, **named)
        driver = reader.backend.driver
        return await (run_in_thread(driver, plan) if is_write else reader.run(plan))

    return presented(ask, "AsyncPresence", query)


def presented(method: T, owner: str, query: Query[..., Any], *, or_none: bool = False) -> T:
    """Return a method with the name, signature and docstring of a query.

    `owner` is the name of its class. The method returns what the plan of the query returns, with
    `or_none` also None.
    """
    signature = inspect.signature(query)
    result = get_args(signature.return_annotation)[-1]
    if result is NoneType:
        result = None
    if or_none:
        result |= None
    shown: Any = method
    shown.__name__, shown.__qualname__ = query.__name__, f"{owner}.{query.__name__}"
    shown.__doc__ = query.__doc__
    shown.__signature__ = signature.replace(return_annotation=result)
    shown.__annotations__ = {**query.__annotations__, "return": result}
    return method


class Reader(Generic[E]):
    """What the readers of a site have in common."""

    backend: Backend
    """The Redis of the site."""

    _is_sync: ClassVar[bool]
    _iterator: Callable[..., E]

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        client: Any = None,
        clock: Clock | None = None,
        backend: Backend | None = None,
    ) -> None:
        """Create a reader. This opens no connection.

        `settings` are by default read from the environment. `client` is a client of redis-py to use
        instead of `PRESENCE_REDIS_URL`: a `redis.Redis`, or for `AsyncPresence` also a
        `redis.asyncio.Redis`. `clock` returns seconds since the epoch and replaces the time of the
        server. `backend` replaces the three other arguments. Raises `SettingsError` if the settings
        or the client cannot be used.
        """
        self.backend = backend or backend_for(settings, client, clock)
        if self._is_sync:
            require_sync(self.backend.driver)

    @classmethod
    def from_env(cls) -> Self:
        """Return a reader with the settings of the environment. Raises `SettingsError`."""
        return cls()

    def events(
        self,
        kind: str | None = None,
        *,
        among: Iterable[Id] | None = None,
        after: str | None = None,
        name: str | None = None,
    ) -> E:
        """Return an endless iterator over who comes online and who goes offline, from now on.

        With `AsyncPresence`, it is for `async for`.

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
        does no I/O. It raises `UnsupportedQuery` for a kind without events, `QueryError`, and
        `SettingsError` if the client of the reader is for coroutines, because a thread reads.
        """
        kind, ids = self.backend.queries.watched(kind, among)
        feed = self.backend.feed(kind)
        if name is not None and after is not None:
            raise QueryError("pass name or after, not both: a name goes on from where it was")
        positions = None if after is None else feed.streams.parse_cursor(after)
        lease = None if name is None else NameLease(feed.streams, checked_name(name))
        return self._iterator(feed, ids, positions, lease)


class Presence(Reader[Events]):
    """Reads who is online, in a process of the site or in any program with the same settings."""

    _is_sync, _iterator = True, Events

    count = question(Queries.count)
    counts = question(Queries.counts)
    active = question(Queries.active)
    online = question(Queries.online)
    is_online = question(Queries.is_online)
    last_seen = question(Queries.last_seen)
    last_seen_among = question(Queries.last_seen_among)
    online_among = question(Queries.online_among)
    online_friends = question(Queries.online_friends)
    history = question(Queries.history)
    peak = question(Queries.peak)
    reset_peak = question(Queries.reset_peak, is_write=True)
    touch = question(Queries.touch, is_write=True)
    leave = question(Queries.leave, is_write=True)
    forget = question(Queries.forget, is_write=True)

    def run(self, plan: Plan[T]) -> T:
        """Run a plan on the Redis of this site and return its result.

        Raises `PresenceUnavailable`, and the errors of the plan.
        """
        return self.backend.driver.run(plan)


class AsyncPresence(Reader[AsyncEvents]):
    """`Presence` for coroutines of asyncio: the same methods, with `await`."""

    _is_sync, _iterator = False, AsyncEvents

    count = async_question(Queries.count)
    counts = async_question(Queries.counts)
    active = async_question(Queries.active)
    online = async_question(Queries.online)
    is_online = async_question(Queries.is_online)
    last_seen = async_question(Queries.last_seen)
    last_seen_among = async_question(Queries.last_seen_among)
    online_among = async_question(Queries.online_among)
    online_friends = async_question(Queries.online_friends)
    history = async_question(Queries.history)
    peak = async_question(Queries.peak)
    reset_peak = async_question(Queries.reset_peak, is_write=True)
    touch = async_question(Queries.touch, is_write=True)
    leave = async_question(Queries.leave, is_write=True)
    forget = async_question(Queries.forget, is_write=True)

    async def aclose(self) -> None:
        """Close the connections of this process that nobody uses. The next read opens new ones."""
        self.backend.driver.close_idle()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan on the Redis of this site and return its result.

        Raises `PresenceUnavailable`, and the errors of the plan.
        """
        return await run_in_thread(self.backend.driver, plan)
