"""What many departures take: those of an outage of one process, and one more among many.

The process of an outage is a child, so that its memory is its own. A proxy stands before the server
and cuts it off; the server is counted by itself, before and after.
"""

import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from functools import partial

from tests.support.proxy import HOST, Proxy

from .flush import CHUNK, Site, names
from .machine import Child, Gauge, Row, end_step, server

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
            with Child(__name__, f"redis://{HOST}:{proxy.port}/0", departures, manner) as child:
                assert child.says(), "nobody is online"
                before = child.memory("VmRSS")
                proxy.refuse()
                child.go_on()
                assert child.says(), "nobody has departed"
                proxy.listen()
                began = time.monotonic()
                child.go_on()
                received = gauge.bytes_of(partial(child.says, LIMIT))
                took = time.monotonic() - began
                growth = child.memory("VmHWM") / before
            proxy.refuse()
            left = departures - Site(url).presence.count(window=HERE)
        share, sent = departures / GOAL_FOR, received / 1e6
        if left < departures:
            took = sent = math.inf
        name, done = f"{departures:,} {manner} of an outage", f"{left:,} written"
        yield Row(f"{name}: written in", took, max(1.0, SECONDS * share), "s", done)
        yield Row(f"{name}: sent", sent, MEGABYTES * share, "MB", done)
        yield Row(f"{name}: memory", growth, TIMES_MEMORY, "times", f"of {before / 1e3:.0f} MB")


def depart(url: str, departures: int, manner: str) -> None:
    """Record users, have them depart during an outage, and write that until it is done."""
    site, users = Site(url, pulse_path="/pulse"), names(departures)
    leave = site.log_out if manner == "logouts" else site.say_goodbye
    site.fill(users)
    end_step()
    for user in users:
        leave(user)
    site.recorder.flush()
    end_step()
    while not site.recorder.flush():
        time.sleep(0.05)
    end_step()
    os._exit(0)


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
