"""Connections that stay open: the ids they keep online, for how long, and their cost."""

import math
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import Presence
from presence_middleware.asgi import AsgiVisit
from presence_middleware.people import People
from presence_middleware.recorder import Recorder, Visit
from presence_middleware.stores import moment_of
from presence_middleware.stores.script import CHUNK
from presence_middleware.wsgi import Body, PresenceMiddleware, WsgiVisit
from tests.support.backends import Server
from tests.support.timed_site import Clock, settings

BOB = ("user", "bob")
CHAIN = "user=auth, guest=header:x-guest"
MANY = 10_000


class Worker:
    """A process of a site whose rounds the test starts."""

    def __init__(self, url: str, prefix: str, clock: Clock, **others: Any) -> None:
        given = settings(url, prefix, **{"identity": CHAIN, "window": 60, **others})
        self.clock, self.recorder = clock, Recorder(given, clock=clock, background=False)
        self.presence = Presence(given, clock=clock)

    def open(self, user: str | None = None, **state: object) -> Visit:
        """A connection of a guest, or of a user."""
        scope = {"headers": [(b"x-guest", b"guest")], **state}
        if user is not None:
            scope["session"] = {"user_id": user}
        return AsgiVisit(self.recorder, scope)

    def wait(self, seconds: float, step: float = 1.0) -> None:
        """Lets time go by, with a round of the thread in every step."""
        for _ in range(math.ceil(seconds / step)):
            self.clock.now += step
            self.recorder.run_once()
        assert self.recorder.stats().pending == 0, self.recorder.stats()

    def online(self, kind: str = "user") -> list[str]:
        return sorted(who.id for who in self.presence.online(kind))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sorted-set", "minute-sets"])
def worker(
    request: pytest.FixtureRequest, valkey: Server, prefix: str, clock: Clock
) -> Iterator[Worker]:
    # Kept for no longer than the window, so that the moments of leaving are soon forgotten, too.
    worker = Worker(valkey.url, prefix, clock, store=request.param, retention="1s")
    yield worker
    worker.recorder.close()


def test_two_visits_of_an_id_are_merged_to_the_newest_stamp_and_arrival() -> None:
    for sightings in ([(9.0, 1.0), (5.0, 5.0)], [(5.0, 5.0), (9.0, 1.0)]):
        people = People(limit=2, window=600)
        for times in sightings:
            people.note(BOB, *times)
        (taken,) = people.take(2)
        assert (taken.person.who, taken.seen, taken.arrival) == (BOB, 9.0, 5.0)


def test_a_visit_that_was_not_written_gives_its_arrival_to_an_older_connection() -> None:
    people = People(limit=2, window=600)
    people.note(BOB, 5.0, 5.0)
    assert len(people.take(2)) == 1
    people.note(BOB, 9.0, 1.0)
    people.restore()  # the write has failed
    (taken,) = people.take(2)
    assert (taken.seen, taken.arrival) == (9.0, 5.0)


def test_open_connections_are_refreshed_one_after_the_other(
    worker: Worker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits = [worker.open(f"user{number}") for number in range(10)]
    clock.now += 30
    ticks = count(worker.recorder.stamp() + 30)
    monkeypatch.setattr(worker.recorder, "stamp", lambda: float(next(ticks)))
    worker.recorder.run_once()  # recorded as they arrived
    worker.recorder.run_once()
    assert len({visit.stamp for visit in visits}) == 10


@pytest.mark.parametrize("method", ["leave", "forget"])
def test_after_leave_an_open_connection_does_not_count(worker: Worker, method: str) -> None:
    visits = [worker.open("ann"), worker.open("bob")]
    worker.wait(100)
    assert worker.online() == ["ann", "bob"]
    getattr(worker.presence, method)("ann")
    for _ in range(8):  # the moment of leaving is kept for a window and two minutes more
        assert worker.online() == ["bob"]
        worker.wait(60)
        getattr(worker.presence, method)("another")  # at which older ones are removed
    assert not worker.recorder.stats().dropped.get("left", 0) > 1, "refused once, and never again"
    for visit in visits:
        visit.end()
    worker.recorder.flush()
    assert worker.online() == ["bob"]


def test_a_visit_after_leaving_counts_while_it_lasts(
    worker: Worker,
) -> None:
    old = worker.open("ann")
    worker.wait(30)
    worker.presence.leave("ann")
    worker.clock.now += 1
    new = worker.open("ann")
    worker.wait(100)
    assert worker.online() == ["ann"]
    new.end()
    worker.wait(200)
    assert worker.online() == []
    old.end()


@pytest.mark.parametrize("again", ["ann", "bob"])
def test_a_login_on_an_open_connection_counts_at_once_after_leave(
    worker: Worker, again: str
) -> None:
    visit = worker.open("ann")
    worker.wait(100)
    for name in ("ann", "bob"):
        worker.presence.leave(name)
    worker.wait(100)
    assert worker.online() == []
    visit.identify(again)
    worker.recorder.flush()
    assert worker.online() == [again]
    worker.wait(200)
    assert worker.online() == [again]
    worker.presence.leave(again)
    worker.wait(100)
    assert worker.online() == []
    visit.identify(None)
    visit.end()
    visit.identify(again)  # after its end
    visit.note()
    visit.end()
    worker.recorder.flush()
    assert again not in worker.online()


@pytest.fixture(params=[CHAIN, "user=auth"])
def exact(
    request: pytest.FixtureRequest, valkey: Server, prefix: str, clock: Clock
) -> Iterator[Worker]:
    """A worker of a site that keeps times, with guests and without."""
    worker = Worker(valkey.url, prefix, clock, identity=request.param)
    yield worker
    worker.recorder.close()


@pytest.mark.parametrize("late", ["identify", "session"])
@pytest.mark.parametrize("after", [2, 20, 300])
def test_a_login_on_an_open_connection_is_recorded_with_the_next_write_and_kept(
    exact: Worker, late: str, after: float
) -> None:
    worker, guests = exact, ["guest"] if "guest" in exact.recorder.resolver.kinds else []
    session: dict[str, str] = {}
    visit = worker.open(session=session)
    worker.wait(after)
    if after > 5:
        worker.presence.leave("ann")  # elsewhere; it is no matter to who comes now
        worker.clock.now += 0.1
    if late == "session":
        session["user_id"] = "ann"
    else:
        visit.identify("ann")
    worker.wait(0.8, step=0.8)
    assert worker.online() == ["ann"]
    assert not guests or worker.online("guest") == (guests if after > 5 else [])
    worker.wait(300)
    assert worker.online() == ["ann"]
    assert not guests or worker.online("guest") == []
    worker.clock.now += 0.5
    visit.end()
    worker.recorder.flush()
    assert worker.presence.last_seen("ann") == moment_of(worker.clock.now), "until its end"


def test_an_identity_found_late_is_recorded_with_the_arrival_of_its_request(
    valkey: Server, prefix: str, clock: Clock
) -> None:
    worker = Worker(valkey.url, prefix, clock, window=600, flush_interval="30s")
    slow = worker.open("ann")
    worker.clock.now += 10
    worker.presence.leave("ann")
    worker.wait(100, step=30)  # nobody asked it any sooner
    assert worker.online() == []
    assert worker.recorder.stats().dropped == {"left": 1}
    slow.end()
    worker.recorder.close()


def test_a_login_is_seen_by_the_handler_that_asks(exact: Worker) -> None:
    session: dict[str, str] = {}
    visit = exact.open(session=session)
    exact.wait(300)
    session["user_id"] = "ann"
    visit.flush()
    assert exact.online() == ["ann"]


@pytest.mark.parametrize("is_read", [False, True])
def test_an_unclosed_body_does_not_keep_its_user_online(
    valkey: Server, prefix: str, clock: Clock, is_read: bool
) -> None:
    worker = Worker(valkey.url, prefix, clock)

    def lines() -> Iterator[bytes]:
        while True:
            yield b"line"

    app = PresenceMiddleware(lambda *_: lines(), settings=worker.recorder.settings, clock=clock)
    recorder = worker.recorder = app.recorder
    body = app({"REMOTE_USER": "bob"}, lambda *_: lambda _: None)
    assert isinstance(body, Body)
    if is_read:
        next(iter(body))
    worker.wait(300)
    assert worker.online() == ["bob"]
    assert len(recorder.open_visits) == 1
    del body
    worker.wait(1)
    assert not recorder.open_visits
    worker.wait(60)
    assert worker.online() == []
    recorder.close()


@pytest.fixture
def quiet(valkey: Server, tmp_path: Path) -> Iterator[Server]:
    """A server without other clients."""
    server = Server(valkey.binary, tmp_path)
    yield server
    server.stop()


def open_many(worker: Worker) -> None:
    for number in range(MANY):
        WsgiVisit(worker.recorder, {"REMOTE_USER": f"user{number}"})


def test_ten_thousand_open_connections_are_a_batch_every_third_of_the_window(
    quiet: Server, prefix: str, clock: Clock
) -> None:
    worker = Worker(quiet.url, prefix, clock, window=600)
    threads = threading.active_count()
    with redis.Redis.from_url(quiet.url) as client:

        def scripts_in(seconds: float) -> int:
            client.config_resetstat()
            worker.wait(seconds, step=5)
            stats: dict[str, Any] = client.info("commandstats")
            commands = [stats.get(f"cmdstat_{name}", {}) for name in ("eval", "evalsha")]
            # At first, the server does not have the script: some commands fail, and are repeated.
            return sum(each.get("calls", 0) - each.get("failed_calls", 0) for each in commands)

        open_many(worker)
        batch = MANY / CHUNK
        assert [scripts_in(5), scripts_in(50)] == [batch, 0]
        assert [scripts_in(60) for _ in range(3)] == [batch] * 3
    assert worker.presence.count() == MANY
    assert threading.active_count() <= threads + 1
    worker.recorder.open_visits.clear()
    worker.recorder.close()


@pytest.mark.slow
def test_an_open_connection_takes_little_room(valkey: Server, prefix: str, clock: Clock) -> None:
    worker = Worker(valkey.url, prefix, clock)
    worker.wait(1)
    tracemalloc.start()
    try:
        open_many(worker)
        worker.wait(100, step=20)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / MANY < 850, "bytes, of which a third is the environ of this test"
    worker.recorder.open_visits.clear()
    worker.recorder.close()


def test_other_threads_have_their_turn_while_many_connections_are_refreshed(
    valkey: Server, prefix: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(valkey.url, prefix, clock)
    open_many(worker)
    turns, refreshed, over = [0], list[int](), threading.Event()

    def may_try(_: str) -> bool:
        """Note the turns once all are refreshed: after that, I/O gives others a turn as well."""
        refreshed.append(turns[0])
        return False

    for question in ("is_due", "is_well"):
        monkeypatch.setattr(worker.recorder.health, question, may_try)

    def requests() -> None:
        while not over.is_set():
            turns[0] += 1
            time.sleep(0)

    thread, interval = threading.Thread(target=requests), sys.getswitchinterval()
    sys.setswitchinterval(100)  # threads are not interrupted: they have to yield
    try:
        thread.start()
        before = turns[0]
        worker.recorder.run_once()
    finally:
        over.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert refreshed[0] - before > 10
    worker.recorder.open_visits.clear()
    worker.recorder.close()
