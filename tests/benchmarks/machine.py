"""A Valkey server and processes of a benchmark's own, what they take, and how that is told."""

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import redis

from presence_middleware.embedded import find_server
from tests.support.backends import Server
from tests.support.memory import drop_leftovers
from tests.support.servers import environment, free_port

AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140 Safari"


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


class Gauge(AbstractContextManager["Gauge"]):
    """What a server receives, and takes of the processor."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url, protocol=2, socket_timeout=60)
        self.process = int(self.client.info("server")["process_id"])
        self._received()
        self._own = -self._received() + self._received()

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


class Child(AbstractContextManager["Child"]):
    """A process that runs a module and says when a step of it is done. It ends with the block."""

    def __init__(self, module: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment(),
        )

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def says(self, seconds: float = 120.0) -> str:
        """Return the line with which a step ends; empty if it does not end in time."""
        assert self.process.stdout is not None
        is_ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline().decode().strip() if is_ready else ""

    def go_on(self) -> None:
        """Have the child begin its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def memory(self, name: str) -> float:
        """Return kilobytes: `VmRSS` now, `VmHWM` at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return float(status.partition(f"{name}:")[2].split()[0])


def end_step() -> None:
    """In the child: say that a step is done, and wait to go on."""
    print("done", flush=True)
    sys.stdin.readline()


@contextmanager
def server() -> Iterator[str]:
    """The URL of a Valkey server on a loopback port of its own. Its sites are closed with it."""
    port = free_port()
    with TemporaryDirectory() as folder:
        quiet = ("--loglevel", "warning")
        valkey = Server(str(find_server()), Path(folder), *quiet, port=port)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            drop_leftovers()
            valkey.stop()


def processor_seconds(process: int) -> float:
    """What a process and its children have taken so far, to the nanosecond. Linux only."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in (process, *map(int, children)))
