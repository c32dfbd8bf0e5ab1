"""What the core must show: a table of figures, each beside its goal.

    python -m tests.benchmarks.core [--quick] [--only TEXT] [--people 200000] [--departures 60000]

Times are of the processor, the least of many rounds, and what is compared takes turns in one run.
Install hiredis and httptools: without them, the flushes and uvicorn are others. `--quick` is for
each change and takes half a minute; the whole takes five.
"""

import argparse
import logging
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from . import departures, flush, idle, request_path, whole_server
from .machine import Row

Given = argparse.Namespace

ROWS: dict[str, Callable[[Given], Iterator[Row]]] = {
    "request": lambda given: request_path.rows(40 if given.quick else 300),
    "start": lambda given: request_path.rows_of_start(1 if given.quick else 6),
    "server": lambda given: whole_server.rows(*(3, 0.5) if given.quick else (8, 1.1)),
    "sightings": lambda given: flush.rows_of_server(given.people, 8 if given.quick else 30),
    "navigation": lambda given: flush.rows_of_navigation(5 if given.quick else 20),
    "one": lambda given: flush.rows_of_one(),
    "shards": lambda given: flush.rows_of_shards(5000, 10 if given.quick else 40),
    "noting": lambda given: departures.rows_of_noting(
        given.remembered, 4 if given.quick else 10, given.limit
    ),
    "outage": lambda given: departures.rows_of_outage(given.departures, given.limit),
    "idle": lambda given: idle.rows(given.seconds, given.processes),
}
SLOW = {"idle"}
"""What `--quick` leaves out: a few seconds of it show nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="those with this in it: " + ", ".join(ROWS))
    parser.add_argument("--people", type=int, help="in the server")
    parser.add_argument("--departures", type=int, help="of an outage")
    parser.add_argument("--limit", type=float, help="seconds for many departures to be written")
    parser.add_argument("--remembered", type=int, help="departures, when one more is noted")
    parser.add_argument("--seconds", type=float, help="of which idle processes are counted")
    parser.add_argument("--processes", type=int, help="idle together")
    given = parser.parse_args()
    given.people = given.people or (20_000 if given.quick else 200_000)
    given.departures = given.departures or (2000 if given.quick else 60_000)
    given.limit = given.limit or (3 if given.quick else 40)
    given.remembered = given.remembered or (2000 if given.quick else 100_000)
    given.seconds = given.seconds or 20
    given.processes = given.processes or 40
    logging.disable()
    for module in ("hiredis", "httptools"):
        if find_spec(module) is None:
            print(f"{module} is not installed")
    print("| measured | | goal | | |\n|---|---|---|---|---|", flush=True)
    for name, rows in ROWS.items():
        if given.only in name and not (given.quick and name in SLOW):
            began = time.monotonic()
            for row in rows(given):
                print(row, flush=True)
            print(f"<!-- {name}: {time.monotonic() - began:.0f} s -->", flush=True)


if __name__ == "__main__":
    main()
