"""The commands that an idle process sends.

A process records one request and then waits, with one listener or none. The server shows what it
runs (MONITOR): what clients have sent counts.
"""

import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from tests.support.servers import environment

from .flush import EVERYTHING, Site
from .machine import Row, server

SETTLED = 35.0  # seconds after which a process is idle: 30 after the first clean-up comes another
SECONDS = 60.0  # in which each thing that happens every minute happens once
SETS: dict[str, dict[str, Any]] = {"by default": {}, "everything on": EVERYTHING}
GOALS = {"by default": 12, "everything on": 15, "with a listener": 80}
"""Commands a minute of a process."""
TOGETHER, MANY, GOAL_OF_MANY = 40, 320, 25
"""Processes without listeners that are measured, those of the goal, and its commands a second."""


def rows() -> Iterator[Row]:
    """Return the commands a minute of one process, and those a second of `TOGETHER` processes."""
    for name, (sent, number) in _count().items():
        detail = f"{sent} in a minute; {number} with what scripts run"
        if name in GOALS:
            yield Row(f"idle, {name}", sent, GOALS[name], "a minute", detail)
        else:
            goal = GOAL_OF_MANY * TOGETHER / MANY
            yield Row(f"idle, {name}", sent / SECONDS, goal, "a second", detail)


def _count() -> dict[str, tuple[int, int]]:
    """Return the commands that clients send, and all that servers run. Each site has its own."""
    sites = {**dict.fromkeys(GOALS, 1), f"{TOGETHER} processes": TOGETHER}
    with ExitStack() as opened:
        monitors: dict[str, socket.socket] = {}
        for name, processes in sites.items():
            url = opened.enter_context(server())
            command = [sys.executable, "-m", __name__, url, name, str(processes)]
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
            )
            opened.enter_context(child)  # its exit closes the child's input, and waits for its end
            assert child.stdout is not None
            for _ in range(processes):
                child.stdout.readline()
            address = ("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0]))
            monitors[name] = opened.enter_context(socket.create_connection(address))
        time.sleep(SETTLED)
        for monitor in monitors.values():
            monitor.sendall(b"MONITOR\r\n")
        received = dict.fromkeys(monitors, b"")
        end = time.monotonic() + SECONDS
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select(list(monitors.values()), [], [], left)
            for name, monitor in monitors.items():
                if monitor in ready:
                    received[name] += monitor.recv(1 << 20)
        return {name: _commands(data) for name, data in received.items()}


def _commands(monitored: bytes) -> tuple[int, int]:
    lines = [line[:60] for line in monitored.split(b"\r\n")[1:] if line[:1] == b"+"]
    return sum(b" lua] " not in line for line in lines), len(lines)


def idle(url: str, name: str, processes: int) -> None:
    """Be idle until the input is closed, in as many processes."""
    for _ in range(processes - 1):
        if not os.fork():
            break
    site = Site(url, identity="user=auth, guest=visitor", **SETS.get(name, EVERYTHING))
    site.recorder.background = True
    site.visit("ann", "/t/7/a", REMOTE_USER="ann")
    if name == "with a listener":
        threading.Thread(target=list, args=(site.presence.events(),), daemon=True).start()
    os.write(1, b"begun\n")  # whole, beside those of the other processes
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    logging.disable()
    idle(sys.argv[1], sys.argv[2], int(sys.argv[3]))
