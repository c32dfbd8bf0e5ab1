"""The output of each `presence` command in a script: lines, JSON, exit statuses."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from click.testing import Result

from presence_middleware import Presence, Settings
from presence_middleware.backend import Backend
from presence_middleware.cli.commands import presence as command
from tests.support.backends import Server
from tests.support.commands import run_command, run_program
from tests.support.terminal import MAIN
from tests.support.timed_site import Clock, Start

WILD = "\x1b[2J[red]\n\t\u202e\u2066\u200f\x9bé\x7f <b>:boom:"
SHOWN = r"\x1b[2J[red]\n\t\u202e\u2066\u200f\x9bé\x7f <b>:boom:"
COMMANDS = sorted(command.commands)
# Those that ask Redis, and what they want to be told.
ASKING: dict[str, list[str]] = {
    **{name: [] for name in ("count", "online", "active", "wait", "history", "peak")},
    **{"seen": ["ann"], "friends": ["set"], "leave": ["ann"], "forget": ["ann", "--yes"]},
}


class Script:
    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables

    def __call__(self, *arguments: str, **variables: str) -> Result:
        return run_command(*arguments, env={**self.variables, **variables})

    def says(self, *arguments: str) -> str:
        ended = self(*arguments)
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)


@pytest.fixture
def script(variables: dict[str, str]) -> Script:
    return Script(variables)


def record(variables: dict[str, str], *counts: int) -> list[datetime]:
    """Writes samples of minutes ten minutes ago, as the site does; returns their times."""
    backend = Backend(Settings.from_env(variables))
    first = int(time.time() // 60) - 10
    for minute, count in enumerate(counts, first):
        backend.driver.run(backend.history.record(minute, {"user": count}))
    return [datetime.fromtimestamp((first + n) * 60, UTC) for n in range(len(counts))]


def iso(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def test_an_exit_status_reports_if_all_users_are_online(script: Script, presence: Presence) -> None:
    presence.touch("ann")
    seen = iso(presence.last_seen("ann") or datetime.min)
    for id in ("ann", " ann"):
        found = script("seen", id)
        assert found.exit_code == 0
        assert found.stdout.startswith("online\t")
        assert found.stdout.endswith(f" ago\t{seen}\n")
    known = {"kind": "user", "id": "ann", "online": True, "last_seen": seen}
    assert script.json("seen", "ann") == known
    for kind in ("user", "guest"):
        presence.touch("bob", kind)
    presence.leave("bob")
    assert script("seen", "bob", "--kind", "guest").exit_code == 0
    left = script("seen", "bob")
    assert (left.exit_code, left.stdout.split("\t")[0]) == (1, "offline")
    assert script("seen", "ann", "ann").exit_code == 0
    never = script("seen", "cid")
    assert (never.exit_code, never.stdout) == (1, "never seen\n")
    assert script.json("seen", "cid")["last_seen"] is None
    found = script("seen", "bob", "ann", "cid")
    assert found.exit_code == 1
    rows = [line.split("\t")[:2] for line in found.stdout.splitlines()]
    assert rows == [["bob", "offline"], ["ann", "online"], ["cid", "never seen"]]
    states = [(each["id"], each["online"]) for each in script.json("seen", "bob", "ann")["seen"]]
    assert states == [("bob", False), ("ann", True)]


def test_active_shows_the_usual_periods_that_are_kept(script: Script, presence: Presence) -> None:
    presence.touch("ann")
    assert script("active", PRESENCE_RETENTION="7d").stdout == "1d\t1\n7d\t1\n"
    hiding = {"PRESENCE_WINDOW": "18h", "PRESENCE_PULSE_PATH": "/pulse"}  # a goodbye, from a day
    assert script("active", **hiding).stdout == "7d\t1\n30d\t1\n"
    for unkept in (["active", "30d"], ["active"]):
        ended = script(*unkept, PRESENCE_RETENTION="6h")
        assert (ended.exit_code, "is stored for 6h 10m" in ended.stderr) == (2, True)


def test_friends_are_read_from_a_redis_key(
    script: Script, presence: Presence, valkey: Server, prefix: str
) -> None:
    key = f"{prefix}:friends"
    valkey.client.sadd(key, "ann", "bob", WILD)
    presence.touch("ann")
    presence.touch(WILD)
    assert script.says("friends", key) == f"{SHOWN}\nann\n"
    assert script.json("friends", key) == {"kind": "user", "key": key, "online": [WILD, "ann"]}
    assert script.says("friends", key, "--kind", "guest") == ""


def test_counts_and_lists_as_json(script: Script, presence: Presence) -> None:
    presence.touch(WILD)
    assert script.json("count") == {"kind": "user", "count": 1}
    assert script.json("count", "guest") == {"kind": "guest", "count": 0}
    answer = script.says("online", "--json")
    assert answer.isascii()
    assert answer.count("\n") == 1
    (found,) = json.loads(answer)["online"]
    assert found == {"id": WILD, "last_seen": iso(presence.last_seen(WILD) or datetime.min)}


def test_who_left_is_offline_and_the_forgotten_unknown(script: Script, presence: Presence) -> None:
    presence.touch("ann")
    presence.touch("ann", "guest")
    assert script.says("leave", "ann") == ""
    assert not presence.is_online("ann")
    assert presence.is_online("ann", "guest")
    asked = script("forget", "ann")
    assert asked.exit_code == 2
    assert "--yes" in asked.stderr
    assert presence.last_seen("ann")
    assert script.says("forget", "ann", "--yes") == ""
    assert presence.last_seen("ann") is None
    assert script.says("forget", "ann", "--kind", "guest", "--yes") == ""
    assert presence.last_seen("ann", "guest") is None


def test_history_is_a_line_a_minute(script: Script, variables: dict[str, str]) -> None:
    assert script.says("history") == ""
    times = record(variables, 3, 7, 5)
    lines = [f"{iso(at)}\t{count}" for at, count in zip(times, (3, 7, 5), strict=True)]
    assert script.says("history").splitlines() == lines
    assert script.says("history", "--hours", "0.1") == ""
    assert script.says("history", "--kind", "guest") == ""
    samples = [{"at": iso(at), "count": n} for at, n in zip(times, (3, 7, 5), strict=True)]
    assert script.json("history") == {"kind": "user", "samples": samples}
    for hours in ("0", "-1", "inf", "nan", "1e9"):
        assert script("history", "--hours", hours).exit_code == 2


def test_the_peak_until_it_is_reset(script: Script, variables: dict[str, str]) -> None:
    none = script("peak")
    assert (none.exit_code, none.stdout) == (1, "")
    assert script.json("peak") == {"kind": "user", "count": None, "at": None}
    _, at, _ = record(variables, 3, 7, 5)
    count, ago, moment = script.says("peak").split("\t")
    assert (count, ago.split()[1:], moment) == ("7", ["minutes", "ago"], f"{iso(at)}\n")
    assert script.json("peak") == {"kind": "user", "count": 7, "at": iso(at)}
    assert script("peak", "--reset").exit_code == 2
    assert script.says("peak", "--reset", "--kind", "guest", "--yes") == ""
    assert script("peak").exit_code == 0
    assert script.says("peak", "--reset", "--yes") == ""
    assert script("peak").exit_code == 1


@pytest.mark.parametrize("excluded", ["/a, /b*", "none"])
def test_config_shows_all_settings_and_no_secret(script: Script, excluded: str) -> None:
    secret = "canary-secret-of-config"
    url = f"redis://user:{secret}@localhost:1/0"
    told = {"TRUSTED_PROXIES": "10.0.0.0/8", "EXCLUDE": excluded, "STORE": "minute-sets"}
    plain = {f"PRESENCE_{name}": value for name, value in {**told, "WINDOW": "90"}.items()}
    secrets = dict.fromkeys(("PRESENCE_SECRET", "PRESENCE_SESSION_SECRET"), secret)
    given = {**plain, **secrets, "PRESENCE_REDIS_URL": url}
    printed = script("config", **given)
    assert printed.exit_code == 0
    assert secret not in printed.output
    lines = [line.split("\t") for line in printed.stdout.splitlines()]
    assert ["PRESENCE_WINDOW", "1m 30s", "environment"] in lines
    assert ["PRESENCE_SECRET", "***", "environment"] in lines
    assert ["PRESENCE_IP_PREFIX", "/32, /128", "default"] in lines
    # What it prints is what the variables accept.
    reused = {name: value for name, value, _ in lines if "***" not in value} | secrets
    effective = Settings.from_env({**script.variables, **given})
    assert Settings.from_env(reused, redis_url=url) == effective
    found = json.loads(script("config", "--json", **given).stdout)
    assert [[name, each["value"], each["from"]] for name, each in found.items()] == lines


def test_config_refuses_a_source_that_is_neither_one_nor_in_a_module(script: Script) -> None:
    for source, status in (("foo:bar", 2), ("identify:foo:bar", 2), ("json:nobody", 0)):
        told = script("config", PRESENCE_IDENTITY=f"user=auth, member={source}")
        assert told.exit_code == status
        assert ("neither a source nor a module 'foo'" in told.stderr) is (status == 2)


@pytest.mark.parametrize("name", ASKING)
def test_outages_and_wrong_usage_have_statuses_of_their_own(script: Script, name: str) -> None:
    for url in ("redis://localhost:1", "redis+cluster://localhost:1"):
        ended = script(name, *ASKING[name], PRESENCE_REDIS_URL=url)
        assert (ended.exit_code, ended.stdout) == (3, "")
        assert "Redis did not answer" in ended.stderr
    of_kind = ["member"] if name in {"count", "online"} else ["--kind", "member"]
    too_long = ["--window", "99d"] if name in {"online", "seen", "friends"} else of_kind
    for wrong in (of_kind, ["--nothing"], too_long):
        ended = script(name, *ASKING[name], *wrong)
        assert (ended.exit_code, ended.stdout) == (2, "")


def test_help_lists_every_command_and_status(script: Script) -> None:
    told = script.says("--help")
    assert set(COMMANDS) >= {*ASKING, "watch", "config", "doctor", "demo"}
    for name in COMMANDS:
        assert f"\n  {name} " in told
    for status in range(4):
        assert f"\n    {status}  " in told


PROGRAM = f"import atexit, sys; atexit.register(lambda: print('rich' in sys.modules)); {MAIN}"


def test_a_pipe_has_no_colour_and_loads_no_terminal_library(variables: dict[str, str]) -> None:
    record(variables, 1)
    printed = run_program(
        PROGRAM, "history", **variables, FORCE_COLOR="1", TTY_COMPATIBLE="1"
    ).stdout
    assert printed.endswith("\t1\nFalse\n")
    assert "\x1b" not in printed


def test_an_id_beyond_an_encoding_is_escaped(variables: dict[str, str], presence: Presence) -> None:
    presence.touch("\u4e2d")
    printed = run_program(PROGRAM, "online", **variables, PYTHONIOENCODING="latin-1").stdout
    assert printed.startswith("\\u4e2d\t")


def test_count_and_online_of_rooms(script: Script, variables: dict[str, str], start: Start) -> None:
    variables["PRESENCE_ROOMS"] = rooms = "/t/{topic}/*"
    worker = start(clock=Clock(time.time()), rooms=rooms)
    worker.saw("bob", "ann", room="/t/1")
    worker.saw("cid", room="/t/2")
    assert script.says("count", "--room", "/t/1/a-title") == "2\n"
    assert script.json("count", "--room", "/t/2") == {"kind": "user", "room": "/t/2", "count": 1}
    rows = script.says("online", "--room", "/t/1").splitlines()
    assert [row.split("\t")[0] for row in rows] == ["ann", "bob"]
    assert script.says("online", "--room", "/t/1", "--limit", "1").startswith("ann\t")
    listed = script.json("online", "--room", "/t/2")
    assert (listed["room"], [each["id"] for each in listed["online"]]) == ("/t/2", ["cid"])
    refused = script("count", "--room", "/t/1", "--window", "5m")
    assert (refused.exit_code, "pass no window" in refused.stderr) == (2, True)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_a_sentence_and_explains_each_option(name: str) -> None:
    known = command.commands[name]
    sentence = (known.help or "").partition("\n\n")[0]
    assert sentence.find(".") == len(sentence) - 1
    for parameter in known.params:
        assert not isinstance(parameter, click.Option) or parameter.help
