"""One million online: what our commands take of the server's time, and what others would.

    python -m tests.benchmarks.million [--people 1000000] [--server valkey] [--server redis]

All is written and read by the package's own plans, a command a round trip, in Valkey and, where it
is installed, Redis. The server says how long commands took on the clock (INFO commandstats,
SLOWLOG), other work on the machine included; so what each took of the processor is measured
besides, its reading and replying included.
"""

import argparse
import random
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import redis

from presence_middleware.stores import STORES, Act, Batch, Command, Plan, Store
from presence_middleware.stores.changes import to_microseconds
from presence_middleware.stores.plan import ScriptMissing
from presence_middleware.stores.script import CHUNK
from tests.support.acts import Stamped, depart, record

from .machine import processor_seconds, server

KEEP, WINDOW, MINUTES = 30 * 86400.0, 600.0, 10
NOON = 1_800_000_000.0  # on a full minute; the stores are told what time it is
FRIENDS = 500
MANY = 10**9
LIMIT = 5.0  # milliseconds, for any command of ours
SERVERS = {"valkey": None, "redis": shutil.which("redis-server")}


class Meter:
    """Runs plans on a server and prints what their commands took."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url, socket_timeout=60, protocol=2)
        self.client.config_set("slowlog-log-slower-than", int(LIMIT * 1000))
        self._process = int(self.client.info("server")["process_id"])
        self._sent: set[str] = set()

    def heading(self) -> None:
        print(f"  {'':50}{'clock':>9}{'processor':>19}{'over 5 ms':>14}")
        print(f"  {'milliseconds of a command':40}{'commands':>10}{'mean':>9}", end="")
        print(f"{'median':>10}{'worst':>9}{'clock':>7}{'proc.':>7}")

    def step(self, name: str, plans: Iterable[Plan[Any]]) -> float:
        """Prints a line; returns the milliseconds on the clock of all commands."""
        self.client.config_resetstat()
        self.client.slowlog_reset()
        self._sent.clear()
        processor = [taken for plan in plans for taken in self.run(plan)]
        stats = self.client.info("commandstats")
        clock: float = sum(stats[f"cmdstat_{name.lower()}"]["usec"] for name in self._sent) / 1e3
        over = sum(taken > LIMIT for taken in processor)
        slow = self.client.slowlog_len()
        print(
            f"  {name:40}{len(processor):>10}{clock / len(processor):>9.3f}"
            f"{statistics.median(processor):>10.3f}{max(processor):>9.3f}"
            f"{slow:>7}{over:>7}",
            flush=True,
        )
        return clock

    def run(self, plan: Plan[Any]) -> list[float]:
        """What each command took of the processor."""
        processor: list[float] = []
        replies: list[Any] | None = None
        while True:
            try:
                batch = plan.send(replies)  # type: ignore[arg-type]
            except StopIteration:
                return processor
            replies = []
            for command in batch.commands:
                self._sent.add(str(command[0]))
                before = processor_seconds(self._process)
                try:
                    replies.append(self.client.execute_command(*command))
                except redis.exceptions.NoScriptError:
                    replies.append(ScriptMissing())
                processor.append((processor_seconds(self._process) - before) * 1e3)


def crowd(
    people: int, name: str = "user", at: Callable[[int], float] = lambda _: NOON
) -> list[Stamped]:
    """People with ids of 22 bytes, and when each was seen."""
    return [seen(f"{name}-{person:017d}", at(person)) for person in range(people)]


def seen(id: str, moment: float) -> Stamped:
    """A sighting by a request, which is seen as it arrives."""
    return id, to_microseconds(moment), to_microseconds(moment)


def in_turn(person: int) -> float:
    """A moment of the window, another one for each person."""
    return NOON - WINDOW * (person % 9973 + 1) / 9975


def sorted_set(name: str, most: int = MANY) -> Store:
    return STORES["sorted-set"]("bench", name, WINDOW, KEEP, most)


def minute_sets(name: str, most: int = MANY) -> Store:
    return STORES["minute-sets"]("bench", name, WINDOW, WINDOW, most)


def raw(*commands: Command) -> Plan[None]:
    """Commands that are not ours."""
    yield Batch(commands)


def uncompiled(meter: Meter, users: Store, known: list[Stamped]) -> Iterator[Plan[Any]]:
    """Records where the server does not know the script yet."""
    for _ in range(20):
        meter.client.script_flush()
        yield record(users, known[:CHUNK])


def writing(meter: Meter, people: int) -> None:
    users, everybody = sorted_set("user"), crowd(people, at=in_turn)
    meter.step(f"record {CHUNK}, all new", [record(users, everybody)])
    sample = random.sample(everybody, min(people, 25_000))
    known = [seen(id, NOON - n / len(sample)) for n, (id, *_) in enumerate(sample)]
    meter.step(f"record {CHUNK}, all known", [record(users, known)])
    meter.step(f"record {CHUNK}, the script new", uncompiled(meter, users, known))
    full = sorted_set("user", most=people)
    mixed = known[:5000] + crowd(5000, "new")
    random.shuffle(mixed)
    meter.step(f"record {CHUNK}, at the cap, half known", [record(full, mixed)])
    meter.step("touch", (users.touch(id, NOON, NOON) for id, *_ in known[:1000]))
    meter.step("leave", (depart(users, Act.LEFT, id, NOON) for id, *_ in known[-1000:]))
    meter.step("forget", (depart(users, Act.ERASED, id, NOON) for id, *_ in known[-1000:]))
    meter.step(f"record {CHUNK}, at the cap, some have left", [record(full, mixed)])


def read(meter: Meter, people: int) -> tuple[float, float]:
    """The milliseconds of a `count` and of an `online_friends`."""
    users, everybody = sorted_set("user"), crowd(people)
    some = [id for id, *_ in random.sample(everybody, FRIENDS)]
    meter.client.sadd("friends", *some)
    count = meter.step("count", (users.count(NOON, WINDOW) for _ in range(200))) / 200
    meter.step("online(limit=100)", (users.online(NOON, WINDOW, 100, None) for _ in range(100)))
    meter.step("online(limit=None), a page", [users.online(NOON, WINDOW / 20, None, None)])
    meter.step("online_among 500", (users.online_among(some, NOON, WINDOW) for _ in range(100)))
    meter.step("last_seen", (users.last_seen(id, NOON) for id in some))
    friends = (users.online_friends("friends", NOON, WINDOW) for _ in range(100))
    return count, meter.step("online_friends of 500", friends) / 100


def classic(meter: Meter) -> float:
    """The milliseconds of the five steps: copy, trim, intersect, read, delete."""
    steps = (
        ("ZUNIONSTORE", "copy", 1, "bench:user:seen"),
        ("ZREMRANGEBYSCORE", "copy", "-inf", NOON - WINDOW),
        ("ZINTERSTORE", "copy", 2, "copy", "friends"),
        ("ZRANGE", "copy", 0, -1),
        ("DEL", "copy"),
    )
    return meter.step("friends in five steps", (raw(*steps) for _ in range(2))) / 2


def clean_up(meter: Meter) -> None:
    users = sorted_set("user")
    cut = NOON - WINDOW * 0.98 + KEEP  # one in fifty is stale
    meter.step("clean up 1,000", (users.clean_up(cut) for _ in range(20)))


def union(meter: Meter, people: int) -> float:
    """The milliseconds of a SUNION of ten minute sets, each person being in one of them."""
    guests, everybody = minute_sets("guest"), crowd(people, at=in_turn)
    meter.step(f"minute sets: record {CHUNK}", [record(guests, everybody)])
    some = [id for id, *_ in random.sample(everybody, FRIENDS)]
    meter.step(
        "minute sets: online_friends of 500", [guests.online_friends("friends", NOON - 1, WINDOW)]
    )
    meter.step("minute sets: online_among 500", [guests.online_among(some, NOON - 1, WINDOW)])
    full, late = minute_sets("guest", most=1), crowd(5000, "new", at=in_turn)
    meter.step(f"minute sets: record {CHUNK}, at the cap", [record(full, late)])
    return (
        meter.step("minute sets: SUNION of ten", (guests.count(NOON - 1, WINDOW) for _ in range(3)))
        / 3
    )


def measure(name: str, people: int) -> None:
    with server(SERVERS[name]) as url:
        print(f"{name}, {people} online")
        meter = Meter(url)
        meter.heading()
        writing(meter, people)
        count, friends = read(meter, people)
        clean_up(meter)
        five = classic(meter)
        ten = union(meter, people)
        print(f"  friends of 500: {five / friends:.0f} times less than in five steps (aim 2000)")
        print(f"  count: 1/{ten / count:.0f} of a SUNION of ten minutes (aim 1/10000)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--server", action="append", choices=SERVERS)
    given = parser.parse_args()
    for name in given.server or SERVERS:
        if name == "valkey" or SERVERS[name]:
            measure(name, given.people)


if __name__ == "__main__":
    main()
