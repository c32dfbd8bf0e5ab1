"""`presence replay` as a user runs it: lines in a pipe, a JSON document, charts."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import Result

from tests.support.commands import run, run_command
from tests.support.hiding import HIDDEN, is_hidden
from tests.support.servers import environment
from tests.support.terminal import COMMAND, MAIN, Terminal

NOWHERE = {"PRESENCE_REDIS_URL": "redis://localhost:1"}


def line(minute: int, user: str = "-", agent: str = "Firefox", address: str = "192.0.2.7") -> bytes:
    time = f"05/Jan/2026:12:{minute:02}:30 +0000"
    return f'{address} - {user} [{time}] "GET / HTTP/1.1" 200 1 "-" "{agent}"\n'.encode()


LOG = b"".join(
    [line(0, "ann"), line(0), line(1, "bob"), b"garbage\n", line(2, agent="Googlebot/2.1")]
)
MINUTES = [
    "2026-01-05T12:01:00Z\t1\t1\t0",
    "2026-01-05T12:02:00Z\t2\t1\t0",
    "2026-01-05T12:03:00Z\t2\t1\t1",
]


def replay(*arguments: object, **settings: str) -> Result:
    return run_command("replay", *arguments, env=NOWHERE | settings)


def piped(given: bytes, *arguments: object) -> list[str]:
    command = [*COMMAND, "replay", *map(str, arguments)]
    printed = subprocess.check_output(command, input=given, env=environment(**NOWHERE))
    return printed.decode().splitlines()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_bytes(LOG)
    return path


def test_a_pipe_gets_a_line_for_each_minute(log: Path) -> None:
    ended = replay(log)
    assert ended.stdout.splitlines() == MINUTES
    assert ended.stderr == "1 line in no known format, such as: 'garbage'\n"
    assert ended.exit_code == 0
    log.write_bytes(LOG + b"more\n")
    assert replay(log).stderr == "2 lines in no known format, such as: 'garbage'\n"


def test_logs_may_be_compressed_and_in_standard_input_and_several(tmp_path: Path) -> None:
    packed = tmp_path / "access.log.2"
    packed.write_bytes(gzip.compress(LOG))
    assert replay(packed).stdout.splitlines() == MINUTES
    assert piped(gzip.compress(LOG), "-") == MINUTES
    both = piped(line(3, "eve") + line(4, "eve"), "-", packed)
    assert both == [*MINUTES, "2026-01-05T12:04:00Z\t3\t1\t1", "2026-01-05T12:05:00Z\t3\t1\t1"]


PACKED = gzip.compress(LOG)


@pytest.mark.parametrize(
    ("packed", "error"),
    [
        (PACKED[:-6], "Compressed file ended"),
        (PACKED[:-6] + bytes(6), "CRC check failed"),
        (PACKED + PACKED[:10] + b"\xff", "Error -3"),
    ],
    ids=["short", "changed", "garbage"],
)
def test_a_log_cut_off_is_read_as_far_as_it_goes(tmp_path: Path, packed: bytes, error: str) -> None:
    log = tmp_path / "access.log.gz"
    log.write_bytes(packed)
    ended = replay(log)
    assert ended.stdout.splitlines() == MINUTES
    assert f"access.log.gz ends early: {error}" in ended.stderr
    assert ended.exit_code == 0


def test_json_contains_minutes_peaks_and_uncounted_lines(log: Path, tmp_path: Path) -> None:
    late = tmp_path / "late.log"
    late.write_bytes(line(2, "eve") + line(0, "eve"))
    answer = json.loads(replay("--json", "--window", "1m", log, late).stdout)
    assert answer == {
        "minutes": [
            {"at": "2026-01-05T12:01:00Z", "counts": {"user": 1, "guest": 1, "bot": 0}},
            {"at": "2026-01-05T12:02:00Z", "counts": {"user": 1, "guest": 0, "bot": 0}},
            {"at": "2026-01-05T12:03:00Z", "counts": {"user": 1, "guest": 0, "bot": 1}},
        ],
        "window": 60,
        "peak": {
            "user": {"at": "2026-01-05T12:01:00Z", "count": 1},
            "guest": {"at": "2026-01-05T12:01:00Z", "count": 1},
            "bot": {"at": "2026-01-05T12:03:00Z", "count": 1},
        },
        **{"requests": 6, "unreadable": 1, "late": 1, "ahead": 0, "refused": 0},
    }


def test_an_empty_log_has_no_minutes() -> None:
    ended = replay(os.devnull)
    assert (ended.exit_code, ended.stdout) == (0, "")
    answer = json.loads(replay(os.devnull, "--json").stdout)
    assert answer["minutes"] == []
    assert answer["peak"] == {"user": None, "guest": None, "bot": None}


def test_replay_uses_the_settings_of_the_site(log: Path) -> None:
    settings = {
        "PRESENCE_IDENTITY": "member=header:x-user, guest=ip:raw",
        **{"PRESENCE_BOTS": "off", "PRESENCE_ENABLED": "0", "PRESENCE_WINDOW": "1h"},
    }
    ended = replay(log, **settings)
    assert [minute.split("\t")[1:] for minute in ended.stdout.splitlines()] == [["0", "1"]] * 3
    assert (
        "never matches, because a log has no such field: member=header:x-user:raw\n" in ended.stderr
    )


def test_replay_asks_the_function_that_hides_users(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(line(0, "ann") + line(0, HIDDEN) + line(0))
    hides = f"user=auth, hidden=identify:{is_hidden.__module__}:is_hidden, guest=ip:raw"
    ended = replay(log, PRESENCE_IDENTITY=hides)
    assert ended.stdout == "2026-01-05T12:01:00Z\t1\t1\t1\t0\n"
    assert ended.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "Missing argument 'LOG...'"),
        (["/nowhere/access.log"], 2, "'/nowhere/access.log' does not exist"),
        (["-", "-"], 2, "can be read only once"),
        (["good.log", "--window", "soon"], 2, "PRESENCE_WINDOW='soon'"),
        (["bad.log"], 1, "no line is in the common, the combined or a JSON format"),
        (["good.log", "--chart", "/nowhere/chart.svg"], 1, "/nowhere/chart.svg"),
    ],
)
def test_errors_are_reported_with_an_exit_status(
    arguments: list[str], status: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.log").write_bytes(LOG)
    Path("bad.log").write_bytes(b"garbage\n")
    ended = replay(*arguments)
    assert ended.exit_code == status
    assert says in ended.stderr


@pytest.mark.parametrize(("option", "reader"), [("", "head -1"), ("--json", "true")])
def test_output_ends_quietly_when_its_reader_ends(tmp_path: Path, reader: str, option: str) -> None:
    days = range(1, 11 if reader == "head -1" else 2)  # more than a pipe holds, or a moment of it
    log = tmp_path / "access.log"
    log.write_bytes(b"".join(line(0).replace(b"05/", b"%02d/" % day) for day in days))
    command = f"{sys.executable} -c '{MAIN}' replay {option} {log} | {reader}"
    env = environment(**NOWHERE, PYTHONUNBUFFERED="")  # what is printed waits for the end
    ended = run(command, shell=True, env=env)
    assert ended.stdout.count("\n") == (reader == "head -1")
    assert ended.stderr == ""


def test_the_chart_is_a_self_contained_svg(log: Path, tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    replay(log, "--chart", chart)
    text = chart.read_text()
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "prefers-color-scheme: dark" in text
    svg = ET.fromstring(text)
    words = ["".join(each.itertext()) for each in svg.iter() if each.tag.endswith("}text")]
    told = [
        "user: 2 at most, 05 Jan 2026 12:02",
        "guest: 1 at most, 05 Jan 2026 12:01",
        "bot: 1 at most, 05 Jan 2026 12:03",
    ]
    assert [word for word in words if word in told] == told
    assert {"12:01", "12:02", "12:03", "0", "1", "2"} <= set(words)
    lines = [element.get("d") for element in svg.iter() if element.get("class") == "line"]
    assert lines == [
        "M34.0 158.0L480.0 36.0L926.0 36.0",
        "M34.0 158.0L480.0 158.0L926.0 158.0",
        "M34.0 280.0L480.0 280.0L926.0 158.0",
    ]
    log.write_bytes(line(1, "ann"))
    replay(log, "--chart", chart)
    text = chart.read_text()
    assert "user: 1 at most" in text
    assert "guest" not in text, "nobody of this kind came"


def test_a_terminal_shows_a_bar_while_it_reads_then_charts(log: Path) -> None:
    log.write_bytes(LOG.removesuffix(line(2, agent="Googlebot/2.1")))
    with Terminal(NOWHERE, "replay", str(log)) as terminal:
        assert terminal.end() == 0
        size = log.stat().st_size
        assert f"{size}/{size} bytes" in terminal.text
        shown = terminal.text.splitlines()
    for text in (
        "3 requests, each online for 10m",
        "user: 2 at most, 2026-01-05T12:02:00Z",
        "bot: nobody",
        "1 line in no known format, such as: 'garbage'",
    ):
        assert text in "\n".join(shown)
    assert sum("█" in row for row in shown) >= 2 * 4
    assert sum("▼ 2 at 12:02" in row for row in shown) == 1
