"""A Redis or Valkey server of a benchmark's own, what it and processes take, and how it is told."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import redis

from presence_middleware.embedded import find_server
from tests.support.backends import Server
from tests.support.servers import free_port


class Row(NamedTuple):
    """A figure beside its goal."""

    name: str
    value: float
    """Infinite if the time limit ended the measurement."""
    goal: float
    unit: str
    detail: str
    """The absolute figures of which a ratio was made."""
    at_least: bool = False
    """True if a greater value is better."""

    @property
    def is_met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def __str__(self) -> str:
        sign, verdict = "≥" if self.at_least else "≤", "met" if self.is_met else "NOT MET"
        measured = f"{_figure(self.value)} {self.unit}"
        goal = f"{sign} {_figure(self.goal)}"
        return f"| {self.name} | {measured} | {goal} | {verdict} | {self.detail} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


class Gauge:
    """What a server receives, and takes of the processor."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url, protocol=2, socket_timeout=60)
        self.process = int(self.client.info("server")["process_id"])
        self._received()
        self._own = -self._received() + self._received()

    def __enter__(self) -> "Gauge":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def bytes_of(self, work: Callable[[], object]) -> int:
        """Return the bytes that the server receives during `work`, from whomever."""
        before = self._received()
        work()
        return self._received() - before - self._own

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Return the seconds of the processor that the server takes during `work`."""
        before = processor_seconds(self.process)
        work()
        return processor_seconds(self.process) - before

    def _received(self) -> int:
        return int(self.client.info("stats")["total_net_input_bytes"])


@contextmanager
def server() -> Iterator[str]:
    """The URL of a Valkey server on a loopback port of its own."""
    port = free_port()
    with TemporaryDirectory() as folder:
        quiet = ("--loglevel", "warning")
        valkey = Server(str(find_server()), Path(folder), *quiet, port=port)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            valkey.stop()


def processor_seconds(process: int) -> float:
    """What a process and its children have taken so far, to the nanosecond. Linux only."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in (process, *map(int, children)))
