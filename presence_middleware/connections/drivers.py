"""Drivers run plans, for threads and for coroutines.

All drivers of a process for a URL share a client.
All errors of clients and of the network become errors of this package.
"""

import asyncio
import math
import os
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from copy import copy
from typing import Any, TypeVar

from ..errors import (
    ConnectionsBusy,
    PresenceError,
    PresenceUnavailable,
    QueryError,
    RedisRefused,
)
from ..stores.plan import Batch, Plan, ScriptMissing, plan_error
from .clients import import_library, open_client
from .health import RedisHealth
from .limits import CONNECTIONS, DEADLINE, remaining, slot
from .loops import outside_loop, require_asyncio
from .url import DEFAULT_URL, RedisURL

# How long a plan may wait for Redis in all. Usually a user waits for the page meanwhile.
READ_SECONDS = 2.0
# Shorter round trips are not counted: a list of a million ids needs a thousand of them.
PROMPT_SECONDS = 0.1

TOO_LATE = "Redis did not answer in time"
# After the error of a site that has not set the URL.
ELSEWHERE = " If your server is not there, set PRESENCE_REDIS_URL."

_POOL_IS_FULL = {"Too many connections", "No connection available."}

# Redis 6.2 puts this before the error of a command in a script; Redis 7 does not.
_SCRIPT_PREFIX = re.compile(r"(ERR )?Error running script \(.*?\): (@user_script: ?\d+: ?)+-?")

# Of MOVED and ASK, redis-py keeps a slot and an address.
_MOVED = (
    "the key is on another node, or moves; PRESENCE_REDIS_URL of a Cluster is redis+cluster://…"
)

# redis-py describes each Sentinel by the options of its connections, before what went wrong there.
_SENTINELS = re.compile(" : <.* - ", re.DOTALL)

T = TypeVar("T")
Key = tuple[int, RedisURL]
"""A process id and a URL: a forked child opens its own clients."""

clients: dict[Key, Any] = {}
"""The clients of this process."""


class Driver:
    """Runs plans over a client."""

    def __init__(
        self, url: RedisURL, health: RedisHealth, client: Any = None, *, is_writer: bool = False
    ) -> None:
        """Create a driver over `client`, or else over the client of this process for `url`.

        This opens no connection. With `is_writer`, the driver does not wait for readers.
        """
        self.url, self.health, self._client = url, health, client
        self._is_writer = is_writer
        self._max_readers = url.max_readers if client is None else None

    def connect(self) -> Any:
        """Return the client. Only a client for a Cluster opens a connection by that."""
        if self._client is not None:
            return self._client
        key = os.getpid(), self.url
        # Another thread may remove the client at any time. If several threads open a client at
        # once, all use the first.
        return clients.get(key) or clients.setdefault(key, open_client(self.url))

    def joining(self) -> "Driver":
        """Return a driver for the same server that starts no embedded server."""
        driver = copy(self)
        driver.url = self.url.joining()
        return driver

    def forget_client(self) -> None:
        """Let the next use open a client anew, which finds the nodes of a Cluster from the URL."""
        clients.pop((os.getpid(), self.url), None)

    def close_idle(self) -> None:
        """Close the connections of this process that nobody uses. The next use opens new ones."""
        with suppress(KeyError):  # nobody has connected
            self._close_idle(clients[os.getpid(), self.url])

    def nodes(self) -> "list[tuple[str, Driver]]":
        """Return the name and the driver of each node; a single server has the empty name."""
        return [("", self)]

    def node_of(self, shard: str) -> str:
        """Return the name of the node that has the keys with the prefix `shard`."""
        return ""

    def run(self, plan: Plan[T], deadline: float = math.inf, waited: float = 0.0) -> T:
        """Run a plan and return its result.

        No round trip starts after `deadline`, a time of `time.monotonic()`. The caller has `waited`
        for some seconds already. Raises

        - `PresenceUnavailable` if Redis does not answer within `READ_SECONDS`, or if `deadline`
          has passed,
        - `ConnectionsBusy` if other readers use all connections,
        - `RedisRefused` if Redis refuses a command, and
        - `QueryError` if a key has another type.
        """
        replies: list[Any] | None = None
        import_library(self.url.scheme)
        if waited >= READ_SECONDS:
            raise ConnectionsBusy
        seconds_left = READ_SECONDS - waited
        while True:
            if time.monotonic() > deadline or seconds_left <= 0:
                raise PresenceUnavailable(TOO_LATE)
            try:
                batch = plan.send(replies)  # type: ignore[arg-type]  # None starts the plan
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except Exception as error:
                raise plan_error(error, replies)  # noqa: B904 - it has its cause
            began, outer = time.monotonic(), DEADLINE.get()
            try:
                DEADLINE.set(min(outer, began + seconds_left))  # an earlier one stays in force
                replies = self._round_trip(batch)
            finally:
                DEADLINE.set(outer)
            seconds = time.monotonic() - began
            if seconds > PROMPT_SECONDS:
                seconds_left -= seconds

    def _round_trip(self, batch: Batch) -> list[Any]:
        """Send a batch and return the replies. All errors are errors of this package."""
        client: Any = None
        try:
            client = self.connect()
            with nullcontext() if self._is_writer else slot(client, self._max_readers):
                replies = checked_replies(self.execute(client, batch), batch)
        except Exception as error:
            is_default = self._client is None and str(self.url) == DEFAULT_URL
            failure = translated_error(error, ELSEWHERE if is_default else "")
            is_busy = isinstance(failure, ConnectionsBusy)
            if isinstance(failure, PresenceUnavailable) and not is_busy:
                self._lost_connection(client)
            # The error of a server may contain ids.
            try:
                raise failure from (None if is_server_error(error) else error)
            finally:
                del failure  # in a cycle with this frame, it would keep the request
        # A server that refused a command may be no longer the primary.
        if RedisRefused in map(type, replies):
            self._lost_connection(client)
        return replies

    def execute(self, client: Any, batch: Batch) -> list[Any]:
        """Send a batch over `client` and return the replies, in which errors may be."""
        return send(client, batch)

    def _lost_connection(self, client: Any) -> None:
        """Make the next command open a connection, because another server may answer by then."""
        self.health.lost_connection()
        self._close_idle(client)

    def _close_idle(self, client: Any) -> None:
        # The client of a Cluster has no pool: its driver has closed what led to a failed node.
        with suppress(Exception):
            client.connection_pool.disconnect(inuse_connections=False)


_loop: ContextVar[asyncio.AbstractEventLoop] = ContextVar("presence_loop")
"""The event loop for which a thread runs a plan."""


class LoopDriver(Driver):
    """Runs plans over a client for coroutines: its commands in the loop for which a thread asks."""

    def execute(self, client: Any, batch: Batch) -> list[Any]:
        return self._in_loop(send(client, batch))  # type: ignore[no-any-return]

    def _close_idle(self, client: Any) -> None:
        with suppress(Exception):
            self._in_loop(client.connection_pool.disconnect(inuse_connections=False))

    def _in_loop(self, coroutine: Any) -> Any:
        running = asyncio.run_coroutine_threadsafe(coroutine, _loop.get())
        try:
            return running.result(remaining())
        finally:
            running.cancel()  # what took too long


async def run_in_thread(driver: Driver, plan: Plan[T], run: Callable[..., T] | None = None) -> T:
    """Run a plan in a thread; return its result.

    `run` is by default that of the driver. It is told how long the plan has waited for a thread.
    Raises the errors of `run`, and `WouldBlock` under trio.
    """
    require_asyncio()
    asked_at = time.monotonic()
    _loop.set(asyncio.get_running_loop())
    run, most = run or driver.run, max(CONNECTIONS, driver.url.max_readers)
    return await outside_loop(lambda: run(plan, waited=time.monotonic() - asked_at), most=most)


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for no event loop, and return its result.

    So what threads and coroutines do alike is written once.
    """
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def send(client: Any, batch: Batch) -> list[Any]:
    """Send a batch in a pipeline. Return the replies, in which errors may be."""
    pipeline = client.pipeline(transaction=batch.atomic)
    for command in batch.commands:
        pipeline.execute_command(*command)
    return pipeline.execute(raise_on_error=False)  # type: ignore[no-any-return]


def checked_replies(replies: list[Any], batch: Batch) -> list[Any]:
    """Return the replies to a batch, or raise the first error among them, translated.

    In the replies to a tolerant batch, each error becomes an error of this package instead.
    """
    for number, reply in enumerate(replies):
        if isinstance(reply, Exception):
            reply.__traceback__ = None  # its frames, which refer to it, and to the request
            if not batch.is_tolerant:
                raise translated_error(reply)
            replies[number] = translated_error(reply)
    return replies


def translated_error(error: Exception, remedy: str = "") -> PresenceError:
    """Return the error of this package for an error of a client or of the network.

    `remedy` ends its text if no server answered. It contains no credentials.
    """
    for each in (error, error.__cause__):
        if isinstance(each, PresenceError):  # redis-py may wrap the error of an embedded server
            return each
    if str(error) in _POOL_IS_FULL:
        return ConnectionsBusy()
    if type(error) is TimeoutError:
        return PresenceUnavailable(TOO_LATE)
    if not is_server_error(error):
        if _SENTINELS.search(str(error)):
            # The options include passwords, and a traceback shows this error as the cause.
            error.args = (_SENTINELS.sub(": ", str(error)),)
        text = str(error) or type(error).__name__
        return PresenceUnavailable(f"Redis did not answer: {text}{remedy}")
    if "NoScriptError" in _classes(error):
        return ScriptMissing("the server does not have this script")
    # The client puts the command before the message of the server, ids included. A server that does
    # not know a command repeats its arguments.
    text = str(error).partition(", with args beginning with")[0]
    text = text.partition("caused error: ")[2] or text
    # An old redis-py has no error of its own for the answer of another node.
    is_elsewhere = "AskError" in _classes(error) or text.startswith("MOVED ")
    message = _MOVED if is_elsewhere else _SCRIPT_PREFIX.sub("", text)
    kind = QueryError if message.startswith("WRONGTYPE") else RedisRefused
    return kind(f"Redis refused: {message}")


def is_server_error(error: Exception) -> bool:
    """Return whether an error is an answer of a server, or already one of this package."""
    return isinstance(error, PresenceError) or "ResponseError" in _classes(error)


def _classes(error: Exception) -> set[str]:
    """Return the names of an error's classes: valkey-py has its own, with the names of redis-py."""
    return {each.__name__ for each in type(error).__mro__}
