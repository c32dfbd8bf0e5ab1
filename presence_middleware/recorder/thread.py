"""The daemon thread that writes. The first visit of a process starts it."""

import sys
import threading
from collections.abc import Callable
from typing import Self
from weakref import WeakMethod


def is_uwsgi() -> bool:
    """Return whether uWSGI serves this process. It forks without calling Python's hooks."""
    return "uwsgi" in sys.modules  # the module exists only inside uWSGI


def threads_run() -> bool:
    """Return whether threads run between requests. Old uWSGI requires an option for that."""
    uwsgi = sys.modules.get("uwsgi")
    return bool(getattr(uwsgi, "has_threads", True) or getattr(uwsgi, "loop", None))


class FlushThread(threading.Thread):
    """A thread that writes as soon as it is woken, then again after each pause."""

    def __init__(self, run_once: Callable[[], float], idle: float) -> None:
        """Call the bound method `run_once` for each round; it returns the seconds to pause.

        `idle` is the longest wait between two rounds, in seconds. The thread holds no reference
        to the object of `run_once`, and ends when that is collected.
        """
        super().__init__(name="presence-flush", daemon=True)
        self._run_once, self._idle = WeakMethod(run_once), idle
        self._woken = threading.Event()
        self._stopping = threading.Event()

    @classmethod
    def launch(cls, run_once: Callable[[], float], idle: float) -> Self | None:
        """Start a flush thread. Return None if this process cannot start threads."""
        if not threads_run():
            return None
        thread = cls(run_once, idle)
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

    @property
    def is_stopping(self) -> bool:
        """Return whether `stop` was called."""
        return self._stopping.is_set()

    def wake(self) -> None:
        """Start the next round now, or right after the pause that the thread is in."""
        self._woken.set()

    def stop(self, seconds: float) -> None:
        """End the thread after its current round. Wait for that for at most `seconds`."""
        self._stopping.set()
        self._woken.set()
        # When uWSGI exits, it may already have frozen its threads: joining would wait in vain.
        if self is not threading.current_thread() and not is_uwsgi():
            self.join(seconds)

    def run(self) -> None:
        while True:
            self._woken.wait(self._idle)
            self._woken.clear()
            if self._stopping.is_set():
                return
            if (run_once := self._run_once()) is None:
                return  # the recorder is gone
            pause = run_once()
            del run_once  # the thread must not keep the recorder alive while it pauses
            self._stopping.wait(pause)
