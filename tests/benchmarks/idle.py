"""The commands that an idle process sends.

A process records one request and then waits, with one listener or none. The server shows what it
runs (MONITOR): what clients have sent counts.
"""

import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

from .flush import EVERYTHING, Site
from .machine import Child, Row, server

SETTLED = 35.0  # seconds after which a process is idle: 30 after the first clean-up comes another
SECONDS = 60.0  # in which each thing that happens every minute happens once
SITES: dict[str, tuple[int, float]] = {
    "by default": (1, 12),
    "everything on": (1, 15),
    "with a listener": (1, 80),
    "40 processes": (40, 25 * SECONDS * 40 / 320),
}
"""Processes, and the goal for the commands that they send in a minute.

Of 320 processes without listeners, the goal is 25 commands a second together.
"""


def rows() -> Iterator[Row]:
    """Return the commands a minute of each site. Each has a server of its own."""
    with ExitStack() as opened:
        monitors: dict[str, socket.socket] = {}
        for name, (processes, _) in SITES.items():
            url = opened.enter_context(server())
            child = opened.enter_context(Child(__name__, url, name, processes))
            for _ in range(processes):
                assert child.says()
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
    for name, (_, goal) in SITES.items():
        lines = [line[:60] for line in received[name].split(b"\r\n")[1:] if line[:1] == b"+"]
        sent = sum(b" lua] " not in line for line in lines)
        yield Row(f"idle, {name}", sent, goal, "a minute", f"{len(lines)} with what scripts run")


def idle(url: str, name: str, processes: int) -> None:
    """Be idle until the input is closed, in as many processes."""
    for _ in range(processes - 1):
        if not os.fork():
            break
    site = Site(
        url, identity="user=auth, guest=visitor", **({} if name == "by default" else EVERYTHING)
    )
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
