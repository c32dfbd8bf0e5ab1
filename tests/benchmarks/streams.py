"""How long other pages wait while many streams of events receive a crowd.

One uvicorn worker serves the streams, half of them of the board and half of an app's own. The
event loop of the worker notes how late it is. A child reads all streams.
"""

import asyncio
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from presence_middleware import AsyncPresence, Settings
from presence_middleware.asgi import PresenceMiddleware
from presence_middleware.recorder import Recorder
from presence_middleware.sse import HEADERS, server_sent_events
from tests.support.servers import BOARD, TOKEN, WebServer, uvicorn

from .machine import Child, end_step

PATHS = ("/presence/events?kind=user", "/own")
EVENT = b'"online":true'
LATE = 0.001  # seconds that the loop of the worker sleeps at a time
SETTINGS = {
    "PRESENCE_IDENTITY": "user=header:x-user",
    "PRESENCE_EVENTS": "user",
    **BOARD,
    "PRESENCE_EXCLUDE": "+/late,+/own",
}


class Lateness:
    """How late the event loop of a worker is by its own work, at worst.

    The rest is of other processes of the machine.
    """

    worked = 0.0

    async def watch(self) -> None:
        while True:
            began, work_began = time.monotonic(), time.process_time()
            await asyncio.sleep(LATE)
            late = time.monotonic() - began - LATE
            self.worked = max(self.worked, min(late, time.process_time() - work_began))


def application() -> Starlette:
    lateness = Lateness()
    tasks: list[asyncio.Task[None]] = []

    async def page(request: Request) -> JSONResponse:
        if not tasks:
            tasks.append(asyncio.create_task(lateness.watch()))
        worked, lateness.worked = lateness.worked, 0.0
        return JSONResponse(worked)

    async def own(request: Request) -> StreamingResponse:
        events = AsyncPresence.from_env().events()
        return StreamingResponse(server_sent_events(events), headers=HEADERS)

    routes = [Route("/late", page), Route("/own", own)]
    return Starlette(routes=routes, middleware=[Middleware(PresenceMiddleware)])


def ask(port: int, path: str) -> socket.socket:
    """Ask for a page; return the connection."""
    connection = socket.create_connection(("127.0.0.1", port))
    request = f"GET {path} HTTP/1.1\r\nHost: site\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    connection.sendall(request.encode())
    return connection


def read(port: int, streams: int, joins: int) -> None:
    """Read streams; print for each round when the last had everything."""
    connections = [ask(port, PATHS[number % len(PATHS)]) for number in range(streams)]
    for connection in connections:
        connection.recv(1 << 16)
    counted = dict.fromkeys(connections, 0)
    tails = dict.fromkeys(connections, b"")
    end_step()
    while True:
        for connection in select.select(connections, [], [])[0]:
            received = connection.recv(1 << 20)
            assert received, "a stream ended"
            # A process that reads as fast as it can: only what is counted is looked at.
            data = tails[connection] + received
            counted[connection] += data.count(EVENT)
            tails[connection] = data[1 - len(EVENT) :]
        if min(counted.values()) >= joins:
            end_step(time.monotonic())
            counted = {connection: count - joins for connection, count in counted.items()}


class Crowd(NamedTuple):
    """What it took until all streams had received a crowd, in seconds."""

    last: float
    """From when all joins were written until the last stream had everything."""
    worked: float
    """For how long the worker worked without a turn for others, at worst."""


def receive_crowds(
    url: str, folder: Path, streams: int, joins: int, rounds: int
) -> Iterator[Crowd]:
    """Let `joins` users come at once, in each round, while `streams` are open."""
    with ExitStack() as opened:
        environ = {**SETTINGS, "PRESENCE_REDIS_URL": url}
        command = uvicorn(f"{__name__}:application", 1, "--factory", "--no-access-log")
        site = opened.enter_context(WebServer(command, folder, folder / "log", **environ))
        recorder = Recorder(Settings.from_env(environ))
        opened.callback(recorder.close)
        reader = opened.enter_context(Child(__name__, site.port, streams, joins))
        client = opened.enter_context(site.client("curl"))
        assert reader.says()
        for round in range(rounds):
            reader.go_on()
            time.sleep(2)
            client.get("/late")  # from now on
            for number in range(joins):
                recorder.record(("user", f"{round}-user-{number}"), recorder.stamp())
            recorder.flush()
            written = time.monotonic()
            yield Crowd(float(reader.says()) - written, client.get("/late").json())


if __name__ == "__main__":
    read(*map(int, sys.argv[1:]))
