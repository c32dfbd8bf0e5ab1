"""A stopwatch counts waiting and work, and leaves out stalls of the machine."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.stopwatch import Stopwatch


def test_time_spent_waiting_is_counted() -> None:
    with Stopwatch() as watch:
        time.sleep(0.5)
    assert watch.seconds > 0.1  # all but the stalls of this machine meanwhile


def test_cpu_time_of_this_process_is_counted() -> None:
    with Stopwatch() as watch:
        until = time.thread_time() + 0.3
        while time.thread_time() < until:
            pass
    assert watch.seconds > 0.1


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped here")
def test_a_stall_of_the_whole_process_is_not_counted() -> None:
    stopped_for_a_second = (
        "import os, signal, sys, time\n"
        "os.kill(int(sys.argv[1]), signal.SIGSTOP); time.sleep(1)\n"
        "os.kill(int(sys.argv[1]), signal.SIGCONT)\n"
    )
    began = time.monotonic()
    with Stopwatch() as watch:
        command = [sys.executable, "-c", stopped_for_a_second, str(os.getpid())]
        with subprocess.Popen(command) as other:
            assert other.wait(30) == 0
    assert time.monotonic() - began > 1
    assert watch.seconds < time.monotonic() - began - 0.8
