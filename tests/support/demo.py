"""`presence demo` as a user starts it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.backends import wait_until
from tests.support.servers import environment, free_port

PRESENCE = str(Path(sys.executable).parent / "presence")
START_SECONDS = 60.0


class Demo:
    """`presence demo` in a session of its own, from `with` to the end of the block."""

    def __init__(self, state: Path, crowd: int | None = 0, **settings: str) -> None:
        """`state` is the folder of its data, and `crowd` the option; None leaves it out."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = environment(XDG_STATE_HOME=str(state), **settings)
        self.log = state / f"log-{self.port}"
        self._log = self.log.open("w+")
        option = [] if crowd is None else [f"--crowd={crowd}"]
        self.process = subprocess.Popen(
            [PRESENCE, "demo", f"--port={self.port}", *option],
            env=self.environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.client = httpx.Client(base_url=self.url, trust_env=False, verify=False, timeout=30)

    def __enter__(self) -> Self:
        try:
            wait_until(lambda: "Ctrl-C" in self.output(), START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._log.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def output(self) -> str:
        """Return what it has printed. It must still run."""
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_text()

    def get(self, agent: str, path: str = "/") -> str:
        return self.client.get(path, headers={"User-Agent": agent}).text

    def state(self, page: str = "/") -> Any:
        passive = {"Presence": "passive"}
        return self.client.get("/online.json", params={"page": page}, headers=passive).json()

    def board(self) -> tuple[str, dict[str, str]]:
        address, token = re.findall(r"the board: (\S+), its token: (\S+)", self.output())[0]
        return address, {"Authorization": f"Bearer {token}", "Presence": "passive"}

    def interrupt(self, signum: int = signal.SIGINT) -> int:
        """Press Ctrl-C, or send a signal to the whole group, and return the exit status."""
        os.killpg(self.process.pid, signum)
        return self.process.wait(30)
