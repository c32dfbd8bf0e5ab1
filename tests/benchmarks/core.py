"""What the core must show: a table of figures, each beside its goal.

    python -m tests.benchmarks.core [--quick] [--only TEXT]

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

ROWS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "request": lambda quick: request_path.rows(40 if quick else 300),
    "start": lambda quick: request_path.rows_of_start(1 if quick else 6),
    "server": lambda quick: whole_server.rows(*(3, 0.5) if quick else (8, 1.1)),
    "sightings": lambda quick: flush.rows_of_server(*(20_000, 8) if quick else (200_000, 30)),
    "navigation": lambda quick: flush.rows_of_navigation(5 if quick else 20),
    "one": lambda quick: flush.rows_of_one(),
    "shards": lambda quick: flush.rows_of_shards(5000, 100 if quick else 400),
    "noting": lambda quick: departures.rows_of_noting(*(2000, 4) if quick else (100_000, 10)),
    "outage": lambda quick: departures.rows_of_outage(2000 if quick else 60_000),
    "idle": lambda quick: idle.rows(),
}
SLOW = {"idle"}
"""What `--quick` leaves out: less than a minute of it shows nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="those with this in it: " + ", ".join(ROWS))
    given = parser.parse_args()
    logging.disable()
    for module in ("hiredis", "httptools"):
        if find_spec(module) is None:
            print(f"{module} is not installed")
    print("| measured | | goal | | |\n|---|---|---|---|---|", flush=True)
    for name, rows in ROWS.items():
        if given.only in name and not (given.quick and name in SLOW):
            began = time.monotonic()
            for row in rows(given.quick):
                print(row, flush=True)
            print(f"<!-- {name}: {time.monotonic() - began:.0f} s -->", flush=True)


if __name__ == "__main__":
    main()
