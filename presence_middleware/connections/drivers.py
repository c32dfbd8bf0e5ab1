"""Drivers run plans: over a sync client, over an async client, or over a sync client in threads.

All errors of clients and of the network become errors of this package.
"""

import asyncio
import math
import re
import time
from contextlib import nullcontext, suppress
from copy import copy
from typing import Any, TypeVar

from ..errors import (
    ConnectionsBusy,
    PresenceError,
    PresenceUnavailable,
    QueryError,
    RedisRefused,
)
from ..stores.plan import Batch, Plan, ScriptMissing, next_batch
from .clients import async_client, sync_client
from .health import RedisHealth
from .limits import Allowance, async_slot_of, is_pool_full, slot_of
from .loops import in_thread, is_trio
from .url import RedisURL

TOO_LATE = "Redis did not answer in time"

# Redis 6.2 puts this before the error of a command in a script; Redis 7 does not.
_SCRIPT_PREFIX = re.compile(r"(ERR )?Error running script \(.*?\): (@user_script: ?\d+: ?)+-?")

T = TypeVar("T")


class Driver:
    """Runs plans over a sync client."""

    def __init__(
        self, url: RedisURL, health: RedisHealth, client: Any = None, *, is_writer: bool = False
    ) -> None:
        """Create a driver over `client`, or else over the client of this process for `url`.

        This opens no connection. With `is_writer`, the driver does not wait for readers.
        """
        self.url, self.health = url, health
        self._client, self._is_writer = client, is_writer
        self._may_start = True

    def connect(self) -> Any:
        """Return the client. Only a client for a Cluster opens a connection by that."""
        if self._client is not None:
            return self._client
        return sync_client(self.url, start=self._may_start)

    def joining(self) -> "Driver":
        """Return a driver for the same server that starts no embedded server."""
        driver = copy(self)
        driver._may_start = False
        return driver

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
            with allowance:
                replies = self._send(batch)

    def _send(self, batch: Batch) -> list[Any]:
        client: Any = None
        try:
            client = self.connect()
            max_readers = self.url.max_readers if self._client is None else None
            with nullcontext() if self._is_writer else slot_of(client, max_readers):
                replies = self.execute(client, batch)
        except Exception as error:
            failure = translated_error(error)
            if _is_lost(failure):
                self.lost_connection(client)
            # The error of a server may contain ids.
            raise failure from (None if is_server_error(error) else error)
        if batch.is_tolerant and is_refusing(replies):
            self.lost_connection(client)
        return replies

    def execute(self, client: Any, batch: Batch) -> list[Any]:
        """Send a batch over `client` and return the replies. Raises the errors of the client."""
        replies = filled_pipeline(client, batch).execute(raise_on_error=False)
        return checked_replies(replies, batch)

    def lost_connection(self, client: Any) -> None:
        """Make the next command open a connection, because another server may answer by then."""
        self.health.lost_connection()
        # An open connection may lead to a server that is no longer the primary.
        with suppress(Exception):
            client.connection_pool.disconnect(inuse_connections=False)


class AsyncDriver:
    """Runs plans from coroutines: over an async client, or over a sync client in threads."""

    def __init__(
        self,
        url: RedisURL,
        health: RedisHealth,
        client: Any = None,
        threads: Driver | None = None,
    ) -> None:
        """Create a driver over `client`, or else over the async client of this process for `url`.

        This opens no connection. `threads` is the driver for threads, unless `client` is for
        coroutines. It runs the plans for a Cluster, for a sync client, and under trio, which no
        async client supports.
        """
        self._url, self._health, self._client, self._threads = url, health, client, threads

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan and return its result. Raises the errors of `Driver.run`."""
        if self._threads is not None and (
            self._client is not None or self._url.is_cluster or is_trio()
        ):
            return await in_thread(self._threads.run, plan)
        replies: list[Any] | None = None
        allowance = Allowance()
        while True:
            if allowance.left <= 0:
                raise PresenceUnavailable(TOO_LATE)
            try:
                batch = next_batch(plan, replies)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            began = time.monotonic()
            replies = await self._send(batch, allowance.left)
            allowance.spend(time.monotonic() - began)

    async def _send(self, batch: Batch, seconds: float) -> list[Any]:
        client: Any = None
        try:
            async with asyncio.timeout(seconds):
                client = async_client(self._url) if self._client is None else self._client
                max_readers = self._url.max_readers if self._client is None else None
                async with async_slot_of(client, max_readers, seconds / 2):
                    pipeline = filled_pipeline(client, batch)
                    replies = await pipeline.execute(raise_on_error=False)
            replies = checked_replies(replies, batch)
        except Exception as error:
            failure = translated_error(error)
            if _is_lost(failure):
                await self._lost_connection(client)
            # The error of a server may contain ids.
            raise failure from (None if is_server_error(error) else error)
        if batch.is_tolerant and is_refusing(replies):
            await self._lost_connection(client)
        return replies

    async def _lost_connection(self, client: Any) -> None:
        self._health.lost_connection()
        with suppress(Exception):
            await client.connection_pool.disconnect(inuse_connections=False)


def filled_pipeline(client: Any, batch: Batch) -> Any:
    """Return a pipeline of `client` that contains the commands of a batch."""
    pipeline = client.pipeline(transaction=batch.atomic)
    for command in batch.commands:
        pipeline.execute_command(*command)
    return pipeline


def checked_replies(replies: list[Any], batch: Batch) -> list[Any]:
    """Return the replies to a batch, or raise the first error among them, translated.

    In the replies to a tolerant batch, each error becomes an error of this package instead.
    """
    for number, reply in enumerate(replies):
        if isinstance(reply, Exception):
            if not batch.is_tolerant:
                raise translated_error(reply)  # the reply itself would keep its frames alive
            replies[number] = translated_error(reply)
    return replies


def is_refusing(replies: list[Any]) -> bool:
    """Return whether the server refused a command: it may be no longer the primary."""
    return RedisRefused in map(type, replies)


def translated_error(error: Exception) -> PresenceError:
    """Return the error of this package for an error of a client or of the network.

    It contains no credentials.
    """
    for each in (error, error.__cause__):
        if isinstance(each, PresenceError):  # redis-py may wrap the error of an embedded server
            return each
    if is_pool_full(error):
        return ConnectionsBusy()
    if type(error) is TimeoutError:
        return PresenceUnavailable(TOO_LATE)
    if not is_server_error(error):
        return PresenceUnavailable(f"Redis did not answer: {str(error) or type(error).__name__}")
    if _is_script_missing(error):
        return ScriptMissing("the server does not have this script")
    message = _server_message(error)
    kind = QueryError if message.startswith("WRONGTYPE") else RedisRefused
    return kind(f"Redis refused: {message}")


def _is_lost(failure: PresenceError) -> bool:
    """Return whether the next command should use another connection."""
    return isinstance(failure, PresenceUnavailable) and not isinstance(failure, ConnectionsBusy)


def is_server_error(error: Exception) -> bool:
    """Return whether an error is an answer of a server, or already one of this package."""
    from redis.exceptions import ResponseError

    return isinstance(error, (PresenceError, ResponseError))


def _is_script_missing(error: Exception) -> bool:
    from redis.exceptions import NoScriptError

    return isinstance(error, NoScriptError)


def _server_message(error: Exception) -> str:
    """Return the message of the server. The client puts the command before it, ids included.

    A server that does not know a command repeats its arguments.
    """
    text = str(error).partition(", with args beginning with")[0]
    text = (text.partition("caused error: ")[2] or text).strip("(',)\"")
    return _SCRIPT_PREFIX.sub("", text)
