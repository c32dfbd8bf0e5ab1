"""Many leave a room at once: whoever counts it next does not wait until all of them are removed."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from presence_middleware.stores import Act, Move, Plan, room_number, sorted_set
from presence_middleware.stores.plan import ScriptMissing
from tests.support.backends import Server
from tests.support.process import Process
from tests.support.timed_site import WINDOW

SERVER_SECONDS = 0.05  # of a count; the sweep of a hundred thousand who have gone took 0.5 to 0.8


class Crowd(Process):
    """A site whose people are in rooms; the upkeep sweeps when the test says so."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url, prefix, rooms="/t/{topic}", identity="user=header:x-user")
        self.prefix = f"{prefix}:user"
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
        return int(self.redis.zcard(f"{self.prefix}:at"))


@pytest.fixture
def crowd(valkey: Server, prefix: str, stack: ExitStack) -> Crowd:
    crowd = Crowd(valkey.url, prefix)
    stack.callback(crowd.recorder.close)
    return crowd


@pytest.mark.parametrize(
    ("gone", "here", "rooms", "calls", "looked_up"),
    [
        (100_000, 0, 1, 1, 0),
        (100_000, 20_000, 1000, 1, 1),
        # Those are looked up who have gone, or are online, or in the room: whoever are fewer.
        (10, 5000, 1, 1, 1),
        (5000, 10, 1, 1, 1),
        (5000, 5000, 500, 1, 1),
        (40_000, 35_000, 1, 10, 300),  # 7500 ids a call, 250 at a time
    ],
)
def test_the_first_count_after_a_mass_departure_is_prompt_and_exact(
    crowd: Crowd, *, gone: int, here: int, rooms: int, calls: int, looked_up: int
) -> None:
    crowd.turn_over(gone, here, rooms)
    assert crowd.presence.count() == here
    crowd.commands()
    assert crowd.presence.count(room="/t/0") == here // rooms
    commands = crowd.commands()
    assert commands["evalsha"][0] == calls
    assert calls > 1 or commands["evalsha"][1] < SERVER_SECONDS * 1e6
    assert commands.get("zmscore", (0,))[0] == looked_up
    assert "zrem" not in commands
    assert crowd.in_rooms() == gone + here
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
    assert commands["zrem"][0] >= 5000
    assert commands["evalsha"][0] >= 5000 / sorted_set.SWEPT
    assert crowd.presence.count(room="/t/0") == 10


@pytest.mark.parametrize("between_pages", ["nothing", "a sweep", "all sweeps", "a logout"])
@pytest.mark.parametrize("wanted", ["a number", "a list"])
def test_what_happens_between_the_pages_of_a_read_counts_nobody_twice(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch, between_pages: str, wanted: str
) -> None:
    steps = {"LOOKED_UP": 8, "COMPARED": 2, "SWEPT": 3, "PAGE": 2}
    for name, step in steps.items():
        monkeypatch.setattr(sorted_set, name, step)
    crowd.turn_over(30, 20)
    run, now, room = crowd.recorder.backend.driver.run, crowd.clock.now, room_number("/t/0")
    shard, expected, batches = crowd.shard, {f"here{n}" for n in range(20)}, 0
    plan: Any = shard.online_in_room(room, now, 100)
    if wanted == "a number":
        plan = shard.count_in_room(room, now)

    def interrupted() -> Plan[Any]:
        nonlocal batches
        batch = next(plan)
        while True:
            replies = yield batch
            if isinstance(replies[0], ScriptMissing):  # of the first read of a server
                batch = plan.send(replies)
                replies = yield batch
            batches += 1
            if between_pages == "a logout" and batches == 1:
                last = replies[0][1].decode()  # the id after which to go on
                run(shard.write([], [(Act.LEFT, last, int(now * 1e6), None)]))
                expected.discard(last)
            elif "sweep" in between_pages:
                while run(shard.sweep(now)) and between_pages == "all sweeps":
                    pass
            try:
                batch = plan.send(replies)
            except StopIteration as end:
                return end.value

    result = run(interrupted())
    assert batches > 1
    assert result == len(expected) if wanted == "a number" else {s.id for s in result} == expected


def test_the_number_of_a_room_costs_the_server_no_more_than_a_page(crowd: Crowd) -> None:
    """The board shows the number of any room to anybody, also of rooms that do not exist."""
    crowd.enter("user", 100, 100)

    def page(n: int) -> None:
        crowd.clock.now += 1
        crowd.saw(f"user{n}", room="/t/1")

    def number(n: int) -> None:
        assert crowd.presence.counts(room=f"/t/new{n}") == {"user": 0}

    def cost(visit: Callable[[int], None]) -> tuple[int, int]:
        visit(0)  # sends the script
        before = crowd.redis.info("stats")["total_net_input_bytes"]
        crowd.commands()
        for n in range(1, 21):
            visit(n)
        commands = sum(calls for calls, _ in crowd.commands().values())
        return crowd.redis.info("stats")["total_net_input_bytes"] - before, commands

    (read, reads), (written, writes) = cost(number), cost(page)
    assert read < min(written, 20 * 400)
    assert reads < writes
