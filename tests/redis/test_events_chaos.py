"""The kill test of events: workers, servers and replies are lost; what a follower knows is true.

Eight processes record at random, with clocks apart. They are killed and replaced all the time.
"""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from presence_middleware import Event, Presence, PresenceUnavailable, Settings
from presence_middleware.embedded import find_server
from presence_middleware.stores import Batch, Plan, Store
from presence_middleware.stores.plan import members_with_scores
from tests.support.backends import Server, wait_until
from tests.support.clusters import Cluster
from tests.support.follower import Follower
from tests.support.sentinels import Sentinels
from tests.support.servers import ROOT, environment

WORKERS, WINDOW = 8, 3
CHAOS = 15.0  # seconds
LAST = 1.0  # seconds before the end in which nobody is killed any more
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def clock_ahead(seconds: float) -> dict[str, str]:
    """Return the variables of a process whose clock is wrong; none without libfaketime."""
    if LIBRARY is None:
        return {}
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME": f"{seconds:+f}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


class Workers:
    """The processes of a site, whose clocks are up to a minute apart."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder, self._variables = folder, variables
        self._running: list[subprocess.Popen[bytes]] = []
        self._started = self.killed = 0
        for _ in range(WORKERS):
            self._start()

    def _start(self) -> None:
        self._started += 1
        variables = {**self._variables, "WORKER_LOG": str(self._folder / f"{self._started}.did")}
        variables |= clock_ahead(random.uniform(-60, 60))
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.event_worker"],
                cwd=ROOT,
                env=environment(**variables),
                stderr=log,
            )
        self._running.append(process)

    def kill_one(self) -> None:
        """Kill a worker, and start another in its place."""
        process = self._running.pop(random.randrange(len(self._running)))
        process.kill()
        process.wait()
        self.killed += 1
        self._start()

    def end(self) -> None:
        """Let all end as a deploy does: they write what waits."""
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        for process in self._running:
            process.wait(30)

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def visits(self) -> Iterator[tuple[bool, str, float]]:
        """Yield whether somebody came, who, and when, for each visit of any worker."""
        for file in self._folder.glob("*.did"):
            for line in file.read_text().splitlines():
                with suppress(ValueError):  # a worker that was killed while it wrote
                    did, id, moment = line.split()
                    yield did == "came", id, float(moment)


def announced(shards: list[Store]) -> Plan[set[str]]:
    """Return who is announced online, by the keys in Redis."""
    ids: set[str] = set()
    for shard in shards:
        cut, seen = yield Batch(
            (
                ("HGET", f"{shard.name}:progress", "announced_until"),
                ("ZRANGE", f"{shard.name}:seen", 0, -1, "WITHSCORES"),
            )
        )
        ids |= {id for id, at in members_with_scores(seen) if at > float(cut or 0)}
    return ids


class Chaos:
    """A site under which everything is killed, and a follower."""

    def __init__(self, url: str, prefix: str, folder: Path, shards: int, stack: ExitStack) -> None:
        given = {
            "PRESENCE_REDIS_URL": url,
            "PRESENCE_PREFIX": prefix,
            "PRESENCE_SHARDS": str(shards),
            "PRESENCE_IDENTITY": "user=header:x-user",
            "PRESENCE_EVENTS": "user",
            "PRESENCE_WINDOW": f"{WINDOW}s",
            "PRESENCE_FLUSH_INTERVAL": "0.2s",
        }
        self.presence = Presence(Settings.from_env(given))
        self.follower = Follower(self.presence)
        stack.callback(self.follower.close)
        self.workers = Workers(folder, **given)
        stack.callback(self.workers.close)

    def kill_workers(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(random.uniform(0.2, 0.8))
            self.workers.kill_one()

    def truth(self) -> set[str]:
        with suppress(PresenceUnavailable):
            shards = self.presence.backend.stores["user"].all
            return self.presence.run(announced(list(shards)))
        return {"nobody knows"}

    def settle(self) -> None:
        """Let the last visits be written; then the follower's list must be true."""
        wait_until(lambda: len(self.follower.received) > 0)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 3 + LAST)
        self.workers.end()
        ended = time.monotonic()
        wait_until(lambda: self.follower.online == self.truth(), 10)
        visits = list(self.workers.visits())
        here = {id for came, id, at in visits if came and at > ended - 1}
        left = {id for came, id, at in visits if not came and at > began}
        missing = here - left - self.follower.online
        assert time.monotonic() > ended + WINDOW or not missing, missing
        wait_until(lambda: not self.follower.online, 30)  # the follower's own process sweeps
        assert self.truth() == set()


def check_alternation(events: list[Event]) -> int:
    """Check that everybody came, went, came, went and so on; return how many came."""
    online: dict[str, Event] = {}
    came = 0
    for event in events:
        assert event.online == (event.id not in online), event
        if event.online:
            came += 1
            online[event.id] = event
        else:
            assert event.at >= online.pop(event.id).at, event
    assert not online
    return came


@pytest.mark.parametrize("shards", [1, 4])
def test_workers_and_the_server_are_killed(tmp_path: Path, prefix: str, shards: int) -> None:
    server = Server(str(find_server()), tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    with ExitStack() as stack:
        stack.callback(server.stop)
        chaos = Chaos(server.url, prefix, tmp_path, shards, stack)
        restarts = 0
        until = time.monotonic() + CHAOS
        while time.monotonic() < until:
            chaos.kill_workers(3)
            server.stop()
            server.start()
            restarts += 1
        chaos.settle()
        came = check_alternation(chaos.follower.received)
        assert chaos.follower.lost == 0
        print(f"{chaos.workers.killed} workers and {restarts} servers killed, {came} came and went")


@pytest.mark.parametrize(("url", "shards"), [("sentinels", 1), ("cluster", 6)])
def test_a_primary_is_killed(tmp_path: Path, prefix: str, url: str, shards: int) -> None:
    servers: Sentinels | Cluster
    servers = Sentinels(tmp_path) if url == "sentinels" else Cluster(tmp_path, replicas=1)
    with ExitStack() as stack:
        stack.callback(servers.close)
        chaos = Chaos(servers.url, prefix, tmp_path, shards, stack)
        chaos.kill_workers(5)
        if isinstance(servers, Sentinels):
            servers.primary.kill()
        else:
            servers.primaries[1].stop()
        chaos.kill_workers(10)
        chaos.settle()
        print(f"{chaos.follower.lost} times lost, {len(chaos.follower.received)} events")
