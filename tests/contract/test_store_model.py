"""After any history, the default store holds exactly what its model holds."""

import uuid
from contextlib import ExitStack
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from presence_middleware import PresenceUnavailable
from presence_middleware.connections.drivers import Driver
from presence_middleware.connections.health import RedisHealth
from presence_middleware.connections.url import RedisURL
from presence_middleware.stores import Act, Seen, Shards, SortedSet, Write
from tests.support.backends import matrix
from tests.support.store_model import SECOND, Model

NOON = 1_767_614_400 * SECOND
WINDOW, GRACE, KEEP = 600, 75, 4000
IDS = st.sampled_from(["ann", "bob", "cid", "dan", "eve"])
LOST = ["seen", "bye", "gone", "left", "writers", "at", "moved", "progress"]
AGO = st.sampled_from([0, 0, 0, 1, 30, 100, 500, 700])
MOVES = st.one_of(st.none(), st.integers(0, 2))
SIGHTINGS = st.lists(st.tuples(IDS, AGO, st.sampled_from([0, 0, 1, 100]), MOVES), max_size=4)
DEPARTURES = st.lists(
    st.tuples(
        st.sampled_from([Act.GOODBYE, Act.LEFT, Act.ERASED]),
        IDS,
        st.sampled_from([0, 0, 2, 100]),
        st.sampled_from([None, None, 0, 50]),
    ),
    max_size=2,
)
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(["A", "B"]), SIGHTINGS, DEPARTURES),
    st.tuples(st.just("write"), st.sampled_from(["A", "B"]), SIGHTINGS, DEPARTURES),
    st.tuples(st.just("wait"), st.sampled_from([1, 10, 100, 400, 650, 3000])),
    st.tuples(st.just("touch"), IDS),
    st.tuples(st.just("clean up")),
    st.tuples(st.just("lose"), st.sampled_from(LOST)),
)
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "goodbyes": {"grace": GRACE},
    "everything": {"grace": GRACE, "has_rooms": True, "lag": 0.0},
}


class Compared:
    """A store and its model, which do the same."""

    def __init__(self, client: Any, features: dict[str, Any], max_members: int) -> None:
        self.redis, self.now, self.has_rooms = client, NOON, "has_rooms" in features
        self.store = SortedSet(
            f"t{uuid.uuid4().hex[:12]}",
            "user",
            WINDOW,
            KEEP,
            max_members,
            is_server_time=False,
            **features,
        )
        self.needs_sweep = bool(features)
        self.run = Driver(RedisURL("redis", "redis://"), RedisHealth(), client, is_writer=True).run
        lowered_by = WINDOW - features["grace"] if "grace" in features else 0
        self.model = Model(WINDOW * SECOND, lowered_by * SECOND, KEEP * SECOND, max_members)

    def write(self, process: str, sightings: list[Any], departures: list[Any]) -> None:
        if not (sightings or departures):
            return  # nothing is sent
        seen: list[Seen] = []
        for id, ago, open_for, room in sightings:
            moment = self.now - ago * SECOND
            is_moving = self.has_rooms and room is not None and ago < WINDOW
            move = (room, moment) if is_moving else None
            seen.append((id, moment, moment - open_for * SECOND, move))
        departing = [
            (act, id, moment, None if before is None else moment - before * SECOND)
            for act, id, ago, before in departures
            for moment in (self.now - ago * SECOND,)
        ]
        write = Write(process, self.now)
        online = self.announced()
        written = self.run(self.store.write(seen, departing, write))
        expected = self.model.write(seen, departing, write)
        assert (list(written.refused), *written[1:3]) == (expected.refused, *expected[1:3])
        if online is not None:
            assert written.came - written.went == (self.announced() or 0) - online

    def announced(self) -> int | None:
        """Return how many are announced to be online."""
        cut = self.redis.hget(f"{self.store.name}:progress", "announced_until")
        if cut is None:
            return None
        return int(self.redis.zcount(f"{self.store.name}:seen", f"({float(cut)!r}", "+inf"))

    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND

    def touch(self, id: str) -> None:
        try:
            self.run(self.store.touch(id, self.now / SECOND, self.now / SECOND))
            has_room = True
        except PresenceUnavailable:
            has_room = False
        assert self.model.touch(id, self.now) == has_room

    def clean_up(self) -> None:
        while self.run(self.store.clean_up(self.now / SECOND)):
            pass
        if self.needs_sweep:
            self.model.sweep(self.now)
        self.model.clean_up(self.now)

    def lose(self, key: str) -> None:
        self.redis.delete(f"{self.store.name}:{key}")
        self.model.lose(key)

    def compare(self) -> None:
        now, model = self.now / SECOND, self.model
        for key in ("seen", "bye", "gone", "left"):
            members = self.redis.zrange(f"{self.store.name}:{key}", 0, -1, withscores=True)
            held = {member.decode(): round(at * SECOND) for member, at in members}
            assert held == getattr(model, key), key
        shards = Shards([self.store], on_one_server=True)
        online = self.run(shards.online(now, WINDOW, None, None))
        assert [sighting.id for sighting in online] == model.online(self.now)
        ids = sorted({*model.seen, *model.gone, *model.bye, "ann"})
        last_seen = self.run(self.store.last_seen(ids, now))
        assert {id: round(at * SECOND) for id, at in last_seen.items()} == model.last_seen(self.now)
        for number in (1, 2) if self.has_rooms else ():
            in_room = self.run(self.store.online_in_room(number, now, None))
            assert [sighting.id for sighting in in_room] == model.in_room(number, self.now)
            assert self.run(self.store.count_in_room(number, now)) == len(in_room)
        while self.has_rooms and self.run(self.store.sweep(now)):
            pass  # the model sweeps when a room is read


@pytest.mark.parametrize("max_members", [1000, 3])
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("server", ["memory", "valkey", *matrix("redis_server", "redis62")])
def test_the_store_holds_what_its_model_holds(
    request: pytest.FixtureRequest, server: str, features: str, max_members: int
) -> None:
    with ExitStack() as stack:
        if server == "memory":
            client: Any = stack.enter_context(fakeredis.FakeRedis())
        else:
            client = stack.enter_context(redis.Redis.from_url(request.getfixturevalue(server).url))

        @settings(
            max_examples=10 if server == "memory" else 60, suppress_health_check=list(HealthCheck)
        )
        @given(steps=st.lists(STEPS, max_size=30))
        def check(steps: list[tuple[Any, ...]]) -> None:
            compared = Compared(client, FEATURES[features], max_members)
            for name, *arguments in steps:
                getattr(compared, name.replace(" ", "_"))(*arguments)
                compared.compare()

        check()
