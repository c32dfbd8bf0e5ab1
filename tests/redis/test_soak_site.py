"""A site with everything on, for long: crowds, streams, a reader that is killed, and a failover.

At the end every follower has the true list, no page waited for long, and no process has grown. The
variables SOAK_SECONDS and SOAK_RATE make it shorter or slower.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from presence_middleware import Presence, PresenceUnavailable, Settings
from tests.support.backends import wait_until
from tests.support.sentinels import Sentinels
from tests.support.servers import ROOT, WebServer, environment, gunicorn, uvicorn
from tests.support.soak_crowd import OVER, STAYERS
from tests.support.terminal import COMMAND

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
RATE = float(os.environ.get("SOAK_RATE", "300"))  # people a second who come, and go again
WINDOW = 30
READERS = 40
MOST_WAIT = 0.25  # seconds
MOST_GROWTH = 12 << 20  # bytes, from the middle to the end: workers get unequal shares
# Seconds until each process remembers as many requests as it ever does: 20,000 at 100 a second.
FULL_AFTER = 240.0
KILL_EVERY = 60.0  # seconds
_EVENT = re.compile(rb'"id":"([^"]*)","online":(true|false)')


@dataclass
class Reader:
    """A browser that follows the stream of a worker, and its list."""

    port: int
    online: set[str] = field(default_factory=set)
    received = 0
    connected = 0
    went: set[str] = field(default_factory=set)
    """Those who were announced to have gone."""

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
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head:
                return
            self.connected += 1
            rest = b""
            while data := await reader.read(1 << 18):
                whole, mark, rest = (rest + data).rpartition(b"\n\n")
                if not self._take(whole + mark):
                    return
        finally:
            writer.close()

    def _take(self, text: bytes) -> bool:
        """Take whole messages; return False if events were lost."""
        if text.startswith(b"event: list"):
            first, _, text = text.partition(b"\n\n")
            self.online = set(json.loads(first.partition(b"data: ")[2]))
        for id, online in _EVENT.findall(text):
            self.received += 1
            if online == b"true":
                self.online.add(id.decode())
            else:
                self.online.discard(id.decode())
                self.went.add(id.decode())
        return b"event: lost" not in text


@contextmanager
def following(readers: list[Reader]) -> Iterator[None]:
    """Let readers follow their streams in a thread."""
    loop = asyncio.new_event_loop()
    tasks: list[asyncio.Task[None]] = []

    async def follow() -> None:
        tasks.extend(asyncio.create_task(each.follow()) for each in readers)
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(follow()))
    thread.start()
    try:
        yield
    finally:
        for task in tasks:
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


class NamedReaders:
    """Two processes that read events under one name. The one that is at it is killed again."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._folder, self._variables = folder, variables
        self._running: dict[Path, subprocess.Popen[bytes]] = {}
        self.killed = self._started = 0
        for _ in range(2):
            self._start()

    def _start(self) -> None:
        self._started += 1
        log = self._folder / f"named{self._started}"
        with log.open("wb") as out:
            self._running[log] = subprocess.Popen(
                [*COMMAND, "events", "user", "--name", "soak"],
                env=environment(**self._variables),
                stdout=out,
            )

    def kill_one(self) -> None:
        """Kill the process that has printed last, and start another."""
        log = max(self._running, key=lambda each: each.stat().st_mtime)
        process = self._running.pop(log)
        process.kill()
        process.wait()
        self.killed += 1
        self._start()

    def restart(self) -> None:
        """Start what has ended because Redis was away, as a supervisor does."""
        for log, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[log]
                self._start()

    def handled(self) -> set[str]:
        """Return the ids whose coming was handled."""
        logs = self._folder.glob("named*")
        lines = [line for log in logs for line in log.read_text().splitlines()]
        return {line.split("\t")[-1].strip() for line in lines if "\tonline\t" in line}

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


def resident(session: int) -> dict[int, int]:
    """Return the resident bytes of each process of a session."""
    found = {}
    for each in Path("/proc").iterdir():
        try:
            after = (each / "stat").read_text().rpartition(")")[2].split()
            if int(after[3]) == session:
                found[int(each.name)] = int(after[21]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            continue
    return found


def growth(samples: list[dict[int, int]]) -> dict[int, int]:
    """Return by how much each process has grown from the middle to the end, in bytes."""
    middle, end = samples[len(samples) // 2 :][:5], samples[-5:]
    return {
        pid: round(
            statistics.median(s[pid] for s in end) - statistics.median(m[pid] for m in middle)
        )
        for pid in end[-1]
        if all(pid in each for each in (*middle, *end))
    }


def online_now(presence: Presence) -> set[str] | None:
    try:
        return {who.id for who in presence.online(limit=None)}
    except PresenceUnavailable:
        return None


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_a_site_with_everything_on(tmp_path: Path, prefix: str) -> None:
    with ExitStack() as stack:
        sentinels = Sentinels(tmp_path)
        stack.callback(sentinels.close)
        variables = {
            **{"PRESENCE_REDIS_URL": sentinels.url, "PRESENCE_PREFIX": prefix},
            **{"PRESENCE_IDENTITY": "user=header:x-user, guest=visitor"},
            **{"PRESENCE_WINDOW": f"{WINDOW}s", "PRESENCE_RETENTION": "10m"},
            **{"PRESENCE_EVENTS": "user", "PRESENCE_ROOMS": "/t/{topic}"},
            **{"PRESENCE_PULSE_PATH": "/pulse", "PRESENCE_LOGOUT": "/logout"},
            **{"PRESENCE_BOARD_PATH": "/presence", "PRESENCE_EXCLUDE": "+/events"},
        }
        alive = ("--timeout-keep-alive=75", "--log-level=warning", "--no-access-log")
        servers = [
            stack.enter_context(WebServer(command, ROOT, tmp_path / name, **variables))
            for name, command in (
                ("asgi", uvicorn("tests.support.soak_site:asgi_site", 4, *alive)),
                (
                    "wsgi",
                    gunicorn(
                        *("tests.support.soak_site:wsgi_site", 2, "--threads=16"),
                        *("--worker-class=gthread", "--keep-alive=75"),
                    ),
                ),
            )
        ]
        bare = uvicorn("tests.support.soak_site:bare_site", 1, *alive)
        control = stack.enter_context(WebServer(bare, ROOT, tmp_path / "control", **variables))
        presence = Presence(Settings.from_env(variables))
        named = NamedReaders(tmp_path, variables)
        stack.callback(named.close)
        readers = [Reader(servers[0].port) for _ in range(READERS)]
        stack.enter_context(following(readers))
        wait_until(lambda: all(reader.connected for reader in readers))
        crowd = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.soak_crowd", str(RATE), str(SECONDS)),
                *(str(server.port) for server in (control, *servers)),
            ],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(crowd.kill)
        began = time.monotonic()
        samples: list[dict[int, int]] = []
        failed_over = 0.0
        kills = iter(range(1, 10000))
        next_kill = next(kills) * min(KILL_EVERY, SECONDS / 4)
        while (elapsed := time.monotonic() - began) < SECONDS:
            time.sleep(1)
            samples.append({k: v for s in servers for k, v in resident(s.process.pid).items()})
            named.restart()
            if elapsed > next_kill:
                named.kill_one()
                next_kill = next(kills) * min(KILL_EVERY, SECONDS / 4)
            if elapsed > SECONDS / 2 and not failed_over:
                failed_over = time.time()
                sentinels.primary.kill()
        assert crowd.stdout is not None
        assert crowd.stdout.readline().strip() == OVER
        expected = {*STAYERS}

        def is_true() -> bool:
            time.sleep(0.5)  # the servers need the machine
            return online_now(presence) == expected and all(
                reader.online == expected for reader in readers
            )

        try:
            wait_until(is_true, WINDOW + 40)
        finally:
            figures = json.loads(crowd.communicate("")[0])
            report(figures, samples, readers, named)
        check(figures, samples, readers, named, failed_over)


def report(figures: Any, samples: Any, readers: list[Reader], named: NamedReaders) -> None:
    print(f"\n{figures['pages']} pages, {figures['statuses']}")
    for what in ("waits", "control"):
        print(what, {name: f"{1000 * wait:.0f} ms" for name, wait in figures[what].items()})
    print("growth in kB:", {pid: size >> 10 for pid, size in growth(samples).items()})
    print("events of a reader:", readers[0].received, "streams:", sum(r.connected for r in readers))
    print("named reader killed", named.killed, "times, handled", len(named.handled()))


def check(
    figures: Any, samples: Any, readers: list[Reader], named: NamedReaders, failed_over: float
) -> None:
    assert figures["statuses"].keys() <= {"200", "204"}
    # A machine that others use as well lets any site wait.
    assert figures["waits"]["worst"] <= MOST_WAIT + figures["control"]["worst"]
    if SECONDS / 2 >= FULL_AFTER:
        assert max(growth(samples).values()) <= MOST_GROWTH
    for reader in readers:
        assert not reader.went & {*STAYERS}
    # Who came and left while no server took writes was never announced.
    handled = named.handled()
    missed = [id for at, id in figures["came"] if abs(at - failed_over) > 10 and id not in handled]
    assert missed == []
