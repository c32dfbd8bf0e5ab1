"""`presence doctor`: checks of a server, its keys and the settings."""

import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import Presence, Settings, doctor
from presence_middleware.backend import Backend
from presence_middleware.embedded import find_server
from tests.support.backends import Server
from tests.support.servers import environment
from tests.support.timed_site import Clock

SECRET = "canary-secret-of-the-doctor"


def examined(variables: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """What the command says with these variables and no others."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from presence_middleware.cli import main; main()",
            "doctor",
            *options,
        ],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_a_healthy_server_passes_all_checks(variables: dict[str, str]) -> None:
    variables |= {"PRESENCE_STORE": "user=sorted-set, guest=minute-sets, bot=hyperloglog"}
    presence = Presence(Settings.from_env(variables))
    for name in ("ann", "bob"):
        presence.touch(name)
    presence.touch("x", "guest")
    presence.touch("curl", "bot")
    found = examined(variables)
    assert (found.returncode, found.stderr) == (0, "")
    told, lines = found.stdout.split("ok    ", 1)
    lines = "ok    " + lines
    assert "WRONG" not in found.stdout
    for said in (
        "ok    server: valkey 9.",
        "ok    clock: ",
        "ok    eviction: noeviction",
        "ok    memory: ",
        "ok    kind user: sorted-set, 2 members in 1 keys, ",
        "ok    kind guest: minute-sets, 1 members in 1 keys, ",
        "ok    kind bot: hyperloglog, 1 members in 1 keys, ",
    ):
        assert said in lines
    assert f"PRESENCE_PREFIX={variables['PRESENCE_PREFIX']} (environment)" in told
    assert "PRESENCE_WINDOW=10m (default)" in told
    assert "PRESENCE_" not in examined(variables, "--no-settings").stdout


def test_printed_settings_can_be_reused_and_contain_no_secret() -> None:
    given = {"PRESENCE_SECRET": SECRET, "PRESENCE_SESSION_SECRET": SECRET}
    given |= {
        "PRESENCE_REDIS_URL": f"redis://:{SECRET}@h",
        "PRESENCE_TRUSTED_PROXIES": "10.0.0.0/8",
    }
    given |= {
        "PRESENCE_EXCLUDE": "/a, /b*",
        "PRESENCE_STORE": "minute-sets",
        "PRESENCE_WINDOW": "90",
    }
    settings = Settings.from_env(given)
    lines = list(map(str, doctor.effective_settings(settings, given)))
    assert SECRET not in "".join(lines)
    assert len(lines) == len({line.partition("=")[0] for line in lines})
    told = {line.partition("=")[0]: line.partition("=")[2].rpartition(" (")[0] for line in lines}
    again = Settings.from_env({**told, **{name: given[name] for name in list(given)[:3]}})
    assert again == settings


def test_a_server_that_cannot_be_reached_is_wrong(tmp_path: Path) -> None:
    found = examined({"PRESENCE_REDIS_URL": f"unix://{tmp_path}/none"})
    assert found.returncode == 1
    assert "WRONG Redis did not answer" in found.stdout
    assert "PRESENCE_WINDOW=10m (default)" in found.stdout


def test_invalid_settings_are_reported_as_in_other_commands() -> None:
    found = examined({"PRESENCE_WINDOW": "soon"})
    assert found.returncode == 1
    assert "PRESENCE_WINDOW='soon'" in found.stderr


def test_a_server_that_evicts_keys_is_wrong(tmp_path: Path) -> None:
    options = ("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    server = Server(str(find_server()), tmp_path, *options)
    try:
        found = examined({"PRESENCE_REDIS_URL": server.url}, "--no-settings")
    finally:
        server.stop()
    assert found.returncode == 1
    assert "WRONG eviction: allkeys-lru" in found.stdout
    assert "ok    memory: " in found.stdout
    assert " of 52.4 MB" in found.stdout
    assert "ok    kind user: sorted-set, no keys, no id was seen lately" in found.stdout


def test_a_key_that_never_expires_is_wrong(valkey: Server, variables: dict[str, str]) -> None:
    key = f"{variables['PRESENCE_PREFIX']}:user:seen"
    Presence(Settings.from_env(variables)).touch("ann")
    with redis.Redis.from_url(valkey.url) as client:
        client.persist(key)
    found = examined(variables, "--no-settings")
    assert found.returncode == 1
    assert f"these keys never expire: {key}" in found.stdout


def test_a_missing_redis_permission_is_a_failure_and_the_other_checks_still_run(
    valkey: Server, variables: dict[str, str]
) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        rules = ("on", f">{SECRET}", "~*", "+@all", "-memory")
        client.execute_command("ACL", "SETUSER", "asks", *rules)
        url = f"unix://asks:{SECRET}@{valkey.socket}"
        Presence(Settings.from_env(variables)).touch("ann")
        found = examined({**variables, "PRESENCE_REDIS_URL": url}, "--no-settings")
        client.acl_deluser("asks")
    assert found.returncode == 1
    assert "WRONG Redis refused: " in found.stdout
    assert "ok    server: " in found.stdout
    assert SECRET not in found.stdout + found.stderr


def answered(plan: Generator[Any, Any, doctor.Finding], *replies: Any) -> doctor.Finding:
    """What a plan finds if the server answers so."""
    plan.send(None)
    for reply in replies[:-1]:
        plan.send([reply])
    with pytest.raises(StopIteration) as end:
        plan.send([replies[-1]])
    found: doctor.Finding = end.value.value
    return found


@pytest.mark.parametrize(
    ("info", "is_right", "said"),
    [
        ({"redis_version": "6.2.0"}, True, "redis 6.2.0"),
        ({"redis_version": "6.0.16"}, False, "redis 6.0.16: 6.2 or later is required"),
        ({"redis_version": "10.1"}, True, "redis 10.1"),
        (
            {"server_name": "valkey", "valkey_version": "7.2.5", "redis_version": "7.2.4"},
            True,
            "valkey 7.2.5",
        ),
        ({"server_name": "valkey", "valkey_version": "7.1", "redis_version": "7"}, False, "7.2 or"),
    ],
)
def test_the_server_version_is_checked(info: dict[str, str], is_right: bool, said: str) -> None:
    found = answered(doctor.version(), info)
    assert found.is_right is is_right
    assert said in found.what


@pytest.mark.parametrize(
    ("ahead", "is_right"), [(0.0, True), (-0.5, True), (3600, False), (-9, False)]
)
def test_the_server_clock_is_checked(ahead: float, is_right: bool) -> None:
    now = time.time() + ahead
    found = answered(doctor.clock(), (int(now), round(now % 1 * 1e6) % 1_000_000))
    assert found.is_right is is_right


@pytest.mark.parametrize(("used", "is_right"), [(10**8, True), (95 * 10**7, False)])
def test_the_server_memory_is_checked(used: int, is_right: bool) -> None:
    found = answered(doctor.memory(), {"used_memory": used, "maxmemory": 10**9})
    assert found.is_right is is_right
    assert "of 1 GB" in found.what


def events_of(backend: Backend, kind: str) -> doctor.Finding:
    (found,) = [each for each in doctor.examine(backend) if f"events of {kind}:" in each.what]
    return found


def test_the_doctor_notices_that_nobody_sweeps(variables: dict[str, str]) -> None:
    settings = Settings.from_env(
        variables,
        identity="user=header:x-user, guest=visitor",
        events="user, guest",
        flush_interval="10s",
    )
    clock = Clock()
    backend = Backend(settings, clock=clock)
    assert events_of(backend, "user") == (True, "events of user: nobody came or went lately")
    presence = Presence(backend=backend)
    presence.touch("ann")
    clock.now += settings.window + (settings.lag_seconds("user") or 0)
    for seconds, is_right, what in (
        (30, True, "up to date, late by 30 s"),
        (31, False, "nobody sweeps, late by 31s: "),
        (600, False, "nobody sweeps, late by 10m: "),
    ):
        backend = Backend(settings, clock=lambda: clock.now + seconds)  # noqa: B023
        found = events_of(backend, "user")
        assert found.is_right is is_right
        assert what in found.what
        assert events_of(backend, "guest").is_right
    for shard in backend.stores["user"].all:
        backend.driver.run(shard.sweep(clock.now + 600))
    assert events_of(backend, "user") == (True, "events of user: up to date, late by 0 s")


def test_the_doctor_names_the_setting_that_recording_processes_lack(
    variables: dict[str, str],
) -> None:
    recording = Backend(Settings.from_env(variables))
    driver = recording.driver
    driver.run(recording.shared_settings.publish(driver.run(recording.clock.now())))
    assert events_of(Backend(Settings.from_env(variables, events="user")), "user") == (
        False,
        "events of user: a process that records does not announce them: "
        "set PRESENCE_EVENTS to the same kinds in all processes",
    )


def test_a_long_flush_interval_is_not_taken_for_a_missing_sweep(variables: dict[str, str]) -> None:
    settings = Settings.from_env(
        variables, identity="user=header:x-user", events="user", flush_interval="3m"
    )
    clock = Clock()
    Presence(settings, clock=clock).touch("ann")
    clock.now += settings.window + (settings.lag_seconds("user") or 0)
    for seconds, is_right in ((360, True), (361, False)):
        backend = Backend(settings, clock=lambda: clock.now + seconds)  # noqa: B023
        assert events_of(backend, "user").is_right is is_right


def test_without_events_the_doctor_does_not_mention_them(variables: dict[str, str]) -> None:
    assert "events of" not in examined(variables, "--no-settings").stdout
