"""Who is in which room: compared with a model, and in each case that can go wrong."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from presence_middleware import Presence, QueryError, UnsupportedQuery
from presence_middleware.people import Room
from presence_middleware.recorder import Recorder
from presence_middleware.stores import NOWHERE, Act, moment_of, room_number
from tests.support.backends import Backend, Server, matrix
from tests.support.room_model import Model, Waiting
from tests.support.timed_site import NOON, WINDOW, Clock, Site, opened, settings

PEOPLE = ["ann", "bob", "cid"]
ROOMS = ["/t/1", "chat:7"]
LATE = 100.0  # seconds: a process writes sooner than that
GRACE = 75.0
WHERE = [
    *("memory", "valkey", "valkey/16"),
    *matrix("cluster", "cluster/16", "memory/16"),
    *matrix("redis_server", "redis_server/16", "redis62"),
]

ids = st.sampled_from(PEOPLE)
workers = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("view"), workers, ids, st.sampled_from(ROOMS)),
    st.tuples(st.just("view"), workers, ids, st.sampled_from(ROOMS)),
    st.tuples(st.just("view"), workers, ids, st.just("")),
    st.tuples(st.just("call"), workers, ids),
    st.tuples(st.just("flush"), workers),
    st.tuples(st.just("flush"), workers),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 40.0, 90.0, 300.0, 700.0])),
    st.tuples(st.sampled_from(["leave", "forget"]), ids),
    st.tuples(st.sampled_from(["logout", "bye"]), workers, ids),
    st.tuples(st.just("clean up")),
)


class Compared:
    """A site with two workers, and the model of it."""

    def __init__(self, backend: Backend, mode: str, stack: ExitStack) -> None:
        prefix = f"t{uuid.uuid4().hex[:12]}"
        given = settings(
            backend.url,
            prefix,
            shards=backend.shards,
            rooms="/t/{topic}",
            identity="user=header:x-user",
            flush_interval="3m",
        )
        self.site = stack.enter_context(opened(given, mode))
        self.clock = self.site.clock
        self.workers = [Recorder(given, clock=self.clock, background=False) for _ in range(2)]
        self.waiting: list[dict[str, Waiting]] = [{}, {}]
        self.oldest = [NOON] * 2
        self.model = Model(WINDOW, WINDOW - GRACE)

    def run(self, steps: list[tuple[Any, ...]]) -> None:
        for name, *arguments in steps:
            self.clock.now += 0.25
            getattr(self, name.replace(" ", "_"))(*arguments)
        self.compare()
        for worker in range(2):
            self.flush(worker)
            self.compare()

    def view(self, worker: int, id: str, room: str) -> None:
        self._see(worker, id, (room, self.clock.now))

    def call(self, worker: int, id: str) -> None:
        self._see(worker, id, None)

    def _see(self, worker: int, id: str, move: tuple[str, float] | None) -> None:
        now = self.clock.now
        waiting = self.waiting[worker].setdefault(id, Waiting())
        if not self.workers[worker].people.pending:
            self.oldest[worker] = now
        waiting.seen, waiting.move = now, move or waiting.move
        entrance = None
        if move is not None:
            entrance = Room(room_number(move[0]) if move[0] else NOWHERE, now)
        self.workers[worker].record(("user", id), now, room=entrance)

    def flush(self, worker: int) -> None:
        assert self.workers[worker].flush()
        for id, waiting in self.waiting[worker].items():
            self.model.writes(id, waiting)
        self.waiting[worker] = {}

    def wait(self, seconds: float) -> None:
        for worker in range(2):
            if self.waiting[worker] and self.clock.now + seconds > self.oldest[worker] + LATE:
                self.flush(worker)
        self.clock.now += seconds
        self.compare()

    def logout(self, worker: int, id: str) -> None:
        waiting = self.waiting[worker].setdefault(id, Waiting())
        waiting.logout = self.clock.now
        self.workers[worker].record(("user", id), self.clock.now, act=Act.LEFT)

    def leave(self, id: str) -> None:
        self.site.presence.leave(id)
        self.model.departs(id, self.clock.now, "leave")

    def forget(self, id: str) -> None:
        self.site.presence.forget(id)
        self.model.departs(id, self.clock.now, "forget")

    def bye(self, worker: int, id: str) -> None:
        self.flush(worker)
        self.workers[worker].record(("user", id), self.clock.now, act=Act.GOODBYE)
        self.workers[worker].flush()
        self.model.departs(id, self.clock.now, "bye")

    def clean_up(self) -> None:
        backend = self.workers[0].backend
        for shard in backend.stores["user"].all:
            while backend.driver.run(shard.clean_up(self.clock.now)):
                pass
        self.model.sweep(self.clock.now)

    def compare(self) -> None:
        presence, model, now = self.site.presence, self.model, self.clock.now
        model.sweep(now)
        online = model.online(now)
        assert presence.count() == len(online)
        assert {who.id for who in presence.online(limit=None)} == online
        for room in ROOMS:
            people = model.in_room(room)
            assert presence.count(room=room) == len(people), room
            assert presence.counts(room=room) == {"user": len(people)}
            listed = presence.online(room=room, limit=None)
            assert [who.id for who in listed] == people
            assert [who.id for who in presence.online(room=room, limit=1)] == people[:1]
            assert {who.id: who.last_seen for who in listed} == {
                id: presence.last_seen(id) for id in people
            }
        moments = {id: person.last_seen for id, person in model.people.items()}
        expected = {id: moments.get(id, 0) for id in PEOPLE}
        assert presence.last_seen_among(PEOPLE) == {
            id: moment_of(moment) if moment > 0 else None for id, moment in expected.items()
        }
        assert {id: presence.last_seen(id) for id in PEOPLE} == presence.last_seen_among(PEOPLE)


@pytest.mark.parametrize("backend", WHERE, indirect=True)
@pytest.mark.parametrize("mode", ["sync", *matrix("async")])
@examples(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=50))
def test_rooms_and_last_seen_times_are_those_of_the_model(
    backend: Backend, mode: str, steps: list[tuple[Any, ...]]
) -> None:
    with ExitStack() as stack:
        Compared(backend, mode, stack).run(steps)


class Workers:
    """A site with rooms and two workers that write when the test says so."""

    def __init__(self, url: str, prefix: str, **given: Any) -> None:
        overrides = {"rooms": "/t/{topic}", "identity": "user=header:x-user, guest=visitor"}
        self.site = Site(settings(url, prefix, **{**overrides, **given}))
        self.clock, self.presence, self.redis = self.site.clock, self.site.presence, self.site.redis
        self.one, self.other = self.worker(), self.worker()

    def worker(self) -> Recorder:
        return Recorder(self.site.settings, clock=self.clock, background=False)

    def view(self, worker: Recorder, room: str, *ids: str, kind: str = "user") -> None:
        """Ids open a page of a room; "" is a page in no room."""
        self.clock.now += 0.25
        number = room_number(room) if room else NOWHERE
        for id in ids:
            worker.record((kind, id), self.clock.now, room=Room(number, self.clock.now))

    def call(self, worker: Recorder, *ids: str) -> None:
        """Ids are seen by requests that are no pages."""
        self.clock.now += 0.25
        for id in ids:
            worker.record(("user", id), self.clock.now)

    def room(self, room: str = "/t/1", kind: str = "user") -> list[str]:
        """Who is in a room; by its list and by its number."""
        ids = [who.id for who in self.presence.online(kind, room=room, limit=None)]
        assert self.presence.count(kind, room=room) == len(ids)
        return ids

    def key(self, name: str) -> str:
        return f"{self.site.settings.prefix}:user:{name}"


Open = Callable[..., Workers]


@pytest.fixture
def site(valkey: Server, prefix: str) -> Iterator[Open]:
    sites: list[Workers] = []

    def open_site(**given: Any) -> Workers:
        sites.append(Workers(valkey.url, prefix, **given))
        return sites[-1]

    yield open_site
    for each in sites:
        each.site.close()


def test_a_page_that_is_written_after_a_later_call_of_another_worker_keeps_its_room(
    site: Open,
) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann")
    workers.call(workers.other, "ann")
    workers.other.flush()
    assert workers.room() == []
    workers.one.flush()
    assert workers.room() == ["ann"]


def test_the_latest_page_counts_in_whatever_order_workers_write(site: Open) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann", "bob")
    workers.view(workers.other, "/t/2", "ann")
    workers.view(workers.other, "", "bob")
    workers.other.flush()
    workers.one.flush()
    assert workers.room("/t/1") == []
    assert workers.room("/t/2") == ["ann"]


@pytest.mark.parametrize("manner", ["leave", "forget"])
def test_a_page_from_before_a_departure_is_no_room_afterwards(site: Open, manner: str) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann")
    workers.clock.now += 0.25
    getattr(workers.presence, manner)("ann")
    workers.call(workers.one, "ann")
    workers.one.flush()
    assert workers.presence.is_online("ann")
    assert workers.room() == []
    workers.view(workers.one, "/t/1", "ann")
    workers.one.flush()
    assert workers.room() == ["ann"]


def test_a_logout_and_a_page_right_after_it_is_a_room(valkey: Server, prefix: str) -> None:
    """By the clock of the server, the page may seem to be the earlier of the two."""
    given = settings(valkey.url, prefix, rooms="/t/{topic}", flush_interval="3m")
    worker, presence = Recorder(given, background=False), Presence(given)
    for _ in range(20):
        for room in ("/t/1", "/t/2"):
            stamp = worker.stamp()
            worker.record(("user", "ann"), stamp, act=Act.LEFT)
            entrance = Room(room_number(room), stamp + 1e-9)
            worker.record(("user", "ann"), stamp + 1e-9, room=entrance)
            assert worker.flush()
            assert presence.count(room=room) == 1
    worker.close()


def test_an_erased_id_is_in_no_key(site: Open) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann", "bob")
    workers.one.flush()
    workers.presence.forget("ann")
    held = workers.site.held()
    assert "bob" in held[workers.key("at")]
    assert not [key for key, ids in held.items() if "ann" in ids]
    assert workers.redis.zrange(workers.key("moved"), 0, -1) == [b"bob"]


def test_an_id_that_moved_some_minutes_ago_is_erased_too(site: Open) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann", "bob")
    workers.one.flush()
    workers.clock.now += 30
    workers.room()
    assert workers.redis.zrange(workers.key("moved"), 0, -1) == [b"ann", b"bob"]
    workers.presence.forget("ann")
    assert workers.redis.zrange(workers.key("moved"), 0, -1) == [b"bob"]


def test_ids_beyond_the_cap_are_in_no_room_and_removed_ids_leave_theirs(site: Open) -> None:
    workers = site(max_members=2)
    workers.view(workers.one, "/t/1", "ann", "bob", "cid")
    workers.one.flush()
    assert workers.room() == ["ann", "bob"]
    workers.clock.now += WINDOW
    workers.view(workers.one, "/t/1", "dan", "eve", "fay")
    workers.one.flush()
    assert len(workers.room()) == workers.presence.count() == 2
    assert set(workers.room()) <= {"dan", "eve", "fay"}
    assert len(workers.site.held()[workers.key("at")]) == 3  # with the mark


def test_processes_with_different_windows_empty_no_room(site: Open) -> None:
    """A deploy that changes `PRESENCE_WINDOW` replaces one process after the other."""
    before, after_deploy = site(), site(window=2 * WINDOW)
    before.view(before.one, "/t/1", "ann")
    before.one.flush()
    before.clock.now += WINDOW + 50
    before.view(before.one, "/t/1", "bob")
    before.one.flush()
    after_deploy.clock.now = before.clock.now
    for workers in (before, after_deploy, before, after_deploy):
        assert workers.room() == ["bob"]


@pytest.mark.parametrize("name", ["progress", "at", "seen", "moved"])
def test_an_evicted_key_leaves_no_ids_in_rooms_that_are_offline(site: Open, name: str) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann", "bob")
    workers.view(workers.other, "/t/1", "cid")
    workers.one.flush()
    workers.other.flush()
    workers.redis.delete(workers.key(name))
    assert len(workers.room()) <= workers.presence.count()
    workers.view(workers.one, "/t/1", "ann")
    workers.one.flush()
    assert "ann" in workers.room()
    assert len(workers.room()) <= workers.presence.count()
    workers.clock.now += WINDOW - 1
    workers.view(workers.one, "/t/1", "dan")
    workers.one.flush()
    workers.clock.now += 2
    assert workers.room() == ["dan"]


@pytest.mark.parametrize("name", ["progress", "at", "seen"])
def test_an_evicted_key_is_found_by_whoever_writes_first(site: Open, name: str) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann", "bob")  # a worker that does not come back
    workers.one.flush()
    workers.redis.delete(workers.key(name))
    workers.view(workers.other, "/t/1", "cid")
    workers.other.flush()
    assert workers.site.held()[workers.key("at")] == ["", "cid"]
    assert workers.room() == ["cid"]


@pytest.mark.parametrize("names", [["seen"], ["seen", "at", "progress", "moved", "writers"]])
def test_lost_rooms_are_written_again(site: Open, names: list[str]) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann", "bob")
    workers.view(workers.other, "/t/2", "bob")
    workers.call(workers.one, "bob")
    workers.one.flush()
    workers.other.flush()
    workers.redis.delete(*map(workers.key, names))
    assert workers.room() == []
    for worker in (workers.one, workers.other):
        workers.call(worker, "dan")
        worker.flush()  # finds the loss
        worker.flush()
    assert workers.room("/t/1") == ["ann"]
    assert workers.room("/t/2") == ["bob"]


def test_a_page_of_an_outage_longer_than_the_window_is_no_room(site: Open) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann")
    workers.clock.now += WINDOW + 10
    workers.view(workers.other, "/t/2", "bob")
    workers.other.flush()
    assert workers.room("/t/2") == ["bob"]
    workers.one.flush()
    assert workers.room("/t/1") == []
    assert workers.site.held()[workers.key("at")] == ["", "bob"]


def test_an_old_page_is_no_room_after_moves_are_forgotten(site: Open) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann")
    workers.view(workers.other, "/t/2", "ann", "bob")
    workers.other.flush()
    for _ in range(6):
        workers.clock.now += 130
        workers.call(workers.other, "ann", "bob")
        workers.other.flush()
        assert workers.room("/t/2") == ["ann", "bob"]
        backend = workers.one.backend
        backend.driver.run(backend.stores["user"].all[0].sweep(workers.clock.now))
    assert not workers.redis.exists(workers.key("moved"))
    workers.one.flush()
    assert workers.room("/t/1") == []
    assert workers.room("/t/2") == ["ann", "bob"]


def test_moves_are_compared_for_longer_than_a_flush_interval(site: Open) -> None:
    workers = site(flush_interval="3m")
    workers.view(workers.other, "/t/1", "bob")
    workers.other.flush()
    workers.room()
    workers.view(workers.one, "/t/1", "ann")
    for _ in range(2):
        workers.clock.now += 125
        assert workers.room() == ["bob"]
    workers.one.flush()
    assert workers.room() == ["ann", "bob"]


def test_a_clock_that_is_set_back_empties_rooms_and_they_fill_again(site: Open) -> None:
    workers = site()
    workers.view(workers.one, "/t/1", "ann")
    workers.one.flush()
    workers.clock.now += 5
    assert workers.room() == ["ann"]
    workers.clock.now += WINDOW + 5
    assert workers.room() == []
    workers.clock.now -= WINDOW + 3600
    assert workers.room() == []
    workers.view(workers.other, "/t/1", "bob")
    workers.other.flush()
    assert workers.room() == ["bob"]


def test_a_goodbye_that_is_written_late_takes_out_of_the_room_at_once(site: Open) -> None:
    workers = site(pulse_path="/pulse")
    workers.view(workers.one, "/t/1", "ann", "bob")
    workers.one.flush()
    workers.one.record(("user", "ann"), workers.clock.now, act=Act.GOODBYE)
    workers.clock.now += 100
    workers.call(workers.other, "bob")
    workers.other.flush()
    workers.view(workers.other, "/t/2", "cid")
    workers.other.flush()
    workers.clock.now += 100
    assert workers.room() == ["ann", "bob"]
    workers.one.flush()
    assert workers.room() == ["bob"]
    assert workers.presence.count() == 2


def test_a_room_loses_those_whom_a_process_without_rooms_has_removed(site: Open) -> None:
    """As in a deploy that switches rooms on: processes with the old settings go on for a while."""
    workers = site()
    people = [f"user{number}" for number in range(400)]
    workers.view(workers.one, "/t/1", *people)
    workers.one.flush()
    workers.redis.zrem(workers.key("seen"), *people[:300])
    backend = workers.one.backend
    for _ in range(20):
        backend.driver.run(backend.stores["user"].all[0].clean_up(workers.clock.now))
    assert workers.room() == sorted(people[300:])


def test_many_who_go_at_once_leave_their_room(site: Open) -> None:
    workers = site()
    people = [f"user{number}" for number in range(2000)]
    workers.view(workers.one, "/t/1", *people)
    workers.one.flush()
    workers.clock.now += WINDOW
    workers.view(workers.one, "/t/1", "ann")
    workers.one.flush()
    assert workers.room() == ["ann"]


def test_kinds_have_their_own_rooms_and_counts_names_those_that_can(site: Open) -> None:
    workers = site(store="user=sorted-set, guest=sorted-set, bot=hyperloglog", bots="count")
    workers.view(workers.one, "/t/1", "ann")
    workers.view(workers.one, "/t/1", "g1", "g2", kind="guest")
    workers.one.flush()
    assert workers.presence.counts(room="/t/1") == {"user": 1, "guest": 2}
    assert workers.room(kind="guest") == ["g1", "g2"]
    with pytest.raises(UnsupportedQuery, match=r"kind 'bot' has no rooms: .* sorted-set.*_STORE"):
        workers.presence.count("bot", room="/t/1")


def test_a_room_has_any_path_in_it_as_its_name(site: Open) -> None:
    workers = site(rooms="/t/{topic}/*")
    workers.view(workers.one, "/t/1", "ann")
    workers.one.flush()
    assert workers.presence.count(room="/t/1/a-title/2") == 1
    assert workers.presence.count(room="/t/2") == 0


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
    site: Open, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        site().presence.online(**{"room": "/t/1", **arguments})


def test_a_site_without_rooms_says_which_setting_has_them(valkey: Server, prefix: str) -> None:
    presence = Presence(settings(valkey.url, prefix, pulse_path="/pulse"), clock=Clock())
    for ask in (presence.count, presence.counts, presence.online):
        with pytest.raises(UnsupportedQuery, match="set PRESENCE_ROOMS to paths"):
            ask(room="/t/1")
