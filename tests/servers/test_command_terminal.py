"""The command at a terminal: `presence watch` through outages until Ctrl-C; tables and colours."""

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest

from presence_middleware import Presence, Settings
from presence_middleware.cli.live import Screen
from tests.servers.test_command_answers import SHOWN, WILD, Script, record
from tests.support.backends import Server, wait_until
from tests.support.faults import restarted
from tests.support.terminal import Terminal, piped

FAST = ("watch", "--interval", "0.1s")
MODES = (("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h"))  # the screen, the cursor


def is_put_back(terminal: Terminal) -> bool:
    raw = terminal.raw
    return terminal.modes() == terminal.modes_before and all(
        -1 < raw.rfind(on) < raw.rfind(off) for on, off in MODES
    )


def test_the_chart_begins_with_the_recorded_history(variables: dict[str, str]) -> None:
    _, at, _ = record(variables, 3, 9, 4)
    with Terminal(variables, *FAST) as terminal:
        screen = terminal.wait_for(
            f"▼ 9 at {at:%H:%M}", "user  0  ", "peak 9, ", "user  in the last 1h", "└──"
        )
        assert "█" in screen
        terminal.press("\x03")
        terminal.end()
    with Terminal(variables, *FAST, "--kind", "guest") as terminal:
        assert "▼" not in terminal.wait_for("user  0  ", "peak 9, ", "└──")


@pytest.mark.parametrize(
    ("ask_to_end", "status"),
    [(Terminal.interrupt, 0), (lambda terminal: terminal.process.terminate(), 143)],
)
def test_the_terminal_is_restored_however_the_command_ends(
    variables: dict[str, str], ask_to_end: Callable[[Terminal], None], status: int
) -> None:
    with Terminal(variables, "watch", "--interval", "1h") as terminal:
        terminal.wait_for("user  0  ", "Ctrl-C ends")
        assert not is_put_back(terminal)
        ask_to_end(terminal)
        assert terminal.end() == status
        assert is_put_back(terminal)
        assert "Traceback" not in terminal.text
        assert "Aborted" not in terminal.text


def test_the_display_fits_a_resized_window(variables: dict[str, str]) -> None:
    with Terminal(variables, "watch", "--interval", "1h") as terminal:
        terminal.wait_for("bot  0  ")
        for columns, lines in ((40, 12), (20, 3), (300, 80)):
            terminal.resize(columns, lines)
            wait_until(lambda: size(terminal.screen) == (columns, lines))  # noqa: B023
            assert ("└" in terminal.screen) is (lines > 10)
        terminal.press("\x03")
        assert terminal.end() == 0


def size(picture: str) -> tuple[int, int]:
    lines = picture.split("\n")
    return (len(lines[0]), len(lines)) if len(lines[-1]) == len(lines[0]) else (0, 0)


def test_watch_follows_the_site_reports_an_outage_and_recovers(own: Server) -> None:
    variables = {"PRESENCE_REDIS_URL": own.url}
    presence = Presence(Settings.from_env(variables))
    presence.touch("ann")
    with Terminal(variables, *FAST) as terminal:
        terminal.wait_for("user  1  ", "guest  0  ", "bot  0  ", "peak 1, ")
        with restarted(own):
            terminal.wait_for("no answer since ", "Redis did not answer", "user  1  ")
        for id, kind in (("bob", "user"), ("cy", "user"), ("eve", "guest")):
            presence.touch(id, kind)
        terminal.wait_for("user  2  ", "guest  1  ", "peak 2, ", "2 at ", "Ctrl-C ends")
        presence.leave("bob")
        terminal.wait_for("user  1  ", "peak 2, ")
        with restarted(own):
            terminal.wait_for("no answer since ")
            terminal.press("\x03")
            assert terminal.end() == 0
        assert is_put_back(terminal)


def test_piped_output_has_a_line_per_kind_or_of_json_also_in_an_outage(own: Server) -> None:
    # With a long timeout, a busy machine is no outage.
    variables = {"PRESENCE_REDIS_URL": f"{own.url}?socket_timeout=9"}
    with piped(*FAST, **variables) as process, piped(*FAST, "--json", **variables) as with_json:
        first = [process.stdout.readline().rstrip("\n").split("\t") for _ in range(3)]
        assert [line[1:] for line in first] == [["user", "0"], ["guest", "0"], ["bot", "0"]]
        assert len({line[0] for line in first}) == 1
        reading = json.loads(with_json.stdout.readline())
        assert reading["counts"] == {"user": 0, "guest": 0, "bot": 0}
        with restarted(own):
            assert "Redis did not answer" in process.stderr.readline()
            while "counts" in (reading := json.loads(with_json.stdout.readline())):
                pass
        assert set(reading) == {"at", "error"}
        assert "Redis did not answer" in reading["error"]
        assert process.stderr.readline() == "presence: Redis answers again\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
        assert all(line.count("\t") == 2 for line in process.stdout)


def test_a_terminal_that_cannot_draw_gets_lines(variables: dict[str, str]) -> None:
    with Terminal(variables | {"TERM": "dumb"}, *FAST) as terminal:
        wait_until(lambda: terminal.text.count("\tbot\t0\n") > 1)
        assert "\x1b" not in terminal.raw


@pytest.mark.parametrize(
    "wrong", [["--interval", "0"], ["--interval", "0.01s"], ["--kind", "x"], ["--window", "99d"]]
)
def test_invalid_watch_options_are_reported(variables: dict[str, str], wrong: list[str]) -> None:
    ended = Script(variables)("watch", *wrong)
    assert (ended.exit_code, "Error: " in ended.stderr) == (2, True)


def test_hours_that_are_no_number_are_reported_at_a_terminal(variables: dict[str, str]) -> None:
    with Terminal(variables, "watch", "--hours", "nan") as terminal:
        assert terminal.end() == 2
        assert "Error: hours is nan" in terminal.text
        assert "Traceback" not in terminal.text


def test_recorded_history_is_read_once_a_minute(variables: dict[str, str]) -> None:
    record(variables, 3)
    reader = Mock(wraps=Presence(Settings.from_env(variables)))
    screen, began = Screen(reader, None, "user", 1), datetime.now(UTC)
    for seconds, times in ((0, 1), (50, 1), (60, 2)):
        screen.update(began + timedelta(seconds=seconds))
        assert (reader.history.call_count, reader.peak.call_count) == (times, 3 * times)
    assert [sample.count for sample in screen.chart(8).samples] == [3, 0, 0, 0]


# The other commands


def printed(variables: dict[str, str], *arguments: str, columns: int = 80) -> tuple[str, str]:
    with Terminal(variables, *arguments, columns=columns) as terminal:
        assert terminal.end() == 0
        return terminal.raw, terminal.text


def test_the_online_list_is_a_table(variables: dict[str, str], presence: Presence) -> None:
    presence.touch("ann")
    presence.touch("x" * 100)
    raw, text = printed(variables, "online")
    title, line, *rows = [line.strip() for line in text.splitlines() if line.strip()]
    assert title.split() == ["user", "last", "seen"]
    assert set(line) == {"─"}
    assert "".join(row.split()[0] for row in rows[:-1]) == "x" * 100, "folded, not cut"
    assert rows[-1].split() in ([*("ann", f"{n}s", "ago")] for n in range(30))
    assert "\x1b[1m" in raw


def test_control_codes_and_markup_are_text(variables: dict[str, str], presence: Presence) -> None:
    presence.touch(WILD)
    raw, text = printed(variables, "online", columns=120)
    assert SHOWN in text
    for part in ("\x1b[2J", "\u202e", "\u2066", "\u200f", "\x9b", "\x7f"):
        assert part not in raw


def test_only_no_color_turns_colours_off(variables: dict[str, str], presence: Presence) -> None:
    unsaid = variables | {"FORCE_COLOR": ""}  # as rich reads that, there is no terminal at all
    assert "\x1b[32m" in printed(unsaid, "doctor", "--no-settings")[0]
    plain = printed(variables | {"NO_COLOR": "1"}, "doctor", "--no-settings")[0]
    assert "ok    server" in plain
    assert "\x1b[3" not in plain


def test_history_is_a_chart_as_wide_as_the_terminal(variables: dict[str, str]) -> None:
    _, at, _ = record(variables, 1, 9, 4)
    _, text = printed(variables, "history", "--hours", "1", columns=60)
    lines = text.splitlines()
    assert f"9 at {at:%H:%M}" in lines[0]
    assert "█" in text
    assert max(map(len, lines)) == 59
    _, text = printed(variables | {"PYTHONIOENCODING": "latin-1"}, "history")
    assert text.isascii()
    assert "#" in text


def test_forget_asks_for_confirmation(variables: dict[str, str], presence: Presence) -> None:
    presence.touch("ann")
    for answer, status in (("n", 1), ("y", 0)):
        assert presence.is_online("ann")
        with Terminal(variables, "forget", "ann") as terminal:
            terminal.wait_for("Erase user ann, and when they were last seen? [y/N]:")
            terminal.press(f"{answer}\n")
            assert terminal.end() == status
            assert ("user ann is erased." in terminal.text) is (status == 0)
    assert presence.last_seen("ann") is None
