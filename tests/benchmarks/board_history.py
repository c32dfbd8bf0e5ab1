"""How long a reader of the board's history holds an event loop, at some values of PRESENCE_HISTORY.

    python -m tests.benchmarks.board_history [rounds]

A real Valkey holds one sample a minute for the whole time. In each round a new board answers its
first reader, who causes the read, then later readers, who share it. Every callback of the loop is
timed. The table shows the longest callback, by the clock and by the processor time of its thread,
and the sum of all callbacks of one request. The figures are medians of the rounds. On a machine
that has other work, the clock also counts the wait for a processor.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import redis

from presence_middleware import Settings, asgi
from presence_middleware.connections.clients import close_async_clients
from presence_middleware.stores import keys

from .machine import server

DAYS = (7, 366, 3660)
LATER = 200  # readers a round who share what the first one read
MINUTES = 1440


class Held(NamedTuple):
    """How long requests held the loop, in seconds."""

    longest: float
    """The longest callback, by the clock."""
    busiest: float
    """The longest callback, by processor time."""
    total: float
    """All callbacks of one request, by the clock."""


class Meter:
    """Times every callback of the loops of this process."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[float, float]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the callbacks that run inside the block."""
        original = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began, busy = time.perf_counter(), time.thread_time()
            original(handle)
            self._callbacks.append((time.perf_counter() - began, time.thread_time() - busy))

        asyncio.Handle._run = timed  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            asyncio.Handle._run = original  # type: ignore[method-assign]

    def held(self, requests: int) -> Held:
        """Return what was measured since the last call."""
        seconds, busy = zip(*self._callbacks, strict=True)
        self._callbacks.clear()
        return Held(max(seconds), max(busy), sum(seconds) / requests)


def fill(url: str, days: int) -> None:
    """Write one sample a minute, with a daily rise and fall."""
    today = int(time.time()) // 86400
    counts: dict[Any, Any] = {n: 5000 - abs(n - 720) * 5 for n in range(MINUTES)}
    with redis.Redis.from_url(url) as client:
        for day in range(today - days, today + 1):
            client.hset(keys.history("bench", "user", day), mapping=counts)


async def ask(app: Any, hours: int, etag: str = "") -> tuple[int, dict[bytes, bytes], int]:
    """Return the status, the headers and the length of one answer."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/presence/history",
        "query_string": f"hours={hours}".encode(),
        "headers": [(b"host", b"site"), (b"if-none-match", etag.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], dict(sent[0]["headers"]), len(body)


async def measured(url: str, days: int, hours: int) -> tuple[Held, Held, Held, int]:
    """Return what the first reader, later readers and later 304s cost, and the answer's length."""
    settings = Settings.from_env(
        {}, redis_url=url, prefix="bench", history=f"{days}d", board_path="/presence"
    )
    app = asgi.PresenceMiddleware(lambda *_: None, settings=settings)  # type: ignore[arg-type]
    await app.presence.count()  # connects
    meter = Meter()
    with meter.running():
        _, headers, length = await asyncio.create_task(ask(app, hours))
        first = meter.held(1)
        for _ in range(LATER):
            await asyncio.create_task(ask(app, hours))
        later = meter.held(LATER)
        etag = headers[b"etag"].decode()
        for _ in range(LATER):
            status, _, _ = await asyncio.create_task(ask(app, hours, etag))
            assert status == 304
        unchanged = meter.held(LATER)
    await close_async_clients()
    app.recorder.close()
    return first, later, unchanged, length


def line(*cells: object) -> str:
    return "".join(f"{cell:>12}" for cell in cells)


def milliseconds(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.2f} ms"


def main(rounds: int) -> None:
    print(line("", "", "first:", "first:", "first:", "later:", "later 304:", ""))
    print(line("history", "hours", "longest", "busiest", "all", "all", "all", "bytes"))
    with server() as url:
        for days in DAYS:
            fill(url, days)
            for hours in (24, days * 24):
                found = [asyncio.run(measured(url, days, hours)) for _ in range(rounds)]
                first, later, unchanged, lengths = zip(*found, strict=True)
                cells = (
                    milliseconds([each.longest for each in first]),
                    milliseconds([each.busiest for each in first]),
                    milliseconds([each.total for each in first]),
                    milliseconds([each.total for each in later]),
                    milliseconds([each.total for each in unchanged]),
                )
                print(line(f"{days} d", hours, *cells, lengths[0]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
