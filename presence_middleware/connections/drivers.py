"""Run plans: a driver for a sync client, one for an async one. Their errors become ours."""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol, TypeVar

from ..errors import (
    ConnectionsBusy,
    PresenceError,
    PresenceUnavailable,
    QueryError,
    RedisRefused,
)
from ..stores.plan import Batch, Plan, first_error, next_batch
from .deadline import Allowance, within
from .health import RedisHealth
from .loops import in_thread, is_trio
from .slots import async_slots_of, is_pool_full, slots_of

TOO_LATE = "Redis did not answer in time"

# Redis 6.2 puts this before the error of a command that a script calls; Redis 7 does not.
_IN_SCRIPT = re.compile(r"(ERR )?Error running script \(.*?\): (@user_script: ?\d+: ?)+-?")

T = TypeVar("T")
Connect = Callable[[], Any]
"""Returns the client of this process."""

AsyncConnect = Callable[[], Awaitable[Any]]
"""Returns the client of this process and of its running event loop."""

Forget = Callable[[], None]
"""Forgets what is known of a server that may be gone."""


class AsyncRunner(Protocol):
    """Runs a plan from a coroutine."""

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan and return its result."""


class Driver:
    """Runs plans over a sync client."""

    def __init__(
        self,
        connect: Connect,
        health: RedisHealth,
        *,
        join: Connect | None = None,
        forget: Forget = lambda: None,
        readers: int | None = None,
        is_writer: bool = False,
    ) -> None:
        """`join` connects without starting an embedded server; by default as `connect` does.

        `readers` is how many may use the client at once, by default as its pool has room for;
        `is_writer` is for the one who never waits for those.
        """
        self._connect, self._join, self._forget = connect, join or connect, forget
        self._readers, self._is_writer = readers, is_writer
        self.health = health

    def joining(self) -> "Driver":
        """Return this driver, but one that starts no server."""
        return type(self)(
            self._join,
            self.health,
            forget=self._forget,
            readers=self._readers,
            is_writer=self._is_writer,
        )

    def nodes(self) -> "list[tuple[str, Driver]]":
        """Return each server by name, with a driver of its own; one alone has no name."""
        return [("", self)]

    def node_of(self, shard: str) -> str:
        """Return the name of the node that has the keys of a shard."""
        return ""

    def run(self, plan: Plan[T], deadline: float = math.inf) -> T:
        """Run a plan and return its result.

        Raises `PresenceUnavailable` if Redis does not answer within `READ_SECONDS`, also rather
        than start a round trip after `deadline` (by `time.monotonic()`); `ConnectionsBusy` if
        other readers use all connections; `RedisRefused` if Redis refuses; `QueryError` for a key
        of another type.
        """
        replies: list[Any] | None = None
        allowance = Allowance()
        while True:
            if time.monotonic() > deadline or allowance.left <= 0:
                raise PresenceUnavailable(TOO_LATE)
            try:
                batch = next_batch(plan, replies)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            allowance.begin()
            with within(allowance.left):
                replies = self._send(batch)
            allowance.end()

    def _send(self, batch: Batch) -> list[Any]:
        client: Any = None
        try:
            with errors_of_redis():
                client = self._connect()
                with self._slot(client):
                    replies = self._exchange(client, batch)
        except ConnectionsBusy:
            raise
        except PresenceUnavailable:
            self.lost_connection(client)
            raise
        if is_refusing(replies):
            self.lost_connection(client)
        return replies

    def _slot(self, client: Any) -> AbstractContextManager[None]:
        return nullcontext() if self._is_writer else slots_of(client, self._readers)

    def _exchange(self, client: Any, batch: Batch) -> list[Any]:
        """Send a batch; return the replies. Raises what the client raises."""
        return execute(client, batch)

    def lost_connection(self, client: Any) -> None:
        """Have the next command open a connection: another server may answer there by then."""
        self.health.lost_connection()
        self._forget()
        with suppress(Exception):  # an open connection may lead to a server that was demoted
            client.connection_pool.disconnect(inuse_connections=False)


class AsyncDriver:
    """Runs plans over an async client."""

    def __init__(
        self,
        connect: AsyncConnect,
        health: RedisHealth,
        *,
        forget: Forget = lambda: None,
        readers: int | None = None,
        under_trio: AsyncRunner | None = None,
    ) -> None:
        """`under_trio` runs the plans there, where no async client works.

        `readers` is how many may use the client at once, by default as its pool has room for.
        """
        self._connect, self._forget, self._health = connect, forget, health
        self._readers, self._under_trio = readers, under_trio

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan and return its result. Raises what `Driver.run` does."""
        if self._under_trio is not None and is_trio():
            return await self._under_trio.run(plan)
        replies: list[Any] | None = None
        allowance = Allowance()
        while True:
            if allowance.left <= 0:
                raise PresenceUnavailable(TOO_LATE)
            try:
                batch = next_batch(plan, replies)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            allowance.begin()
            replies = await self._send(batch, allowance.left)
            allowance.end()

    async def _send(self, batch: Batch, seconds: float) -> list[Any]:
        client: Any = None
        try:
            with errors_of_redis():
                async with asyncio.timeout(seconds):
                    client = await self._connect()
                    slot = await async_slots_of(client, self._readers).acquire(seconds / 2)
                    try:
                        pipeline = fill(client.pipeline(transaction=batch.atomic), batch)
                        replies = checked(await pipeline.execute(raise_on_error=False), batch)
                    finally:
                        slot.release()
        except ConnectionsBusy:
            raise
        except PresenceUnavailable:
            await self._lost_connection(client)
            raise
        if is_refusing(replies):
            await self._lost_connection(client)
        return replies

    async def _lost_connection(self, client: Any) -> None:
        self._health.lost_connection()
        self._forget()
        with suppress(Exception):
            await client.connection_pool.disconnect(inuse_connections=False)


class ThreadDriver:
    """Runs plans from a coroutine over a sync client, in a thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan and return its result. Raises what `Driver.run` does."""
        return await in_thread(self._driver.run, plan)


def execute(client: Any, batch: Batch) -> list[Any]:
    """Send a batch over a sync client; return the replies. Raises what the client raises."""
    pipeline = fill(client.pipeline(transaction=batch.atomic), batch)
    return checked(pipeline.execute(raise_on_error=False), batch)


def fill(pipeline: Any, batch: Batch) -> Any:
    """Return a pipeline with the commands of a batch in it."""
    for command in batch.commands:
        pipeline.execute_command(*command)
    return pipeline


def checked(replies: list[Any], batch: Batch) -> list[Any]:
    """Return the replies, with errors of ours among them if the batch is tolerant; else raise."""
    if (error := first_error(replies)) is None:
        return replies
    if not batch.is_tolerant:
        raise error
    return [ours(reply) if isinstance(reply, Exception) else reply for reply in replies]


def is_refusing(replies: list[Any]) -> bool:
    """Return whether the server refuses what it should take: it may have been demoted."""
    return any(isinstance(reply, RedisRefused) for reply in replies)


@contextmanager
def errors_of_redis() -> Iterator[None]:
    """Turn whatever the client raises into an error of ours, which names no credentials."""
    try:
        yield
    except Exception as error:
        raise ours(error) from (None if _is_answer(error) else error)


def ours(error: Exception) -> PresenceError:
    """Return the error of ours for one of a client, the network, or an address that is none."""
    if isinstance(error, PresenceError):
        return error
    if is_pool_full(error):
        return ConnectionsBusy()
    if type(error) is TimeoutError:
        return PresenceUnavailable(TOO_LATE)
    if not _is_answer(error):
        return PresenceUnavailable(f"Redis did not answer: {str(error) or type(error).__name__}")
    words = _words(error)
    kind = QueryError if words.startswith("WRONGTYPE") else RedisRefused
    return kind(f"Redis refused: {words}")


def _is_answer(error: Exception) -> bool:
    from redis.exceptions import ResponseError

    return isinstance(error, (PresenceError, ResponseError))


def _words(error: Exception) -> str:
    """Return the server's own words: the client quotes the command before them, ids included."""
    text = str(error)
    text = (text.partition("caused error: ")[2] or text).strip("(',)\"")
    return _IN_SCRIPT.sub("", text)
