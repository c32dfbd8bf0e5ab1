"""Forks while a thread imports the Redis client, for test_processes.py.

Exits with 0 if the child can read.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from presence_middleware import Presence

SLOW_MODULE = "presence_middleware.connections.timed"
SECONDS = 0.5


class SlowImport:
    """A finder that makes an import last."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == SLOW_MODULE:
            self.has_begun.set()
            time.sleep(SECONDS)
        return None


def main() -> None:
    presence = Presence.from_env()
    finder = SlowImport()
    sys.meta_path.insert(0, finder)
    reader = threading.Thread(target=presence.count)
    reader.start()
    assert finder.has_begun.wait(10)
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)  # ends the child if it waits for the import of its parent
        presence.count()
        os._exit(0)
    reader.join()
    sys.exit(os.waitpid(pid, 0)[1] != 0)


if __name__ == "__main__":
    main()
