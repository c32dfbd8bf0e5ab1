"""One recorder a process and settings, however many apps are wrapped; all are closed at exit."""

import atexit
import concurrent.futures.thread  # noqa: F401 - Redis clients import it: at exit, that is too late
import os
import time
from functools import cache
from typing import Any

from ..connections import Clock
from ..settings import Settings
from .recorder import FLUSH_SECONDS, Recorder, live


def recorder_for(
    settings: Settings | None = None, client: Any = None, clock: Clock | None = None
) -> Recorder:
    """The recorder for these settings (the environment's); one of its own for a client or clock."""
    settings = Settings.from_env() if settings is None else settings
    if client is None and clock is None:
        return _shared(settings)
    return Recorder(settings, client=client, clock=clock)


@cache
def _shared(settings: Settings) -> Recorder:
    return Recorder(settings)


@atexit.register
def _close_all() -> None:
    """Share out two seconds among all recorders: what one does not need is there for the next."""
    deadline = time.monotonic() + FLUSH_SECONDS
    waiting = sorted(live, key=lambda recorder: recorder.health.is_outage)
    for number, recorder in enumerate(waiting):
        left = max(0.0, deadline - time.monotonic())
        recorder.close(left / (len(waiting) - number))


def _begin_all() -> None:
    for recorder in list(live):
        recorder.begin()


# Under uWSGI the hook may not fire: there, the next wake compares the process id.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)
