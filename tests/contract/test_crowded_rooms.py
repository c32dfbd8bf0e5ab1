"""Many leave a room at once: whoever counts it next removes them, in steps of the server."""

from collections.abc import Iterator
from typing import Any

import pytest

from presence_middleware import Presence
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Act, Move, Plan, room_number, sorted_set
from tests.support.backends import Server
from tests.support.timed_site import WINDOW, Clock, settings

SERVER_SECONDS = 0.02  # of a step; it takes about 1 ms


class Crowd:
    """A site whose people are in rooms; the upkeep sweeps when the test says so."""

    def __init__(self, url: str, prefix: str) -> None:
        self.clock = Clock()
        given = settings(url, prefix, rooms="/t/{topic}", identity="user=header:x-user")
        self.prefix = f"{prefix}:user"
        self.recorder = Recorder(given, clock=self.clock, background=False)
        self.presence = Presence(given, clock=self.clock)
        self.redis = self.recorder.backend.driver.connect()
        self.shard = self.recorder.backend.stores["user"].all[0]

    def enter(self, name: str, number: int, rooms: int = 1) -> None:
        """So many people enter rooms in turn. All but the first as the script would write them."""
        moment = int(self.clock.now * 1e6)
        move: Move = room_number("/t/0"), moment
        seen = [(f"{name}0", moment, moment, move)][:number]
        self.recorder.backend.driver.run(self.shard.write(seen, []))
        numbers = [room_number(f"/t/{room}") for room in range(rooms)]
        for start in range(1, number, 10_000):
            some = range(start, min(start + 10_000, number))
            self.redis.zadd(f"{self.prefix}:seen", {f"{name}{n}": (moment + n) / 1e6 for n in some})
            self.redis.zadd(f"{self.prefix}:at", {f"{name}{n}": numbers[n % rooms] for n in some})

    def turn_over(self, gone: int, here: int, rooms: int = 1) -> None:
        """Some enter rooms, others do half a window later, and then the first have gone."""
        self.enter("gone", gone, rooms)
        self.clock.now += WINDOW / 2
        self.enter("here", here, rooms)
        self.clock.now += WINDOW / 2 + 1

    def commands(self) -> dict[str, Any]:
        """What the server has done since the last call: calls and microseconds by command."""
        stats = self.redis.info("commandstats")
        self.redis.config_resetstat()
        return {
            name.removeprefix("cmdstat_"): (row["calls"], row["usec"])
            for name, row in stats.items()
        }

    def in_rooms(self) -> int:
        """How many are stored in rooms, online or not."""
        return int(self.redis.zcard(f"{self.prefix}:at")) - 1


@pytest.fixture
def crowd(valkey: Server, prefix: str) -> Iterator[Crowd]:
    crowd = Crowd(valkey.url, prefix)
    yield crowd
    crowd.recorder.close()


@pytest.mark.parametrize(("gone", "here", "rooms"), [(20_000, 0, 1), (5000, 2000, 100)])
def test_the_first_count_after_a_mass_departure_is_exact_and_of_small_steps(
    crowd: Crowd, *, gone: int, here: int, rooms: int
) -> None:
    crowd.turn_over(gone, here, rooms)
    assert crowd.presence.count() == here
    crowd.commands()
    assert crowd.presence.count(room="/t/0") == here // rooms
    steps, microseconds = crowd.commands()["evalsha"]
    assert steps >= gone / sorted_set.SWEPT
    assert microseconds / steps < SERVER_SECONDS * 1e6
    assert crowd.in_rooms() == here
    names = sorted(f"here{n}" for n in range(0, here, rooms))
    assert [who.id for who in crowd.presence.online(room="/t/0", limit=3)] == names[:3]


def test_the_upkeep_removes_those_who_have_gone_in_small_steps(crowd: Crowd) -> None:
    crowd.turn_over(5000, 10)
    crowd.commands()
    for _ in range(10):  # the work of a round is bounded by time
        crowd.recorder.run_once()
        crowd.clock.now += 1
    commands = crowd.commands()
    assert crowd.in_rooms() == 10
    assert commands["evalsha"][0] >= 5000 / sorted_set.SWEPT
    assert crowd.presence.count(room="/t/0") == 10


def test_whoever_comes_back_without_a_page_before_the_sweep_is_in_no_room(crowd: Crowd) -> None:
    crowd.enter("user", 3)
    crowd.clock.now += WINDOW + 1
    assert crowd.presence.count(room="/t/0") == 0
    crowd.recorder.record(("user", "user1"), crowd.clock.now)
    crowd.recorder.flush()
    assert crowd.presence.is_online("user1")
    assert crowd.presence.count(room="/t/0") == 0
    assert crowd.presence.online(room="/t/0") == []


@pytest.mark.parametrize("between_pages", ["nothing", "a logout", "a page"])
def test_a_list_of_several_pages_is_complete_whatever_happens_between_them(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch, between_pages: str
) -> None:
    monkeypatch.setattr(sorted_set, "ROOM_PAGE", 8)
    monkeypatch.setattr(sorted_set, "SWEPT", 3)
    crowd.turn_over(30, 20)
    run, now, room = crowd.recorder.backend.driver.run, crowd.clock.now, room_number("/t/0")
    run(crowd.shard.sweep(now))  # the server has the script from now on
    names, pages = sorted(f"here{n}" for n in range(20)), 0
    plan: Any = crowd.shard.online_in_room(room, now, None)

    def interrupted() -> Plan[Any]:
        nonlocal pages
        batch = next(plan)
        while True:
            replies = yield batch
            if batch.commands[-1][0] == "ZRANGE" and not replies[0][0]:  # after the last sweep
                pages += 1
                moment = int(now * 1e6)
                if between_pages == "a logout":
                    run(crowd.shard.write([], [(Act.LEFT, names.pop(0), moment, None)]))
                elif between_pages == "a page":
                    run(crowd.shard.write([(f"a{pages}", moment, moment, (room, moment))], []))
            try:
                batch = plan.send(replies)
            except StopIteration as end:
                return end.value

    found = {sighting.id for sighting in run(interrupted())}
    assert set(names) <= found
    assert pages >= 3
