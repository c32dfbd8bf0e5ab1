"""Real web servers as subprocesses: started on a free port, stopped, and their output logged."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.support.backends import wait_until

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = httpx.Timeout(15.0)
STOP_SECONDS = 15.0
ENDED = {0, -signal.SIGTERM}  # web.py, waitress and uvicorn leave the last word to the system

WSGI, ASGI = "presence_middleware.wsgi_app:application", "presence_middleware.asgi_app:application"
NEVER = "100s"  # until the next regular write: longer than any of these tests
TOKEN = "the-token-of-the-board"
BOARD = {"PRESENCE_BOARD_PATH": "/presence", "PRESENCE_BOARD_TOKEN": TOKEN}

Command = Callable[[int], Sequence[str]]
"""A module, `uwsgi`, or a path, and its arguments, for a port."""


def gunicorn(app: str, workers: int = 1, *options: str, module: str = "gunicorn") -> Command:
    """Return a command for gunicorn. Its workers are `sync` unless an option sets another class."""
    return lambda port: [
        *(module, app, f"--bind=127.0.0.1:{port}", f"--workers={workers}", *options)
    ]


def uvicorn(app: str, workers: int = 1, *options: str, module: str = "uvicorn") -> Command:
    return lambda port: [module, app, f"--port={port}", f"--workers={workers}", *options]


hypercorn, granian = partial(gunicorn, module="hypercorn"), partial(uvicorn, module="granian")


def uwsgi(app: str, workers: int = 1, *options: str) -> Command:
    return lambda port: [
        *("uwsgi", f"--http-socket=127.0.0.1:{port}", f"--module={app}", f"--home={sys.prefix}"),
        *("--master", "--die-on-term", f"--processes={workers}", *options),
    ]


def daphne(app: str) -> Command:
    return lambda port: ["daphne", f"--port={port}", app]


def waitress(app: str) -> Command:
    return lambda port: ["waitress", f"--listen=127.0.0.1:{port}", app]


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process: no settings but these, and this checkout's package."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PRESENCE_")}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**inherited, "PYTHONPATH": path.strip(os.pathsep), **variables}


class WebServer:
    """A server in a process group of its own, from `with` to the end of the block."""

    start_seconds = 30.0

    def __init__(
        self,
        command: Command,
        folder: Path,
        log: Path,
        python: str | Path = sys.executable,
        **settings: str,
    ) -> None:
        """`folder` contains the app, `log` receives the output, and `python` runs the server."""
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        program, *arguments = command(self.port)
        self._command = [*_started_by(program, str(python)), *arguments]
        self._folder, self._log = folder, log
        # There gunicorn puts its control socket, else into this user's home.
        self.environment = environment(XDG_RUNTIME_DIR=str(log.parent), **settings)

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(self._answers, self.start_seconds)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    @property
    def output(self) -> str:
        return self._log.read_text()

    def client(self, user_agent: str) -> httpx.Client:
        """A browser: it keeps cookies and follows redirects."""
        return httpx.Client(
            base_url=f"http://{self.address}",
            headers={"User-Agent": user_agent},
            timeout=TIMEOUT,
            follow_redirects=True,
            trust_env=False,
            verify=False,  # else each client loads certificates, which takes 30 ms
        )

    def stop(self) -> int:
        """SIGTERM, as a service manager sends it; the exit status, once all its processes ended."""
        self.process.terminate()
        status = self.process.wait(STOP_SECONDS)
        wait_until(lambda: not self._has_processes())
        return status

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"the server ended: {self.output}"
        return answers(self.port)

    def _has_processes(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)


def _started_by(program: str, python: str) -> list[str]:
    """Return the beginning of a command that runs `program`: a module, `uwsgi`, or a path."""
    if program.startswith("/"):
        return [program]
    if program == "uwsgi":
        binary = Path(sys.executable).parent / program
        if not binary.exists():
            pytest.skip("uWSGI is not installed: pip install --group uwsgi")
        return [str(binary)]
    return [python, "-m", program]


def answers(port: int) -> bool:
    """Return whether somebody listens at a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
