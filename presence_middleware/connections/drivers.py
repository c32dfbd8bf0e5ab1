"""Run plans: a driver for a sync client, one for an async one. Its errors become ours."""

import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from ..errors import PresenceError, PresenceUnavailable, QueryError
from ..stores.plan import Batch, Plan
from .clock import ServerClock
from .loops import in_thread, is_trio

T = TypeVar("T")
Connect = Callable[[], Any]
"""Returns the client of this process."""

AsyncConnect = Callable[[], Awaitable[Any]]
"""Returns the client of this process and of its running event loop."""

Doubt = Callable[[], None]
"""Hears of every connection that was lost."""


class AsyncRunner(Protocol):
    """Runs a plan from a coroutine."""

    clock: ServerClock

    async def run(self, plan: Plan[T]) -> T:
        """What the plan returns."""


class Driver:
    """Runs plans over a sync client."""

    def __init__(
        self,
        connect: Connect,
        clock: ServerClock,
        join: Connect | None = None,
        doubt: Doubt = lambda: None,
    ) -> None:
        """`join` connects without starting an embedded server; by default as `connect` does."""
        self._connect, self._join, self._doubt = connect, join or connect, doubt
        self.clock = clock

    def joining(self) -> "Driver":
        """This driver, but one that starts no server."""
        return type(self)(self._join, self.clock, doubt=self._doubt)

    def nodes(self) -> "list[tuple[str, Driver]]":
        """Each server that has keys, by name, with a driver of its own; one alone has no name."""
        return [("", self)]

    def place(self, name: str) -> str:
        """Which of the `nodes` has the keys that begin with `name`."""
        return ""

    def run(self, plan: Plan[T], deadline: float = math.inf) -> T:
        """What the plan returns.

        Raises `PresenceUnavailable`, also rather than start a round trip after `deadline` (by
        `time.monotonic()`), or `QueryError` for a key of another type.
        """
        replies: list[Any] | None = None
        while True:
            if time.monotonic() > deadline:
                raise PresenceUnavailable("Redis did not answer in time")
            try:
                batch = plan.send(replies)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            replies = self._send(batch)

    def _send(self, batch: Batch) -> list[Any]:
        client: Any = None
        try:
            with errors_of_redis():
                client = self._connect()
                return exchange(client, batch)
        except PresenceUnavailable:
            self.clock.distrust()  # when Redis answers again, it may be another server,
            self._doubt()
            with suppress(Exception):  # and an open connection may lead to one that was demoted
                client.connection_pool.disconnect(inuse_connections=False)
            raise


class AsyncDriver:
    """Runs plans over an async client."""

    def __init__(
        self,
        connect: AsyncConnect,
        clock: ServerClock,
        doubt: Doubt = lambda: None,
        under_trio: AsyncRunner | None = None,
    ) -> None:
        """`under_trio` is what runs them there, where no async client works."""
        self._connect, self._doubt, self.clock = connect, doubt, clock
        self._under_trio = under_trio

    async def run(self, plan: Plan[T]) -> T:
        """What the plan returns. Raises what `Driver.run` does."""
        if self._under_trio is not None and is_trio():
            return await self._under_trio.run(plan)
        replies: list[Any] | None = None
        while True:
            try:
                batch = plan.send(replies)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            replies = await self._send(batch)

    async def _send(self, batch: Batch) -> list[Any]:
        client: Any = None
        try:
            with errors_of_redis():
                client = await self._connect()
                return await _fill(client.pipeline(transaction=batch.atomic), batch).execute()  # type: ignore[no-any-return]
        except PresenceUnavailable:
            self.clock.distrust()
            self._doubt()
            with suppress(Exception):
                await client.connection_pool.disconnect(inuse_connections=False)
            raise


class ThreadDriver:
    """Runs plans from a coroutine over a sync client, in a thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self.clock = driver, driver.clock

    async def run(self, plan: Plan[T]) -> T:
        """What the plan returns. Raises what `Driver.run` does."""
        return await in_thread(self._driver.run, plan)


def exchange(client: Any, batch: Batch) -> list[Any]:
    """Sends a batch over a sync client; returns the replies."""
    return _fill(client.pipeline(transaction=batch.atomic), batch).execute()  # type: ignore[no-any-return]


def _fill(pipeline: Any, batch: Batch) -> Any:
    for command in batch.commands:
        pipeline.execute_command(*command)
    return pipeline


@contextmanager
def errors_of_redis() -> Iterator[None]:
    """Turns whatever the client raises into an error of ours, which names no credentials."""
    from redis.exceptions import ResponseError

    try:
        yield
    except PresenceError:
        raise
    except ResponseError as error:
        words = _words(error)
        kind = QueryError if words.startswith("WRONGTYPE") else PresenceUnavailable
        raise kind(f"Redis refused: {words}") from None
    except Exception as error:  # of the client, the network, or an address that is none
        reason = str(error) or type(error).__name__
        raise PresenceUnavailable(f"Redis did not answer: {reason}") from error


def _words(error: Exception) -> str:
    """The server's own words: the client quotes the command before them, ids and keys included."""
    text = str(error)
    return (text.partition("caused error: ")[2] or text).strip("(',)\"")
