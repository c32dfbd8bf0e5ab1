"""What the command `presence` reads: a site outside of its own process, and starts nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from presence_middleware import Presence, Settings
from tests.support.commands import run, run_command, run_program
from tests.support.servers import environment
from tests.support.terminal import COMMAND, MAIN


def test_minute_sets_have_no_times_to_print(variables: dict[str, str]) -> None:
    variables["PRESENCE_STORE"] = "minute-sets"
    Presence(Settings.from_env(variables)).touch("bob")
    assert run_command("online", env=variables).stdout == "bob\n"


@pytest.mark.parametrize(
    ("url", "status", "text"),
    [
        ("memory://", 2, "inside the process of the site"),
        ("embedded://{}/site", 3, "no embedded server is running"),
    ],
)
def test_no_command_counts_zero_in_a_memory_of_its_own_or_starts_a_server(
    url: str, status: int, text: str, tmp_path: Path
) -> None:
    ended = run_command("count", env={"PRESENCE_REDIS_URL": url.format(tmp_path)})
    assert ended.exit_code == status
    assert text in ended.stderr
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("missing", "status", "text"),
    [
        ("click", 2, "pip install 'presence_middleware[cli]'"),
        ("gunicorn", 2, "pip install 'presence_middleware[demo]'"),
        ("presence_middleware.doctor", 1, "import of presence_middleware.doctor halted"),
    ],
)
def test_the_command_names_the_missing_package(missing: str, status: int, text: str) -> None:
    ended = run_program(f"import sys; sys.modules[{missing!r}] = None; {MAIN}", "demo")
    assert ended.returncode == status
    assert text in ended.stderr


@pytest.mark.parametrize(
    ("program", "status", "text"),
    [
        (f"import os; del os.pread; {MAIN}", 2, "Error: follow needs Linux or macOS"),
        (
            "import signal; del signal.pthread_sigmask; from presence_middleware.cli import context"
            "; context.exit_on_signals(); signal.raise_signal(signal.SIGINT)",
            0,
            "",
        ),
    ],
)
def test_no_command_ends_with_a_traceback_on_windows(program: str, status: int, text: str) -> None:
    ended = run_program(program, "follow", __file__)
    assert ended.returncode == status
    assert ended.stderr.startswith(text)
    assert "Traceback" not in ended.stderr


def test_functions_of_the_site_are_found_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "shop_presence.py").write_text("def user(request):\n    return 'ann'\n")
    for installed in ("click", "crawleruseragents"):
        (tmp_path / f"{installed}.py").write_text("raise SystemExit('a file of the site')\n")
    # As an installed script, without the working directory.
    command = [sys.executable, "-P", "-c", MAIN, "explain"]
    ended = run(command, env=environment(PRESENCE_IDENTITY="user=shop_presence:user"), cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "user ann" in ended.stdout


def test_a_file_no_setting_names_is_not_imported_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "xxhash.py").write_text("raise SystemExit('a file of somebody else')\n")
    program = "import atexit, sys; atexit.register(lambda: print('' in sys.path)); "
    command = [sys.executable, "-P", "-c", program + MAIN, "count"]
    url = "redis://localhost:1"
    ended = run(command, env=environment(PRESENCE_REDIS_URL=url), cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (3, "False\n")
    (tmp_path / "xxhash.py").unlink()
    env = environment(PRESENCE_REDIS_URL=f"{url}?credential_provider=shop.iam:provider")
    assert run(command, env=env, cwd=tmp_path).stdout == "True\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_a_full_disk_is_reported_without_a_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND, "config"], env=environment(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert ended.stderr == "Error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("arguments", [["config"], ["config", "--json"], ["explain"]])
def test_a_closed_pipe_ends_a_command_quietly_and_is_no_answer(arguments: list[str]) -> None:
    """The status 1 is one, such as that of `doctor`."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*COMMAND, *arguments], env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_command_runs_without_one_of_its_standard_streams(closed: int) -> None:
    ended = run(["sh", "-c", f'exec "$@" {closed}>&-', "sh", *COMMAND, "config"], env=environment())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("PRESENCE_REDIS_URL") == (closed != 1)
