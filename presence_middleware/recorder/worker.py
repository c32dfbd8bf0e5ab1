"""The worker of a process: a daemon thread that writes, or a request in its place."""

import math
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from os import getpid
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


class Worker:
    """Has the rounds of a recorder run in this process. A forked child needs its own worker."""

    def __init__(
        self, run_once: Callable[[], float], interval: float, stamp: Callable[[], float]
    ) -> None:
        """Create a worker that has not started.

        `run_once` is a bound method that runs a round and returns the seconds to pause. The worker
        holds no reference to its object, and its thread ends when that is collected. `interval` is
        the longest time between two rounds, in seconds. `stamp` is the recorder's clock.
        """
        self._run_once, self._interval, self._stamp = WeakMethod(run_once), interval, stamp
        self._pid = getpid()
        self._starting, self._inline = threading.Lock(), threading.Lock()
        self._woken = threading.Event()
        self.stopping = threading.Event()
        """Set when the worker was stopped, and not started again: its thread must end."""
        self.thread: threading.Thread | None = None
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

    def start(self) -> threading.Thread | None:
        """Return the running thread, started if need be. Return None where threads cannot run."""
        # uWSGI forks without a hook: there, each visit must compare the process id.
        self.is_started = not is_uwsgi()
        with self._starting:
            if self.thread is None or not self.thread.is_alive():
                former, self.stopping, self.thread = self.stopping, threading.Event(), None
                former.set()  # an interrupt may have come while a thread started
                if threads_run():
                    # An isolated subinterpreter of Python 3.12 refuses to make a daemon thread.
                    with suppress(RuntimeError):
                        thread = threading.Thread(
                            target=self._run,
                            args=(self.stopping,),
                            name="presence-flush",
                            daemon=True,
                        )
                        thread.start()
                        self.thread = thread
            return self.thread

    def _run(self, stopping: threading.Event) -> None:
        """Run a round as soon as the thread is woken, then again after each pause."""
        pause = 0.0
        while not stopping.wait(pause):
            self._woken.wait(self._interval)
            self._woken.clear()
            run_once = self._run_once()
            if stopping.is_set() or run_once is None:
                return
            pause = run_once()
            del run_once  # the thread must not keep the recorder alive while it pauses

    def wake(self) -> bool:
        """Have a round run soon. A thread that does not come is woken again by a later call.

        Return False if a round was run, in this thread, because no other can.
        """
        self.wake_after = self._stamp() + WAKE_AGAIN
        if self.start() is not None:
            self._woken.set()
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
        """End the thread after its round, in at most about `seconds`.

        The next visit starts a new thread.
        """
        self.stopping.set()
        self._woken.set()
        thread, self.thread, self.is_started = self.thread, None, False
        # When uWSGI exits, it may already have frozen its threads: joining would wait in vain.
        if thread is not None and thread is not threading.current_thread() and not is_uwsgi():
            thread.join(seconds)
