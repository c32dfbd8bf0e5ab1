"""Who comes online and who goes offline is announced once, whatever happens.

A machine runs random operations on the stores with a clock of its own. An id has been announced
online exactly if its last-seen time is later than the cut of its shard.
"""

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from presence_middleware import EventsLost, Settings
from presence_middleware.backend import Backend
from presence_middleware.stores.events import EventStream
from presence_middleware.stores.record import Write, to_microseconds
from tests.support.backends import Server

WINDOW, LAG = 600, 5.0
NOON = 1_767_614_400.0
IDS = st.sampled_from([f"id{n}" for n in range(8)])


class Announcing(RuleBasedStateMachine):
    """Records, departs and sweeps as several processes do; follows the streams as a reader does."""

    url = ""
    shards = 1

    @initialize()
    def begin(self) -> None:
        self.now = NOON
        self.site = Settings.from_env(
            {},
            redis_url=self.url.format(unique=uuid.uuid4().hex),
            prefix=f"t{uuid.uuid4().hex[:12]}",
            identity="user=header:x-user",
            events="user",
            shards=self.shards,
            max_members=64,
        )
        self.backend = Backend(self.site, clock=lambda: self.now)
        self.store = self.backend.stores["user"]
        self.streams = [
            EventStream(shard.name.removesuffix(":user"), "user") for shard in self.store.all
        ]
        self.run = self.backend.driver.run
        self.positions = [self.run(stream.position(0.0)) for stream in self.streams]
        self.online: set[str] = set()

    def record(self, id: str, moment: float) -> None:
        stamp = to_microseconds(moment)
        write = Write("process", to_microseconds(self.now))
        moves = {id: (1 + stamp % 3, stamp)} if stamp % 2 else {}
        self.run(self.store.shard_for(id).record([(id, stamp, stamp)], write, moves))

    @rule(id=IDS, late=st.one_of(st.just(0.0), st.floats(0, 2 * WINDOW)))
    def is_seen(self, id: str, late: float) -> None:
        self.record(id, self.now - late)

    @rule(ids=st.lists(IDS, min_size=2, unique=True))
    def are_seen(self, ids: list[str]) -> None:
        for id in ids:
            self.record(id, self.now)

    @rule(id=IDS, late=st.sampled_from([0.0, 3.0, 100.0]), erase=st.booleans())
    def leaves(self, id: str, late: float, erase: bool) -> None:
        shard = self.store.shard_for(id)
        self.run(shard.depart(id, self.now - late, is_server_time=False, erase=erase))

    @rule(id=IDS, late=st.sampled_from([0.0, 3.0, 100.0]))
    def says_goodbye(self, id: str, late: float) -> None:
        self.run(self.store.shard_for(id).say_goodbye(id, self.now - late, is_server_time=False))

    @rule(seconds=st.one_of(st.floats(0, 20), st.floats(0, 2 * WINDOW)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=st.floats(0, 1000))
    def the_clock_is_set_back(self, seconds: float) -> None:
        self.now -= seconds

    @rule()
    def anyone_sweeps(self) -> None:
        for shard in self.store.all:
            while self.run(shard.sweep(self.now)).has_more:
                pass

    @rule(is_server_time=st.booleans())
    def anyone_cleans_up(self, is_server_time: bool) -> None:
        for shard in self.store.all:
            while self.run(shard.clean_up(self.now, is_server_time=is_server_time)):
                pass

    @rule(key=st.sampled_from(["seen", "edge", "events", "bye", "all"]))
    def data_is_lost(self, key: str) -> None:
        names = ["seen", "edge", "events", "bye", "left", "writers"] if key == "all" else [key]
        for shard in self.store.all:
            self.run(_delete([f"{shard.name}:{name}" for name in names]))
        for n in range(8):  # a loss is noticed with the next write to the shard
            self.record(f"id{n}", self.now)

    @invariant()
    def what_was_announced_is_true(self) -> None:
        for number, stream in enumerate(self.streams):
            shard = self.store.all[number]
            try:
                reading = self.run(stream.read(self.positions[number]))
            except EventsLost:
                self.positions[number] = self.run(stream.position(0.0))
                self.online -= {id for id in self.online if self.store.shard_for(id) is shard}
                self.online |= self._announced(shard)
                continue
            self.positions[number] = reading.position
            changes = [change for each in reading.announcements for change in each.changes]
            for change in changes:
                assert change.is_online == (change.id not in self.online), change
                (self.online.add if change.is_online else self.online.remove)(change.id)
            told = {id for id in self.online if self.store.shard_for(id) is shard}
            assert told == self._announced(shard)

    def _announced(self, shard: Any) -> set[str]:
        cut, members = self.run(_read(shard.name))
        if cut is None:
            return set()
        return {
            id.decode() if isinstance(id, bytes) else id for id, at in members if at > float(cut)
        }


def _delete(names: list[str]) -> Any:
    from presence_middleware.stores import Batch

    yield Batch(tuple(("DEL", name) for name in names))


def _read(name: str) -> Any:
    from presence_middleware.stores import Batch
    from presence_middleware.stores.plan import members_with_scores

    cut, members = yield Batch(
        (("HGET", f"{name}:edge", "cut"), ("ZRANGE", f"{name}:seen", 0, -1, "WITHSCORES"))
    )
    return cut, members_with_scores(members)


@pytest.mark.parametrize("shards", [1, 16])
def test_announcements(valkey: Server, shards: int) -> None:
    machine = type("Machine", (Announcing,), {"url": valkey.url, "shards": shards})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=300,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
