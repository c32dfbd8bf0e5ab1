"""How long other pages wait while many streams of events receive a crowd.

    python -m tests.benchmarks.streams [--streams 100] [--joins 10000] [--rounds 3]

One uvicorn worker serves the streams, half of them of the board and half of an app's own. A page
is asked for all the time, by a process that does nothing else, and the event loop of the worker
notes how late it is.
"""

import argparse
import asyncio
import json
import multiprocessing
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from presence_middleware import AsyncPresence, Settings
from presence_middleware.asgi import PresenceMiddleware
from presence_middleware.recorder import Recorder
from presence_middleware.sse import HEADERS, server_sent_events
from tests.support.servers import WebServer, uvicorn

from .machine import server

TOKEN = "the-token-of-the-board"
PATHS = ("/presence/events?kind=user", "/own")
EVENT = b'"online":true'
LATE = 0.001  # seconds that the loop of the worker sleeps at a time


class Lateness:
    """How late the event loop of a worker is, at worst."""

    worst = worked = 0.0

    async def watch(self) -> None:
        while True:
            began, work_began = time.monotonic(), time.process_time()
            await asyncio.sleep(LATE)
            late = time.monotonic() - began - LATE
            self.worst = max(self.worst, late)
            # The rest is of other processes of the machine.
            self.worked = max(self.worked, min(late, time.process_time() - work_began))


def application() -> Starlette:
    lateness = Lateness()
    tasks: list[asyncio.Task[None]] = []

    async def page(request: Request) -> JSONResponse:
        if not tasks:
            tasks.append(asyncio.create_task(lateness.watch()))
        answer = {"late": lateness.worst, "worked": lateness.worked}
        lateness.worst = lateness.worked = 0.0
        return JSONResponse(answer)

    async def own(request: Request) -> StreamingResponse:
        events = AsyncPresence.from_env().events()
        return StreamingResponse(server_sent_events(events), headers=HEADERS)

    async def hello(request: Request) -> JSONResponse:
        return JSONResponse({"hello": "world"})

    return Starlette(
        routes=[Route("/", hello), Route("/late", page), Route("/own", own)],
        middleware=[Middleware(PresenceMiddleware)],
    )


def ask(port: int, path: str) -> socket.socket:
    """Ask for a page; return the connection."""
    connection = socket.create_connection(("127.0.0.1", port))
    request = f"GET {path} HTTP/1.1\r\nHost: site\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    connection.sendall(request.encode())
    return connection


def body_of(connection: socket.socket) -> Any:
    """Receive a whole answer in JSON."""
    received = b""
    while not received.endswith(b"}"):
        received += connection.recv(1 << 16)
    return json.loads(received.partition(b"\r\n\r\n")[2])


def read(port: int, streams: int, joins: int, reports: Connection) -> None:
    """Read streams; report for each round when the first and the last had everything."""
    connections = [ask(port, PATHS[number % len(PATHS)]) for number in range(streams)]
    for connection in connections:
        connection.recv(1 << 16)
    counted = dict.fromkeys(connections, 0)
    tails = dict.fromkeys(connections, b"")
    buffer = bytearray(1 << 20)
    poll = select.epoll()
    of = {connection.fileno(): connection for connection in connections}
    for number in of:
        poll.register(number, select.EPOLLIN)
    reports.send(0.0)
    ended: list[float] = []
    while True:
        for number, _ in poll.poll():
            connection = of[number]
            size = connection.recv_into(buffer)
            assert size, "a stream ended"
            # A process that reads as fast as it can: only what is counted is looked at.
            data = tails[connection] + bytes(memoryview(buffer)[:size])
            counted[connection] += data.count(EVENT)
            tails[connection] = data[1 - len(EVENT) :]
            if counted[connection] >= joins:
                counted[connection] -= joins
                ended.append(time.monotonic())
        if len(ended) == streams:
            reports.send((ended[0], ended[-1]))
            ended.clear()


def probe(port: int, reports: Connection) -> None:
    """Ask for a page all the time; report how long each answer took, when asked for it."""
    connection = ask(port, "/")
    body_of(connection)
    request = b"GET / HTTP/1.1\r\nHost: site\r\n\r\n"
    took: list[float] = []
    while True:
        began = time.monotonic()
        connection.sendall(request)
        body_of(connection)
        took.append(time.monotonic() - began)
        time.sleep(0.001)
        if reports.poll():
            reports.recv()
            reports.send(took)
            took = []


class Crowd(NamedTuple):
    """What it took until all streams had received a crowd. All times are in seconds."""

    written: float
    """Until all joins were written."""
    first: float
    """From then until the first stream had everything."""
    last: float
    """From then until the last stream had everything."""
    pages: list[float]
    """How long another page took, the shortest first."""
    late: float
    """How late the event loop of the worker was, at worst."""
    worked: float
    """For how long the worker worked without a turn for others, at worst."""

    def __str__(self) -> str:
        pages = self.pages
        return (
            f"joins written in {self.written:.2f} s: the first stream has all {self.first:.2f} s "
            f"later, the last {self.last:.2f} s; another page: median "
            f"{pages[len(pages) // 2] * 1e3:.1f} ms, p99 {pages[len(pages) * 99 // 100] * 1e3:.1f} "
            f"ms, worst {pages[-1] * 1e3:.1f} ms of {len(pages)}; the loop was late "
            f"{self.late * 1e3:.1f} ms, of which the worker worked {self.worked * 1e3:.1f} ms"
        )


def receive_crowds(streams: int, joins: int, rounds: int) -> Iterator[Crowd]:
    """Let `joins` users come at once, in each round, while `streams` are open."""
    with ExitStack() as opened:
        url = opened.enter_context(server())
        folder = Path(opened.enter_context(TemporaryDirectory()))
        variables: dict[str, Any] = {
            "redis_url": url,
            "identity": "user=header:x-user",
            "events": "user",
            "board_path": "/presence",
            "board_token": TOKEN,
            "exclude": "+/,+/late,+/own",
        }
        environ = {f"PRESENCE_{name.upper()}": value for name, value in variables.items()}
        command = uvicorn("tests.benchmarks.streams:application", 1, "--factory", "--no-access-log")
        site = opened.enter_context(WebServer(command, folder, folder / "log", **environ))
        recorder = Recorder(Settings.from_env({}, **variables))
        opened.callback(recorder.close)
        spawning = multiprocessing.get_context("spawn")
        readers, reading = spawning.Pipe()
        probes, probing = spawning.Pipe()
        for target, *arguments in (
            (read, site.port, streams, joins, reading),
            (probe, site.port, probing),
        ):
            process = spawning.Process(target=target, args=arguments, daemon=True)
            process.start()
            opened.callback(process.join)
            opened.callback(process.kill)
        readers.recv()
        for round in range(rounds):
            time.sleep(2)
            late(site.port)
            probes.send(None)
            probes.recv()
            began = time.monotonic()
            for number in range(joins):
                recorder.record(("user", f"{round}-user-{number}"), recorder.stamp())
            recorder.flush()
            written = time.monotonic()
            first, last = readers.recv()
            probes.send(None)
            pages = sorted(probes.recv())
            yield Crowd(written - began, first - written, last - written, pages, *late(site.port))


def late(port: int) -> tuple[float, float]:
    """Return how late the loop was since the last call, and how much of that it worked."""
    connection = ask(port, "/late")
    answer = body_of(connection)
    connection.close()
    return answer["late"], answer["worked"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--joins", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for crowd in receive_crowds(given.streams, given.joins, given.rounds):
        print(crowd, flush=True)


if __name__ == "__main__":
    main()
