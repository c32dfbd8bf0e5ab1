"""The daemon thread that writes: one a process, started by its first visit."""

import sys
import threading
from collections.abc import Callable
from typing import Self
from weakref import WeakMethod


def is_uwsgi() -> bool:
    """Whether uWSGI serves this process. It forks without calling Python's hooks."""
    return "uwsgi" in sys.modules  # its module is there only inside


def threads_run() -> bool:
    """Whether a thread goes on between requests: in older uWSGIs, only if they are told to."""
    uwsgi = sys.modules.get("uwsgi")
    return bool(getattr(uwsgi, "has_threads", True) or getattr(uwsgi, "loop", None))


class FlushThread(threading.Thread):
    """Calls `tick` as soon as it is woken after a quiet spell, then again after each pause."""

    def __init__(self, tick: Callable[[], float], idle: float) -> None:
        """`tick` returns the seconds to pause; `idle` is the longest wait between two ticks."""
        super().__init__(name="presence-flush", daemon=True)
        self._tick, self._idle = WeakMethod(tick), idle
        self._woken = threading.Event()
        self._stopping = threading.Event()

    @classmethod
    def started(cls, tick: Callable[[], float], idle: float) -> Self | None:
        """One that runs; None where threads do not, or if no more can be had."""
        if not threads_run():
            return None
        thread = cls(tick, idle)
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

    def wake(self) -> None:
        """Says that something waits."""
        self._woken.set()

    def stop(self, seconds: float) -> None:
        """End the thread after the round that it is in; wait for that for `seconds` at most."""
        self._stopping.set()
        self._woken.set()
        # At its end, uWSGI may already have frozen its threads.
        if self is not threading.current_thread() and not is_uwsgi():
            self.join(seconds)

    def run(self) -> None:
        while True:
            self._woken.wait(self._idle)
            self._woken.clear()
            if self._stopping.is_set():
                return
            if (tick := self._tick()) is None:
                return  # nobody uses the recorder any more
            pause = tick()
            del tick  # while it pauses, the thread keeps no recorder alive
            self._stopping.wait(pause)
