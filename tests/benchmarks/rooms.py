"""What rooms cost: on the path of a request, and in the server; ratios of one run.

    python -m tests.benchmarks.rooms [--people 1000000] [--rooms 100000] [--rounds 40]

The path of a request: how much longer it takes with rooms than without, measured in turn; the best
round and the median ratio. The server: the processor time of a sighting in flushes of 5,000 people
who stay in their rooms, who call, and who all move, divided by that of a site without rooms with as
many people.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from typing import Any

from presence_middleware import Settings, wsgi
from presence_middleware.stores import Move, Plan, SortedSet, Store, room_number
from tests.support.acts import Stamped, record

from .machine import server
from .million import KEEP, MANY, NOON, WINDOW, Meter, crowd, in_turn, seen, sorted_set
from .request_path import PEOPLE, environs, time_wsgi, wsgi_app

FLUSH = 5000
RULES = "/t/{topic}/*, /docs/*, /c/{category}/*"


def path(rounds: int) -> None:
    """Prints what rooms add to a request."""
    requests = environs()
    in_room, elsewhere = [dict(each) for each in requests], [dict(each) for each in requests]
    for number in range(PEOPLE):
        in_room[number]["PATH_INFO"] = f"/t/{number}/a-title"
        elsewhere[number]["PATH_INFO"] = f"/home/{number}/a-title"
    with server() as url:
        given: dict[str, Any] = {"redis_url": url, "identity": "user=header:X-User:raw"}
        off = wsgi.PresenceMiddleware(wsgi_app, settings=Settings(**given, prefix="off"))
        on = wsgi.PresenceMiddleware(wsgi_app, settings=Settings(**given, prefix="on", rooms=RULES))  # type: ignore[arg-type]
        for name, asked in (("a page in a room", in_room), ("a page in no room", elsewhere)):
            pairs = [(time_wsgi(off, asked), time_wsgi(on, asked)) for _ in range(rounds)]
            without, with_rooms = (min(times) * 1e6 for times in zip(*pairs, strict=True))
            ratio = statistics.median(after / before for before, after in pairs)
            print(
                f"  {name:20}{with_rooms - without:6.2f} µs more than {without:.2f} µs, at best; "
                f"{ratio:.2f} times, median"
            )
        for app in (off, on):
            app.recorder.close()


def swept_set(name: str) -> Store:
    return SortedSet("bench", name, WINDOW, KEEP, MANY, grace=75.0, has_rooms=True)


class Site:
    """A crowd, of which some are seen again."""

    def __init__(self, meter: Meter, store: Store, people: int, rooms: int) -> None:
        self._meter, self._store = meter, store
        self._numbers = [room_number(f"/t/{room}") for room in range(rooms)]
        self._ids = [id for id, *_ in crowd(people)]
        self._room = {id: random.choice(self._numbers) for id in self._ids}
        self._now = NOON
        everybody = crowd(people, at=in_turn)
        self._run(everybody, {id: (self._room[id], moment) for id, moment, _ in everybody})

    def flush(self, moving: str) -> float:
        """Microseconds of the processor for each sighting of a flush."""
        self._now += 1.0
        ids = random.sample(self._ids, FLUSH)
        if moving == "all move":
            self._room.update((id, random.choice(self._numbers)) for id in ids)
        sightings = [seen(id, self._now + number * 1e-6) for number, id in enumerate(ids)]
        moves = {id: (self._room[id], moment) for id, moment, _ in sightings}
        return self._run(sightings, {} if moving == "calls" else moves) / FLUSH

    def sweep(self) -> None:
        """The clean-up of every half minute."""
        plan: Plan[Any] = self._store.clean_up(self._now)
        self._meter.run(plan)

    def _run(self, sightings: Sequence[Stamped], moves: dict[str, Move]) -> float:
        return sum(self._meter.run(record(self._store, sightings, None, moves))) * 1e3


def in_the_server(people: int, rooms: int, rounds: int) -> None:
    """Prints the server's time for a sighting, as ratios to a site without rooms."""
    with server() as url:
        meter = Meter(url)
        off = Site(meter, sorted_set("off"), people, rooms)
        on = Site(meter, swept_set("on"), people, rooms)
        memory = {
            key: meter.client.memory_usage(f"bench:{key}", samples=0) / people
            for key in ("off:seen", "on:seen", "on:at")
        }
        taken: dict[str, list[tuple[float, float]]] = {"calls": [], "stay": [], "all move": []}
        for _ in range(rounds):
            on.sweep()
            for moving, each in taken.items():
                each.append((off.flush(moving), on.flush(moving)))
        for moving, each in taken.items():
            ratio = statistics.median(with_rooms / without for without, with_rooms in each)
            fastest = min(with_rooms for _, with_rooms in each)
            print(f"  {moving:10}{ratio:6.2f} times a site without rooms; {fastest:.1f} µs each")
        print("  bytes a person: " + ", ".join(f"{k} {v:.0f}" for k, v in memory.items()))
        store = swept_set("on")
        room = room_number("/t/1")
        meter.heading()
        meter.step("count(room=)", (store.count_in_room(room, NOON + rounds) for _ in range(100)))
        meter.step(
            "online(room=)", (store.online_in_room(room, NOON + rounds, 100) for _ in range(100))
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--rooms", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    print("On the path of a request")
    path(given.rounds)
    print(f"In the server, {given.people:,} people and {given.rooms:,} rooms")
    in_the_server(given.people, given.rooms, given.rounds)


if __name__ == "__main__":
    main()
