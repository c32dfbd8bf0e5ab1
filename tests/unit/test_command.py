"""The `presence` command as a user calls it: a process, its output, its exit status."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from presence_middleware import Presence, Settings
from tests.support.backends import Server
from tests.support.servers import environment

PRESENCE = str(Path(sys.executable).parent / "presence")


def presence(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [PRESENCE, *arguments]
    return subprocess.run(
        command, env=environment(**settings), capture_output=True, text=True, timeout=30
    )


@pytest.fixture
def site(valkey: Server, prefix: str) -> dict[str, str]:
    return {"PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": prefix}


def test_count_and_online_answer_as_the_site_does(site: dict[str, str]) -> None:
    reader = Presence(Settings.from_env(site))
    reader.touch("bob")
    reader.touch("eve", "guest")
    assert presence("count", **site).stdout == "1\n"
    assert presence("count", "guest", **site).stdout == "1\n"
    assert re.fullmatch(r"bob\t\d+s\n", presence("online", **site).stdout)
    reader.touch("alice")
    assert presence("online", "--limit", "1", **site).stdout.startswith("alice\t")
    reader.leave("alice")
    assert presence("count", "--window", "20d", **site).stdout == "1\n"


def test_minute_sets_have_no_times_to_print(site: dict[str, str]) -> None:
    site["PRESENCE_STORE"] = "minute-sets"
    Presence(Settings.from_env(site)).touch("bob")
    assert presence("online", **site).stdout == "bob\n"


def test_an_id_cannot_command_the_terminal(site: dict[str, str]) -> None:
    Presence(Settings.from_env(site)).touch("\x1b[2Jbob\nroot\u202e\t1s")
    shown = presence("online", **site).stdout
    assert shown.startswith("\\x1b[2Jbob\\nroot\\u202e\\t1s\t")
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "settings", "status", "says"),
    [
        (["count", "member"], {}, 2, "unknown kind 'member'"),
        (["count", "--window", "soon"], {}, 2, "window is 'soon'"),
        (["count"], {"PRESENCE_WINDOW": "soon"}, 2, "PRESENCE_WINDOW='soon'"),
        (["online"], {"PRESENCE_STORE": "hyperloglog"}, 2, "sorted-set and minute-sets can"),
        (["count"], {"PRESENCE_REDIS_URL": "redis://localhost:1"}, 3, "Redis did not answer"),
    ],
)
def test_errors_are_reported_with_an_exit_status(
    site: dict[str, str], arguments: list[str], settings: dict[str, str], status: int, says: str
) -> None:
    ended = presence(*arguments, **{**site, **settings})
    assert ended.returncode == status
    assert ended.stdout == ""
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_counting_an_in_memory_site_from_outside_is_an_error_not_zero() -> None:
    ended = presence("count", PRESENCE_REDIS_URL="memory://")
    assert ended.returncode == 2
    assert "inside the process of the site" in ended.stderr


def test_commands_never_start_a_server(tmp_path: Path) -> None:
    ended = presence("count", PRESENCE_REDIS_URL=f"embedded://{tmp_path}/site")
    assert ended.returncode == 3
    assert "no embedded server is running" in ended.stderr
    assert not (tmp_path / "site").exists()


def test_without_click_the_command_names_the_package_to_install() -> None:
    program = (
        "import sys; sys.modules['click'] = None; from presence_middleware.cli import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "pip install 'presence_middleware[cli]'" in ended.stderr
