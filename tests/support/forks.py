"""A site that forks in the middle of a write, twice, for test_processes.py.

    python -m tests.support.forks hooked|bare|importing

`bare` forks as uWSGI does: by the C library, no hook of Python's is called. `importing` forks while
a thread imports the Redis client. Exits with 0 if the children record or read.
"""

import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from presence_middleware import Presence
from presence_middleware.recorder import Recorder, recorder_for
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import wait_until

IS_BARE = "bare" in sys.argv


def visit(recorder: Recorder, name: str) -> None:
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()


def visit_and_wait(recorder: Recorder, name: str) -> None:
    """Only the thread of this process writes the visit."""
    visit(recorder, name)
    wait_until(lambda: Presence(recorder.settings).is_online(name))


def fork() -> int:
    return ctypes.PyDLL(None).fork() if IS_BARE else os.fork()


def child(recorder: Recorder, run: Callable[[Recorder], None]) -> None:
    """Has a child run something, forked while its parent writes."""
    if IS_BARE and recorder.thread:  # such a fork allows no other thread, but there was one
        recorder.worker.stopping.set()
        recorder.worker.wake()
        recorder.thread.join()
        # Python lets `join` return before the system's thread has ended, which may hold a lock of
        # the interpreter still.
        wait_until(lambda: len(list(Path("/proc/self/task").iterdir())) <= 1)
    with recorder.write_lock, recorder.people.lock:
        pid = fork()
        if pid == 0:
            signal.alarm(10)
            run(recorder)
            recorder.close()
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def first(recorder: Recorder) -> None:
    visit_and_wait(recorder, "child")
    visit(recorder, "child, later")
    child(recorder, second)


def second(recorder: Recorder) -> None:
    visit_and_wait(recorder, "grandchild")
    visit(recorder, "grandchild, later")


class SlowImports:
    """A finder: makes each import of a module of the package last, and tells when it begins."""

    begun = queue.SimpleQueue[str]()

    def find_spec(self, name: str, *_: Any) -> None:
        if name.startswith("presence_middleware."):
            self.begun.put(name)
            time.sleep(0.2)


def fork_while_importing() -> None:
    presence = Presence.from_env()
    sys.meta_path.insert(0, SlowImports())
    reader = threading.Thread(target=presence.count)
    reader.start()
    pids = []
    while reader.is_alive() or not SlowImports.begun.empty():
        with suppress(queue.Empty):
            name = SlowImports.begun.get(timeout=0.01)
            pids.append((name, os.fork()))
            if not pids[-1][1]:
                signal.alarm(5)  # ends the child if it waits for the import of its parent
                presence.count()
                os._exit(0)
    assert [name for name, pid in pids if os.waitpid(pid, 0)[1]] == []
    assert len(pids) > 2


def main() -> None:
    if "importing" in sys.argv:
        fork_while_importing()
        return
    if IS_BARE:
        sys.modules["uwsgi"] = sys  # any module: so it knows whose forks these are
    recorder = recorder_for()
    visit_and_wait(recorder, "parent")
    visit(recorder, "parent, later")
    child(recorder, first)
    recorder.close()
    if not IS_BARE:
        assert recorder.stats().recorded == 2  # nothing of the children's


if __name__ == "__main__":
    main()
