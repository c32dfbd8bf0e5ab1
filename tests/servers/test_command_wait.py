"""`presence wait`: a script goes on when few enough are online."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import Presence, PresenceUnavailable, Settings
from presence_middleware.cli.commands import presence as command
from tests.servers.test_command_answers import Script
from tests.support.backends import Server, wait_until
from tests.support.faults import at_a_place
from tests.support.terminal import piped


@pytest.fixture
def presence(variables: dict[str, str]) -> Presence:
    reader = Presence(Settings.from_env(variables))
    reader.touch("ann")
    reader.touch("bob")
    return reader


def calls(admin: Any, command: str) -> int:
    return int(admin.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_it_ends_when_somebody_leaves(
    presence: Presence, variables: dict[str, str], valkey: Server
) -> None:
    with piped("wait", "--below", "2", "--timeout", "40s", **variables) as waiting:
        with redis.Redis.from_url(valkey.url) as admin:
            before = calls(admin, "zcount")
            wait_until(lambda: calls(admin, "zcount") > before)
        began = time.monotonic()
        presence.leave("ann")
        assert waiting.wait(20) == 0
        assert time.monotonic() - began < 4.5


def test_its_statuses_tell_too_many_from_no_answer(
    presence: Presence, variables: dict[str, str]
) -> None:
    script = Script(variables)
    assert script("wait", "--below", "3").exit_code == 0
    assert script("wait", "--timeout", "0.3s").exit_code == 1
    assert script("wait", PRESENCE_REDIS_URL="redis://127.0.0.1:1").exit_code == 3
    assert script("wait", "--timeout", "soon").exit_code == 2


def test_it_waits_through_an_outage(
    tmp_path: Path, valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int | None] = []
    count = Presence.count

    def counting(reader: Presence, *arguments: Any, **named: Any) -> int:
        try:
            counted.append(count(reader, *arguments, **named))
        except PresenceUnavailable:
            counted.append(None)
            raise
        return counted[-1] or 0

    monkeypatch.setattr(Presence, "count", counting)
    monkeypatch.setattr("presence_middleware.cli.commands.ASK_EVERY", 0.01)
    with at_a_place(valkey.binary, tmp_path) as place, ThreadPoolExecutor() as thread:
        for name, value in {"REDIS_URL": place.url, "PREFIX": prefix}.items():
            monkeypatch.setenv(f"PRESENCE_{name}", value)
        reader = Presence(Settings.from_env(redis_url=place.server.url))
        reader.touch("ann")
        waiting = thread.submit(command.main, ["wait"], standalone_mode=False)
        wait_until(lambda: 1 in counted)
        place.proxy.refuse()
        wait_until(lambda: None in counted)
        reader.leave("ann")
        place.proxy.listen()
        assert waiting.result(30) is None
    assert counted[-1] == 0
