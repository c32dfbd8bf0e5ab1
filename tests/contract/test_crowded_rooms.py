"""Many leave a room at once: whoever counts it next does not wait until all of them are removed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from presence_middleware import Presence
from presence_middleware.people import Room
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Act, Move, Plan, in_room, room_number, sorted_set
from presence_middleware.stores.plan import ScriptMissing
from tests.support.backends import Server
from tests.support.timed_site import WINDOW, Clock, settings

GONE = 100_000
SERVER_SECONDS = 0.05  # of the first count; the sweep of all who have gone took 0.5 to 0.8


class Crowd:
    """A site whose people are in rooms; the upkeep sweeps when the test says so."""

    def __init__(self, url: str, prefix: str, **given: Any) -> None:
        self.clock = Clock()
        self.settings = settings(
            url, prefix, rooms="/t/{topic}", identity="user=header:x-user", **given
        )
        self.recorder = Recorder(self.settings, clock=self.clock, background=False)
        self.presence = Presence(self.settings, clock=self.clock)
        self.redis = self.recorder.backend.driver.connect()
        self.shard = self.recorder.backend.stores["user"].all[0]

    def enter(self, name: str, number: int, room_of: Callable[[int], int]) -> None:
        """So many people enter rooms now. All but the first as the script would write them."""
        moment = int(self.clock.now * 1e6)
        move: Move = room_number(f"/t/{room_of(0)}"), moment
        seen = [(f"{name}0", moment, moment, move)][:number]
        self.recorder.backend.driver.run(self.shard.write(seen, []))
        rooms = {room: room_number(f"/t/{room}") for room in set(map(room_of, range(number)))}
        for start in range(1, number, 10_000):
            numbers = range(start, min(start + 10_000, number))
            moments = {f"{name}{n}": (moment + n) / 1e6 for n in numbers}
            self.redis.zadd(f"{self.settings.prefix}:user:seen", moments)
            members = {f"{name}{n}": rooms[room_of(n)] for n in numbers}
            self.redis.zadd(f"{self.settings.prefix}:user:at", members)

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
        return int(self.redis.zcard(f"{self.settings.prefix}:user:at")) - 1


@pytest.fixture
def crowd(valkey: Server, prefix: str) -> Iterator[Callable[..., Crowd]]:
    crowds: list[Crowd] = []

    def open_crowd(**given: Any) -> Crowd:
        crowds.append(Crowd(valkey.url, prefix, **given))
        return crowds[-1]

    yield open_crowd
    for each in crowds:
        each.recorder.close()


@pytest.mark.parametrize(
    ("staying", "rooms"), [(0, 1), (500, 1), (20_000, 1000)], ids=["nobody", "few", "many"]
)
def test_the_first_count_after_a_mass_departure_is_prompt_and_exact(
    crowd: Callable[..., Crowd], staying: int, rooms: int
) -> None:
    site = crowd()
    site.enter("gone", GONE, lambda n: n % rooms)
    site.clock.now += WINDOW / 2
    site.enter("here", staying, lambda n: n % rooms)
    site.clock.now += WINDOW / 2 + 1
    assert site.presence.count() == staying
    site.commands()
    assert site.presence.count(room="/t/0") == staying // rooms
    commands = site.commands()
    assert "zrem" not in commands
    calls, microseconds = commands["evalsha"]
    assert calls == 1
    assert microseconds < SERVER_SECONDS * 1e6
    assert site.in_rooms() == GONE + staying


@pytest.mark.parametrize(
    ("gone", "here", "rooms"), [(10, 5000, 1), (5000, 10, 1), (5000, 5000, 500)]
)
def test_a_count_looks_up_those_who_have_gone_or_are_online_or_in_the_room_whoever_are_fewer(
    crowd: Callable[..., Crowd], gone: int, here: int, rooms: int
) -> None:
    site = crowd()
    site.enter("gone", gone, lambda n: n % rooms)
    site.clock.now += WINDOW / 2
    site.enter("here", here, lambda n: n % rooms)
    site.clock.now += WINDOW / 2 + 1
    site.commands()
    assert site.presence.count(room="/t/0") == here // rooms
    assert site.commands()["zmscore"][0] == 1  # of at most 1000 ids


def test_a_large_room_of_which_many_leave_is_counted_in_short_commands(
    crowd: Callable[..., Crowd],
) -> None:
    site = crowd()
    site.enter("gone", 40_000, lambda n: 0)
    site.clock.now += WINDOW / 2
    site.enter("here", 35_000, lambda n: 0)
    site.clock.now += WINDOW / 2 + 1
    site.commands()
    assert site.presence.count(room="/t/0") == 35_000
    commands = site.commands()
    assert commands["evalsha"][0] == 10  # of 7500 ids each
    assert "zrem" not in commands
    names = [who.id for who in site.presence.online(room="/t/0", limit=None)]
    assert names == sorted(f"here{n}" for n in range(35_000))
    assert [who.id for who in site.presence.online(room="/t/0", limit=3)] == names[:3]


def test_the_upkeep_removes_those_who_have_gone_in_small_steps(
    crowd: Callable[..., Crowd],
) -> None:
    site = crowd()
    site.enter("gone", 5000, lambda n: n % 7)
    site.clock.now += WINDOW / 2
    site.enter("here", 10, lambda n: 0)
    site.clock.now += WINDOW / 2 + 1
    assert site.presence.count(room="/t/0") == 10
    site.commands()
    for _ in range(10):  # the work of a round is bounded by time
        site.recorder.run_once()
        site.clock.now += 1
    commands = site.commands()
    assert site.in_rooms() == 10
    assert commands["zrem"][0] >= 5000
    assert commands["evalsha"][0] >= 5000 / sorted_set.SWEPT
    assert site.presence.count(room="/t/0") == 10


def test_whoever_comes_back_without_a_page_before_the_sweep_is_in_no_room(
    crowd: Callable[..., Crowd],
) -> None:
    site = crowd()
    site.enter("user", 3, lambda n: 0)
    site.clock.now += WINDOW + 1
    assert site.presence.count(room="/t/0") == 0
    site.recorder.record(("user", "user1"), site.clock.now)
    site.recorder.flush()
    assert site.presence.is_online("user1")
    assert site.presence.count(room="/t/0") == 0
    assert site.presence.online(room="/t/0") == []


@pytest.mark.parametrize("between_pages", ["nothing", "a sweep", "all sweeps", "a logout"])
@pytest.mark.parametrize("wanted", ["a number", "a list"])
def test_what_happens_between_the_pages_of_a_read_counts_nobody_twice(
    crowd: Callable[..., Crowd], monkeypatch: pytest.MonkeyPatch, between_pages: str, wanted: str
) -> None:
    monkeypatch.setattr(in_room, "LOOKED_UP", 8)
    monkeypatch.setattr(sorted_set, "SWEPT", 3)
    monkeypatch.setattr(in_room, "PAGE", 2)
    site = crowd()  # who is online is on the first pages
    site.enter("offline", 30, lambda n: 0)
    site.clock.now += WINDOW / 2
    site.enter("a-online", 20, lambda n: 0)
    site.clock.now += WINDOW / 2 + 1
    run, now, room = site.recorder.backend.driver.run, site.clock.now, room_number("/t/0")
    read: Any = site.shard.count_in_room if wanted == "a number" else site.shard.online_in_room
    plan = read(room, now) if wanted == "a number" else read(room, now, 100)
    expected, batches = {f"a-online{n}" for n in range(20)}, 0

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
                run(site.shard.write([], [(Act.LEFT, last, int(now * 1e6), None)]))
                expected.discard(last)
            elif "sweep" in between_pages:
                while run(site.shard.sweep(now)) and between_pages == "all sweeps":
                    pass
            try:
                batch = plan.send(replies)
            except StopIteration as end:
                return end.value

    result = run(interrupted())
    assert batches > 1
    assert result == len(expected) if wanted == "a number" else {s.id for s in result} == expected


def test_the_number_of_a_room_costs_the_server_no_more_than_a_page(
    crowd: Callable[..., Crowd],
) -> None:
    """The board shows the number of any room to anybody, also of rooms that do not exist."""
    site = crowd()
    site.enter("user", 100, lambda n: n)
    room = room_number("/t/1")

    def page(n: int) -> None:
        site.clock.now += 1
        entrance = Room(room, site.clock.now)
        site.recorder.record(("user", f"user{n}"), site.clock.now, room=entrance)
        assert site.recorder.flush()

    def number(n: int) -> None:
        assert site.presence.counts(room=f"/t/new{n}") == {"user": 0}

    def cost(visit: Callable[[int], None]) -> tuple[int, int]:
        visit(0)  # sends the script
        before = site.redis.info("stats")["total_net_input_bytes"]
        site.commands()
        for n in range(1, 21):
            visit(n)
        commands = sum(calls for calls, _ in site.commands().values())
        return site.redis.info("stats")["total_net_input_bytes"] - before, commands

    assert cost(number) < cost(page)
    assert cost(number)[0] < 20 * 400
    assert cost(number)[1] < cost(page)[1]
