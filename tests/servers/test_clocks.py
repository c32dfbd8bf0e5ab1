"""Clocks of hosts and of the server, wrong by an hour or jumping: the answers agree and are right.

The clocks are those of the processes, set by libfaketime; their monotonic clocks stay as they are.
"""

import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from presence_middleware import Presence, Settings, upkeep
from presence_middleware.connections import server as server_clock
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server, wait_until
from tests.support.servers import ROOT, environment

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
HOUR = 3600
WINDOW = 3  # seconds, where the server's clock jumps
IDENTITY = "user=header:x-user"

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="faketime is not installed")


class WallClock:
    """What the processes started with its variables take for the time."""

    def __init__(self, folder: Path, name: str = "clock") -> None:
        self._file, self._next = folder / name, folder / f"{name}.next"
        self.set(0)
        self.variables = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, ahead: float) -> None:
        """It is ahead of the true time by so many seconds."""
        self._next.write_text(f"{ahead:+f}")
        self._next.replace(self._file)  # at once: nobody reads half of it


HOST = """
import sys, time
from presence_middleware import Presence
from presence_middleware.recorder import recorder_for
from presence_middleware.wsgi import WsgiVisit
def saw(name):
    WsgiVisit(recorder_for(), {"HTTP_X_USER": name}).end()
    while not recorder_for().flush():
        pass
for line in sys.stdin:
    print(repr(eval(line)), flush=True)
"""


class Host:
    """A process of a site with a clock of its own, from `with` to the end of the block."""

    def __init__(self, clock: WallClock, **variables: str) -> None:
        self._variables = environment(**variables, **clock.variables)

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", HOST]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=ROOT, env=self._variables, **pipes)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def says(self, expression: str) -> Any:
        """Return what an expression is there."""
        assert self._process.stdin
        assert self._process.stdout
        print(expression, file=self._process.stdin, flush=True)
        return literal_eval(self._process.stdout.readline())


class JumpingServer(Server):
    """A server of its own with a wall clock of its own."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.clock = WallClock(folder)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.clock.variables.items():
                patch.setenv(name, value)
            super().__init__(binary, folder)


class Site:
    """A process that records at a jumping server, and two readers that keep time on their own."""

    def __init__(self, server: Server, store: str) -> None:
        given = {"redis_url": server.url, "store": store, "identity": IDENTITY, "window": WINDOW}
        settings = Settings.from_env({}, **given, flush_interval="0.1s")
        self.recorder = Recorder(settings)
        self.clients = [redis.Redis.from_url(server.url) for _ in range(2)]
        self.readers = [Presence(settings, client=client) for client in self.clients]

    def comes(self, *names: str) -> None:
        for name in names:
            WsgiVisit(self.recorder, {"HTTP_X_USER": name}).end()
        assert self.recorder.flush()

    def all_say(self, *names: str) -> bool:
        """Whether these, and no others, are online, whichever reader is asked."""
        return all({s.id for s in reader.online()} == set(names) for reader in self.readers)

    def has_back(self, *names: str) -> bool:
        """Whether these are all who are online, now that they came again."""
        self.comes(*names)
        return self.all_say(*names)

    def close(self) -> None:
        self.recorder.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def server(tmp_path: Path, valkey: Server) -> Iterator[JumpingServer]:
    server = JumpingServer(valkey.binary, tmp_path)
    yield server
    server.stop()


@pytest.fixture(params=["sorted-set", "minute-sets"])
def kept_in(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def jumping_site(server: Server, kept_in: str) -> Iterator[Site]:
    site = Site(server, kept_in)
    yield site
    site.close()


@pytest.fixture
def is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens every ten, and every thirty, seconds happens at once."""
    monkeypatch.setattr(server_clock, "TRUSTED", 0.2)
    monkeypatch.setattr(upkeep, "CLEAN_EVERY", 0.2)
    monkeypatch.setattr(upkeep, "LOOK_EVERY", 0.2)


def test_hosts_with_clocks_hours_apart_and_jumping_report_the_same(
    variables: dict[str, str], tmp_path: Path
) -> None:
    variables |= {"PRESENCE_IDENTITY": IDENTITY}
    jumping, behind = WallClock(tmp_path, "jumping"), WallClock(tmp_path, "behind")
    behind.set(-HOUR)
    came: dict[str, float] = {}
    with Host(jumping, **variables) as one, Host(behind, **variables) as other:
        for name, hours, host in (("ann", 1, one), ("bob", 0, other), ("cy", -2, one)):
            jumping.set(hours * HOUR)
            assert one.says("time.time()") == pytest.approx(time.time() + hours * HOUR, abs=5)
            came[name] = time.time()
            host.says(f"saw({name!r})")
            for each in (one, other):
                assert set(each.says("[who.id for who in Presence().online()]")) == set(came)
                for seen, moment in came.items():
                    at = each.says(f"Presence().last_seen({seen!r}).timestamp()")
                    assert at == pytest.approx(moment, abs=2)


@pytest.mark.slow
@pytest.mark.usefixtures("is_quick")
@pytest.mark.parametrize(
    ("hours", "seconds", "has_left"), [(-1, WINDOW + 3, False), (-1, 30, True), (1, 30, False)]
)
def test_active_users_are_online_again_after_the_server_clock_jumped(
    server: JumpingServer, jumping_site: Site, hours: int, seconds: float, *, has_left: bool
) -> None:
    jumping_site.comes("ann", "bob")
    if has_left:
        jumping_site.readers[0].leave("ann")
        assert jumping_site.all_say("bob")
    server.clock.set(hours * HOUR)
    if has_left:
        clock = jumping_site.recorder.backend.clock
        jumped = clock.stamp()  # the server is asked for the time again
        wait_until(lambda: clock.stamp() - jumped > server_clock.TRUSTED)
    # After an hour, keys have expired. So both, who came in the window, are written again, perhaps
    # with the new time, and minute sets know only the minute.
    kept = ("ann", "bob") if hours > 0 else ("ann",)
    wait_until(lambda: jumping_site.has_back("ann") or jumping_site.all_say(*kept), seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept_in", "hours"), [("sorted-set", 1), ("minute-sets", -1)], indirect=["kept_in"]
)
def test_an_active_user_is_offline_for_at_most_ten_seconds_after_a_clock_jump(
    server: JumpingServer, jumping_site: Site, hours: int
) -> None:
    jumping_site.comes("ann")
    server.clock.set(hours * HOUR)
    wait_until(lambda: jumping_site.has_back("ann"), server_clock.TRUSTED + 1)
