"""A stopwatch counts waiting and work, and leaves out stalls of the machine."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.stopwatch import Stopwatch


def test_waiting_and_work_are_counted() -> None:
    """All but the stalls of this machine meanwhile."""
    with Stopwatch() as waiting:
        time.sleep(0.3)
    with Stopwatch() as work:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass
    assert min(waiting.seconds, work.seconds) > 0.05


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped here")
def test_a_stall_of_the_whole_process_is_not_counted() -> None:
    stopped = (
        "import os, signal, sys, time\n"
        "os.kill(int(sys.argv[1]), signal.SIGSTOP); time.sleep(0.5)\n"
        "os.kill(int(sys.argv[1]), signal.SIGCONT)\n"
    )
    began = time.monotonic()
    with Stopwatch() as watch:
        command = [sys.executable, "-c", stopped, str(os.getpid())]
        with subprocess.Popen(command) as other:
            assert other.wait(30) == 0
    assert time.monotonic() - began > 0.5
    assert watch.seconds < time.monotonic() - began - 0.4
