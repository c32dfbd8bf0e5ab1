"""`presence wait`: a script goes on when few enough are online."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import Presence, Settings
from tests.support.backends import Server, wait_until
from tests.support.faults import at_a_place
from tests.support.servers import environment
from tests.support.terminal import COMMAND


@pytest.fixture
def presence(variables: dict[str, str]) -> Presence:
    variables["PRESENCE_EVENTS"] = "user"
    reader = Presence(Settings.from_env(variables))
    reader.touch("ann")
    reader.touch("bob")
    return reader


def start(variables: dict[str, str], *arguments: str) -> Any:
    return subprocess.Popen(
        (*COMMAND, "wait", *arguments), env=environment(**variables), stderr=subprocess.PIPE
    )


def calls(admin: Any, command: str) -> int:
    return int(admin.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_it_ends_when_somebody_leaves(
    presence: Presence, variables: dict[str, str], valkey: Server
) -> None:
    with start(variables, "--below", "3") as enough:
        assert enough.wait(20) == 0
    with start(variables, "--below", "2", "--timeout", "40s") as waiting:
        # It follows the events, so that it does not wait until it asks again.
        with redis.Redis.from_url(valkey.url) as admin:
            before = calls(admin, "xrange")
            wait_until(lambda: calls(admin, "xrange") > before)
        began = time.monotonic()
        presence.leave("ann")
        assert waiting.wait(20) == 0
        assert time.monotonic() - began < 4.5


def test_its_statuses_tell_too_many_from_no_answer(
    presence: Presence, variables: dict[str, str]
) -> None:
    with start(variables, "--timeout", "0.3s") as too_many:
        assert too_many.wait(20) == 1
    with start(variables | {"PRESENCE_REDIS_URL": "redis://127.0.0.1:1"}) as nobody:
        assert nobody.wait(20) == 3
    with start(variables, "--timeout", "soon") as wrong:
        assert wrong.wait(20) == 2


def test_it_waits_through_an_outage(tmp_path: Path, valkey: Server, prefix: str) -> None:
    with at_a_place(valkey.binary, tmp_path) as place:
        variables = {"PRESENCE_REDIS_URL": place.url, "PRESENCE_PREFIX": prefix}
        reader = Presence(Settings.from_env(variables, redis_url=place.server.url))
        reader.touch("ann")
        before = calls(place.admin, "zcount")
        with start(variables) as waiting:
            wait_until(lambda: calls(place.admin, "zcount") > before)
            place.proxy.refuse()
            reader.leave("ann")
            place.proxy.listen()
            assert waiting.wait(30) == 0
