"""The `presence` command in a process: at a terminal, or with pipes."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests.support.backends import wait_until
from tests.support.servers import environment

MAIN = "from presence_middleware.cli import main; main()"
COMMAND = (sys.executable, "-c", MAIN)
SECONDS = 30  # in which whatever is waited for has come, on a busy machine too
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_HOME = "\x1b[H"  # with which each picture begins
_VARIABLES = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "TZ": "UTC"}
# These override what a terminal is.
_UNSET = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR")


class Terminal(AbstractContextManager["Terminal"]):
    """The `presence` command, run at a terminal."""

    def __init__(
        self, variables: Mapping[str, str], *arguments: str, columns: int = 80, lines: int = 24
    ) -> None:
        self._master, slave = pty.openpty()
        os.set_blocking(self._master, False)
        self._written, self._is_read = b"", False
        self.modes_before = self.modes()
        self.resize(columns, lines)
        usual = {name: value for name, value in environment().items() if name not in _UNSET}
        self.process = subprocess.Popen(
            (*COMMAND, *arguments),
            env={**usual, **_VARIABLES, **variables},
            preexec_fn=lambda: os.login_tty(slave),  # noqa: PLW1509
        )
        os.close(slave)

    def __exit__(self, *_: object) -> None:
        if not self.has_ended():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    def resize(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self._master, (lines, columns))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Interrupt until the command ends. The key itself would discard unread input."""
        while not self.has_ended():
            self.process.send_signal(signal.SIGINT)

    @property
    def raw(self) -> str:
        """All that was written so far, commands to the terminal included."""
        try:
            while chunk := os.read(self._master, 65536):
                self._written += chunk
        except BlockingIOError:
            pass
        except OSError:  # nobody has it open any more, and all is read
            self._is_read = True
        return self._written.decode(errors="replace")

    @property
    def text(self) -> str:
        return _text(self.raw)

    @property
    def screen(self) -> str:
        """The last picture, or as much of it as is drawn."""
        return _text(self.raw.rpartition(_HOME)[2])

    def wait_for(self, *texts: str) -> str:
        """The first picture that has all of these."""
        screen = ""

        def is_there() -> bool:
            nonlocal screen
            screen = self.screen
            return self.has_ended() or all(text in screen for text in texts)

        wait_until(is_there, SECONDS)
        assert all(text in screen for text in texts), self.raw
        return screen

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> int:
        wait_until(lambda: self.raw is not None and self._is_read, SECONDS)
        return self.process.wait()

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._master)


@contextmanager
def piped(*arguments: str, **variables: str) -> Iterator[Any]:
    """Run the command with its outputs in pipes, and kill it in the end."""
    process: Any = subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets its background jobs ignore Ctrl-C, and tests may be such a job.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _text(raw: str) -> str:
    return _ESCAPES.sub("", raw).replace("\r", "")
