"""What the README promises in its commands, its code and its tables."""

import os
import re
import shutil
import signal
import subprocess
from dataclasses import fields
from pathlib import Path

import httpx
import pytest

from presence_middleware.identity.sources import SOURCES
from presence_middleware.settings import Settings, variable
from presence_middleware.stores import STORES
from tests.support.backends import wait_until
from tests.support.servers import ROOT, environment

README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)


def test_two_commands_are_all_the_set_up() -> None:
    demo, tests = COMMANDS
    assert demo.endswith("presence demo")
    assert tests.endswith("pytest -n 2")


def test_the_table_of_variables_is_the_one_in_the_code() -> None:
    rows = re.findall(r"^\| `(PRESENCE_\w+)` \| (?:`(.*?)` )?\| (.*) \|$", README, re.MULTILINE)
    assert rows == [(variable(f.name), f.default, f.metadata["help"]) for f in fields(Settings)]


def test_every_source_and_store_is_told() -> None:
    first_cells = " ".join(re.findall(r"^\| (.*?) \|", README, re.MULTILINE))
    for name, source in SOURCES.items():
        assert f"`{source.usage(name)}`" in first_cells
    for name in STORES:
        assert f"`{name}`" in first_cells


def test_how_a_source_is_kept_is_told() -> None:
    told: dict[str, str] = {}
    for sources, kept in re.findall(r"^\| (`.*`) \| .* \| (raw|hashed) \|$", README, re.MULTILINE):
        told |= dict.fromkeys(re.findall(r"`([a-z-]+)[`:[]", sources), kept)
    assert {name: told[name] == "hashed" for name in SOURCES} == {
        name: source.hashed for name, source in SOURCES.items()
    }


@pytest.mark.parametrize(
    "line", re.findall(r"^\| \w.*? \| (`.*PresenceMiddleware.*`)", README, re.M)
)
def test_each_line_that_wraps_is_at_work_in_an_example(line: str) -> None:
    examples = "\n".join(file.read_text() for file in (ROOT / "examples").glob("*.py"))
    calls = re.findall(r"(?:add_middleware|Middleware|PresenceMiddleware)\([^()]*", line)
    assert calls
    assert any(call.split("(")[0] in examples for call in calls)


def test_the_methods_shown_are_those_there_are() -> None:
    from presence_middleware import AsyncPresence

    shown = set(re.findall(r"presence\.(\w+)\(", README))
    public = {name for name in vars(AsyncPresence) if not name.startswith("_")}
    public -= {"from_env", "run"}  # the second is for what is built upon readers
    assert shown == public


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_command_starts_the_demo_on_a_fresh_clone(tmp_path: Path) -> None:
    clone, state = tmp_path / "clone", tmp_path / "state"
    state.mkdir()
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    if not (python := shutil.which("python3", path=os.defpath)):
        python = str(shutil.which("python3"))
    process = subprocess.Popen(
        COMMANDS[0].replace("python3", python, 1),
        shell=True,
        cwd=clone,
        env=environment(XDG_STATE_HOME=str(state), PYTHONPATH=""),
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        wait_until(
            lambda: "Who is online" in (process.stdout.readline() if process.stdout else ""), 500
        )
        browser = {"User-Agent": "Mozilla/5.0 Firefox/140.0"}
        answer = httpx.get("http://127.0.0.1:8000/", headers=browser, trust_env=False).text
        assert "1 guest online" in answer
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
        process.stdout.close() if process.stdout else None
