"""A machine that sleeps: processes stand still, their connections die, and their clocks jump."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from presence_middleware import Presence, Settings
from presence_middleware.embedded import find_server
from tests.redis.test_walks import PEOPLE, Walk
from tests.servers.test_command_events import SITE as EVENTS_SITE
from tests.servers.test_command_events import Events
from tests.servers.test_servers import OPEN, OpenSite
from tests.support.backends import Server, wait_until
from tests.support.servers import ROOT, WebServer, uvicorn

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    server = Server(str(find_server()), tmp_path)
    yield server
    server.stop()


@contextmanager
def asleep(pid: int, admin: "redis.Redis") -> Iterator[None]:
    """Stop a process in the block. At its end, the server has forgotten all connections."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        admin.client_kill_filter(_type="normal", skipme=True)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_follower_that_slept_receives_what_it_missed(
    own: Server, variables: dict[str, str]
) -> None:
    given = {**variables, **EVENTS_SITE, "PRESENCE_REDIS_URL": own.url}
    with redis.Redis.from_url(own.url) as admin, Events(given) as events:
        events.begin()
        with asleep(events.process.pid, admin):
            events.presence.touch("ann")
            events.presence.touch("bob")
            events.presence.leave("ann")
        events.has("offline\tann")
        events.presence.touch("eve")
        events.has("online\teve")
        assert events.end() == 0
        lines = [line.split("\t")[2:] for line in events.lines]
    missed = [["online", "ann"], ["online", "bob"], ["offline", "ann"], ["online", "eve"]]
    assert [line for line in lines if not line[1].startswith("first")] == missed
    assert events.errors == []


@pytest.mark.slow
def test_people_on_open_connections_are_online_again_after_their_server_slept(
    own: Server, variables: dict[str, str], tmp_path: Path
) -> None:
    given = {**variables, **OPEN, "PRESENCE_REDIS_URL": own.url}
    presence = Presence(Settings.from_env(given))
    command = uvicorn("tests.support.site:asgi_site")
    with (
        redis.Redis.from_url(own.url) as admin,
        WebServer(command, ROOT, tmp_path / "log", **given) as server,
        ExitStack() as clients,
    ):
        site = OpenSite(server, presence, clients)
        site.websocket(X_User="stays")
        wait_until(lambda: site.are_online(["stays"]))
        with asleep(server.process.pid, admin):
            wait_until(lambda: not site.are_online(["stays"]))
        wait_until(lambda: site.are_online(["stays"]), 10)
        site.get("/open", "comes")
        wait_until(lambda: site.are_online(["comes", "stays"]), 10)
        site.wait_for_a_window("witness")
        assert site.are_online(["stays"])


@pytest.mark.slow
@pytest.mark.parametrize("jump", [30.0, 3600.0])
def test_rooms_and_events_are_true_after_a_monotonic_clock_jumped(
    own: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """On some systems it goes on in sleep. On others the server's clock seems to jump instead."""
    true_monotonic, ahead = time.monotonic, 0.0
    with ExitStack() as stack, redis.Redis.from_url(own.url) as admin:
        monkeypatch.setattr(time, "monotonic", lambda: true_monotonic() + ahead)
        walk = Walk(own.url, prefix, stack)
        with walk.going_on():
            wait_until(lambda: len(walk.where) > len(PEOPLE) // 2)
            time.sleep(1)
            ahead = jump
            admin.client_kill_filter(_type="normal", skipme=True)
            time.sleep(5)
        ahead = 0.0
        assert walk.follower.lost == 0
