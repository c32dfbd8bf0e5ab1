"""A Redis or Valkey server of a benchmark's own, and what processes take of the processor."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from presence_middleware.embedded import find_server
from tests.support.servers import free_port


@contextmanager
def server(binary: str | None = None) -> Iterator[str]:
    """The URL of a server on a loopback port of its own: Valkey, or what `binary` is."""
    port = free_port()
    options = ["--port", str(port), "--save", "", "--loglevel", "warning"]
    process = subprocess.Popen([binary or str(find_server()), *options], stdout=subprocess.DEVNULL)
    try:
        url = f"redis://127.0.0.1:{port}/0"
        with redis.Redis.from_url(url) as client:
            while not _answers(client):
                time.sleep(0.01)
        yield url
    finally:
        process.kill()
        process.wait()


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def processor_seconds(process: int) -> float:
    """What a process and its children have taken so far, to the nanosecond. Linux only."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in (process, *map(int, children)))
