"""A site with everything on, for long: crowds, streams and a failover.

At the end every stream has told the true list, pages did not wait for Redis, and no process has
grown. The variables SOAK_SECONDS and SOAK_RATE make it shorter or slower. What readers with a name
receive when their process vanishes is in tests/contract/test_named_events.py.
"""

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from presence_middleware import Presence, PresenceUnavailable, Settings
from presence_middleware.settings import variable
from tests.support.backends import wait_until
from tests.support.beside import in_thread
from tests.support.sentinels import Sentinels
from tests.support.servers import ROOT, WebServer, environment, gunicorn, uvicorn
from tests.support.soak_crowd import OVER, STAYERS

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
RATE = float(os.environ.get("SOAK_RATE", "300"))  # people a second who come, and go again
WINDOW = 30
READERS = 40
MOST_WAIT = 0.25  # seconds, of 99 of 100 pages: Redis is away for longer than one in 100
MOST_GROWTH = 12 << 20  # bytes, from the middle to the end: workers get unequal shares
# Seconds until each process remembers as many requests as it ever does: 20,000 at 100 a second.
FULL_AFTER = 240.0
_EVENT = re.compile(rb'"id":"([^"]*)","online":(true|false)')


class Reader:
    """A browser that follows the stream of a worker, and its list."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.online, self.went, self.connected = set[str](), set[str](), 0

    async def follow(self) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._read_stream()
            await asyncio.sleep(0.5)

    async def _read_stream(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            # A response over HTTP/1.0 has no chunks.
            writer.write(b"GET /events HTTP/1.0\r\nHost: site\r\nX-User: reader\r\n\r\n")
            if b" 200 " not in await reader.readuntil(b"\r\n\r\n"):
                return
            self.online = set(json.loads((await reader.readuntil(b"\n\n")).partition(b"data: ")[2]))
            self.connected += 1
            while b"event: lost" not in (message := await reader.readuntil(b"\n\n")):
                for id, online in _EVENT.findall(message):
                    (self.online.add if online == b"true" else self._goes)(id.decode())
        finally:
            writer.close()

    def _goes(self, id: str) -> None:
        self.online.discard(id)
        self.went.add(id)


@contextmanager
def following(readers: list[Reader]) -> Iterator[None]:
    """Let readers follow their streams in a thread."""

    async def follow() -> None:
        tasks = [asyncio.create_task(each.follow()) for each in readers]
        await asyncio.to_thread(is_over.wait)
        for task in tasks:
            task.cancel()

    is_over = threading.Event()
    with in_thread(lambda: asyncio.run(follow())):
        try:
            yield
        finally:
            is_over.set()


def resident(*sessions: int) -> dict[int, int]:
    """Return the resident bytes of each process of some sessions."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            after = (each / "stat").read_text().rpartition(")")[2].split()
            if int(after[3]) in sessions:
                found[int(each.name)] = int(after[21]) * os.sysconf("SC_PAGE_SIZE")
    return found


def growth(samples: list[dict[int, int]]) -> dict[int, float]:
    """Return by how much each process has grown from the middle to the end, in bytes."""
    middle, end = samples[len(samples) // 2 :][:5], samples[-5:]
    return {
        pid: statistics.median(each[pid] for each in end)
        - statistics.median(each[pid] for each in middle)
        for pid in end[-1]
    }


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_a_site_with_everything_on(tmp_path: Path, prefix: str) -> None:
    with ExitStack() as stack:
        sentinels = Sentinels(tmp_path)
        stack.callback(sentinels.close)
        given = {"redis_url": sentinels.url, "prefix": prefix, "events": "user"}
        given |= {"identity": "user=header:x-user, guest=visitor", "rooms": "/t/{topic}"}
        given |= {"window": f"{WINDOW}s", "retention": "10m", "exclude": "+/events"}
        given |= {"pulse_path": "/pulse", "logout": "/logout", "board_path": "/presence"}
        variables = {variable(name): value for name, value in given.items()}
        site = "tests.support.site"
        alive = ("--timeout-keep-alive=75", "--log-level=warning", "--no-access-log")
        threads = ("--threads=16", "--worker-class=gthread", "--keep-alive=75")
        commands = (
            uvicorn(f"{site}:asgi_site", 4, *alive),
            gunicorn(f"{site}:wsgi_site", 2, *threads),
        )
        servers = [
            stack.enter_context(WebServer(command, ROOT, tmp_path / f"log{number}", **variables))
            for number, command in enumerate(commands)
        ]
        presence = Presence(Settings.from_env(variables))
        readers = [Reader(servers[0].port) for _ in range(READERS)]
        stack.enter_context(following(readers))
        wait_until(lambda: all(reader.connected for reader in readers))
        ports = [str(server.port) for server in servers]
        crowd = subprocess.Popen(
            [sys.executable, "-m", "tests.support.soak_crowd", str(RATE), str(SECONDS), *ports],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(crowd.kill)
        began, samples = time.monotonic(), list[dict[int, int]]()
        while (elapsed := time.monotonic() - began) < SECONDS:
            time.sleep(1)
            samples.append(resident(*(server.process.pid for server in servers)))
            if elapsed > SECONDS / 2 and sentinels.primary.poll() is None:
                sentinels.primary.kill()
        assert crowd.stdout is not None
        assert crowd.stdout.readline().strip() == OVER
        expected = {*STAYERS}

        def is_true() -> bool:
            time.sleep(0.5)  # the servers need the machine
            with suppress(PresenceUnavailable):
                online = {who.id for who in presence.online(limit=None)}
                return all(found == expected for found in (online, *(r.online for r in readers)))
            return False

        wait_until(is_true, WINDOW + 40)
        statuses, waits = json.loads(crowd.communicate("")[0])
    print(f"\n{statuses}, growth: {growth(samples)}, longest wait: {waits[-1]:.2f} s")
    assert statuses.keys() <= {"200", "204"}
    assert waits[len(waits) * 99 // 100] <= MOST_WAIT
    if SECONDS / 2 >= FULL_AFTER:
        assert max(growth(samples).values()) <= MOST_GROWTH
    assert not any(reader.went & expected for reader in readers)
