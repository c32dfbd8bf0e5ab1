"""README.md and the pages "Start with …" of docs/, followed to the letter."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import wait_until
from tests.support.commands import run
from tests.support.servers import ROOT, answers, environment, free_port

README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("start-*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|ini))(, at the end)?\n")
ANSWER = re.compile(r"^\$ (.*)\n((?:[^$].*\n)*)", re.MULTILINE)
SERVERS = ("uvicorn ", "gunicorn ", "python shop.py ", "python manage.py runserver", "pserve ")


def test_each_framework_has_a_page() -> None:
    names = {page.stem.removeprefix("start-") for page in PAGES}
    assert names == {"django", "fastapi", "flask", "pyramid", "starlette", "webpy"}


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_a_start_page_works_to_the_letter(page: Path, tmp_path: Path, stack: ExitStack) -> None:
    """Only the port is another, and what `pip` would install is there already."""
    port = free_port()
    env = environment(
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        XDG_STATE_HOME=str(tmp_path / "state"),
        UVICORN_PORT=str(port),
        GUNICORN_CMD_ARGS=f"--bind 127.0.0.1:{port}",
    )
    there: dict[str, Any] = {"shell": True, "cwd": tmp_path, "env": env}
    text, _, _ = page.read_text().partition("See it on a site")
    text = text.replace("localhost:8000", f"127.0.0.1:{port}")
    text = text.replace("shop.py 8000", f"shop.py {port}").replace("runserver", f"runserver {port}")
    for language, code in BLOCK.findall(text):
        if (name := FILE.match(code)) is not None:
            with (tmp_path / name[1]).open("a" if name[2] else "w") as file:
                file.write(code)
        elif language == "sh":
            for command in code.splitlines():
                if command.startswith("pip install"):
                    continue
                if any(server in command for server in SERVERS):
                    stack.enter_context(serving(command, port, **there))
                else:
                    run(command, **there, check=True)
        else:
            for command, answer in ANSWER.findall(code):
                assert run(command, **there, check=True).stdout.strip() == answer.strip(), command


@contextmanager
def serving(command: str, port: int, **there: Any) -> Iterator[None]:
    with subprocess.Popen(command, **there, start_new_session=True) as site:
        try:
            wait_until(lambda: answers(port))
            yield
        finally:
            os.killpg(site.pid, signal.SIGTERM)
