"""What people did in any order, amid outages and losses of data, is what counts."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from presence_middleware import Presence, Settings, UnsupportedQuery, wsgi
from presence_middleware.backend import Backend
from presence_middleware.connections.drivers import Driver
from presence_middleware.errors import PresenceUnavailable
from presence_middleware.recorder import Recorder, recorder_for
from presence_middleware.stores import Act, Store, Write, keys, moment_of
from presence_middleware.stores.plan import to_microseconds
from tests.support.asking import State
from tests.support.backends import Server, wait_until
from tests.support.beside import in_child
from tests.support.clusters import Cluster
from tests.support.model import SECOND, Limits, Model
from tests.support.statuses import Ask, Call, over_asgi, over_wsgi
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import (
    NOON,
    WINDOW,
    Clock,
    Process,
    Start,
    by_header,
    settings,
    visit,
)

SEEN, GOODBYE, LEFT, ERASED = Act.SEEN, Act.GOODBYE, Act.LEFT, Act.ERASED
PEOPLE = ["ann", "bob", "cid"]
GRACE = 75  # seconds
WRITES = ["", "", "write", "fails before", "fails after", "loses all"]
Deed = tuple[str, Act, int, str]
"""Who, what, how many seconds ago, and whether it is written then.

Two acts of a person never have the same moment. Of two goodbyes the first counts, or the second if
they are written together, so a person says one at most.
"""
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(PEOPLE),
        st.sampled_from([SEEN, SEEN, GOODBYE, LEFT, ERASED]),
        st.integers(0, 300),
        st.sampled_from(WRITES),
    ),
    max_size=8,
    unique_by=(
        lambda deed: (deed[0], deed[2]),
        lambda deed: (deed[0], deed[2] if deed[1] is not GOODBYE else "goodbye"),
    ),
)


class Outage:
    """Redis fails before it has written, or after."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.how, run = "", Driver.run

        def failing(driver: Driver, *arguments: Any) -> Any:
            how, self.how = self.how, ""
            if how == "fails before":
                raise PresenceUnavailable(how)
            result = run(driver, *arguments)
            if how == "fails after":
                raise PresenceUnavailable(how)
            return result

        patch.setattr(Driver, "run", failing)


def in_order(deeds: list[Deed]) -> Model:
    """What a store holds to which each deed was written by itself, in the order of time."""
    window = int(WINDOW) * SECOND
    model = Model(Limits(window, window, 1000, int(WINDOW - GRACE) * SECOND))
    for id, act, ago, _ in sorted(deeds, key=lambda deed: -deed[2]):
        at = int(NOON - ago) * SECOND
        seen = [(id, at, at, None)] if act is SEEN else []
        departures = [] if act is SEEN else [(act, id, at, None)]
        model.write(seen, departures, Write("A", int(NOON) * SECOND))
    return model


def is_said_by_somebody(deeds: list[Deed]) -> bool:
    """Whether no goodbye follows a logout. It shows that somebody was there, if it comes first."""
    for id, act, ago, _ in deeds:
        before = [(at, each) for who, each, at, _ in deeds if who == id and at > ago]
        if act is GOODBYE and before and min(before)[1] is not SEEN:
            return False
    return True


def lost_again(*acts: Act, how: str) -> list[Deed]:
    """Acts of somebody who was there, after which the server loses all data."""
    hows = [*[how] * (len(acts) - 1), "loses all"]
    deeds = [("ann", act, 9 - n, how) for n, (act, how) in enumerate(zip(acts, hows, strict=True))]
    return [("ann", SEEN, 10, "write"), *deeds]


def test_what_is_reported_is_what_happened(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch)

    @examples(
        max_examples=150,
        suppress_health_check=list(HealthCheck),
        # To look for the shortest history that fails takes minutes.
        phases=(Phase.explicit, Phase.generate),
        database=None,
    )
    @given(deeds=DEEDS.filter(is_said_by_somebody))
    # Departures are written again, whether they were written before.
    @example(lost_again(GOODBYE, how=""))
    @example(lost_again(GOODBYE, SEEN, how=""))
    @example(lost_again(GOODBYE, SEEN, how="write"))
    @example(lost_again(GOODBYE, LEFT, how=""))
    @example(lost_again(GOODBYE, LEFT, how="write"))
    @example(lost_again(LEFT, GOODBYE, how=""))  # the page of the logout is closed as well
    @example(lost_again(LEFT, GOODBYE, how="write"))
    @example(lost_again(ERASED, LEFT, how="write"))  # and no time of before it returns
    @example(lost_again(ERASED, SEEN, LEFT, how=""))  # but a time of after it does
    # A request of before the logout is refused, and is not written again.
    @example(
        [*lost_again(LEFT, how="")[:1], ("ann", LEFT, 0, "write"), ("ann", SEEN, 5, "loses all")]
    )
    # A goodbye that was written before its sighting is repeated with it.
    @example([("ann", GOODBYE, 3, "write"), ("ann", SEEN, 4, "write")])
    def check(deeds: list[Deed]) -> None:
        site = settings(valkey.url, f"t{uuid.uuid4().hex[:12]}", pulse_path="/pulse")
        clock = Clock(NOON)
        recorder = Recorder(site, background=False, clock=clock)
        for id, act, ago, how in deeds:
            recorder.record(("user", id), NOON - ago, NOON - ago, act)
            if how == "loses all":
                outage.how = ""
                assert recorder.flush()
                recorder.backend.driver.connect().flushdb()
                recorder.health.lost_connection()  # so that it looks whether its data is there
                recorder.run_once()
            elif how:
                outage.how = how.removeprefix("write")
                recorder.flush()
        outage.how = ""
        assert recorder.flush(), recorder.stats()
        expected, presence = in_order(deeds), Presence(site, clock=clock)
        times = expected.last_seen(int(NOON) * SECOND)
        for id in PEOPLE:
            last_seen = presence.last_seen(id)
            seen = 0 if last_seen is None else round(last_seen.timestamp() * SECOND)
            # What is reported after a later logout is refused, and its time is lost.
            of_id = [(ago, act) for who, act, ago, _ in deeds if who == id]
            left = [n for n, (_, act) in enumerate(of_id) if act in (LEFT, ERASED)]
            is_late = any(of_id[n][0] < ago for n in left for ago, _ in of_id[n:])
            assert seen <= times.get(id, 0) if is_late else seen == times.get(id, 0), id
        ends = {lasts - ago for _, _, ago, _ in deeds for lasts in (GRACE, int(WINDOW))}
        for later in sorted({0, *(end + n for end in ends if end > 0 for n in (-1, 1))}):
            clock.now = NOON + later
            online = sorted(visitor.id for visitor in presence.online())
            assert online == sorted(expected.online(int(clock.now) * SECOND, int(WINDOW) * SECOND))

    check()


# Logouts and goodbyes of processes.


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_a_connection_refreshed_during_a_logout_does_not_count(store: str, start: Start) -> None:
    worker = start(store=store)
    worker.clock.now += 100
    worker.recorder.record(("user", "ann"), worker.clock.now, NOON)
    worker.saw("ann", act=Act.LEFT, ago=2)
    assert worker.online() == []


def log_out(ask: Ask, given: Settings, name: str) -> None:
    call = Call(path="/logout")
    call.before = lambda state: state["presence_middleware.presence"].leave(name)
    ask(given, call)


@pytest.mark.parametrize("ask", [over_wsgi, over_asgi])
@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_a_logout_in_an_outage_waits_and_holds_and_no_request_waits_for_it(
    own: Server, client: Any, prefix: str, store: str, ask: Ask
) -> None:
    given = by_header(own.url, prefix, store=store)
    waiting = by_header(own.url, prefix, store=store, flush_interval="3m")
    elsewhere = Recorder(waiting, background=False)
    app = wsgi.PresenceMiddleware(lambda *_: [], settings=given)
    for name in ("ann", "bob", "cid"):
        visit(app.recorder, name)
    assert app.recorder.flush()
    client.save()
    own.stop()
    visit(elsewhere, "ann")  # before the logout, on another worker
    visit(app.recorder, "cid")
    wait_until(lambda: app.recorder.health.is_outage)
    with Stopwatch() as watch:
        for _ in range(10):
            for name in ("ann", "bob"):
                log_out(ask, given, name)
    assert watch.seconds < 0.5  # one timeout
    visit(app.recorder, "bob")  # and in again
    own.start()
    wait_until(lambda: app.recorder.flush() and elsewhere.flush())
    names, there = ["ann", "bob", "cid", "dan"], ["bob", "cid", "dan"]
    visit(app.recorder, "dan")
    assert app.recorder.flush()
    assert Presence(given).online_among(names) == there
    assert Presence(given).last_seen("ann"), "a logout erases nobody"
    own.stop()
    own.start()  # with the data of before the logouts
    visit(app.recorder, "dan")  # finds the loss
    wait_until(lambda: app.recorder.flush() and Presence(given).online_among(names) == there)


@pytest.mark.parametrize("ask", [over_wsgi, over_asgi])
@pytest.mark.parametrize(("method", "is_kept"), [("leave", True), ("forget", False)])
def test_a_handler_takes_somebody_offline_before_it_answers(
    unwritten: Callable[..., Settings], method: str, is_kept: bool, ask: Ask
) -> None:
    def end(state: State) -> object:
        return getattr(state["presence_middleware.presence"], method)("ann")

    given = unwritten()
    recorder_for(given).background = False
    presence = Presence(given)
    presence.touch("ann")
    ask(given, Call(before=end))
    assert not presence.is_online("ann")
    assert bool(presence.last_seen("ann")) is is_kept


@pytest.mark.parametrize("ask", [over_wsgi, over_asgi])
def test_a_request_that_erases_its_user_and_logs_out_leaves_no_id(
    unwritten: Callable[..., Settings], ask: Ask
) -> None:
    def end(state: State) -> object:
        return state["presence_middleware.presence"].forget("ann")

    given = unwritten(identity="user=header:X-User", logout="/logout")
    recorder = recorder_for(given)
    ask(given, Call({"X-User": "ann"}))
    assert recorder.flush()
    ask(given, Call({"X-User": "ann"}, "/logout", before=end))
    assert recorder.flush()
    members = recorder.backend.driver.connect().zrange(f"{given.prefix}:user:left", 0, -1)
    assert members
    assert b"ann" not in members


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_a_logout_that_is_written_after_an_erasure_leaves_no_id(store: str, start: Start) -> None:
    worker = start(store=store)
    worker.saw("ann")
    worker.did("ann", act=LEFT)
    worker.clock.now += 1
    worker.presence.forget("ann")
    worker.writes()
    assert all("ann" not in members for members in worker.held().values())
    assert worker.presence.last_seen("ann") is None


@pytest.mark.parametrize("act", [Act.GOODBYE, Act.LEFT])
def test_a_moment_ahead_of_the_server_is_lowered(valkey: Server, prefix: str, act: Act) -> None:
    """Otherwise a process whose estimate is too late would refuse who comes back."""
    site = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, pulse_path="/pulse")
    backend = Backend(site)
    shard, run = backend.stores["user"].all[0], backend.driver.run
    passed = Backend(site, clock=time.time).stores["user"].all[0]
    ahead, client = int(time.time() + 60) * 1_000_000, valkey.client

    def counted_at(store: Store, moment: int) -> tuple[int, int]:
        """Return the moment at which a departure counts, in seconds and microseconds."""
        for key in client.scan_iter(f"{prefix}:*"):
            client.delete(key)
        seen = ("ann", moment - 100_000_000, moment - 100_000_000, None)
        run(store.write([seen], [(act, "ann", moment, None)]))
        key = "bye" if act is Act.GOODBYE else "left"
        scores = client.zrange(f"{prefix}:user:{key}", 0, -1, withscores=True)
        return divmod(round(float(scores[-1][1]) * 1e6), 1_000_000)

    before = client.time()
    assert before <= counted_at(shard, ahead) <= client.time()
    assert counted_at(shard, 1_000_500_000) == (1000, 500_000)
    assert counted_at(passed, ahead) == divmod(ahead, 1_000_000)


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
@pytest.mark.parametrize("manner", ["leave", "forget"])
def test_a_touch_and_a_departure_keep_their_order_by_an_uncertain_clock(
    valkey: Server, prefix: str, store: str, manner: str
) -> None:
    """The server's time is between the bounds of a process, and departures are lowered to it."""
    backend = Backend(settings(valkey.url, prefix, store=store), clock=Clock())
    presence = Presence(backend=backend)
    shard, run = backend.stores["user"].all[0], backend.driver.run
    act = Act.ERASED if manner == "forget" else Act.LEFT
    early, between, late = NOON - 2, NOON - 1, NOON
    run(shard.touch("ann", early, late))
    for moment in (between, late + 2):  # another server's clock may have been ahead
        run(shard.write((), [(act, "ann", to_microseconds(moment), None)]))
        assert not presence.is_online("ann")
        run(shard.touch("ann", early, late))
        assert presence.is_online("ann")


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_a_departure_holds_after_the_clock_of_the_server_was_set_back(
    valkey: Server, prefix: str, store: str
) -> None:
    presence, client = Presence(settings(valkey.url, prefix, store=store)), valkey.client
    for departs in (presence.leave, presence.forget):
        presence.touch("ann")
        if store == "sorted-set":
            client.zincrby(f"{prefix}:user:seen", keys.SLACK + 9, "ann")
        departs("ann")
        assert not presence.is_online("ann")
        for key in (f"{prefix}:user:gone", f"{prefix}:user:left"):
            for member in client.zrange(key, 0, -1):
                client.zincrby(key, 60, member)
        if departs == presence.forget:
            presence.touch("ann")
            assert presence.is_online("ann")
        presence.forget("ann")
        assert not presence.is_online("ann")
        assert presence.last_seen("ann") is client.zscore(f"{prefix}:user:left", "ann") is None


class Uncertain:
    """A process that knows the time of the server between two bounds, and what ann does in it."""

    def __init__(self, settings: Settings, early: float, patch: pytest.MonkeyPatch) -> None:
        self.recorder, self.early = Recorder(settings, background=False), early
        self.clock, self.now = self.recorder.backend.clock, self.recorder.stamp() - 0.1
        self.presence = Presence(backend=self.recorder.backend)
        with patch.context() as patched:
            times = cycle([self.now - early, self.now + 0.5])
            patched.setattr(self.clock, "stamp", times.__next__)
            self.recorder.backend.driver.run(self.clock.synchronise())

    def is_online_after(self, later: float, *acts: Act) -> bool:
        """Write what ann does, from a moment on, a millisecond one after the other."""
        for number, act in enumerate(acts):
            self.recorder.record(("user", "ann"), self.now + later + number / 1000, act=act)
        assert self.recorder.flush()
        return self.presence.is_online("ann")

    def is_certain(self) -> None:
        """Let it know the time from now on."""
        assert self.clock.bounds[1] - self.clock.bounds[0] > max(self.early, 0.5) * SECOND
        self.recorder.backend.driver.run(self.clock.synchronise(0.0))


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
@pytest.mark.parametrize("act", [Act.LEFT, Act.ERASED])
def test_whoever_leaves_returns_and_leaves_at_once_is_offline(
    valkey: Server, prefix: str, store: str, act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it takes less time than the bounds of the server's clock are apart."""
    process = Uncertain(settings(valkey.url, prefix, store=store), 0.1, monkeypatch)
    for number in range(3):
        assert process.is_online_after(number / 100, SEEN)
        assert not process.is_online_after(number / 100 + 0.005, act)
    assert not process.is_online_after(0.026, ERASED, SEEN, LEFT)
    assert process.is_online_after(0.03, SEEN)
    process.is_certain()
    assert not process.is_online_after(0.04, act, act)


@pytest.mark.parametrize("by_reader", [False, True])
def test_a_logout_counts_however_soon_it_follows_a_logout_and_a_login(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, *, by_reader: bool
) -> None:
    """The login is written with a moment after the logout before it, which the clock of the server
    has not reached yet."""
    process = Uncertain(settings(valkey.url, prefix), 1.0, monkeypatch)
    recorder, presence, now = process.recorder, process.presence, process.now
    assert process.is_online_after(0, LEFT, SEEN)
    if by_reader:
        presence.leave("ann")
    else:
        process.is_online_after(0.002, SEEN, LEFT)
        process.is_online_after(0.004, ERASED, SEEN, LEFT)
        assert presence.last_seen("ann") is not None, "the erasure came before"
    assert not presence.is_online("ann")
    for digest in (7, 8, 9):  # by which a process knows a guest
        guest = "guest", digest
        if digest < 9:  # the last was not here before
            recorder.record(guest, now)
        if digest < 8:  # the second is not written yet
            assert recorder.flush()
        shown = recorder.resolver.identity_of(guest)
        assert shown is not None
        for _ in range(2):
            if by_reader:
                presence.leave(shown.id, "guest")
            else:
                recorder.depart((shown.kind, shown.id), LEFT)
            recorder.record(guest, recorder.stamp())
            assert recorder.flush()
            assert presence.is_online(shown.id, "guest")
    process.is_certain()
    assert not process.is_online_after(recorder.stamp() - now, ERASED, SEEN, LEFT)
    recorder.close()


def test_a_reader_in_a_child_waits_for_no_lock_of_the_parent(start: Start) -> None:
    """A thread may hold it at the fork; in the child, its frame stays, and what it worked on."""
    people = (worker := start()).recorder.people
    presence = Presence(backend=worker.recorder.backend)
    with people.lock:
        in_child(lambda: presence.leave("ann"))


# What a server has lost.


def test_a_loss_is_noticed_though_the_reply_to_the_next_write_is_lost(
    start: Start, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage, worker = Outage(monkeypatch), start(store=store)
    worker.saw("ann", "bob")
    worker.redis.flushdb()
    worker.did("cy")
    outage.how = "fails after"
    assert not worker.recorder.flush()
    worker.writes()
    worker.looks()
    worker.writes()
    assert worker.presence.count() == 3


def test_who_a_reader_took_offline_stays_so_after_a_loss(own: Server, start: Start) -> None:
    """Also whom this process never saw."""
    worker, other = start(own.url), start(own.url)
    worker.saw("ann", "bob")
    other.saw("cid")
    worker.clock.now += 1
    for who in ("ann", "cid"):
        Presence(backend=worker.recorder.backend).leave(who)
    own.stop()
    own.start()
    for process in (worker, other):
        process.looks()
        process.writes()
    assert worker.online() == ["bob"]


def test_who_left_keeps_the_last_seen_time_after_two_losses(start: Start) -> None:
    """As two primaries do to a process that reaches both until a failover ends."""
    worker = start()
    for act in (ERASED, LEFT, Act.SEEN, LEFT):
        worker.clock.now += 1
        worker.saw("ann", act=act)
    for lost in ("writers", "*"):
        worker.redis.delete(*worker.redis.keys(f"{worker.store.all[0].name}:{lost}"))
        worker.looks()
        worker.writes()
        assert worker.presence.last_seen("ann") == moment_of(NOON + 3)
        assert worker.online() == []


@contextmanager
def returns_older(worker: Process) -> Iterator[None]:
    """The server loses what was written in the block."""
    found = list(worker.redis.scan_iter(f"{worker.settings.prefix}:*"))
    older = {key: worker.redis.dump(key) for key in found}
    yield
    worker.redis.delete(*worker.redis.scan_iter(f"{worker.settings.prefix}:*"))
    for key, data in older.items():
        worker.redis.restore(key, 0, data)
    worker.looks()
    worker.writes()


def test_an_erasure_before_a_logout_holds_after_a_loss(start: Start) -> None:
    worker = start()
    worker.saw("ann")
    with returns_older(worker):
        for act in (ERASED, LEFT, LEFT):
            worker.clock.now += 1
            worker.saw("ann", act=act)
    assert worker.online() == []
    assert worker.presence.last_seen("ann") is None


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_what_a_reader_wrote_last_holds_after_a_loss(start: Start, store: str) -> None:
    worker = start(store=store)
    worker.saw("ann", "bob", "cid")
    presence = Presence(backend=worker.recorder.backend)
    with returns_older(worker):
        worker.clock.now += 1
        presence.leave("ann")
        presence.forget("bob")
        worker.writes()
    assert worker.online() == ["cid"]
    assert worker.presence.last_seen("bob") is None
    presence.leave("cid")
    presence.touch("cid")
    worker.writes()
    assert worker.online() == ["cid"], "what is repeated came before the touch"


@pytest.mark.parametrize("how", ["", "fails before"])
def test_an_old_connection_does_not_hide_the_visit_after_it_from_a_loss(
    start: Start, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The server refuses the connections of ann and bob, who logged out. Only ann logs in again."""
    outage, clock, connected = Outage(monkeypatch), Clock(), (NOON, NOON + 0.5)
    worker, other, ended = (start(clock=clock) for _ in range(3))
    worker.saw("ann", "bob")
    for process, who, act in (other, "ann", LEFT), (ended, "bob", LEFT), (worker, "ann", SEEN):
        clock.now += 1
        process.saw(who, act=act)
    for arrival in connected:
        clock.now += 1
        for who in ("ann", "bob"):
            worker.recorder.record(("user", who), clock.now, arrival)
        outage.how = how
        worker.recorder.flush()
        worker.writes()
    assert worker.dropped == {"left": 4}
    worker.redis.delete(*worker.redis.scan_iter(f"{worker.settings.prefix}:*"))
    for process in (other, worker):
        process.looks()
        process.writes()
    assert worker.online() == ["ann"]
    assert worker.presence.last_seen("ann") == moment_of(NOON + 3)


@pytest.mark.parametrize("kind", ["user", "guest"])
def test_who_said_goodbye_is_erased_also_after_a_clean_up(start: Start, kind: str) -> None:
    """It removes a time that the goodbye has lowered below the retention."""
    worker = start(pulse_path="/pulse", retention="1m")
    for act in (Act.SEEN, Act.GOODBYE):
        worker.saw("ann", "bob", act=act, kind=kind)
    worker.clock.now += 200
    worker.kind = kind
    worker.clean_up()
    worker.presence.forget("ann", kind)
    worker.presence.leave("bob", kind)
    assert not any("ann" in members for members in worker.held().values())
    seen = worker.presence.last_seen_among(["ann", "bob"], kind)
    assert seen == {"ann": None, "bob": moment_of(NOON)}


def test_a_goodbye_hides_nobody_who_was_active_in_two_windows(start: Start) -> None:
    worker = start(pulse_path="/pulse")
    worker.saw("ann")
    worker.passes(WINDOW / 3, step=20.0)
    worker.saw("ann", act=Act.GOODBYE)
    for _ in range(19):
        worker.passes(WINDOW / 10, step=20.0)
        assert worker.presence.active(2 * WINDOW) == 1
    with pytest.raises(UnsupportedQuery, match="two windows or more"):
        worker.presence.active(2 * WINDOW - 1)


def test_a_process_that_was_silent_for_a_window_has_lost_nothing(start: Start) -> None:
    worker = start()
    worker.saw("ann")
    worker.clock.now += 7200
    worker.clean_up()  # as another process, which forgets those that are silent for an hour
    worker.did("bob", act=LEFT)
    worker.clock.now += 1
    worker.saw("bob")
    assert worker.recorder.stats().recorded == 2
    assert worker.presence.is_online("bob")


@pytest.mark.parametrize("place", ["cluster", "own"])
def test_a_loss_is_looked_for_in_all_shards(
    place: str, request: pytest.FixtureRequest, start: Start
) -> None:
    server: Cluster | Server = request.getfixturevalue(place)
    worker, names = start(server.url, shards=6), [f"user{n}" for n in range(60)]
    worker.saw(*names)
    worker.looks()
    if isinstance(server, Cluster):
        server.primaries[1].ask("FLUSHALL")
        assert 30 < worker.presence.count() < 50
        worker.looks()
    else:
        worker.redis.flushall()
        worker.clock.now += 1
        worker.did("user0")  # whose write shows the loss
        worker.recorder.run_once()
    worker.writes()
    assert worker.online() == sorted(names)
    most = 121 if place == "own" else 99
    assert worker.recorder.stats().recorded <= most, "no more than was lost"


@pytest.mark.parametrize("silence", [1.6, 3])
def test_who_came_after_silence_is_written_again(silence: float, own: Server, start: Start) -> None:
    """The first round after it forgets only those who came before the silence, and no round after
    that forgets anybody sooner than a window after they came."""
    worker = start(own.url)
    window = worker.settings.window
    worker.saw("bob")
    worker.looks()
    worker.clock.now += silence * window
    worker.saw("ann")
    worker.looks()
    worker.clock.now += window / 2
    worker.looks()
    worker.redis.flushall()
    worker.looks()
    worker.saw("eve")
    worker.recorder.run_once()
    worker.writes()
    assert worker.online() == ["ann", "eve"]


def test_remembered_sightings_never_exceed_the_configured_limit(own: Server, start: Start) -> None:
    worker = start(own.url, max_pending=10)
    for name in ("user", "more"):
        worker.saw(*(f"{name}{n}" for n in range(8)))
    worker.looks()
    worker.redis.flushall()
    worker.looks()
    worker.writes()
    assert worker.presence.count() == 10
