"""People come, go and walk through rooms while servers and processes move, fail or are killed.

At the end every room and the list of a follower must be true, whatever happened meanwhile.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import Event, Presence, PresenceUnavailable, Settings
from presence_middleware.embedded import find_server
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Act, Batch, Plan, Store, keys
from presence_middleware.stores.plan import members_with_scores
from presence_middleware.wsgi import WsgiVisit
from tests.redis.test_connecting import PASSWORD, SHORT, url_of_user
from tests.support.backends import Server, wait_until
from tests.support.beside import repeated
from tests.support.clusters import Cluster
from tests.support.followed_site import Follower
from tests.support.sentinels import Sentinels
from tests.support.servers import ROOT, environment

PEOPLE = [f"user{number}" for number in range(60)]
ROOMS = [f"/t/{number}" for number in range(8)]
WORKERS = 2
SETTLED = 30.0  # seconds until everything that waits is written and announced, at most

pytestmark = pytest.mark.timeout(180)


class Followed:
    """A site whose users are announced, and a follower."""

    def __init__(self, url: str, prefix: str, stack: ExitStack, **given: Any) -> None:
        values = {"redis_url": url, "prefix": prefix, "identity": "user=header:X-User", **given}
        values["events"] = "user"
        self.settings = Settings.from_env({}, **values)
        self.variables = {f"PRESENCE_{name.upper()}": str(values[name]) for name in values}
        self.presence = Presence(self.settings)
        self.presence.count()  # without SET, a process agrees with the others only by reading
        self.follower = Follower(self.presence)
        stack.callback(self.follower.close)


class Walk(Followed):
    """A site of some workers, and its people. `where` is the truth."""

    def __init__(self, url: str, prefix: str, stack: ExitStack, **given: Any) -> None:
        super().__init__(url, prefix, stack, rooms="/t/{topic}", flush_interval="0.1s", **given)
        self.recorders = [Recorder(self.settings) for _ in range(WORKERS)]
        self.where: dict[str, str] = {}
        self.walkers = range(len(PEOPLE))
        """The numbers of the people who walk now. The others only read."""

    def step(self) -> None:
        """Let somebody enter a room, ask for something else, or log out."""
        number = random.choice(self.walkers)
        id, recorder = PEOPLE[number], self.recorders[number % WORKERS]
        dice = random.random()
        if dice < 0.05 and id in self.where:
            recorder.depart(("user", id), Act.LEFT)
            del self.where[id]
            return
        path = random.choice(ROOMS) if dice < 0.8 or id not in self.where else "/api"
        WsgiVisit(recorder, {"HTTP_X_USER": id, "PATH_INFO": path, "REQUEST_METHOD": "GET"}).end()
        if path != "/api":
            self.where[id] = path

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let people walk, half of them at least; after the block everything must become true."""
        with repeated(self.step, 0.005):
            wait_until(lambda: len(self.where) > len(PEOPLE) // 2)
            yield
        wait_until(lambda: all(recorder.stats().pending == 0 for recorder in self.recorders), 20)
        wait_until(lambda: self.differences() == [], SETTLED)

    def differences(self) -> list[str]:
        """Return what the site shows wrong of rooms, of everybody, and to its follower."""
        wrong = []
        with suppress(PresenceUnavailable):
            for room in ROOMS:
                truth = {id for id, at in self.where.items() if at == room}
                shown = {who.id for who in self.presence.online(room=room, limit=None)}
                wrong += [f"{room}: {id}" for id in truth ^ shown]
                if self.presence.count(room=room) != len(truth):
                    wrong.append(f"count of {room}")
            online = {who.id for who in self.presence.online(limit=None)}
            wrong += [f"online: {id}" for id in online ^ self.where.keys()]
            wrong += [f"follower: {id}" for id in self.follower.online ^ self.where.keys()]
            return wrong
        return ["Redis did not answer"]


@pytest.mark.slow
def test_rooms_and_events_survive_resharding(tmp_path: Path, prefix: str, stack: ExitStack) -> None:
    cluster = Cluster(tmp_path)
    stack.callback(cluster.close)
    walk = Walk(cluster.url, prefix, stack, shards=6)
    names = [shard.name for shard in walk.presence.backend.stores["user"].all]
    homes = {keys.slot_of(name): cluster.owner_of(name) for name in names}
    with walk.going_on():
        for slot in [*homes, *homes]:
            source = homes[slot]
            homes[slot] = target = cluster.primaries[cluster.primaries.index(source) - 1]
            assert cluster.move(slot, source, target) > 3
    assert walk.follower.lost == 0


@pytest.mark.slow
def test_rooms_and_events_survive_a_failover(tmp_path: Path, prefix: str, stack: ExitStack) -> None:
    sentinels = Sentinels(tmp_path)
    stack.callback(sentinels.close)
    walk = Walk(sentinels.url, prefix, stack)
    with walk.going_on():
        wait_until(sentinels.is_replicated)
        # The replica receives nothing more, and is alive: a network that is cut between the two.
        with redis.Redis(port=sentinels.ports[1]) as replica:
            replica.config_set("masterauth", "wrong")
            replica.client_kill_filter(_type="master")
        wait_until(lambda: not sentinels.is_replicated())
        walk.walkers = range(len(PEOPLE) // 2)
        time.sleep(3)
        walk.walkers = range(len(PEOPLE) // 2, len(PEOPLE))  # what the others did is lost
        wait_until(lambda: all(recorder.stats().pending < 9 for recorder in walk.recorders))
        os.kill(sentinels.primary.pid, signal.SIGKILL)
        with redis.Redis(port=sentinels.ports[1]) as replica:
            wait_until(lambda: replica.info("replication")["role"] == "master", 30)
        time.sleep(2)
    print(f"{walk.follower.lost} times lost")


RENAMED = ("CONFIG", "KEYS", "SCAN", "FLUSHALL", "FLUSHDB", "DEBUG", "SCRIPT", "SHUTDOWN")
WITHOUT_SET = ("--rename-command", "SET", "SET-OF-THE-HOST")


@pytest.mark.parametrize(
    ("rules", "options", "may_do_upkeep"),
    [
        (SHORT.split(), [], True),  # no more rights than the documentation says
        ([], [part for name in RENAMED for part in ("--rename-command", name, "")], True),
        ([*SHORT.split(), "-set"], [], False),
        ([], WITHOUT_SET, False),
    ],
    ids=["few rights", "commands that hosts rename", "not the lease", "no command of the lease"],
)
def test_rooms_and_events_are_true_with_few_commands(
    tmp_path: Path,
    prefix: str,
    stack: ExitStack,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    rules: list[str],
    options: list[str],
    may_do_upkeep: bool,
) -> None:
    """Whoever may not take the lease of the upkeep records all the same, and the log says so."""
    monkeypatch.setattr("presence_middleware.events.feed.READ_EVERY", 0.05)
    server = Server(str(find_server()), tmp_path, *options)
    stack.callback(server.stop)
    walk = Walk(url_of_user(server, prefix, *rules) if rules else server.url, prefix, stack)
    with walk.going_on():
        time.sleep(0.3)
    assert walk.follower.lost == 0
    messages = [record.getMessage() for record in caplog.records]
    assert len(set(messages)) == (not may_do_upkeep)
    assert len(messages) <= WORKERS
    for message in messages:
        assert message.startswith("stale entries may stay, the history may have gaps and leaves")
        assert PASSWORD not in message
        assert "args" not in message, "they may be ids"


# The kill test of events: workers, servers and replies are lost; what a follower knows is true.
# Eight processes record at random, with clocks apart. They are killed and replaced all the time.


PROCESSES, WINDOW = 8, 3
LAST = 1.0  # seconds before the end in which nobody is killed any more
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


class Workers:
    """The processes of a site, whose clocks are up to a minute apart."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder, self._variables = folder, variables
        self._running: list[subprocess.Popen[bytes]] = []
        self._started = self.killed = 0
        for _ in range(PROCESSES):
            self._start()

    def _start(self) -> None:
        self._started += 1
        variables = {**self._variables, "WORKER_LOG": str(self._folder / f"{self._started}.did")}
        if LIBRARY is not None:  # or else all clocks are right
            variables |= {"LD_PRELOAD": str(LIBRARY), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
            variables["FAKETIME"] = f"{random.uniform(-60, 60):+f}s"
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


class Chaos(Followed):
    """A site under which everything is killed."""

    def __init__(self, url: str, prefix: str, folder: Path, shards: int, stack: ExitStack) -> None:
        given = {"shards": shards, "window": f"{WINDOW}s", "flush_interval": "0.2s"}
        super().__init__(url, prefix, stack, **given)
        self.workers = Workers(folder, **self.variables)
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


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 4])
def test_workers_and_the_server_are_killed(
    tmp_path: Path, prefix: str, stack: ExitStack, shards: int
) -> None:
    server = Server(str(find_server()), tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    stack.callback(server.stop)
    chaos = Chaos(server.url, prefix, tmp_path, shards, stack)
    for _ in range(5):
        chaos.kill_workers(3)
        server.stop()
        server.start()
    chaos.settle()
    came = check_alternation(chaos.follower.received)
    assert chaos.follower.lost == 0
    print(f"{chaos.workers.killed} workers killed, {came} came and went")


@pytest.mark.slow
@pytest.mark.parametrize(("make", "shards"), [(Sentinels, 1), (partial(Cluster, replicas=1), 6)])
def test_a_primary_is_killed(
    tmp_path: Path, prefix: str, stack: ExitStack, make: Any, shards: int
) -> None:
    servers = make(tmp_path)
    stack.callback(servers.close)
    chaos = Chaos(servers.url, prefix, tmp_path, shards, stack)
    chaos.kill_workers(5)
    (servers.primary if shards == 1 else servers.primaries[1].process).kill()
    chaos.kill_workers(10)
    chaos.settle()
    print(f"{chaos.follower.lost} times lost, {len(chaos.follower.received)} events")
