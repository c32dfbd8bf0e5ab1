"""What people cost: memory and processor of the server and of a process, by store and feature.

    python -m tests.benchmarks.sizing [--people 10000] [--people 1000000] …

All is written by the package's own plans, 250 people a command, as a busy process does. Memory is
`used_memory`; times are of the processor. docs/sizing.md has the table.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

from presence_middleware.connections.drivers import Driver
from presence_middleware.connections.health import RedisHealth
from presence_middleware.connections.url import RedisURL
from presence_middleware.people import People
from presence_middleware.rooms import Room
from presence_middleware.stores import STORES, Seen, Store, Write
from presence_middleware.stores.plan import to_microseconds
from presence_middleware.stores.sorted_set import SortedSet
from tests.support.memory import traced

from .machine import Gauge, server

WINDOW, KEEP, GRACE, LAG = 600.0, 30 * 86400.0, 75.0, 5.0
MANY = 10**9
CHUNK = 250
A_ROOM = 10  # people
FEATURES: dict[str, dict[str, Any]] = {
    "sorted set": {},
    "sorted set, rooms": {"has_rooms": True},
    "sorted set, events": {"lag": LAG},
    "sorted set, pulse, rooms, events": {"grace": GRACE, "has_rooms": True, "lag": LAG},
}


def stores() -> Iterator[tuple[str, Store]]:
    for name, features in FEATURES.items():
        yield name, SortedSet("bench", "user", WINDOW, KEEP, MANY, **features)
    for name in ("minute-sets", "hyperloglog"):
        yield name, STORES[name]("bench", "user", WINDOW, WINDOW, MANY)


def seen(number: int, moment: int) -> Seen:
    return f"user-{number:017d}", moment, moment, (1 + number // A_ROOM, moment)


def measure(name: str, store: Store, people: int) -> None:
    """Print what it takes to write everybody once, and 20,000 of them again."""
    with server() as url, Gauge(url) as gauge:
        driver = Driver(RedisURL("redis", url), RedisHealth(), gauge.client, is_writer=True)
        now = to_microseconds(time.time())

        def write(first: int, last: int, moment: int) -> None:
            for start in range(first, last, CHUNK):
                sightings = [seen(n, moment) for n in range(start, min(start + CHUNK, last))]
                driver.run(store.write(sightings, (), Write("bench", moment)))

        before = gauge.client.info("memory")["used_memory"]
        write(0, people, now)
        memory = gauge.client.info("memory")["used_memory"] - before
        again = min(people, 20_000)
        began = time.process_time()
        at_server = gauge.seconds_of(lambda: write(0, again, now + 1_000_000))
        here = time.process_time() - began
        sent = gauge.bytes_of(lambda: write(0, again, now + 2_000_000))
        print(
            f"| {name} | {people:,} | {memory / 1e6:,.1f} MB | {memory / people:.0f} B "
            f"| {at_server / again * 1e6:.1f} µs | {here / again * 1e6:.1f} µs "
            f"| {sent / again:.0f} B |",
            flush=True,
        )


def process_memory() -> None:
    """Print what a process remembers of a person: the difference that 100,000 make."""
    people = People(200_000, WINDOW, GRACE)
    with traced() as held:
        for number in range(100_000):
            at = float(number)
            people.note(("user", f"user-{number:017d}"), at, at, room=Room(1, 1))
        taken = held()
    print(f"a process remembers a person in {taken / 100_000:.0f} B")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, action="append")
    sizes = parser.parse_args().people or [10_000, 1_000_000, 5_000_000]
    print("| store | people | memory | a person | server, a sighting | process | sent |")
    print("|---|---|---|---|---|---|---|")
    for people in sizes:
        for name, store in stores():
            measure(name, store, people)
    process_memory()


if __name__ == "__main__":
    main()
