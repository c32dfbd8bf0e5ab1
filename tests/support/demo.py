"""`presence demo` as a user starts it."""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.servers import ROOT, WebServer

PRESENCE = str(Path(sys.executable).parent / "presence")


class Demo(WebServer):
    """`presence demo`, from `with` to the end of the block."""

    start_seconds = 60.0

    def __init__(self, state: Path, crowd: int | None = 0, **settings: str) -> None:
        """`state` is the folder of its data, and `crowd` the option; None leaves it out."""
        option = [] if crowd is None else [f"--crowd={crowd}"]
        settings["XDG_STATE_HOME"] = str(state)
        super().__init__(
            lambda port: [PRESENCE, "demo", f"--port={port}", *option],
            ROOT,
            state / "log",
            **settings,
        )
        self.url = f"http://{self.address}"
        self.visitor = httpx.Client(base_url=self.url, trust_env=False, verify=False, timeout=30)

    def __exit__(self, *_: object) -> None:
        self.visitor.close()
        super().__exit__()

    def get(self, agent: str, path: str = "/") -> str:
        return self.visitor.get(path, headers={"User-Agent": agent}).text

    def state(self) -> Any:
        passive = {"Presence": "passive"}
        return self.visitor.get("/online.json", params={"page": "/"}, headers=passive).json()

    def board(self) -> tuple[str, dict[str, str]]:
        address, token = re.findall(r"the board: (\S+), its token: (\S+)", self.output)[0]
        return address, {"Authorization": f"Bearer {token}", "Presence": "passive"}

    def interrupt(self, signum: int = signal.SIGINT) -> int:
        """Press Ctrl-C, or send a signal to the whole group, and return the exit status."""
        os.killpg(self.process.pid, signum)
        return self.process.wait(30)

    def _answers(self) -> bool:
        return super()._answers() and "Ctrl-C" in self.output
