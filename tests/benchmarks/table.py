"""What a site of some size takes of Redis: a table in Markdown.

    python -m tests.benchmarks.table [--measured 100000 1000000] [--computed 10000000 100000000]

Everybody online sends a request a minute, and a worker answers 500 of them a second. Memory and the
server's time are measured in a real Valkey for those crowds that it can hold here. For greater
ones they are computed from the greatest of these; commands and layouts follow from the figures.
"""

import argparse
import math
import random
import statistics
from typing import NamedTuple

from presence_middleware.stores import STORES, Store
from presence_middleware.stores.script import CHUNK
from tests.support.acts import Stamped, record

from .machine import server
from .million import NOON, WINDOW, Meter, crowd, in_turn, minute_sets, seen, sorted_set

PER_WORKER = 500  # requests a second
FLUSHES = (1, 2, 5, 10, 30, 60)  # seconds between two of a worker: PRESENCE_FLUSH_INTERVAL
LIVES = math.ceil(WINDOW / 60) + 3  # minutes of which a minute's key is there
BUSY = 0.4  # of a core: what a primary is given to do
HEADINGS = (
    *("online", "sorted set", "minute sets", "HyperLogLogs", "workers", "commands/s"),
    *("cores of servers", "layout", "flush interval", "figures"),
)


class Costs(NamedTuple):
    """What a crowd was measured to take."""

    people: int
    sorted_set: float
    """Bytes, all in all."""
    minute_set: float
    """Of one minute, in which everybody was."""
    log: float
    """Of one minute."""
    command: float
    """Seconds of the processor for a recording command."""
    sighting: float
    """And for each sighting in it."""


class Layout(NamedTuple):
    """How a site is spread, and what that takes."""

    workers: int
    shards: int
    flush: int
    commands: float
    """Recording commands a second."""
    cores: float

    @property
    def primaries(self) -> int:
        return math.ceil(self.cores / BUSY)

    def __str__(self) -> str:
        if self.shards == 1:
            return "one key"
        return f"{self.shards} shards on {self.primaries} primaries"


def measure(people: int) -> Costs:
    users, guests = sorted_set("user"), minute_sets("guest")
    log = STORES["hyperloglog"]("bench", "visitor", WINDOW, WINDOW, 0)
    everybody = crowd(people, at=in_turn)
    with server() as url:
        meter = Meter(url)
        held = size_of(meter, users, everybody)
        minute, logged = (size_of(meter, store, crowd(people)) for store in (guests, log))
        random.shuffle(everybody)
        again = [seen(id, NOON + n / people) for n, (id, *_) in enumerate(everybody)]
        single = [taken for one in again[:500] for taken in meter.run(record(users, [one]))]
        many = meter.run(record(users, again))
    command = statistics.median(single) / 1e3
    sighting = sum(many) / 1e3 / people - command / CHUNK
    return Costs(people, held, minute, logged, command, sighting)


def size_of(meter: Meter, store: Store, sightings: list[Stamped]) -> float:
    """The bytes of what a store keeps of sightings."""
    meter.run(record(store, sightings))
    return sum(meter.client.memory_usage(key, samples=0) or 0 for key in store.keys(NOON))


def grown(costs: Costs, people: int) -> Costs:
    """The costs of a greater crowd: memory grows with it, but for that of HyperLogLogs."""
    times = people / costs.people
    return costs._replace(
        people=people, sorted_set=costs.sorted_set * times, minute_set=costs.minute_set * times
    )


def laid_out(costs: Costs, shards: int) -> Layout:
    """Workers flush as often as leaves most of the work to the sightings themselves."""
    requests = costs.people / 60
    workers = math.ceil(requests / PER_WORKER)
    for flush in FLUSHES:
        each = math.ceil(requests * flush / workers / shards / CHUNK)
        commands = workers * shards * each / flush
        if commands * costs.command < requests * costs.sighting / 2:
            break
    cores = commands * costs.command + requests * costs.sighting
    return Layout(workers, shards, flush, commands, cores)


def layout(costs: Costs) -> Layout:
    """One key while a primary has the time for it; else four and more for each primary."""
    found = laid_out(costs, 1)
    while found.cores > BUSY and found.shards < 4 * found.primaries:
        found = laid_out(costs, found.shards * 2)
    return found


def row(costs: Costs, figures: str) -> str:
    found = layout(costs)
    cells = (
        f"{costs.people:,}",
        size(costs.sorted_set),
        size(costs.minute_set * LIVES),
        size(costs.log * LIVES),
        f"{found.workers:,}",
        f"{found.commands:,.0f}",
        f"{found.cores:.2f}",
        str(found),
        f"{found.flush} s",
        figures,
    )
    return line(cells)


def size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--computed", type=int, nargs="*", default=[10_000_000, 100_000_000])
    given = parser.parse_args()
    print(line(HEADINGS))
    print(line(("---",) * len(HEADINGS)))
    for people in given.measured:
        costs = measure(people)
        print(row(costs, "measured"), flush=True)
    for people in given.computed:
        print(row(grown(costs, people), "computed"))
    each = costs.sighting * 1e6
    print(
        f"\nA command takes {costs.command * 1e6:.0f} µs of a processor, and {each:.1f} a sighting."
    )


if __name__ == "__main__":
    main()
