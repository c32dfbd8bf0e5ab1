"""Redis and Valkey servers for the tests, and how to wait for them."""

import subprocess
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from presence_middleware.connections import driver
from presence_middleware.connections.health import RedisHealth
from presence_middleware.connections.url import RedisURL
from presence_middleware.stores import Batch, Plan


def matrix(*values: object) -> list[Any]:
    """Return parameters whose tests run only with `-m matrix`."""
    return [pytest.param(value, marks=pytest.mark.matrix) for value in values]


REDIS_PY = tuple(map(int, redis.__version__.split(".")[:2]))
NAMES = ["memory", "valkey", "cluster", "redis_server", "redis62"]
BACKENDS = [*NAMES[:3], *matrix(*NAMES[3:])]


class Backend(NamedTuple):
    """Where a site keeps its keys, and over how many of a kind."""

    url: str
    shards: int
    place: int
    """Its place among the backends."""


def client_of(url: RedisURL) -> Any:
    """Return the client that the readers of this process use."""
    return driver(url, RedisHealth(1.0)).connect()


def content_of(client: Any, key: bytes) -> Any:
    """Return what a key holds: pairs of a member and its score, members, a hash or a text."""
    kind = client.type(key)
    if kind == b"zset":
        return client.zrange(key, 0, -1, withscores=True)
    if kind == b"set":
        return client.smembers(key)
    return client.hgetall(key) if kind == b"hash" else client.get(key)


def send(*command: Any) -> Plan[Any]:
    (reply,) = yield Batch((command,))
    return reply


def by_trips(plan: Plan[Any], trip: Callable[[Batch], Plan[Any]]) -> Plan[Any]:
    """Run a plan whose batches a test sends in its own way: `trip` returns the replies to one."""
    replies: Any = None
    while True:
        try:
            batch = plan.send(replies)
        except StopIteration as end:
            return end.value
        replies = yield from trip(batch)


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for a condition, never for a time; fails when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


def is_up(client: "redis.Redis") -> bool:
    """Return whether a server answers, and has loaded its data."""
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


class Server:
    """A server process on a unix socket, and on a port unless that is 0, without persistence."""

    def __init__(self, binary: str, folder: Path, *options: str, port: int = 0) -> None:
        self.binary = binary
        self.socket = folder / "s"
        self.url = f"unix://{self.socket}"
        self._command = [
            *(binary, "--port", str(port), "--unixsocket", str(self.socket), "--save", ""),
            *("--dir", str(folder), "--logfile", str(folder / "log"), *options),
        ]
        self.start()

    @cached_property
    def client(self) -> Any:
        return redis.Redis.from_url(self.url)

    def start(self) -> None:
        self.process = subprocess.Popen(self._command)
        with redis.Redis.from_url(self.url) as client:
            wait_until(lambda: is_up(client))

    def stop(self) -> None:
        self.client.close()  # or the end of Python may warn of its sockets
        self.process.kill()
        self.process.wait()
