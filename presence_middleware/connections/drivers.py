"""Drivers run plans: over a sync client, over an async client, or over a sync client in threads.

All errors of clients and of the network become errors of this package.
"""

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
from ..stores.plan import Batch, Plan, ScriptMissing, first_error, next_batch
from .health import RedisHealth
from .limits import Allowance, async_slots_of, is_pool_full, slots_of, within
from .loops import in_thread, is_trio

TOO_LATE = "Redis did not answer in time"

# Redis 6.2 puts this before the error of a command in a script; Redis 7 does not.
_SCRIPT_PREFIX = re.compile(r"(ERR )?Error running script \(.*?\): (@user_script: ?\d+: ?)+-?")

T = TypeVar("T")
Connect = Callable[[], Any]
"""Returns the sync client of this process."""

AsyncConnect = Callable[[], Awaitable[Any]]
"""Returns the async client of this process and of its running event loop."""

Forget = Callable[[], None]
"""Drops the cached address of a server that may be gone."""


class AsyncRunner(Protocol):
    """Runs plans from coroutines."""

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan and return its result. Raises the errors of `Driver.run`."""


class Driver:
    """Runs plans over a sync client."""

    def __init__(
        self,
        connect: Connect,
        health: RedisHealth,
        *,
        join: Connect | None = None,
        forget: Forget = lambda: None,
        max_readers: int | None = None,
        is_writer: bool = False,
    ) -> None:
        """Create a driver. This opens no connection.

        `connect` returns the client. `join` also does, but starts no embedded server; by default
        it is `connect`. `forget` is called when a connection is lost. `max_readers` is how many
        may use the client at once, by default the room in its pool. With `is_writer`, the driver
        does not wait for readers.
        """
        self.connect, self.forget = connect, forget
        self._join = join or connect
        self._max_readers, self._is_writer = max_readers, is_writer
        self.health = health

    def joining(self) -> "Driver":
        """Return a driver for the same server that starts no embedded server."""
        return type(self)(
            self._join,
            self.health,
            forget=self.forget,
            max_readers=self._max_readers,
            is_writer=self._is_writer,
        )

    def nodes(self) -> "list[tuple[str, Driver]]":
        """Return the name and the driver of each node; a single server has the empty name."""
        return [("", self)]

    def node_of(self, shard: str) -> str:
        """Return the name of the node that has the keys with the prefix `shard`."""
        return ""

    def run(self, plan: Plan[T], deadline: float = math.inf) -> T:
        """Run a plan and return its result.

        No round trip starts after `deadline`, a time of `time.monotonic()`. Raises

        - `PresenceUnavailable` if Redis does not answer within `READ_SECONDS`, or if `deadline`
          has passed,
        - `ConnectionsBusy` if other readers use all connections,
        - `RedisRefused` if Redis refuses a command, and
        - `QueryError` if a key has another type.
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
            with translated_errors():
                client = self.connect()
                with self.slot(client):
                    replies = self.execute(client, batch)
        except ConnectionsBusy:
            raise
        except PresenceUnavailable:
            self.lost_connection(client)
            raise
        if is_refusing(replies):
            self.lost_connection(client)
        return replies

    def slot(self, client: Any) -> AbstractContextManager[None]:
        """Return the slot that a reader of `client` holds during a round trip."""
        return nullcontext() if self._is_writer else slots_of(client, self._max_readers)

    def execute(self, client: Any, batch: Batch) -> list[Any]:
        """Send a batch over `client` and return the replies. Raises the errors of the client."""
        return send_pipeline(client, batch)

    def lost_connection(self, client: Any) -> None:
        """Make the next command open a connection, because another server may answer by then."""
        self.health.lost_connection()
        self.forget()
        # An open connection may lead to a server that is no longer the primary.
        with suppress(Exception):
            client.connection_pool.disconnect(inuse_connections=False)


class AsyncDriver:
    """Runs plans over an async client."""

    def __init__(
        self,
        connect: AsyncConnect,
        health: RedisHealth,
        *,
        forget: Forget = lambda: None,
        max_readers: int | None = None,
        under_trio: AsyncRunner | None = None,
    ) -> None:
        """Create a driver. This opens no connection.

        `under_trio` runs the plans under trio, which no async client supports. The other arguments
        are as for `Driver`.
        """
        self._connect, self._forget, self._health = connect, forget, health
        self._max_readers, self._under_trio = max_readers, under_trio

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan and return its result. Raises the errors of `Driver.run`."""
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
            with translated_errors():
                async with asyncio.timeout(seconds):
                    client = await self._connect()
                    slot = await async_slots_of(client, self._max_readers).acquire(seconds / 2)
                    try:
                        pipeline = filled_pipeline(client, batch)
                        replies = await pipeline.execute(raise_on_error=False)
                    finally:
                        slot.release()
                replies = checked_replies(replies, batch)
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
    """Runs plans from coroutines over a sync client, in a thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan and return its result. Raises the errors of `Driver.run`."""
        return await in_thread(self._driver.run, plan)


def send_pipeline(client: Any, batch: Batch) -> list[Any]:
    """Send a batch over a sync client and return the replies. Raises the errors of the client."""
    return checked_replies(filled_pipeline(client, batch).execute(raise_on_error=False), batch)


def filled_pipeline(client: Any, batch: Batch) -> Any:
    """Return a pipeline of `client` that contains the commands of a batch."""
    pipeline = client.pipeline(transaction=batch.atomic)
    for command in batch.commands:
        pipeline.execute_command(*command)
    return pipeline


def checked_replies(replies: list[Any], batch: Batch) -> list[Any]:
    """Return the replies to a batch, or raise the first error among them.

    In the replies to a tolerant batch, each error becomes an error of this package instead.
    """
    error = first_error(replies)
    if error is None:
        return replies
    if not batch.is_tolerant:
        raise error
    return [translated_error(reply) if isinstance(reply, Exception) else reply for reply in replies]


def is_refusing(replies: list[Any]) -> bool:
    """Return whether the server refused a command: it may be no longer the primary."""
    return any(isinstance(reply, RedisRefused) for reply in replies)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise any error of the block as an error of this package, which contains no credentials."""
    try:
        yield
    except Exception as error:
        raise translated_error(error) from (None if _is_server_error(error) else error)


def translated_error(error: Exception) -> PresenceError:
    """Return the error of this package for an error of a client or of the network."""
    if isinstance(error, PresenceError):
        return error
    if is_pool_full(error):
        return ConnectionsBusy()
    if type(error) is TimeoutError:
        return PresenceUnavailable(TOO_LATE)
    if not _is_server_error(error):
        return PresenceUnavailable(f"Redis did not answer: {str(error) or type(error).__name__}")
    if _is_script_missing(error):
        return ScriptMissing("the server does not have this script")
    message = _server_message(error)
    kind = QueryError if message.startswith("WRONGTYPE") else RedisRefused
    return kind(f"Redis refused: {message}")


def _is_server_error(error: Exception) -> bool:
    from redis.exceptions import ResponseError

    return isinstance(error, (PresenceError, ResponseError))


def _is_script_missing(error: Exception) -> bool:
    from redis.exceptions import NoScriptError

    return isinstance(error, NoScriptError)


def _server_message(error: Exception) -> str:
    """Return the message of the server. The client puts the command before it, ids included."""
    text = str(error)
    text = (text.partition("caused error: ")[2] or text).strip("(',)\"")
    return _SCRIPT_PREFIX.sub("", text)
