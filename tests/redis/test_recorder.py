"""The recorder: the sightings it accepts, when it writes them, and which wait in an outage."""

import asyncio
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from flask import Flask

from presence_middleware import Presence, PresenceUnavailable, Settings, asgi, embedded, wsgi
from presence_middleware.connections.clients import sync_client
from presence_middleware.connections.drivers import Driver
from presence_middleware.identity.hashing import Who
from presence_middleware.people import People
from presence_middleware.recorder import Recorder, recorder_for
from presence_middleware.recorder import worker as worker_module
from presence_middleware.upkeep import Upkeep
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server, wait_until
from tests.support.stopwatch import Stopwatch

BOB = ("user", "bob")


def times(people: People) -> dict[Who, tuple[float | None, float]]:
    """Take the waiting sightings out; return their last-seen times and arrivals."""
    return {each.person.who: (each.seen, each.arrival) for each in people.take(100)}


def settings(url: str, prefix: str, **others: object) -> Settings:
    given = {"redis_url": url, "prefix": prefix, "identity": "user=header:X-User", **others}
    return Settings.from_env({}, **given)


def visit(recorder: Recorder, name: str) -> None:
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()


class Clock:
    """A clock in seconds since the epoch that the test sets."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def own_server(tmp_path: Path, valkey: Server) -> Iterator[Server]:
    """A server that the test may stop."""
    server = Server(valkey.binary, tmp_path)
    yield server
    os.kill(server.process.pid, signal.SIGCONT)
    server.stop()


@pytest.fixture
def recorder(valkey: Server, prefix: str) -> Iterator[Recorder]:
    recorder = Recorder(settings(valkey.url, prefix))
    yield recorder
    recorder.close()


def test_the_first_sighting_is_written_at_once_and_the_next_with_the_interval(
    valkey: Server, prefix: str
) -> None:
    site = settings(valkey.url, prefix, flush_interval="2m", window="10m")
    recorder, presence = Recorder(site), Presence(site)
    visit(recorder, "bob")
    wait_until(lambda: presence.is_online("bob"))  # long before the interval is over
    visit(recorder, "alice")
    assert not presence.is_online("alice")
    assert recorder.stats().pending == 1
    recorder.close()
    assert presence.is_online("alice")


def test_an_identity_seen_a_thousand_times_is_written_once(
    valkey: Server, prefix: str, clock: Clock
) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        recorder = Recorder(settings(valkey.url, prefix), client=client, clock=clock)
        recorder.background = False  # the thread sleeps: all that comes is coalesced
        for _ in range(1000):
            visit(recorder, "bob")
        assert recorder.flush()
        stats = recorder.stats()
        assert (stats.recorded, stats.coalesced, stats.flushed) == (1000, 999, 1)


def test_the_newest_sighting_wins_whichever_ends_last(
    valkey: Server, prefix: str, clock: Clock
) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        site = settings(valkey.url, prefix)
        recorder = Recorder(site, client=client, clock=clock)
        slow = WsgiVisit(recorder, {"HTTP_X_USER": "bob"})
        clock.now += 30
        visit(recorder, "bob")
        newest = clock.now
        clock.now += 5
        slow.end()
        recorder.flush()
        seen = Presence(site, client=client, clock=clock).last_seen("bob")
        assert seen is not None
        assert seen.timestamp() == newest


def test_a_sighting_carries_its_arrival_by_the_clock_of_the_server(
    recorder: Recorder, valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)  # this host's clock is years behind
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        before = client.time()[0]
        visit(recorder, "bob")
        recorder.flush()
        after = client.time()[0] + 1
        score = client.zscore(f"{prefix}:user:seen", "bob")
    assert score is not None
    assert before - 1 <= float(score) <= after


def test_past_the_limit_known_ids_are_refreshed_and_new_ids_dropped_and_counted() -> None:
    people = People(limit=2, window=600)
    for name in ("a", "b", "c"):
        people.note(("user", name), 1.0, 1.0)
    people.note(("user", "a"), 2.0, 2.0)
    assert times(people) == {("user", "a"): (2.0, 2.0), ("user", "b"): (1.0, 1.0)}
    assert people.dropped["full"] == 1
    assert people.coalesced == 1


def test_unwritten_sightings_are_merged_under_newer_sightings() -> None:
    people = People(limit=3, window=600)  # of whom two are in flight, and one is seen again
    old, new = (1.0, 1.0), (2.0, 2.0)
    people.note(("user", "old"), *old)
    people.note(BOB, *old)
    people.take(100)
    assert people.pending == 2
    people.note(BOB, *new)
    people.note(("user", "new"), *new)
    people.note(("user", "newer"), *new)
    people.restore()
    assert people.pending == 3
    assert times(people) == {("user", "old"): old, BOB: new, ("user", "new"): new}
    assert people.recorded == 5
    assert people.coalesced + people.dropped["full"] + people.pending == 5


def test_an_outage_loses_nobody_of_the_window_and_is_logged_once(
    own_server: Server, prefix: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "presence_middleware")
    site = settings(own_server.url, prefix, window="1m", retention="1s")
    recorder = Recorder(site, clock=clock)
    visit(recorder, "early")
    assert recorder.flush()
    own_server.stop()
    visit(recorder, "gone")
    assert not recorder.flush()
    clock.now += 59
    visit(recorder, "bob")
    visit(recorder, "early")
    assert not recorder.flush()
    clock.now += 2  # "gone" has left the window
    assert not recorder.flush()
    assert recorder.stats().dropped == {"expired": 1}
    assert recorder.stats().last_error is not None
    own_server.start()
    wait_until(recorder.flush)
    presence = Presence(site, clock=clock)
    assert presence.online_among(["gone", "bob", "early"]) == ["bob", "early"]
    stats = recorder.stats()
    dropped = sum(stats.dropped.values())
    assert stats.recorded == stats.coalesced + stats.flushed + stats.pending + dropped
    recorder.close()
    said = [r.message for r in caplog.records if r.name == "presence_middleware"]
    assert len(said) == 2
    assert "cannot record" in said[0]
    assert "recording again" in said[1]


def test_a_request_does_not_notice_a_hung_server(own_server: Server, prefix: str) -> None:
    recorder = Recorder(settings(own_server.url, prefix))
    os.kill(own_server.process.pid, signal.SIGSTOP)
    with Stopwatch() as watch:
        for number in range(2000):
            visit(recorder, f"user{number}")
    assert watch.seconds < 0.5  # one timeout of the thread's; 2000 would be a quarter of an hour
    with Stopwatch() as watch:
        recorder.close()
    assert watch.seconds < 2.5
    assert recorder.stats().pending == 2000


def test_a_wrong_key_of_one_kind_does_not_stop_the_others(valkey: Server, prefix: str) -> None:
    site = settings(valkey.url, prefix, identity="user=header:X-User, guest=header:X-Guest")
    with redis.Redis.from_url(valkey.url) as client:
        client.set(f"{prefix}:user:seen", "not a sorted set", ex=60)
        recorder = Recorder(site)
        visit(recorder, "bob")
        WsgiVisit(recorder, {"HTTP_X_GUEST": "eve"}).end()
        assert not recorder.flush()
        wait_until(lambda: Presence(site).is_online("eve", "guest"))
        assert "WRONGTYPE" in (recorder.stats().last_error or "")
        client.delete(f"{prefix}:user:seen")
    assert recorder.flush()
    assert Presence(site).is_online("bob")
    recorder.close()


def test_the_recorder_removes_stale_ids_regularly(
    valkey: Server, prefix: str, clock: Clock
) -> None:
    site = settings(valkey.url, prefix, identity="guest=header:X-User")
    with redis.Redis.from_url(valkey.url) as client:
        client.zadd(f"{prefix}:guest:seen", {f"old{n}": n for n in range(2500)})
        recorder = Recorder(site, clock=clock)
        visit(recorder, "bob")
        wait_until(lambda: client.zcard(f"{prefix}:guest:seen") == 1)
    recorder.close()


def test_a_child_starts_afresh_and_the_parent_writes_what_it_held(
    valkey: Server, prefix: str
) -> None:
    """Also while the parent's thread holds both locks in the middle of a write."""
    site = settings(valkey.url, prefix, flush_interval="3m")
    recorder = Recorder(site)
    recorder.background = False
    visit(recorder, "parent")
    recorder.people.lock.acquire()
    recorder.write_lock.acquire()
    pid = os.fork()
    if pid == 0:
        visit(recorder, "child")
        written = recorder.flush()
        os._exit(0 if written and recorder.stats().recorded == 1 else 1)
    recorder.people.lock.release()
    recorder.write_lock.release()
    assert os.waitpid(pid, 0)[1] == 0
    presence = Presence(site)
    assert presence.online_among(["parent", "child"]) == ["child"]
    recorder.close()
    assert presence.online_among(["parent", "child"]) == ["parent", "child"]


def test_a_child_whose_fork_called_no_hook_writes_after_a_second(
    valkey: Server, prefix: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under uWSGI: the child inherits a dead thread, and its parent has just woken that."""
    site = settings(valkey.url, prefix)
    recorder = Recorder(site, clock=clock, background=False)
    with monkeypatch.context() as parent:
        parent.setattr(worker_module, "getpid", lambda: -1)
        recorder.reset()
        recorder.background = True
        parent.setattr(threading.Thread, "start", lambda _: None)
        parent.setattr(threading.Thread, "is_alive", lambda _: True)
        visit(recorder, "parent")
        assert recorder.write_lock.acquire()  # a write of the parent was under way
    visit(recorder, "early")
    assert recorder.stats().pending == 2
    clock.now += 1.001
    visit(recorder, "bob")
    wait_until(lambda: recorder.stats().flushed == 3)
    users = ["parent", "early", "bob"]
    assert Presence(site, clock=clock).online_among(users) == users
    recorder.close()


def test_an_open_connection_stays_online_and_is_found_soon(
    valkey: Server, prefix: str, clock: Clock
) -> None:
    site = settings(valkey.url, prefix, window="3m", flush_interval="0.05s")
    recorder, presence = Recorder(site, clock=clock), Presence(site, clock=clock)
    open_visit = WsgiVisit(recorder, {"HTTP_X_USER": "bob"})
    clock.now += 2
    wait_until(lambda: presence.is_online("bob"))
    for _ in range(10):
        clock.now += 60
        wait_until(lambda: presence.last_seen("bob") == moment(clock))
    open_visit.end()
    clock.now += 181
    visit(recorder, "alice")
    recorder.flush()
    assert not presence.is_online("bob")
    recorder.close()


def moment(clock: Clock) -> object:
    from presence_middleware.stores import moment_of

    return moment_of(clock.now)


def test_where_no_thread_can_start_a_request_writes_until_one_can(
    valkey: Server,
    prefix: str,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder(settings(valkey.url, prefix), clock=clock)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        visit(recorder, "bob")
        visit(recorder, "alice")
    assert (recorder.stats().flushed, recorder.stats().pending) == (1, 1)
    clock.now += recorder.settings.flush_interval
    visit(recorder, "eve")
    wait_until(lambda: recorder.stats().flushed == 3)
    assert recorder.thread is not None
    assert [m for m in caplog.messages if "background threads are disabled" in m] == caplog.messages
    recorder.close()


def test_after_close_a_visit_starts_the_thread_again(recorder: Recorder) -> None:
    visit(recorder, "bob")
    recorder.close()
    assert recorder.stats().flushed == 1
    visit(recorder, "alice")
    wait_until(lambda: recorder.stats().flushed == 2)


def test_one_recorder_serves_all_apps_with_equal_settings(valkey: Server, prefix: str) -> None:
    one, same = (recorder_for(settings(valkey.url, prefix)) for _ in range(2))
    other = recorder_for(settings(valkey.url, prefix, window="15m"))
    assert one is same
    assert one is not other


def test_an_exit_starts_no_server(tmp_path: Path) -> None:
    """Sightings that never reached an embedded server do not start a new server."""
    recorder = Recorder(settings(f"embedded://{tmp_path}/site", "presence"))
    recorder.background = False
    visit(recorder, "bob")
    recorder.close()
    assert recorder.stats().pending == 1
    assert "no embedded server is running" in (recorder.stats().last_error or "")
    assert not (tmp_path / "site").exists()


def test_an_embedded_server_that_was_killed_is_started_again(tmp_path: Path) -> None:
    site = settings(f"embedded://{tmp_path}/site", "presence")
    recorder, presence = Recorder(site), Presence(site)
    visit(recorder, "early")
    assert recorder.flush()
    client = sync_client(site.redis_url)
    os.kill(client.info("server")["process_id"], signal.SIGKILL)
    visit(recorder, "bob")
    wait_until(recorder.flush)
    assert presence.is_online("bob")
    recorder.close()
    client.close()
    assert embedded.wait_until_stopped(tmp_path / "site")


def test_close_ends_the_thread_after_its_round(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    def run(*_: object) -> None:
        began.set()
        wait_until(recorder.worker.stopping.is_set)
        time.sleep(0.05)  # a close that does not wait returns before this

    monkeypatch.setattr(Upkeep, "run", run)
    visit(recorder, "bob")
    thread = recorder.thread
    assert thread is not None
    assert began.wait(10)
    recorder.close()
    assert not thread.is_alive()


def test_a_sighting_that_arrives_during_a_flush_is_no_failure(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Driver.run

    def run_and_visit(driver: Driver, *plan: Any) -> Any:
        recorder.record(("user", "late"), recorder.stamp())
        return run(driver, *plan)

    recorder.background = False
    visit(recorder, "bob")
    monkeypatch.setattr(Driver, "run", run_and_visit)
    recorder.close()
    stats = recorder.stats()
    assert (stats.flushed, stats.pending, stats.last_error) == (2, 1, None)
    assert not caplog.messages


def test_an_exit_that_is_out_of_time_starts_no_round_trip(recorder: Recorder) -> None:
    recorder.background = False
    visit(recorder, "bob")
    assert not recorder.flush(0)
    assert recorder.stats().last_error == "Redis did not answer in time"
    assert recorder.stats().pending == 1


def test_reader_gives_up_when_a_write_is_stuck(recorder: Recorder) -> None:
    recorder.background = False
    visit(recorder, "bob")
    with recorder.write_lock:
        assert not recorder.flush(0.02)
    assert recorder.stats().pending == 1


def test_a_child_that_exits_does_not_write_for_its_parent(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.background = False
    visit(recorder, "bob")
    with monkeypatch.context() as child:
        child.setattr(worker_module, "getpid", lambda: -1)
        recorder.close()
    assert recorder.stats().flushed == 0
    assert recorder.flush()  # the parent
    assert recorder.stats().flushed == 1


def test_when_redis_is_gone_one_attempt_serves_all_kinds(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def refused(driver: Driver, *plan: object) -> None:
        attempts.append(plan)
        raise PresenceUnavailable("refused")

    monkeypatch.setattr(Driver, "run", refused)
    identity = "user=header:X-User, guest=header:X-Guest"
    # So that the recorder's own thread does not attempt it, too.
    site = settings(f"unix://{tmp_path}/s", prefix, identity=identity, flush_interval="3m")
    recorder = Recorder(site)
    recorder.background = False
    visit(recorder, "bob")
    WsgiVisit(recorder, {"HTTP_X_GUEST": "eve"}).end()
    assert not recorder.flush()
    assert len(attempts) == 1
    assert recorder.stats().pending == 2


async def ask(app: asgi.PresenceMiddleware) -> None:
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-user", b"bob")]}
    await app(scope, None, None)  # type: ignore[arg-type]


def test_an_asgi_app_takes_a_plain_client_and_asks_it_in_threads(
    valkey: Server, prefix: str
) -> None:
    counts = []

    async def count(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        counts.append(await scope["presence_middleware.presence"].count())

    with redis.Redis.from_url(valkey.url) as client:
        app = asgi.PresenceMiddleware(count, settings=settings(valkey.url, prefix), client=client)
        asyncio.run(ask(app))
        app.recorder.close()
    assert counts == [1]


def test_only_an_exit_is_in_a_hurry(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connection of a cold start may take longer than an exit has."""
    deadlines = []
    run = Driver.run

    def noted(driver: Driver, plan: Any, deadline: float = math.inf) -> Any:
        deadlines.append(deadline)
        return run(driver, plan, deadline)

    monkeypatch.setattr(Driver, "run", noted)
    recorder.background = False
    visit(recorder, "bob")
    assert recorder.flush()
    assert set(deadlines) == {math.inf}
    deadlines.clear()
    visit(recorder, "bob")
    recorder.close()
    assert min(deadlines) < math.inf


def test_sightings_lost_at_shutdown_are_logged(
    tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(settings(f"unix://{tmp_path}/none", prefix))
    recorder.background = False
    visit(recorder, "bob")
    recorder.close()
    assert caplog.messages[-1] == "shutting down with 1 sightings unwritten"


def test_flush_writes_open_and_unclosed_visits(
    recorder: Recorder, valkey: Server, prefix: str
) -> None:
    """As in a test suite, whose client keeps a response, or drops it, and closes neither."""
    app = Flask(__name__)
    app.wsgi_app = wsgi.PresenceMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, settings=recorder.settings, clock=recorder.stamp
    )
    app.add_url_rule("/", "home", lambda: "hello")
    recorder = app.wsgi_app.recorder
    recorder.background = False
    client = app.test_client()
    kept = client.get("/", headers={"X-User": "bob"})
    client.get("/", headers={"X-User": "alice"})
    assert recorder.flush()
    assert app.wsgi_app.presence.online_among(["bob", "alice"]) == ["bob", "alice"]
    kept.close()
    recorder.close()
