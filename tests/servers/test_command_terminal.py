"""The `presence` command at a terminal: tables and colours, questions, nothing that ids command."""

from presence_middleware import Presence
from tests.servers.test_command_answers import SHOWN, WILD, record
from tests.support.terminal import Terminal


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


def test_an_id_with_control_codes_or_markup_is_printed_literally(
    variables: dict[str, str], presence: Presence
) -> None:
    presence.touch(WILD)
    raw, text = printed(variables, "online", columns=120)
    assert SHOWN in text
    for part in ("\x1b[2J", "\u202e", "\u2066", "\u200f", "\x9b", "\x7f"):
        assert part not in raw


def test_colours_are_printed_unless_no_color_is_set(
    variables: dict[str, str], presence: Presence
) -> None:
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
