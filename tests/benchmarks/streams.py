"""How long other pages wait while many streams of events receive a crowd.

    python -m tests.benchmarks.streams [--streams 100] [--joins 10000] [--rounds 3]

One uvicorn worker serves the streams, half of them of the board and half of an app's own. The
event loop of the worker notes how late it is.
"""

import argparse
import asyncio
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


def read(port: int, streams: int, joins: int, reports: Connection) -> None:
    """Read streams; report for each round when the last had everything."""
    connections = [ask(port, PATHS[number % len(PATHS)]) for number in range(streams)]
    for connection in connections:
        connection.recv(1 << 16)
    counted = dict.fromkeys(connections, 0)
    tails = dict.fromkeys(connections, b"")
    reports.send(0.0)
    while True:
        for connection in select.select(connections, [], [])[0]:
            received = connection.recv(1 << 20)
            assert received, "a stream ended"
            # A process that reads as fast as it can: only what is counted is looked at.
            data = tails[connection] + received
            counted[connection] += data.count(EVENT)
            tails[connection] = data[1 - len(EVENT) :]
        if min(counted.values()) >= joins:
            reports.send(time.monotonic())
            counted = {connection: count - joins for connection, count in counted.items()}


class Crowd(NamedTuple):
    """What it took until all streams had received a crowd, in seconds."""

    last: float
    """From when all joins were written until the last stream had everything."""
    late: float
    """How late the event loop of the worker was, at worst."""
    worked: float
    """For how long the worker worked without a turn for others, at worst."""


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
        readers, reading = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=read, args=(site.port, streams, joins, reading), daemon=True
        )
        process.start()
        opened.callback(process.join)
        opened.callback(process.kill)
        readers.recv()
        for round in range(rounds):
            time.sleep(2)
            late(site)
            for number in range(joins):
                recorder.record(("user", f"{round}-user-{number}"), recorder.stamp())
            recorder.flush()
            written = time.monotonic()
            yield Crowd(readers.recv() - written, *late(site))


def late(site: WebServer) -> tuple[float, float]:
    """Return how late the loop was since the last call, and how much of that it worked."""
    with site.client("curl") as client:
        answer = client.get("/late").json()
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
