"""Who comes online and who goes offline is announced once, whatever happens.

A machine runs random operations on the stores with a clock of its own. An id has been announced
online exactly if its last-seen time is later than the cut of its shard.
"""

import uuid
from contextlib import suppress
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

from presence_middleware import EventsLost, PresenceUnavailable, Settings
from presence_middleware.backend import Backend
from presence_middleware.stores import Act, Batch, Plan, Store, Write, merge_plans, run_all
from presence_middleware.stores.changes import to_microseconds
from presence_middleware.stores.plan import members_with_scores, score
from tests.support.followed_site import KEYS

NOON = 1_767_614_400.0
PEOPLE = [f"id{n}" for n in range(8)]
IDS = st.sampled_from(PEOPLE)
# What may happen between a loss and the write that notices it.
UNAWARE = ["touch", "leave", "goodbye", "clean up", "sweep"]


class Announcing(RuleBasedStateMachine):
    """Records, departs and sweeps as several processes do; follows the streams as a reader does."""

    url = ""
    shards = 1

    @initialize(
        window=st.sampled_from([600, 60]),
        max_members=st.sampled_from([64, 3]),
        keeps=st.booleans(),
    )
    def begin(self, window: int, max_members: int, keeps: bool) -> None:
        self.now, self.window = NOON, window
        site = Settings.from_env(
            {},
            redis_url=self.url,
            prefix=f"t{uuid.uuid4().hex[:12]}",
            identity="user=header:x-user" if keeps else "user=cookie:name",
            secret="s" * 32,
            window=window,
            flush_interval=1,
            events="user",
            shards=self.shards,
            max_members=max_members,
        )
        backend = Backend(site, clock=lambda: self.now)
        self.run = backend.driver.run
        self.store = backend.stores["user"]
        self.by_server = Backend(site).stores["user"]  # of a process whose clock is the server's
        self.streams = [shard.event_stream() for shard in self.store.all]
        self.positions = [self.run(stream.position()) for stream in self.streams]
        self.online: set[str] = set()
        self.may_lose = False

    @rule(id=IDS, late=st.one_of(st.just(0.0), st.floats(0, 2)), room=st.integers(-1, 3))
    def is_seen(self, id: str, late: float, room: int) -> None:
        """One is seen, perhaps some windows ago; enters a room, leaves it (0), or neither (-1)."""
        moment = to_microseconds(self.now - late * self.window)
        write = Write("process", to_microseconds(self.now))
        move = None if room < 0 else (room, moment)
        self.run(self.store.shard_for(id).write([(id, moment, moment, move)], (), write))

    @rule(ids=st.lists(IDS, min_size=1, unique=True))
    def are_seen(self, ids: list[str]) -> None:
        moment = to_microseconds(self.now)
        for shard in self.store.all:
            here = [(id, moment, moment, None) for id in ids if self.store.shard_for(id) is shard]
            if here:
                self.run(shard.write(here, (), Write("other", moment)))

    @rule(id=IDS, late=st.sampled_from([0.0, 3.0, 100.0]), erase=st.booleans())
    def leaves(self, id: str, late: float, erase: bool) -> None:
        self.departs(Act.ERASED if erase else Act.LEFT, id, late)

    @rule(id=IDS, late=st.sampled_from([0.0, 0.1, 0.2, 0.3]))
    def says_goodbye(self, id: str, late: float) -> None:
        self.departs(Act.GOODBYE, id, late * self.window)

    def departs(self, act: Act, id: str, late: float) -> None:
        departure = act, id, to_microseconds(self.now - late), None
        self.run(self.store.shard_for(id).write((), [departure]))

    @rule(windows=st.one_of(st.floats(0, 0.05), st.floats(0, 2)))
    def time_passes(self, windows: float) -> None:
        self.now += windows * self.window

    @rule(seconds=st.floats(0, 1000))
    def the_clock_is_set_back(self, seconds: float) -> None:
        self.now -= seconds
        self.may_lose = True

    @rule()
    def anyone_sweeps(self) -> None:
        while any(
            outcome.has_more
            for outcome in self.run(
                merge_plans([shard.sweep(self.now) for shard in self.store.all])
            )
        ):
            pass

    @rule(is_server_time=st.booleans())
    def anyone_cleans_up(self, is_server_time: bool) -> None:
        while any(
            self.run(
                merge_plans(
                    [
                        shard.clean_up(self.now)
                        for shard in (self.by_server if is_server_time else self.store).all
                    ]
                )
            )
        ):
            pass

    @rule(id=IDS)
    def is_touched(self, id: str) -> None:
        with suppress(PresenceUnavailable):  # there may be no room
            self.run(self.store.shard_for(id).touch(id, self.now, self.now))

    @rule(
        key=st.sampled_from([*KEYS, "all"]),
        meanwhile=st.lists(st.sampled_from(UNAWARE), max_size=2),
        id=IDS,
    )
    def data_is_lost(self, key: str, meanwhile: list[str], id: str) -> None:
        names = KEYS if key == "all" else [key]
        self.run(_delete([f"{shard.name}:{name}" for shard in self.store.all for name in names]))
        self.may_lose = True
        for step in meanwhile:
            if step == "touch":
                self.is_touched(id)
            elif step == "leave":
                self.leaves(id, 0.0, erase=False)
            elif step == "goodbye":
                self.says_goodbye(id, 0.0)
            elif step == "clean up":
                self.anyone_cleans_up(is_server_time=True)
            else:
                self.anyone_sweeps()
        self.are_seen(PEOPLE)  # a loss is noticed with the next write to the shard

    @invariant()
    def what_was_announced_is_true(self) -> None:
        plans: list[Plan[Any]] = [_announced(shard) for shard in self.store.all]
        plans += [
            stream.read(position)
            for stream, position in zip(self.streams, self.positions, strict=True)
        ]
        outcomes: list[Any] = self.run(run_all(plans))
        count = len(self.streams)
        for number, (announced, reading) in enumerate(
            zip(outcomes[:count], outcomes[count:], strict=True)
        ):
            shard = self.store.all[number]
            if isinstance(reading, EventsLost):
                assert self.may_lose
                self.positions[number] = self.run(self.streams[number].position())
                self.online -= {id for id in self.online if self.store.shard_for(id) is shard}
                self.online |= announced
                continue
            self.positions[number] = reading.position
            for change in [change for each in reading.announcements for change in each.changes]:
                assert change.is_online == (change.id not in self.online), change
                (self.online.add if change.is_online else self.online.remove)(change.id)
            assert {id for id in self.online if self.store.shard_for(id) is shard} == announced

    @invariant()
    def whoever_is_in_a_room_was_seen_since_the_last_sweep(self) -> None:
        for swept, in_rooms, seen in self.run(merge_plans([*map(_rooms, self.store.all)])):
            if swept is not None:
                assert all(seen.get(id, 0.0) > swept for id in in_rooms), (swept, in_rooms, seen)


def _delete(names: list[str]) -> Plan[None]:
    yield Batch(tuple(("DEL", name) for name in names))


def _announced(shard: Store) -> Plan[set[str]]:
    """Return the ids whose last-seen time is later than the cut."""
    cut, seen = yield Batch(
        (
            ("HGET", f"{shard.name}:progress", "announced_until"),
            ("ZRANGE", f"{shard.name}:seen", 0, -1, "WITHSCORES"),
        )
    )
    if cut is None:
        return set()
    return {id for id, at in members_with_scores(seen) if at > float(cut)}


def _rooms(shard: Store) -> Plan[tuple[float | None, list[str], dict[str, float]]]:
    """Return up to where rooms were swept, the ids in rooms, and the last-seen times."""
    swept, rooms, seen = yield Batch(
        (
            ("HGET", f"{shard.name}:progress", "rooms_until"),
            ("ZRANGE", f"{shard.name}:at", 0, -1, "WITHSCORES"),
            ("ZRANGE", f"{shard.name}:seen", 0, -1, "WITHSCORES"),
        )
    )
    in_rooms = [id for id, _ in members_with_scores(rooms)]
    return score(swept), [id for id in in_rooms if id], dict(members_with_scores(seen))


def check(url: str, shards: int, examples: int) -> None:
    """Run the machine; print the steps of the shortest history that fails."""
    machine = type("Machine", (Announcing,), {"url": url, "shards": shards})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(400)  # seconds that only a failure takes, until its history is the shortest
@pytest.mark.parametrize("shards", [1, 16])
@pytest.mark.parametrize(("server", "examples"), [("valkey", 12), ("memory", 3)])
def test_announcements_are_true_after_any_history(
    request: pytest.FixtureRequest, server: str, examples: int, shards: int, prefix: str
) -> None:
    url = f"memory://{prefix}" if server == "memory" else request.getfixturevalue(server).url
    check(url, shards, examples)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shards", [1, 16])
def test_announcements_are_true_after_many_histories(
    request: pytest.FixtureRequest, shards: int
) -> None:
    check(request.getfixturevalue("valkey").url, shards, 300)
