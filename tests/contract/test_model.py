"""After any history, every store on every backend answers and announces what its model does."""

import uuid
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st

from presence_middleware import Presence, PresenceUnavailable, Sighting
from presence_middleware.identity.ids import normalize_id
from presence_middleware.stores import (
    NOWHERE,
    Act,
    Seen,
    Write,
    merge_plans,
    moment_of,
    room_number,
    sorted_set,
)
from presence_middleware.stores.plan import members_with_scores
from tests.support import timed_site
from tests.support.backends import Backend, send
from tests.support.model import SECOND, SLACK, Limits, Minutes, Model
from tests.support.timed_site import Blocking, Clock

NOON, WINDOW, KEEP = 1_767_614_400, 600, 4000
PEOPLE = ["ann", "bob", "cid"]
TEXTS = [
    *["jürgen", "小明", "🦊", "a b", "{tag}", "}{", "line\nbreak", "nul\0byte", "tab\there", '"'],
    *["'", "-inf", "+inf", "(5", "[a", "*", "0", "007", "1e3", "LIMIT", "x" * 256, "é" * 128],
    *["é" * 129, "x" * 257, "y" * 5000, "\udcff"],
]
"""Any text is an id: each history names these people by some of them. Long ones are shortened."""
ROOMS = ["", "/t/1", "chat:7"]
KEYS = ["seen", "bye", "gone", "left"]
LOST = [*KEYS, "writers", "at", "moved", "progress", "changes"]
PULSE = {"pulse_path": "/pulse"}
IN_ROOMS = {"rooms": "/t/{topic}"}
EVENTS = {"events": "user", "flush_interval": 1}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "pulse": PULSE,
    "rooms": IN_ROOMS | PULSE,
    "events": EVENTS | PULSE,
    "everything": EVENTS | IN_ROOMS | PULSE,
}

people = st.sampled_from(PEOPLE)
processes = st.sampled_from(["A", "B"])
later = st.tuples(st.sampled_from([0, 1, 10, 100, 400, 606, 3000]), st.booleans())
sightings = st.lists(
    st.tuples(
        people,
        st.sampled_from([0, 0, 0, 1, 30, 100, 500, 600, 700]),  # seconds ago
        st.sampled_from([0, 0, 1, 100]),  # for so long, its connection is open
        st.one_of(st.none(), st.integers(0, 2)),  # the room that was entered
        st.sampled_from([0, 0, 2, 100]),  # so many seconds before
    ),
    min_size=1,
    max_size=4,
)
departures = st.lists(
    st.tuples(
        st.sampled_from([Act.GOODBYE, Act.LEFT, Act.ERASED]),
        people,
        st.sampled_from([0, 0, 2, 100, 500, 700]),  # seconds ago
        st.sampled_from([None, None, 0, 50]),  # so long before, the process had seen the id
    ),
    max_size=2,
)


class Machine(stateful.RuleBasedStateMachine):
    """People come and go, processes write and fail, servers lose data; everything is compared."""

    store, mode, url, shards = "sorted-set", "sync", "", 1
    features: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

    @stateful.initialize(
        room_for=st.sampled_from([1000, 2]),
        is_kept=st.booleans(),
        step=st.sampled_from([1, 2, 1000]),
        texts=st.lists(st.sampled_from(TEXTS), min_size=3, max_size=3, unique=True),
    )
    def begin(self, room_for: int, step: int, texts: list[str], *, is_kept: bool) -> None:
        """Open a site; `step` bounds what one command looks up, sweeps or lists."""
        self.stack, self.texts = ExitStack(), dict(zip(PEOPLE, texts, strict=True))
        self.ids = {who: normalize_id(text) for who, text in self.texts.items()}
        self.people = sorted(self.ids.values())
        patch = self.stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("LOOKED_UP", "COMPARED", "SWEPT", "PAGE"):
            patch.setattr(sorted_set, name, step)
        given = timed_site.settings(
            self.url,
            f"t{uuid.uuid4().hex[:12]}",
            identity="user=header:x-user" if is_kept else "user=cookie:name",
            secret="s" * 32,
            retention=KEEP,
            store=self.store,
            shards=self.shards,
            max_members=room_for * self.shards,
            **self.features,
        )
        self.clock = Clock(NOON)
        presence = Presence(given, clock=self.clock)
        self.kind, self.run = presence.backend.stores["user"], presence.backend.driver.run
        self.ask: Any = presence
        if self.mode == "async":
            self.ask = Blocking(given, None, self.clock)
            self.stack.callback(self.ask.close)
        self.has_rooms, self.is_followed = "rooms" in self.features, "events" in self.features
        self.has_ids, self.is_exact = self.store != "hyperloglog", self.store == "sorted-set"
        lag = given.lag_seconds("user")
        limits = Limits(
            WINDOW * SECOND,
            int(self.kind.keep_seconds) * SECOND,
            room_for,
            round(self.kind.all[0].lowered_by * SECOND),
            None if lag is None else round(lag * SECOND),
        )
        self.models: dict[Any, Model] = {
            shard: Model(limits) if self.is_exact else Minutes(limits, has_ids=self.has_ids)
            for shard in self.kind.all
        }
        self.may_lose, self.unsure = False, set[Any]()
        self.followed: dict[Any, set[str]] = {shard: set() for shard in self.kind.all}
        self.streams = {shard: shard.event_stream() for shard in self.kind.all if self.is_followed}
        self.positions = {shard: self.run(self.streams[shard].position()) for shard in self.streams}

    @property
    def now(self) -> int:
        return int(self.clock.now) * SECOND

    def of(self, id: str) -> Any:
        return self.kind.shard_for(id)

    @stateful.rule(
        writes=st.lists(st.tuples(processes, later, sightings, departures), min_size=1, max_size=4)
    )
    def processes_write(self, writes: list[tuple[str, Any, list[Any], list[Any]]]) -> None:
        for each in writes:
            self.write(*each)

    def write(self, process: str, later: Any, sightings: list[Any], departures: list[Any]) -> None:
        """Let time pass, perhaps let somebody read, and write what a process has seen."""
        seconds, is_read = later
        sightings = [(self.ids[who], *rest) for who, *rest in sightings]
        departures = [(act, self.ids[who], *rest) for act, who, *rest in departures]
        self.clock.now += seconds
        if is_read and self.has_rooms:
            self.readers_know_who_is_in_a_room()
        for shard, model in self.models.items():
            seen: list[Seen] = []
            for id, ago, open_for, room, before in sightings:
                moment = self.now - ago * SECOND
                is_moving = room is not None and ago + before < WINDOW and self.has_rooms
                number = room_number(ROOMS[room]) if room else NOWHERE
                move = (number, moment - before * SECOND) if is_moving else None
                if self.of(id) is shard:
                    seen.append((id, moment, moment - open_for * SECOND, move))
            departing = [
                (act, id, moment, None if before is None else moment - before * SECOND)
                for act, id, ago, before in departures
                if self.of(id) is shard and not (act is Act.GOODBYE and not model.limits.lowered_by)
                for moment in (self.now - ago * SECOND,)
            ]
            if not (seen or departing):
                continue
            write, online = Write(process, self.now), model.announced()
            is_following = not (self.unsure & {shard}) and model.cut is not None
            written = self.run(shard.write(seen, departing, write))
            expected = model.write(seen, departing, write)
            assert set(written.refused) == expected.refused
            assert written[1:3] == expected[1:3]
            if is_following and self.is_followed:
                assert written.came - written.went == len(model.announced()) - len(online)
            self.unsure -= {shard} if seen else set()
        if self.has_rooms and any(
            act is Act.GOODBYE and ago >= 75 for act, _, ago, _ in departures
        ):
            # Whoever is offline with a goodbye so late leaves the room now, or when somebody reads.
            self.readers_know_who_is_in_a_room()

    @stateful.rule(who=people, act=st.sampled_from([Act.SEEN, Act.LEFT, Act.ERASED]))
    def a_site_acts(self, who: str, act: Act) -> None:
        id = self.ids[who]
        shard, moment = self.of(id), self.now
        departure = act, id, moment, None
        if act is not Act.SEEN:
            if self.has_ids:
                (self.ask.leave if act is Act.LEFT else self.ask.forget)(self.texts[who])
                self.models[shard].write([], [departure], None)
                keys = [f"{shard.name}:{key}" for key in ("at", "moved")]
                is_kept = any(self.run(send("ZSCORE", key, id)) is not None for key in keys)
                assert not (is_kept and act is Act.ERASED)
            return
        seen = id, moment, moment + SLACK, None
        is_full = self.models[shard].write([seen], [departure], None).full
        self.unsure -= {shard}
        with ExitStack() as refusal:
            if is_full:
                error = pytest.raises(PresenceUnavailable, match="PRESENCE_MAX_MEMBERS")
                refusal.enter_context(error)
            self.ask.touch(self.texts[who])

    @stateful.precondition(lambda self: self.is_followed and not self.has_rooms)
    @stateful.rule(seconds=st.sampled_from([1, 100, 300, 1000]))
    def the_clock_is_set_back(self, seconds: int) -> None:
        self.clock.now -= seconds
        self.may_lose = True

    @stateful.rule(is_whole=st.booleans())
    def a_process_does_the_upkeep(self, *, is_whole: bool) -> None:
        for shard, model in self.models.items():
            work = shard.clean_up if is_whole else shard.sweep
            while (is_whole or shard.needs_sweep) and self.run(work(self.clock.now)):
                pass
            if shard.needs_sweep:
                model.sweep(self.now)
            if is_whole:
                model.clean_up(self.now)

    @stateful.precondition(lambda self: self.is_exact)
    @stateful.rule(name=st.sampled_from(LOST))
    def the_server_loses_a_key(self, name: str) -> None:
        if name in ("seen", "writers") and any(
            bool(each.seen) != each.is_marked for each in self.models.values()
        ):
            return  # both together leave no sign of a loss
        for shard, model in self.models.items():
            self.run(send("DEL", f"{shard.name}:{name}"))
            model.lose(name)
            self.may_lose = True
            self.unsure |= {shard} if name in ("seen", "progress") else set()

    @stateful.invariant()
    def readers_know_who_is_online(self) -> None:
        if not self.has_ids:
            online = set(chain.from_iterable(self.online(WINDOW)))
            assert self.ask.count() == len(online)
            return
        listed = [who.id for who in self.ask.online(limit=None)]
        assert listed == self.listed(WINDOW)
        assert self.ask.count() == len(listed)
        assert self.known(self.ask.last_seen_among(self.people)) == self.last_seen()

    def online(self, window: int) -> list[list[str]]:
        return [model.online(self.now, window * SECOND) for model in self.models.values()]

    def listed(self, window: int) -> list[str]:
        """Return who is online in all shards, in the order of the store."""
        found = list(chain.from_iterable(self.online(window)))
        scores = {id: at for model in self.models.values() for id, at in model.seen.items()}
        in_order = sorted(found, key=lambda each: (scores.get(each, 0), each), reverse=True)
        return in_order if self.is_exact else sorted(found)

    def last_seen(self) -> dict[str, Any]:
        found = [model.last_seen(self.now) for model in self.models.values()]
        return {id: at for each in found for id, at in each.items()}

    @staticmethod
    def known(found: dict[str, Any]) -> dict[str, int]:
        return {id: round(at.timestamp() * SECOND) for id, at in found.items() if at}

    @stateful.precondition(lambda self: self.has_ids)
    @stateful.rule(limit=st.integers(1, 3), window=st.sampled_from([60, 120, WINDOW]), who=people)
    def somebody_reads(self, limit: int, window: int, who: str) -> None:
        expected, last_seen = self.listed(window), self.last_seen()
        listed = list[Sighting]()
        while page := self.ask.online(
            limit=limit, before=listed[-1] if listed else None, window=window
        ):
            assert page[-1] not in listed
            listed += page
        assert [seen.id for seen in listed] == expected
        for seen in listed if self.is_exact else ():
            assert seen.last_seen == moment_of(last_seen[seen.id] / SECOND)
        if self.is_exact and self.kind.keep_seconds > KEEP:
            since = self.now - 2 * WINDOW * SECOND
            # A goodbye hides its last-seen time until the next sweep.
            held = [times for model in self.models.values() for times in (model.seen, model.gone)]
            active = [at for times in held for at in times.values() if at > since]
            assert self.ask.active(2 * WINDOW) == len(active)
        assert self.ask.count(window=window) == len(expected)
        id, reverse = self.ids[who], self.people[::-1]
        among = ["nobody", *reverse, id]
        assert list(self.ask.last_seen_among(among)) == among[:-1]
        assert self.ask.online_among(among, window=window) == [
            each for each in reverse if each in expected
        ]
        assert self.ask.is_online(self.texts[who], window=window) == (id in expected)
        assert self.known({id: self.ask.last_seen(self.texts[who])}) == {
            each: at for each, at in last_seen.items() if each == id
        }

    @stateful.precondition(lambda self: self.has_rooms)
    @stateful.invariant()
    def readers_know_who_is_in_a_room(self) -> None:
        for model in self.models.values():
            model.leave_rooms(self.now)
        rooms = {id: at for model in self.models.values() for id, at in model.room.items()}
        for room in ROOMS[1:]:
            people = sorted(id for id, number in rooms.items() if number == room_number(room))
            assert self.ask.counts(room=room) == {"user": len(people)}
            assert [who.id for who in self.ask.online(room=room, limit=None)] == people
            assert [who.id for who in self.ask.online(room=room, limit=1)] == people[:1]

    @stateful.precondition(lambda self: self.is_exact)
    @stateful.invariant()
    def keys_hold_what_the_model_holds(self) -> None:
        for shard, model in self.models.items():
            lists = [send("ZRANGE", f"{shard.name}:{key}", 0, -1, "WITHSCORES") for key in KEYS]
            for key, members in zip(KEYS, self.run(merge_plans(lists)), strict=True):
                held = {id: round(at * SECOND) for id, at in members_with_scores(members)}
                assert held == getattr(model, key), key

    @stateful.precondition(lambda self: self.is_followed)
    @stateful.invariant()
    def every_change_is_announced_once(self) -> None:
        for shard in [shard for shard in self.models if shard not in self.unsure]:
            online, announced = self.followed[shard], self.models[shard].announced()
            reading = self.run(self.streams[shard].read(self.positions[shard]))
            self.positions[shard] = reading.position
            if reading.is_lost:
                assert self.may_lose
                self.followed[shard] = announced
                continue
            for change in chain.from_iterable(each.changes for each in reading.announcements):
                assert change.is_online == (change.id not in online), change
                (online.add if change.is_online else online.remove)(change.id)
            assert online == announced

    def teardown(self) -> None:
        self.stack.close()


MATRIX = [("redis_server", "sync"), ("redis62", "async"), ("cluster/6", "sync")]
PLACES: list[Any] = [
    *(("sorted-set", "valkey", "sync", features, 20) for features in FEATURES),
    *(("sorted-set", "valkey/3", "async", features, 5) for features in ("pulse", "everything")),
    ("sorted-set", "memory", "async", "everything", 4),
    ("sorted-set", "cluster", "sync", "everything", 4),
    ("minute-sets", "valkey", "async", "plain", 15),
    ("minute-sets", "memory", "sync", "plain", 5),
    ("minute-sets", "cluster/3", "sync", "plain", 5),
    ("hyperloglog", "valkey", "sync", "plain", 5),
    ("hyperloglog", "memory", "async", "plain", 3),
    *(
        pytest.param(store, place, mode, features, 10, marks=pytest.mark.matrix)
        for place, mode in MATRIX
        for store, features in (("sorted-set", "everything"), ("minute-sets", "plain"))
    ),
]


MANY = pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(900)])


@pytest.mark.parametrize("times", [1, MANY])
@pytest.mark.parametrize(
    ("store", "backend", "mode", "features", "examples"), PLACES, indirect=["backend"]
)
def test_a_store_does_what_its_model_does(
    backend: Backend, *, store: str, mode: str, features: str, examples: int, times: int
) -> None:
    """Print the steps of the first history that fails. Many histories are drawn at random."""
    given = {"url": backend.url, "shards": backend.shards, "store": store, "mode": mode}
    stateful.run_state_machine_as_test(
        type("Machine", (Machine,), {**given, "features": FEATURES[features]}),
        settings=settings(
            max_examples=times * examples,
            stateful_step_count=20,
            deadline=None,
            derandomize=times == 1,
            suppress_health_check=list(HealthCheck),
            # To look for the shortest history that fails takes minutes.
            phases=(Phase.explicit, Phase.generate),
        ),
    )


def wrote(process: str, later: int, *seen: Any, left: Any = (), is_read: bool = False) -> Any:
    """Return a write of a process: sightings of (who, ago, open for, room, before), departures."""
    return process, (later, is_read), [(*each, None, 0)[:5] for each in seen], [*left]


def departs(act: Act, process: str, later: int, ago: int = 0, seen: int | None = None) -> Any:
    """Return a write of a process: a departure of ann, whom it has `seen` so long before."""
    return wrote(process, later, left=[(act, "ann", ago, seen)])


leaves, erases = partial(departs, Act.LEFT), partial(departs, Act.ERASED)
COMES, ENTERS = wrote("A", 1, ("ann", 0, 0)), wrote("A", 1, ("ann", 0, 0, 1, 0))
BOTH = wrote("B", 10, left=[(Act.ERASED, "ann", 5, None), (Act.LEFT, "ann", 0, None)])
RARE: dict[str, dict[str, list[Any]]] = {  # writes, and keys that the server loses, by features
    "plain": {
        "an older sighting comes late": [COMES, wrote("B", 1, ("ann", 100, 0))],
        "a process has seen an id after its logout": [leaves("A", 1, ago=1, seen=-1)],
        "a logout comes after the erasure": [COMES, erases("A", 1), leaves("B", 1, seen=50)],
        "an erasure comes late, after the logout that followed it": [
            COMES,
            leaves("B", 10),
            erases("A", 1, ago=5),
            wrote("A", 1, ("ann", 4, 0)),
        ],
        "an erasure comes late, after a visit and a logout that followed it": [
            COMES,
            leaves("B", 10),
            erases("A", 1, ago=20),
        ],
        "an id is refused beside a new one": [
            COMES,
            leaves("A", 1),
            wrote("B", 1, ("bob", 0, 0), ("ann", 0, 100)),
        ],
        "a logout elsewhere comes before the only sighting": [
            leaves("B", 1),
            wrote("A", 1, ("bob", 0, 0), ("ann", 10, 0)),
        ],
        "an erasure and a logout elsewhere come before the only sighting": [
            BOTH,
            wrote("A", 1, ("bob", 0, 0), ("ann", 7, 0)),
        ],
        "an erasure and a logout elsewhere come after a connection that was seen between them": [
            BOTH,
            wrote("A", 1, ("bob", 0, 0), ("ann", 3, 5)),
        ],
        **{
            f"{name} waited for a window, and what was before it for longer": [
                departure("A", WINDOW + 200, ago=WINDOW + 199),
                wrote("B", 1, ("bob", 0, 0), ("ann", WINDOW + 202, 0)),
                wrote("B", 0, ("ann", 0, WINDOW + 202)),
            ]
            for name, departure in (("a logout", leaves), ("an erasure", erases))
        },
        **{
            f"a login follows {name} that waited for longer than a window": [
                departure("A", WINDOW + 60, ago=WINDOW + 61),
                wrote("B", 0, ("ann", 0, WINDOW + 60)),
                wrote("B", 60, ("ann", 0, WINDOW + 120)),
            ]
            for name, departure in (("a logout", leaves), ("an erasure", erases))
        },
        "a window has just passed": [COMES, wrote("A", WINDOW, ("bob", 0, 0))],
    },
    "pulse": {
        "a return in the instant of a goodbye": [
            wrote("A", 1, ("bob", 1, 0), ("ann", 0, 0)),
            departs(Act.GOODBYE, "A", 0),
            wrote("A", 0, ("ann", 0, -1)),
        ],
        "an older sighting comes after the goodbye": [
            COMES,
            departs(Act.GOODBYE, "A", 10),
            wrote("B", 1, ("ann", 5, 0)),
        ],
    },
    "rooms": {
        **{
            f"a {late} after a reader saw the room empty": [
                ENTERS,
                wrote("A", WINDOW - 1, ("ann", WINDOW - 1, 0), is_read=True),
                wrote("A", 1, ("ann", ago, 0), is_read=True),
            ]
            for late, ago in (("return without a page", 0), ("late write", 100))
        },
        "a logout comes after a request that followed it": [
            ENTERS,
            wrote("A", 10, ("ann", 0, 0)),
            leaves("B", 1, ago=2),
        ],
        "an id that is in a room is erased": [ENTERS, erases("A", 1)],
        "the last-seen times are lost": [ENTERS, "seen", wrote("B", 1, ("bob", 0, 0, 1, 0))],
        "a page was entered before the logout": [
            COMES,
            leaves("A", 1),
            wrote("B", 10, ("ann", 0, 0, 1, 100)),
        ],
    },
}


@pytest.mark.parametrize("backend", ["valkey"], indirect=True)
@pytest.mark.parametrize(
    ("features", "writes"),
    [
        pytest.param(features, writes, id=name)
        for features, rows in RARE.items()
        for name, writes in rows.items()
    ],
)
def test_a_store_does_what_its_model_does_where_chance_seldom_leads(
    backend: Backend, features: str, writes: list[Any]
) -> None:
    machine = type("Machine", (Machine,), {"url": backend.url, "features": FEATURES[features]})()
    machine.begin(room_for=1000, step=1000, texts=PEOPLE, is_kept=True)
    for each in writes:
        if isinstance(each, str):
            machine.the_server_loses_a_key(each)
            continue
        machine.write(*each)
        machine.readers_know_who_is_online()
        machine.somebody_reads(limit=1, window=WINDOW, who="ann")
        machine.keys_hold_what_the_model_holds()
        if machine.has_rooms:
            machine.readers_know_who_is_in_a_room()
            for shard, model in machine.models.items():
                moved = machine.run(send("ZRANGE", f"{shard.name}:moved", 0, -1))
                assert {id.decode() for id in moved} == model.moved.keys()
    machine.teardown()
