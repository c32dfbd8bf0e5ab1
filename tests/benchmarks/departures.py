"""What many departures take: those of an outage of one process, and one more among many.

The process of an outage is a child, so that its memory is its own. A proxy stands before the server
and cuts it off; the server is counted by itself, before and after.
"""

import logging
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.proxy import HOST, Proxy
from tests.support.servers import environment

from .flush import CHUNK, Site, names
from .machine import Gauge, Row, server

SECONDS, MEGABYTES, TIMES_MEMORY, NOTING = 10.0, 10.0, 1.4, 3.0
"""The goals. The first two are for 60,000 departures, and grow with their number."""
GOAL_FOR = 60_000
LIMIT = 40.0  # seconds for many departures to be written
HERE = 300  # seconds: a goodbye leaves less of the window than this is long
BATCH = 50
FIRST = 1100  # requests, of which a process looks at nearly all for mistakes in its set-up


def rows_of_outage(departures: int) -> Iterator[Row]:
    """Return what logouts, then goodbyes, of an outage take."""
    for manner in ("logouts", "goodbyes"):
        with server() as url, Gauge(url) as gauge:
            proxy = Proxy((HOST, int(url.rpartition(":")[2].partition("/")[0])))
            child = Child(f"redis://{HOST}:{proxy.port}/0", departures, manner)
            assert child.says(120), "nobody is online"
            before = child.memory("VmRSS")
            proxy.refuse()
            child.go_on()
            assert child.says(120), "nobody has departed"
            written: list[float] = []

            def recover(child: Child = child, written: list[float] = written) -> None:
                began = time.monotonic()
                child.go_on()
                if child.says(LIMIT):
                    written.append(time.monotonic() - began)

            proxy.listen()
            sent = gauge.bytes_of(recover) / 1e6
            growth = child.memory("VmHWM") / before
            child.process.kill()
            child.process.wait()
            proxy.refuse()
            left = departures - Site(url).presence.count(window=HERE)
        share = departures / GOAL_FOR
        is_done = bool(written) and left == departures
        took = written[0] if is_done else math.inf
        name = f"{departures:,} {manner} of an outage"
        done = f"{left:,} written" + ("" if written else f", given up after {LIMIT:.0f} s")
        yield Row(f"{name}: written in", took, max(1.0, SECONDS * share), "s", done)
        detail = f"{sent:.2f} MB for {left:,}"
        yield Row(f"{name}: sent", sent if is_done else math.inf, MEGABYTES * share, "MB", detail)
        yield Row(f"{name}: memory", growth, TIMES_MEMORY, "times", f"of {before / 1e3:.0f} MB")


class Child:
    """A process whose users depart. It says when a step is done, and waits to go on."""

    def __init__(self, url: str, departures: int, manner: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, url, str(departures), manner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment(),
        )

    def says(self, seconds: float) -> bool:
        """Return whether the child ends its step in time."""
        assert self.process.stdout is not None
        is_ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return bool(is_ready) and self.process.stdout.readline() == b"done\n"

    def go_on(self) -> None:
        """Have the child begin its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def memory(self, name: str) -> float:
        """Return kilobytes: `VmRSS` now, `VmHWM` at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return float(status.partition(f"{name}:")[2].split()[0])


def depart(url: str, departures: int, manner: str) -> None:
    """Record users, have them depart during an outage, and write that until it is done."""
    site, users = Site(url, pulse_path="/pulse"), names(departures)
    leave = site.log_out if manner == "logouts" else site.say_goodbye
    site.fill(users)
    _step()
    for user in users:
        leave(user)
    site.recorder.flush()
    _step()
    while not site.recorder.flush():
        time.sleep(0.05)
    _step()
    os._exit(0)


def _step() -> None:
    print("done", flush=True)
    sys.stdin.readline()


def rows_of_noting(departures: int, rounds: int) -> Iterator[Row]:
    """Return what one more departure takes of the process among many, less what it takes alone.

    First the request, while the many wait to be written; then with its flush, after they were.
    """
    later = [[f"late-{batch}-{number}" for number in range(BATCH)] for batch in range(rounds)]
    for is_written in (False, True):
        with server() as url:
            alone, among = (
                Site(url, max_pending=10 * departures, prefix=name) for name in ("alone", "among")
            )
            for site in (alone, among):
                for _ in range(FIRST):
                    site.visit("ann")
            for number, user in enumerate(names(departures), 1):
                among.log_out(user)
                if is_written and not number % CHUNK:
                    among.flush()
            taken: dict[Site, list[float]] = {alone: [], among: []}
            for users in later:
                for site, times in taken.items():
                    began = time.thread_time()
                    for user in users:
                        site.log_out(user)
                    if is_written:
                        site.flush()
                    times.append((time.thread_time() - began) / BATCH * 1e6)
        least, crowded = min(taken[alone]), min(taken[among])
        name = "noting and writing a departure" if is_written else "noting a departure"
        where = "before it" if is_written else "wait"
        detail = f"{crowded:.2f} µs against {least:.2f} alone"
        yield Row(f"{name}, {departures:,} {where}", crowded - least, NOTING, "µs", detail)


if __name__ == "__main__":
    logging.disable()
    depart(sys.argv[1], int(sys.argv[2]), sys.argv[3])
