"""`presence doctor`: checks of a server, its keys and the settings."""

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from presence_middleware import Presence, Settings, doctor
from presence_middleware.backend import Backend
from tests.redis.test_connecting import PASSWORD, url_of_user
from tests.servers.test_command_answers import Script
from tests.support.backends import Server
from tests.support.timed_site import Start


def examined(variables: dict[str, str], *options: str) -> Result:
    return Script(variables)("doctor", *options)


def test_a_healthy_server_passes_all_checks(variables: dict[str, str]) -> None:
    variables |= {"PRESENCE_STORE": "user=sorted-set, guest=minute-sets, bot=hyperloglog"}
    settings = Settings.from_env(variables)
    presence = Presence(settings)
    for name, kind in (("ann", "user"), ("bob", "user"), ("x", "guest"), ("curl", "bot")):
        presence.touch(name, kind)
    Presence(settings, clock=lambda: time.time() - 60).touch("x", "guest")
    found = examined(variables)
    assert (found.exit_code, found.stderr) == (0, "")
    told, lines = found.stdout.split("ok    ", 1)
    for said in (
        "server: valkey 9.",
        "clock: ",
        "eviction: noeviction",
        "memory: ",
        "online: 2 user, 1 guest, 1 bot\n",
        "kind user: sorted-set, 2 members in 1 key, ",
        "capacity of user: 2 online of 1000000 (0%)",
        "kind guest: minute-sets, 2 members in 2 keys, ",
        "capacity of guest: 2 online of 1000000 (0%)",
        "kind bot: hyperloglog, 1 member in 1 key, ",
    ):
        assert f"ok    {said}" in f"ok    {lines}"
    assert not {"WRONG", "warn"} & set(found.stdout.split())
    assert "events of" not in lines
    assert f"PRESENCE_PREFIX={variables['PRESENCE_PREFIX']} (environment)" in told
    assert "PRESENCE_WINDOW=10m (default)" in told
    assert "PRESENCE_" not in examined(variables, "--no-settings").stdout
    sound = json.loads(examined(variables, "--json").stdout)
    assert sound["is_right"] is True
    assert sound["settings"]["PRESENCE_WINDOW"] == {"value": "10m", "from": "default"}
    assert {finding["is_right"] for finding in sound["findings"]} == {True}


def test_what_is_wrong_is_reported_and_the_other_checks_still_run(
    valkey: Server, variables: dict[str, str], presence: Presence, tmp_path: Path
) -> None:
    presence.touch("x", "guest")
    found = examined(variables)
    assert found.exit_code == 0
    assert "warn  online: 0 user, 1 guest, 0 bot: if users are logged in now" in found.stdout
    assert "presence explain" in found.stdout
    assert "warn" not in examined({**variables, "PRESENCE_IDENTITY": "guest=visitor"}).stdout
    presence.touch("ann")
    key = f"{variables['PRESENCE_PREFIX']}:user:seen"
    valkey.client.persist(key)
    url = url_of_user(valkey, variables["PRESENCE_PREFIX"], "+@all", "-memory")
    refused = {"PRESENCE_REDIS_URL": url}
    nobody = {"PRESENCE_REDIS_URL": f"unix://{tmp_path}/none"}
    for given, wrong, right in (
        ({}, f" B, these keys never expire: {key}\n", "ok    online: 1 user, 1 guest, 0 bot\n"),
        (refused, "WRONG Redis refused: ", "ok    server: "),
        (nobody, "WRONG Redis did not answer", "PRESENCE_WINDOW=10m (default)"),
        ({"PRESENCE_WINDOW": "soon"}, "PRESENCE_WINDOW='soon'", ""),
    ):
        found = examined({**variables, **given})
        assert found.exit_code == 1
        assert wrong in found.stdout + found.stderr
        assert right in found.stdout
        assert PASSWORD not in found.stdout + found.stderr
    url = url_of_user(valkey, variables["PRESENCE_PREFIX"], "+@all", "-info")
    refusals = examined({**variables, "PRESENCE_REDIS_URL": url}).stdout
    assert refusals.count("has no permissions to run the 'info' command") == 1
    assert "ok    clock: " in refusals
    assert "ok    kind guest: sorted-set, 1 member in 1 key" in refusals
    ill = json.loads(examined(variables, "--json", "--no-settings").stdout)
    assert (ill["is_right"], ill["settings"]) == (False, {})
    assert [finding["is_right"] for finding in ill["findings"]].count(False) == 1


@pytest.mark.parametrize("command", ["eval", "evalsha", "set", "getex", "exec", "xlen"])
def test_a_command_that_recording_needs_and_the_server_refuses_is_wrong(
    command: str, valkey: Server, prefix: str, variables: dict[str, str]
) -> None:
    variables["PRESENCE_REDIS_URL"] = url_of_user(valkey, prefix, "+@all", f"-{command}")
    for events in ("", "user"):
        found = examined({**variables, "PRESENCE_EVENTS": events})
        is_needed = bool(events) or command != "xlen"
        assert found.exit_code == is_needed
        assert ("ok    commands: " in found.stdout) is not is_needed
        assert (f"'{command}' command\n" in found.stdout) is is_needed
    assert not valkey.client.exists(f"{prefix}:doctor")


@pytest.mark.parametrize("board", ["", "/presence"])
def test_of_hyperloglogs_only_the_board_needs_scripts(
    board: str, valkey: Server, prefix: str, variables: dict[str, str]
) -> None:
    url = url_of_user(valkey, prefix, "+@all", "-eval", "-evalsha")
    variables |= {"PRESENCE_REDIS_URL": url, "PRESENCE_STORE": "hyperloglog"}
    found = examined({**variables, "PRESENCE_BOARD_PATH": board})
    assert ("'eval' command\n" in found.stdout) == bool(board)
    assert found.exit_code == bool(board)


def answered(plan: Generator[Any, Any, doctor.Finding], reply: Any) -> doctor.Finding:
    """What a plan finds if the server answers so."""
    plan.send(None)
    with pytest.raises(StopIteration) as end:
        plan.send([reply])
    found: doctor.Finding = end.value.value
    return found


def valkey_of(version: str, redis: str) -> dict[str, str]:
    return {"server_name": "valkey", "valkey_version": version, "redis_version": redis}


def clock_of(ahead: float) -> tuple[int, int]:
    now = time.time() + ahead
    return int(now), int(now % 1 * 1e6)


def memory_of(policy: str, used: float, most: int = 10**9) -> dict[str, Any]:
    return {"maxmemory_policy": policy, "used_memory": int(used * most), "maxmemory": most}


EVICTS = "; when memory is short, the server evicts keys: set maxmemory-policy noeviction"


@pytest.mark.parametrize(
    ("check", "reply", "mark", "said"),
    [
        (doctor.version, {"redis_version": "6.2.0"}, "ok", "server: redis 6.2.0"),
        (doctor.version, {"redis_version": "6.0.16"}, "WRONG", "6.0.16: 6.2 or later is required"),
        (doctor.version, valkey_of("7.2.5", "7.2.4"), "ok", "valkey 7.2.5"),
        (doctor.version, valkey_of("7.1", "7"), "WRONG", "7.2 or later"),
        (doctor.clock, 0.0, "ok", "clock: "),
        (doctor.clock, 3600, "WRONG", "set this host's clock"),
        (doctor.clock, -9, "WRONG", "set this host's clock"),
        (doctor.memory, memory_of("", 0.1), "ok", "memory: 100 MB of 1 GB"),
        (doctor.memory, memory_of("", 0, 0), "ok", "memory: 0 B, no limit"),
        (doctor.memory, memory_of("", 0.95), "WRONG", "of 1 GB: nearly full; raise maxmemory"),
        (doctor.eviction, memory_of("noeviction", 0.95), "ok", "eviction: noeviction"),
        (doctor.eviction, memory_of("volatile-lru", 0.1), "warn", f"volatile-lru{EVICTS}"),
        (doctor.eviction, memory_of("volatile-lru", 0.95), "WRONG", f"volatile-lru{EVICTS}"),
        (doctor.eviction, memory_of("allkeys-lru", 0.1), "WRONG", f"allkeys-lru{EVICTS}"),
        (doctor.eviction, memory_of("allkeys-lru", 0.1, 0), "ok", "eviction: allkeys-lru"),
    ],
)
def test_the_server_is_checked(check: Any, reply: Any, mark: str, said: str) -> None:
    found = answered(check(), clock_of(reply) if check is doctor.clock else reply)
    assert found.mark == mark
    assert said in found.what
    assert (EVICTS in found.what) is (EVICTS in said)


def test_a_replica_that_only_reads_is_wrong(own: Server, client: Any, prefix: str) -> None:
    variables = {"PRESENCE_REDIS_URL": own.url, "PRESENCE_PREFIX": prefix}
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    found = examined(variables)
    assert found.exit_code == 1
    assert "a read-only replica records nobody; name its primary" in found.stdout
    client.execute_command("REPLICAOF", "NO", "ONE")
    assert examined(variables).exit_code == 0


def events_of(backend: Backend, kind: str) -> tuple[bool, str]:
    (found,) = [each for each in doctor.examine(backend) if f"events of {kind}:" in each.what]
    return found.is_right, found.what.partition(": ")[2]


@pytest.mark.parametrize(("interval", "late"), [("10s", 30), ("3m", 360)])
def test_the_doctor_notices_that_nobody_sweeps(interval: str, late: int, start: Start) -> None:
    """After two flush intervals, if they are long."""
    site = start(events="user, guest", flush_interval=interval)
    settings, clock = site.settings, site.clock
    assert events_of(site.presence.backend, "user") == (True, "nobody came or went lately")
    site.presence.touch("ann")
    clock.now += settings.window + (settings.lag_seconds("user") or 0)
    for seconds, is_right, what in (
        (late, True, f"up to date, late by {late} s"),
        (late + 1, False, "nobody sweeps, late by "),
        (600, False, "nobody sweeps, late by 10m: "),
    ):
        backend = Backend(settings, clock=lambda: clock.now + seconds)  # noqa: B023
        found = events_of(backend, "user")
        assert found[0] is is_right
        assert what in found[1]
        assert events_of(backend, "guest")[0]
    for shard in backend.stores["user"].all:
        backend.driver.run(shard.sweep(clock.now + 600))
    assert events_of(backend, "user") == (True, "up to date, late by 0 s")


def test_the_doctor_names_the_setting_that_recorders_lack(variables: dict[str, str]) -> None:
    recording = Backend(Settings.from_env(variables))
    driver = recording.driver
    driver.run(recording.shared_settings.publish(driver.run(recording.clock.now())))
    assert events_of(Backend(Settings.from_env(variables, events="user")), "user") == (
        False,
        "a process that records does not announce them: "
        "set PRESENCE_EVENTS to the same kinds in all processes",
    )
