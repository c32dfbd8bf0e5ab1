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
from presence_middleware.connections.clients import sync_client
from presence_middleware.recorder import Recorder
from presence_middleware.stores import NOWHERE, moment_of, room_number
from tests.support.backends import Backend, Server, matrix
from tests.support.room_model import Model, Waiting
from tests.support.timed_site import NOON, WINDOW, Clock, Site, opened, settings

PEOPLE = ["ann", "bob", "cid", "dan", "eve"]
ROOMS = ["/t/1", "/t/2", "chat:7"]
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
    st.tuples(st.just("bye"), workers, ids),
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
        if not self.workers[worker].buffer.pending:
            self.oldest[worker] = now
        waiting.seen, waiting.move = now, move or waiting.move
        entrance = None
        if move is not None:
            entrance = (room_number(move[0]) if move[0] else NOWHERE, now)
        self.workers[worker].record(("user", id), now, now, entrance)

    def flush(self, worker: int) -> None:
        assert self.workers[worker].flush()
        for id, waiting in self.waiting[worker].items():
            self.model.sees(id, waiting.seen, waiting.move, waiting.seen)
        self.waiting[worker] = {}

    def wait(self, seconds: float) -> None:
        for worker in range(2):
            if self.waiting[worker] and self.clock.now + seconds > self.oldest[worker] + LATE:
                self.flush(worker)
        self.clock.now += seconds
        self.compare()

    def leave(self, id: str) -> None:
        self.site.presence.leave(id)
        self.model.departs(id, self.clock.now, "leave")

    def forget(self, id: str) -> None:
        self.site.presence.forget(id)
        self.model.departs(id, self.clock.now, "forget")

    def bye(self, worker: int, id: str) -> None:
        self.flush(worker)
        self.workers[worker].say_goodbye(("user", id), self.clock.now)
        self.workers[worker].flush()
        self.model.departs(id, self.clock.now, "bye")

    def clean_up(self) -> None:
        backend = self.workers[0].backend
        for shard in backend.stores["user"].all:
            while backend.driver.run(shard.clean_up(self.clock.now, is_server_time=False)):
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
@pytest.mark.parametrize("mode", ["sync", "async"])
@examples(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=40))
def test_rooms_and_last_seen_times_are_those_of_the_model(
    backend: Backend, mode: str, steps: list[tuple[Any, ...]]
) -> None:
    with ExitStack() as stack:
        Compared(backend, mode, stack).run(steps)
