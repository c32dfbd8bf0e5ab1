"""The worker of a process: a daemon thread that writes, or a request in its place."""

import math
import sys
import threading
from collections.abc import Callable
from os import getpid
from typing import Self
from weakref import WeakMethod

from .. import logs

WAKE_AGAIN = 1.0  # seconds


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


class Worker:
    """Has the rounds of a recorder run in this process. A forked child needs its own worker."""

    def __init__(
        self, run_once: Callable[[], float], interval: float, stamp: Callable[[], float]
    ) -> None:
        """Create a worker that has not started.

        `run_once` is a bound method that runs a round and returns the seconds to pause. `interval`
        is the longest time between two rounds, in seconds. `stamp` is the recorder's clock.
        """
        self._run_once, self._interval, self._stamp = WeakMethod(run_once), interval, stamp
        self._pid = getpid()
        self._starting, self._inline = threading.Lock(), threading.Lock()
        self.thread: FlushThread | None = None
        """The thread that writes. None before the first visit, and where threads cannot run."""
        self.is_started = False
        """True if a visit need not call `start`."""
        self._has_warned = False
        self.wake_after = -math.inf
        """A sighting after this time, by the recorder's clock, must call `wake`."""

    @property
    def is_inherited(self) -> bool:
        """Return whether this process is a child whose fork called no hook.

        Also if gevent has replaced the type of locks since: an old lock would stop all greenlets.
        """
        return getpid() != self._pid or type(self._inline) is not type(threading.Lock())

    def start(self) -> FlushThread | None:
        """Return the running thread, started if need be. Return None where threads cannot run."""
        # uWSGI forks without a hook: there, each visit must compare the process id.
        self.is_started = not is_uwsgi()
        run_once = self._run_once()
        with self._starting:
            is_running = self.thread is not None and self.thread.is_alive()
            if not is_running and run_once is not None:
                self.thread = FlushThread.launch(run_once, self._interval)
            return self.thread

    def wake(self) -> bool:
        """Have a round run soon. A thread that does not come is woken again by a later call.

        Return False if a round was run, in this thread, because no other can.
        """
        self.wake_after = self._stamp() + WAKE_AGAIN
        thread = self.start()
        if thread is not None:
            thread.wake()
            return True
        # Never two at a time. Then pause as usual.
        if self._inline.acquire(blocking=False):
            try:
                if not self._has_warned:
                    self._has_warned = True
                    logs.warn(
                        "background threads are disabled, so some requests will wait for Redis; "
                        "start uWSGI with --enable-threads"
                    )
                if (run_once := self._run_once()) is not None:
                    pause = run_once()
                    self.wake_after = self._stamp() + pause
            finally:
                self._inline.release()
        return False

    def stop(self, seconds: float) -> None:
        """End the thread, in at most about `seconds`. The next visit starts a new one."""
        if self.thread is not None:
            self.thread.stop(seconds)
            self.thread = None
        self.is_started = False
