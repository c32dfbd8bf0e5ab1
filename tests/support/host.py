"""A host of a site, in a separate process that reads commands from stdin."""

import json
import subprocess
import sys
import time
from typing import Any, Self

from presence_middleware import Presence
from presence_middleware.recorder import recorder_for
from presence_middleware.wsgi import WsgiVisit
from tests.support.servers import ROOT, environment


class Host:
    """A host that runs for the length of a `with` block, configured by variables."""

    def __init__(self, **variables: str) -> None:
        self._variables = environment(**variables)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.host"],
            cwd=ROOT,
            env=self._variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def saw(self, name: str) -> None:
        """A request of this user comes, and is written."""
        assert self._tell("saw", name)

    def online(self, window: str = "10m") -> set[str]:
        return set(self._tell("online", window))

    def last_seen(self, name: str) -> float:
        return float(self._tell("last_seen", name))

    def time(self) -> float:
        """Return the time of the clock of this host."""
        return float(self._tell("time"))

    def _tell(self, *words: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        print(*words, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def _saw(name: str) -> bool:
    recorder = recorder_for()
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()
    return recorder.flush()


def _online(window: str) -> list[str]:
    return [sighting.id for sighting in Presence().online(window=window)]


def _last_seen(name: str) -> float:
    moment = Presence().last_seen(name)
    assert moment
    return moment.timestamp()


def main() -> None:
    does = {"saw": _saw, "online": _online, "last_seen": _last_seen, "time": time.time}
    for line in sys.stdin:
        what, *words = line.split()
        print(json.dumps(does[what](*words)), flush=True)  # type: ignore[operator]


if __name__ == "__main__":
    main()
