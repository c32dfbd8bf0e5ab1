"""Clocks of hosts and of the server, wrong by an hour or jumping: all answer alike and right."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from presence_middleware import Presence, Settings, upkeep
from presence_middleware.connections import server as server_clock
from presence_middleware.connections.health import RedisHealth
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server, wait_until

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
HOUR = 3600
WINDOW = 3  # seconds, where the server's clock jumps
IDENTITY = "user=header:x-user"


def test_hosts_with_clocks_hours_apart_report_the_same(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.from_env({**variables, "PRESENCE_IDENTITY": IDENTITY})
    true, came = time.time, dict[str, float]()
    for name, hours in (("ann", 1), ("bob", 0), ("cy", -2)):
        recorder, presence = Recorder(settings, background=False), Presence(settings)
        monkeypatch.setattr(time, "time", lambda ahead=hours * HOUR: true() + ahead)
        came[name] = true()
        WsgiVisit(recorder, {"HTTP_X_USER": name}).end()
        assert recorder.flush()
        found = {each.id: each.last_seen for each in presence.online()}
        assert found.keys() == came.keys()
        for id, last_seen in found.items():
            assert last_seen
            assert last_seen.timestamp() == pytest.approx(came[id], abs=2)


class JumpingServer(Server):
    """A server whose wall clock is set by libfaketime; its monotonic clock stays as it is."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._file = folder / "clock"
        self.jump(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(LIBRARY))
            patch.setenv("FAKETIME_TIMESTAMP_FILE", str(self._file))
            patch.setenv("FAKETIME_NO_CACHE", "1")
            patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            super().__init__(binary, folder)

    def jump(self, ahead: float) -> None:
        """Set it ahead of the true time by so many seconds, at once: nobody reads half of it."""
        following = self._file.with_suffix(".next")
        following.write_text(f"{ahead:+f}")
        following.replace(self._file)


@pytest.fixture
def server(tmp_path: Path, valkey: Server) -> Iterator[JumpingServer]:
    server = JumpingServer(valkey.binary, tmp_path)
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.skipif(LIBRARY is None, reason="faketime is not installed")
@pytest.mark.parametrize(
    ("store", "hours", "seconds", "has_left"),
    [
        *(("sorted-set", -1, WINDOW + 3, False), ("minute-sets", -1, WINDOW + 3, False)),
        *(("sorted-set", -1, 30, True), ("sorted-set", 1, 30, False)),
    ],
)
def test_active_users_are_online_again_after_the_server_clock_jumped(
    server: JumpingServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    store: str,
    hours: int,
    seconds: float,
    has_left: bool,
) -> None:
    for module, name in (
        (server_clock, "TRUSTED"),
        (upkeep, "CLEAN_EVERY"),
        (upkeep, "LOOK_EVERY"),
    ):
        monkeypatch.setattr(module, name, 0.2)  # what happens every ten, and every thirty, seconds
    given = {"redis_url": server.url, "store": store, "identity": IDENTITY, "window": WINDOW}
    settings = Settings.from_env({}, **given, flush_interval="0.1s")
    recorder = Recorder(settings)
    clients = [redis.Redis.from_url(server.url) for _ in range(2)]
    readers = [Presence(settings, client=client) for client in clients]

    def comes(*names: str) -> None:
        for name in names:
            WsgiVisit(recorder, {"HTTP_X_USER": name}).end()
        assert recorder.flush()

    def all_say(*names: str) -> bool:
        """Whether these, and no others, are online, whichever reader is asked."""
        return all({each.id for each in reader.online()} == set(names) for reader in readers)

    def has_back(name: str) -> bool:
        comes(name)
        return all_say(name)

    comes("ann", "bob")
    if has_left:
        readers[0].leave("ann")
        assert all_say("bob")
    server.jump(hours * HOUR)
    if has_left:
        clock = recorder.backend.clock
        jumped = clock.stamp()  # the server is asked for the time again
        wait_until(lambda: clock.stamp() - jumped > server_clock.TRUSTED)
    # After an hour, keys have expired. So both, who came in the window, are written again, perhaps
    # with the new time.
    kept = ("ann", "bob") if hours > 0 else ("ann",)
    wait_until(lambda: has_back("ann") or all_say(*kept), seconds)
    recorder.close()
    for client in clients:
        client.close()


def test_the_server_is_asked_again_after_ten_seconds_and_if_another_may_answer() -> None:
    health, now = RedisHealth(), 100.0
    clock = server_clock.ServerClock(health, lambda: now)
    clock.is_server_time = True

    def is_asked() -> bool:
        plan = clock.synchronise()
        for _ in plan:
            with suppress(StopIteration):
                plan.send([(1_700_000_000, 0)])
            return True
        return False

    assert [is_asked(), is_asked()] == [True, False]
    now += 10.5
    assert [is_asked(), is_asked()] == [True, False]
    health.lost_connection()
    assert [is_asked(), is_asked()] == [True, False]
