"""Clocks of hosts and of the server, wrong by an hour or jumping: the answers agree and are right.

The clocks are those of the processes, set by libfaketime; their monotonic clocks stay as they are.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from presence_middleware import Presence, Settings, upkeep
from presence_middleware.connections import server as server_clock
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server, matrix, wait_until
from tests.support.host import Host

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


def test_hosts_with_clocks_hours_apart_report_the_same(
    variables: dict[str, str], tmp_path: Path, kept_in: str
) -> None:
    variables |= {"PRESENCE_IDENTITY": IDENTITY, "PRESENCE_STORE": kept_in}
    ahead, behind = WallClock(tmp_path, "ahead"), WallClock(tmp_path, "behind")
    ahead.set(HOUR)
    behind.set(-HOUR)
    with ExitStack() as stack:
        late = stack.enter_context(Host(**variables, **behind.variables))
        early = stack.enter_context(Host(**variables, **ahead.variables))
        assert early.time() - late.time() == pytest.approx(2 * HOUR, abs=5)
        started = time.time()
        early.saw("ann")
        late.saw("bob")
        for host in (early, late):
            assert host.online() == {"ann", "bob"}
            for name in ("ann", "bob"):
                # Minute sets know the minute.
                assert host.last_seen(name) == pytest.approx(started, abs=61)


@pytest.mark.slow
def test_a_host_whose_clock_jumps_keeps_recording(
    variables: dict[str, str], tmp_path: Path
) -> None:
    variables |= {"PRESENCE_IDENTITY": IDENTITY}
    jumping = WallClock(tmp_path)
    with Host(**variables, **jumping.variables) as host, Host(**variables) as other:
        came = {}
        for name, hours in (("ann", 0), ("bob", 1), ("cy", -1)):
            jumping.set(hours * HOUR)
            assert host.time() == pytest.approx(time.time() + hours * HOUR, abs=5)
            came[name] = time.time()
            host.saw(name)
            assert host.online() == other.online() == set(came)
        for name, moment in came.items():
            assert other.last_seen(name) == pytest.approx(moment, abs=2)
        wait_until(lambda: not host.online("1s") | other.online("1s"))  # nobody stays


class Jump(NamedTuple):
    """A jump of the server's clock, and how soon those who are there are online again."""

    hours: int
    seconds: float = 30.0
    has_left: bool = False
    """Whether she left before it, and comes back."""


FORWARD, BACK = Jump(1), Jump(-1, WINDOW + 3)


@pytest.mark.usefixtures("is_quick")
@pytest.mark.parametrize(
    "jump",
    [*matrix(FORWARD, Jump(-1, has_left=True)), pytest.param(BACK, marks=pytest.mark.slow)],
    ids=["forward", "back, for one who left", "back"],
)
def test_active_users_are_online_again_after_the_server_clock_jumped(
    server: JumpingServer, jumping_site: Site, jump: Jump
) -> None:
    jumping_site.comes("ann", "bob")
    if jump.has_left:
        jumping_site.readers[0].leave("ann")
        assert jumping_site.all_say("bob")
    server.clock.set(jump.hours * HOUR)
    if jump.has_left:
        clock = jumping_site.recorder.backend.clock
        jumped = clock.stamp()  # the server is asked for the time again
        wait_until(lambda: clock.stamp() - jumped > server_clock.TRUSTED)
    wait_until(lambda: jumping_site.has_back("ann"), jump.seconds)


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
