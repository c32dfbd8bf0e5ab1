"""Who is in which room: each case that can go wrong, what requests do, and rooms of crowds."""

from collections.abc import Callable
from typing import Any

import pytest

from presence_middleware import Presence, QueryError, Settings, UnsupportedQuery
from presence_middleware.recorder import recorder_for
from presence_middleware.rooms import Room
from presence_middleware.stores import Act, Batch, Plan, room_number, sorted_set
from presence_middleware.stores.keys import SLACK
from presence_middleware.stores.plan import ScriptMissing
from presence_middleware.stores.store import Move
from tests.support.asking import State
from tests.support.backends import Server, by_trips, send
from tests.support.statuses import Ask, Call, over_asgi, over_wsgi
from tests.support.timed_site import IDENTITY, WINDOW, Process, Recording, Start, by_header

RULE = {"rooms": "/t/{topic}"}


def room(worker: Process, name: str = "/t/1", kind: str = "user") -> list[str]:
    """Return who is in a room, by its list and by its number."""
    ids = [who.id for who in worker.presence.online(kind, room=name, limit=None)]
    assert worker.presence.count(kind, room=name) == len(ids)
    return ids


def test_a_logout_and_a_page_right_after_it_is_a_room(recording: Recording) -> None:
    """By the clock of the server, the page may seem to be the earlier of the two."""
    worker = recording(**RULE)
    presence = Presence(worker.settings)
    for _ in range(20):
        for room in ("/t/1", "/t/2"):
            stamp = worker.stamp()
            worker.record(("user", "ann"), stamp, act=Act.LEFT)
            worker.record(("user", "ann"), stamp + 1e-9, room=Room(room_number(room), stamp + 1e-9))
            assert worker.flush()
            assert presence.count(room=room) == 1


def test_processes_with_different_windows_empty_no_room(start: Start) -> None:
    """A deploy that changes `PRESENCE_WINDOW` replaces one process after the other."""
    before = start(**RULE)
    after_deploy = start(**RULE, clock=before.clock, window=2 * WINDOW)
    before.saw("ann", room="/t/1")
    before.clock.now += WINDOW + 50
    before.saw("bob", room="/t/1")
    before.sweep()  # as its upkeep does
    for worker in (before, after_deploy, before, after_deploy):
        assert room(worker) == ["bob"]


def test_a_deploy_that_sets_events_empties_no_room(start: Start) -> None:
    before = start(**RULE)
    before.saw("ann", room="/t/1")
    after_deploy = start(**RULE, clock=before.clock, events="user")
    after_deploy.saw("bob", room="/t/1")
    assert room(before) == room(after_deploy) == ["ann", "bob"]


@pytest.mark.parametrize("names", [["seen"], ["seen", "at", "progress", "moved", "writers"]])
def test_lost_rooms_are_written_again(start: Start, names: list[str]) -> None:
    one = start(**RULE)
    other = start(**RULE, clock=one.clock)
    one.did("ann", "bob", room="/t/1")
    one.clock.now += 0.25
    other.saw("bob", room="/t/2")
    one.clock.now += 0.25
    one.saw("bob")
    one.run(send("DEL", *(f"{one.store.all[0].name}:{name}" for name in names)))
    assert room(one) == []
    for worker in (one, other):
        worker.saw("dan")  # finds the loss
        worker.writes()
    assert room(one, "/t/1") == ["ann"]
    assert room(one, "/t/2") == ["bob"]


def test_after_a_loss_nobody_is_in_a_room_from_before_they_were_offline(start: Start) -> None:
    worker = start(**RULE)
    worker.saw("ann", "bob", room="/t/1")
    worker.clock.now += WINDOW / 2
    worker.saw("bob")
    worker.clock.now += WINDOW / 2
    worker.saw("ann", "bob")
    assert room(worker) == ["bob"]
    worker.run(send("DEL", worker.store.keys(worker.clock.now)[0]))
    worker.saw("dan")  # finds the loss
    worker.writes()
    assert room(worker) == ["bob"]
    worker.run(send("DEL", worker.store.all[0].key.progress))  # as a server that evicts keys
    assert room(worker) == []
    worker.saw("dan")
    assert room(worker) == []


def test_a_room_that_was_left_in_an_outage_is_not_entered_again(start: Start) -> None:
    worker = start(**RULE, pulse_path="/pulse")
    worker.saw("ann", room="/t/1")
    worker.clock.now += 1
    worker.did("ann", room="/t/2")
    worker.did("ann", act=Act.GOODBYE)
    worker.clock.now += worker.settings.grace_seconds
    worker.saw("ann")
    assert (worker.online(), room(worker), room(worker, "/t/2")) == (["ann"], [], [])


def test_a_page_that_is_written_after_its_window_is_no_room(start: Start) -> None:
    one = start(**RULE)
    other = start(**RULE, clock=one.clock)
    one.saw("bob")  # so that it is known up to when rooms were left
    one.did("ann", room="/t/1")
    one.clock.now += WINDOW
    other.saw("ann")
    one.writes()
    assert (one.online(), room(one)) == (["ann"], [])


def test_a_room_loses_those_whom_a_process_without_rooms_has_removed(start: Start) -> None:
    """As in a deploy that switches rooms on: processes with the old settings go on for a while."""
    worker, people = start(**RULE), [f"user{number}" for number in range(400)]
    worker.saw(*people, room="/t/1")
    worker.run(send("ZREM", f"{worker.store.all[0].name}:seen", *people[:300]))
    worker.clean_up()
    assert room(worker) == sorted(people[300:])


@pytest.mark.parametrize("renew", [lambda worker: worker.saw("bob"), Process.sweep])
def test_rooms_are_forgotten_where_no_process_has_any_for_a_window(
    start: Start, renew: Callable[[Process], object]
) -> None:
    """Without rooms, nobody leaves one: whoever is online may have left it long ago."""
    worker = start(**RULE)
    worker.saw("ann", room="/t/1")
    for key in ("at", "moved"):
        name = f"{worker.store.all[0].name}:{key}"
        assert WINDOW < worker.run(send("TTL", name)) <= WINDOW + SLACK
        worker.run(send("EXPIRE", name, 60))
        for process, is_renewed in ((start(clock=worker.clock), False), (worker, True)):
            renew(process)
            assert (worker.run(send("TTL", name)) > WINDOW) is is_renewed


def test_kinds_have_their_own_rooms_and_counts_names_those_that_can(start: Start) -> None:
    kinds = {"store": "user=sorted-set, guest=sorted-set, bot=hyperloglog", "bots": "count"}
    worker = start(rooms="/t/{topic}/*", **kinds)
    worker.did("ann", room="/t/1")
    worker.saw("g1", "g2", kind="guest", room="/t/1")
    assert worker.presence.counts(room="/t/1") == {"user": 1, "guest": 2}
    assert worker.presence.counts() == {"user": 1, "guest": 2, "bot": 0}
    assert worker.presence.count(room="/t/1/a-title/2") == 1
    assert worker.presence.count(room="/t/2") == 0
    assert room(worker, kind="guest") == ["g1", "g2"]
    with pytest.raises(UnsupportedQuery, match=r"kind 'bot' has no rooms: .* sorted-set.*_STORE"):
        worker.presence.count("bot", room="/t/1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": "5m"}, "window is '5m': with room, pass no window"),
        ({"before": ("ann", None)}, "before is .*: with room, pass no before"),
        ({"limit": 0}, "at least 1, or None"),
        ({"room": 7}, "room is 7: pass the name of a room"),
        ({"room": ""}, "room is '': pass the name of a room"),
        ({"kind": "cat"}, "unknown kind 'cat'"),
    ],
)
def test_an_argument_that_a_room_cannot_have_is_refused(
    start: Start, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        start(**RULE).presence.online(**{"room": "/t/1", **arguments})


def test_a_site_without_rooms_says_which_setting_has_them(start: Start) -> None:
    presence = start(pulse_path="/pulse").presence
    for ask in (presence.count, presence.counts, presence.online):
        with pytest.raises(UnsupportedQuery, match="set PRESENCE_ROOMS to paths"):
            ask(room="/t/1")


# Requests through both wrappers.

NAVIGATE = {"sec-fetch-mode": "navigate"}


def view(
    path: str, user: str = "ann", mount: str = "", enters: str | None = None, **headers: str
) -> Call:
    def handle(state: State) -> None:
        if enters is not None:
            state["presence_middleware.visit"].enter(enters)

    state = {"SCRIPT_NAME": mount, "root_path": mount, "path": mount + path}
    return Call({"X-User": user, **headers}, path, before=handle, state=state)


PEOPLE: dict[str, tuple[Any, ...]] = {
    "pages move, calls do not, and a page without a room takes out": (
        "/t/{topic}/*, /docs/*",
        view("/t/42/some-title", **NAVIGATE),
        view("/docs/x/y", "bob"),
        {"/t/42": ["ann"], "/docs": ["bob"]},
        view("/api/vote", **{"sec-fetch-mode": "cors"}),
        view("/logo.png", **{"sec-fetch-mode": "no-cors"}),
        view("/api/vote"),
        {"/t/42": ["ann"]},
        view("/docs/z"),
        {"/t/42": [], "/docs": ["ann", "bob"]},
        view("/", **NAVIGATE),
        {"/docs": ["bob"]},
    ),
    "rules mean the path below the mount point": (
        "/t/{topic}, /shop/{any}",
        view("/t/1", mount="/shop"),
        view("/t/1", "bob"),
        view("/shop/t", "eve", mount="/shop"),
        {"/t/1": ["ann", "bob"], "/shop/t": ["eve"]},
    ),
    "a passive request moves nobody": (
        "/t/{topic}, /docs/*",
        view("/t/1"),
        view("/t/2", presence="passive"),
        view("/docs/health"),
        {"/t/1": ["ann"], "/docs": []},
    ),
    "a handler names a room, which replaces that of the path": (
        "/t/{topic}/*",
        view("/t/1", enters="chat:7"),
        {"chat:7": ["ann"], "/t/1": []},
        view("/api", enters="/t/5/a-title"),
        {"chat:7": [], "/t/5": ["ann"]},
        view("/t/1", enters=""),
        {"/t/5": [], "/t/1": []},
    ),
    "named rooms need no rule": (
        "named",
        view("/t/1", **NAVIGATE, enters="chat:7"),
        {"chat:7": ["ann"]},
        view("/t/1"),
        {"chat:7": ["ann"]},
        view("/t/1", **NAVIGATE),
        {"chat:7": []},
    ),
}
"""The rooms of a site, and requests in turn, with who is in which room after them."""


@pytest.fixture
def visited(unwritten: Callable[..., Settings]) -> Callable[..., Settings]:
    """Make the settings of a site that writes when the test lets it."""
    given = {"identity": IDENTITY, "exclude": "/docs/health", "bots": "off"}
    return lambda rooms="/t/{topic}", **more: unwritten(rooms=rooms, **{**given, **more})


both = pytest.mark.parametrize("ask", [over_wsgi, over_asgi])


@both
@pytest.mark.parametrize("name", PEOPLE)
def test_requests_move_people(
    name: str, ask: Ask, visited: Callable[..., Settings], caplog: pytest.LogCaptureFixture
) -> None:
    rooms, *steps = PEOPLE[name]
    here = visited(rooms)
    presence, users = Presence(here), set[str]()
    for step in steps:
        if isinstance(step, Call):
            users.add(step.headers["X-User"])
            ask(here, step)
            continue
        assert recorder_for(here).flush()
        assert {room: [who.id for who in presence.online(room=room)] for room in step} == step
        assert {room: presence.count(room=room) for room in step} == {
            room: len(ids) for room, ids in step.items()
        }
    assert presence.count() == len(users)
    assert "enter()" not in caplog.text


@both
def test_a_room_without_the_setting_is_a_warning_once(
    ask: Ask, visited: Callable[..., Settings], caplog: pytest.LogCaptureFixture
) -> None:
    here = visited("")
    for user in ("ann", "bob"):
        ask(here, view("/t/1", user, enters="chat:7"))
    (warning,) = [line for line in caplog.messages if "visit.enter() does nothing" in line]
    assert "PRESENCE_ROOMS" in warning
    recorder_for(here).flush()
    assert Presence(here).count() == 2


@both
def test_a_room_that_is_no_text_is_refused(ask: Ask, visited: Callable[..., Settings]) -> None:
    number: Any = 7
    with pytest.raises(QueryError, match="room is a int: pass text such as 'chat:7'"):
        ask(visited(), view("/t/1", enters=number))


def test_an_open_connection_does_not_pull_its_user_back(start: Start) -> None:
    worker = start(rooms="named")
    visits = [worker.opens("ann") for _ in range(2)]
    for number, visit in enumerate(visits, 1):
        worker.clock.now += 1
        visit.enter(f"chat:{number}")
    for _ in range(20):
        worker.passes(60, step=60)
        assert (room(worker, "chat:1"), room(worker, "chat:2")) == ([], ["ann"])
    for visit in visits:
        visit.end()
    worker.writes()
    assert room(worker, "chat:2") == ["ann"]


# Many leave a room at once: whoever counts it next does not wait for them.


SERVER_SECONDS = 0.05  # of a count; the sweep of a hundred thousand who have gone took 0.5 to 0.8


class Crowd(Process):
    """A site whose people are in rooms; the upkeep sweeps when the test says so."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(by_header(url, prefix, rooms="/t/{topic}"))
        self.prefix = f"{prefix}:user"
        self.shard = self.store.all[0]

    def enter(self, name: str, number: int, rooms: int = 1) -> None:
        """So many people enter rooms in turn. All but the first as the script would write them."""
        moment = int(self.clock.now * 1e6)
        move: Move = room_number("/t/0"), moment
        seen = [(f"{name}0", moment, moment, move)][:number]
        self.run(self.shard.write(seen, []))
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
def crowd(valkey: Server, patience: str, prefix: str) -> Crowd:
    return Crowd(valkey.url + patience, prefix)


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
    run, now, room = crowd.run, crowd.clock.now, room_number("/t/0")
    shard, expected, batches = crowd.shard, {f"here{n}" for n in range(20)}, 0
    plan: Any = shard.online_in_room(room, now, 100)
    if wanted == "a number":
        plan = shard.count_in_room(room, now)

    def trip(batch: Batch) -> Plan[Any]:
        nonlocal batches
        replies = yield batch
        if isinstance(replies[0], ScriptMissing):  # of the first read of a server
            return replies
        batches += 1
        if between_pages == "a logout" and batches == 1:
            last = replies[0][1].decode()  # the id after which to go on
            run(shard.write([], [(Act.LEFT, last, int(now * 1e6), None)]))
            expected.discard(last)
        elif "sweep" in between_pages:
            while run(shard.sweep(now)) and between_pages == "all sweeps":
                pass
        return replies

    result = run(by_trips(plan, trip))
    assert batches > 1
    assert result == len(expected) if wanted == "a number" else {s.id for s in result} == expected


def test_a_room_of_more_than_are_looked_up_at_once_counts_each_once(crowd: Crowd) -> None:
    crowd.turn_over(2002, 1001)
    assert crowd.presence.count(room="/t/0") == 1001


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
