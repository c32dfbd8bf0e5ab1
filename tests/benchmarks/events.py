"""What announcing who comes and goes takes of the server, and how late it is.

    python -m tests.benchmarks.events [--people 1000000] [--rounds 9] [--server valkey|redis]

First the processor time of the server with and without events: of flushes in which nobody is new,
some are, or all are, and of sweeps. Then a site of real processes: how long after a request a
follower receives that its user came, and how long after the end of the window that the user went.
"""

import argparse
import random
import statistics
import threading
import time
from typing import Any

from presence_middleware import Presence, Settings
from presence_middleware.recorder import Recorder
from presence_middleware.stores import STORES, SortedSet, Store
from tests.support.acts import Stamped, record

from .machine import server
from .million import KEEP, LIMIT, MANY, NOON, SERVERS, WINDOW, Meter, crowd, in_turn, seen

FLUSH = 5000
LAG = 5.0
FLUSH_INTERVAL, SHORT_WINDOW = 1.0, 6.0  # seconds


def stores() -> dict[str, Store]:
    """Return the store of a kind without events, and of a kind with them."""
    grace = 75.0
    return {
        "off": STORES["sorted-set"]("bench", "off", WINDOW, KEEP, MANY),
        "on": SortedSet("bench", "on", WINDOW, KEEP, MANY, grace=grace, lag=LAG),
    }


def flush_of(ids: list[str], at: float) -> list[Stamped]:
    return [seen(id, at + number * 1e-6) for number, id in enumerate(ids)]


def flushes(meter: Meter, people: int, rounds: int, share_new: float) -> None:
    """Print the server time of a flush with events, in times of one without."""
    known = [id for id, *_ in crowd(people)]
    taken: dict[str, list[float]] = {"off": [], "on": []}
    worst = 0.0
    for round in range(rounds):
        new = round_ids(round, share_new)
        ids = random.sample(known, FLUSH - len(new)) + new
        for name, store in random.sample(list(stores().items()), 2):
            commands = meter.run(record(store, flush_of(ids, NOON + 1 + round)))
            taken[name].append(sum(commands))
            worst = max(worst, *commands)
    best = {name: min(times) for name, times in taken.items()}
    ratio = statistics.median(on / off for on, off in zip(taken["on"], taken["off"], strict=True))
    print(
        f"  flush of {FLUSH}, {share_new:4.0%} new: off {best['off']:.1f} ms, on {best['on']:.1f} "
        f"ms: {best['on'] / best['off']:.2f} times (best), {ratio:.2f} times (median); worst "
        f"command {worst:.2f} ms",
        flush=True,
    )


def round_ids(round: int, share_new: float) -> list[str]:
    return [id for id, *_ in crowd(int(FLUSH * share_new), f"new-{share_new}-{round}")]


def sweeps(meter: Meter) -> None:
    """Print what a sweep takes, of nobody and of a page of people who have gone."""
    store = stores()["on"]
    meter.run(store.sweep(NOON))
    quiet = [took for n in range(200) for took in meter.run(store.sweep(NOON + n * 1e-3))]
    before = meter.client.hget("bench:on:progress", "announced_until")
    pages: list[float] = []
    now = NOON + WINDOW / 2  # half of the crowd has gone
    while len(pages) < 200:
        pages += meter.run(store.sweep(now))
    assert meter.client.hget("bench:on:progress", "announced_until") > before
    for name, took in (("nobody", quiet), ("250", pages)):
        print(
            f"  sweep, {name} gone: median {statistics.median(took) * 1e3:.0f} µs, "
            f"worst {max(took) * 1e3:.0f} µs, {sum(each > LIMIT for each in took)} over 5 ms",
            flush=True,
        )


def delays(url: str, people: int) -> None:
    """Print how late a follower receives who came and who went."""
    given: dict[str, Any] = {"redis_url": url, "prefix": "late", "identity": "user=header:x-user"}
    settings = Settings.from_env(
        {}, **given, events="user", window=SHORT_WINDOW, flush_interval=FLUSH_INTERVAL
    )
    recorder, events = Recorder(settings), Presence(settings).events()
    received: list[tuple[str, bool, float]] = []

    def follow() -> None:
        received.extend((event.id, event.online, time.time()) for event in events)

    follower = threading.Thread(target=follow)
    follower.start()
    came: dict[str, float] = {}
    for number in range(people):
        came[f"user{number}"] = time.time()
        recorder.record(("user", f"user{number}"), recorder.stamp())
        time.sleep(random.uniform(0, 0.1))
    while len(received) < 2 * people:
        time.sleep(0.1)
    events.close()
    follower.join()
    recorder.close()
    joins = [at - came[id] for id, is_online, at in received if is_online]
    leaves = [at - came[id] - SHORT_WINDOW for id, is_online, at in received if not is_online]
    print(f"  flush interval {FLUSH_INTERVAL:g} s, {people} people one after another:")
    for name, seconds in (("comes", joins), ("goes, after the window", leaves)):
        print(f"    {name}: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--server", choices=SERVERS, default="valkey")
    given = parser.parse_args()
    with server(SERVERS[given.server]) as url:
        print(f"{given.server}, {given.people} online")
        meter = Meter(url)
        for store in stores().values():
            meter.run(record(store, crowd(given.people, at=in_turn)))
        for share_new in (0.0, 0.05, 1.0):
            flushes(meter, given.people, given.rounds, share_new)
        sweeps(meter)
        meter.client.flushall()
        delays(url, 100)


if __name__ == "__main__":
    main()
