"""The recorder: the sightings it accepts, when it writes them, and which it keeps."""

import asyncio
import math
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from flask import Flask

from presence_middleware import Presence, asgi, embedded, wsgi
from presence_middleware.connections.drivers import READ_SECONDS, Driver
from presence_middleware.people import People
from presence_middleware.recorder import Recorder, recorder_for
from presence_middleware.recorder import worker as worker_module
from presence_middleware.recorder.recorder import FLUSH_SECONDS
from presence_middleware.request import READER
from presence_middleware.stores import agree, keys, moment_of
from presence_middleware.stores.agreement import SharedSettings
from presence_middleware.upkeep import Upkeep
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server, client_of, send, wait_until
from tests.support.beside import in_child, on_call
from tests.support.commands import run, run_program
from tests.support.servers import environment
from tests.support.timed_site import NOON, Clock, Start, by_header, visit


@pytest.fixture
def recorder(valkey: Server, prefix: str) -> Recorder:
    return Recorder(by_header(valkey.url, prefix))


@pytest.fixture
def idle(recorder: Recorder) -> Recorder:
    """A recorder for which bob waits, and which writes only when the test says so."""
    recorder.background = False
    visit(recorder, "bob")
    return recorder


# What waits.


TAKE, RESTORE = "they are being written", "they could not be written"


@pytest.mark.parametrize(
    ("limit", "steps", "waiting"),
    [
        # Past the limit, the known are refreshed, and the new are dropped.
        (2, [("a", 1, 1), ("b", 1, 1), ("c", 1, 1), ("a", 2, 2)], {"a": (2, 2), "b": (1, 1)}),
        # The newest time and the newest arrival count.
        (2, [("a", 9, 1), ("a", 5, 5)], {"a": (9, 5)}),
        (2, [("a", 5, 5), ("a", 9, 1)], {"a": (9, 5)}),
        (2, [("a", 5, 5), TAKE, ("a", 9, 1), RESTORE], {"a": (9, 5)}),
        # Two are in flight, and one of them is seen again.
        (
            3,
            [("a", 1, 1), ("b", 1, 1), TAKE, *((name, 2, 2) for name in "bcd"), RESTORE],
            {"a": (1, 1), "b": (2, 2), "c": (2, 2)},
        ),
        # Whoever is in flight waits already.
        (2, [("a", 1, 1), ("b", 1, 1), TAKE, ("b", 2, 2), RESTORE], {"a": (1, 1), "b": (2, 2)}),
        # After a write, the limit is as it was.
        (
            2,
            [("a", 1, 1), TAKE, ("a", 2, 2), RESTORE, ("b", 3, 3), ("c", 3, 3)],
            {"a": (2, 2), "b": (3, 3)},
        ),
    ],
)
def test_sightings_that_wait_are_merged_bounded_and_counted(
    limit: int, steps: list[Any], waiting: dict[str, tuple[float, float]]
) -> None:
    people = People(limit, window=600, grace=75)
    for step in steps:
        if step is TAKE:
            people.take(100)
        elif step is RESTORE:
            people.restore()
        else:
            people.note(("user", step[0]), *step[1:])
    assert people.pending == len(waiting)
    is_full = len({step[0] for step in steps if step not in (TAKE, RESTORE)}) > limit
    assert people.dropped["full"] == is_full
    recorded = people.counters()["recorded"]
    assert people.coalesced + people.dropped["full"] + people.pending == recorded
    taken = {each.person.who[1]: (each.seen, each.arrival) for each in people.take(100)}
    assert taken == waiting


def test_threads_that_record_amid_writes_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    people, writing, doubles = People(1000, 600, 75), threading.Lock(), list[int]()

    def work(_: int) -> None:
        for number in range(3000):
            people.note(("user", str(number // 8)), float(number), float(number))
            if not number % 3 and writing.acquire(blocking=False):
                taken = people.take(100)
                doubles.append(len(taken) - len({each.person.who for each in taken}))
                people.written(taken, (), 0)
                people.restore()
                writing.release()

    on_call(monkeypatch, people, "remember", lambda _: time.sleep(0))  # another thread runs then
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(usual)
    counters = people.counters()
    dropped, recorded = sum(counters.pop("dropped").values()), counters.pop("recorded")
    assert not any(doubles)
    assert recorded == sum(counters.values()) + dropped == 12_000


# What is written, and when.


def test_the_first_sighting_is_written_at_once_the_next_later(valkey: Server, prefix: str) -> None:
    site = by_header(valkey.url, prefix, flush_interval="2m", window="10m")
    recorder, presence = Recorder(site), Presence(site)
    visit(recorder, "bob")
    wait_until(lambda: recorder.stats().flushed)  # long before the interval is over
    assert presence.is_online("bob")
    visit(recorder, "alice")
    assert not presence.is_online("alice")
    assert recorder.stats().pending == 1
    recorder.close()
    assert presence.is_online("alice")


@pytest.mark.parametrize("is_usual", [False, True])
def test_the_newest_sighting_wins_whichever_ends_last(is_usual: bool, start: Start) -> None:
    worker = start()
    # Until then, each request is looked at closely.
    worker.recorder.hints.look_at = math.inf if is_usual else -math.inf
    worker.opens("ann").end()
    slow = worker.opens("bob")
    assert slow.is_usual is is_usual
    worker.clock.now += 30
    worker.opens("bob").end()
    worker.clock.now += 5
    slow.end()
    worker.writes()
    assert worker.presence.last_seen("bob") == moment_of(NOON + 30)


def test_a_fork_renews_the_recorder_once(idle: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presence_middleware.recorder.worker.getpid", lambda: -1)
    reset, resets, is_twice = idle.reset, list[object](), threading.Event()

    def reset_amid_another(sightings: Any) -> None:
        resets.append(sightings)
        if len(resets) == 2:
            is_twice.set()
        is_twice.wait(0.3)
        reset(sightings)

    monkeypatch.setattr(idle, "reset", reset_amid_another)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: idle.flush(), range(2))) == [True, True]
    assert len(resets) == 1
    assert idle.stats().flushed == 1


def test_a_write_ends_amid_a_new_recorder(idle: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under uWSGI, the first requests of a child find that it was forked, several at once."""
    idle.record(("user", "ann"), idle.stamp())
    on_call(monkeypatch, idle.writer, "write", lambda _: idle.reset())
    assert idle.flush()


def test_flush_writes_open_and_unclosed_visits(idle: Recorder) -> None:
    """As in a test suite, whose client keeps a response, or drops it, and closes neither."""
    app = Flask(__name__)
    app.wsgi_app = wsgi.PresenceMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, settings=idle.settings, clock=idle.stamp
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


def test_a_reader_gives_up_when_a_write_is_stuck(idle: Recorder) -> None:
    with idle.writer.lock:
        assert not idle.flush(0.02)
    assert idle.stats().pending == 1


# Processes and threads.


def test_one_recorder_serves_all_apps_with_equal_settings(valkey: Server, prefix: str) -> None:
    one, same = (recorder_for(by_header(valkey.url, prefix)) for _ in range(2))
    assert one is same
    assert one is not recorder_for(by_header(valkey.url, prefix, window="15m"))


def test_an_app_asks_the_client_that_its_wrapper_is_given(valkey: Server, prefix: str) -> None:
    """Over ASGI in threads, as it is a plain one."""
    counts = []

    def answer(environ: WSGIEnvironment, _: StartResponse) -> list[bytes]:
        counts.append(environ[READER].count())
        return []

    async def send_answer(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        counts.append(await scope[READER].count())

    given: Any = {"settings": by_header("redis://localhost:1", prefix), "client": valkey.client}
    wsgi.PresenceMiddleware(answer, **given)({"HTTP_X_USER": "ann"}, Mock())
    app: Any = asgi.PresenceMiddleware(send_answer, **given)
    asyncio.run(app({"type": "http", "headers": [(b"x-user", b"bob")]}, None, None))
    assert counts == [1, 2]


def test_a_child_starts_afresh_and_the_parent_writes(idle: Recorder, presence: Presence) -> None:
    """Also while the parent's thread holds both locks in the middle of a write."""

    def child() -> None:
        visit(idle, "child")
        assert idle.flush()
        assert idle.stats().recorded == 1

    with idle.people.lock, idle.writer.lock:
        in_child(child)
    assert presence.online_among(["bob", "child"]) == ["child"]
    idle.close()
    assert presence.online_among(["bob", "child"]) == ["bob", "child"]


def test_a_child_whose_fork_called_no_hook_writes_after_a_second(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under uWSGI: the child inherits a dead thread, and its parent has just woken that."""
    site, clock = by_header(valkey.url, prefix), Clock()
    recorder = Recorder(site, clock=clock, background=False)
    with monkeypatch.context() as parent:
        parent.setattr(worker_module, "getpid", lambda: -1)
        recorder.reset()
        recorder.background = True
        parent.setattr(threading.Thread, "start", lambda _: None)
        parent.setattr(threading.Thread, "is_alive", lambda _: True)
        visit(recorder, "parent")
        assert recorder.writer.lock.acquire()  # a write of the parent was under way
    visit(recorder, "early")
    assert recorder.stats().pending == 2
    clock.now += 1.001
    visit(recorder, "bob")
    wait_until(lambda: recorder.stats().flushed == 3)
    users = ["parent", "early", "bob"]
    assert Presence(site, clock=clock).online_among(users) == users


@pytest.mark.parametrize("act", ["leave", "forget"])
def test_whom_such_a_child_takes_offline_first_leaves(
    act: str, valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = by_header(valkey.url, prefix)
    recorder = Recorder(site, background=False)
    with monkeypatch.context() as parent:
        parent.setattr(worker_module, "getpid", lambda: -1)
        recorder.reset()
        visit(recorder, "ann")
        assert recorder.flush()
    getattr(WsgiVisit(recorder, {"HTTP_X_USER": "bob"}), act)("ann")
    assert not Presence(site).is_online("ann")


def test_an_exit_of_a_child_writes_nothing(idle: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as child:
        child.setattr(worker_module, "getpid", lambda: -1)
        idle.close()
    assert idle.stats().flushed == 0
    assert idle.flush()  # the parent
    assert idle.stats().flushed == 1


@pytest.mark.parametrize("method", ["start", "__init__"])
def test_where_no_thread_can_start_a_request_writes_until_one_can(
    method: str, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From Python 3.12 on, an isolated subinterpreter refuses to make a daemon thread at all."""
    worker = start(flush_interval="5s")
    recorder = worker.recorder
    recorder.background = True
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, method, Mock(side_effect=RuntimeError("can't start")))
        worker.did("bob")
        worker.did("alice")
    assert (recorder.stats().flushed, recorder.stats().pending) == (1, 1)
    worker.clock.now += 5
    worker.did("eve")
    wait_until(lambda: recorder.stats().flushed == 3)
    assert recorder.worker.thread is not None
    assert [m for m in caplog.messages if "background threads are disabled" in m] == caplog.messages


def test_rounds_forget_who_has_long_done_nothing(start: Start) -> None:
    """Also on a site without guests, where no quota begins a period."""
    worker, known = start(identity="user=header:X-User"), list[bool]()
    worker.recorder.run_once()
    worker.did("bob")
    for _ in range(2):
        worker.clock.now += worker.settings.window
        worker.recorder.run_once()
        known.append(worker.recorder.people.knows(("user", "bob")))
    assert known == [True, False]


def test_the_thread_rests_while_nothing_waits(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []
    monkeypatch.setattr(Upkeep, "run", lambda *_: rounds.append(time.monotonic()))
    recorder = Recorder(by_header(valkey.url, prefix, flush_interval="0.05s"))
    visit(recorder, "bob")
    wait_until(lambda: len(rounds) >= 7)
    assert rounds[6] - rounds[2] > 2 * 0.05


# The end.


def test_after_close_a_visit_starts_the_thread_again(recorder: Recorder) -> None:
    visit(recorder, "bob")
    recorder.close()
    assert recorder.stats().flushed == 1
    visit(recorder, "alice")
    wait_until(lambda: recorder.stats().flushed == 2)


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
    thread = recorder.worker.thread
    assert thread is not None
    assert began.wait(10)
    recorder.close()
    assert not thread.is_alive()


def test_what_processes_agree_on_lasts_while_one_runs(recorder: Recorder, prefix: str) -> None:
    run = recorder.backend.driver.run
    for proposal, seconds in (("first", 10), ("second", 1000)):
        assert run(agree(prefix, proposal, seconds)) == "first"
    assert run(send("TTL", prefix)) > 10


def test_a_setting_of_a_process_that_has_ended_is_none_and_an_hour_later_forgotten(
    recorder: Recorder, prefix: str
) -> None:
    run, name = recorder.backend.driver.run, "PRESENCE_WINDOW"
    old = SharedSettings(prefix, {name: "1m"}, {"user": 100.0, "staff": 100.0})
    new = SharedSettings(prefix, {name: "2m"}, {"user": 10.0})
    run(old.publish(1000.0))
    for now, differing, keep in (
        (1029.0, {name: "1m"}, 100.0),
        (1031.0, {}, 100.0),
        (4601.0, {}, 10.0),
    ):
        assert run(new.publish(now)) == (differing, {"user": keep})
    members = run(send("ZRANGE", keys.settings(prefix), 0, -1))
    assert members == [b"PRESENCE_WINDOW=2m", b"keep user=10.0"]


@pytest.mark.parametrize("knows_the_time", [False, True])
def test_an_exit_out_of_time_starts_no_round_trip(idle: Recorder, *, knows_the_time: bool) -> None:
    backend = idle.backend
    if knows_the_time:
        backend.driver.run(backend.clock.synchronise())
    assert not idle.flush(0)
    assert idle.stats().last_error == "Redis did not answer in time"
    assert idle.stats().pending == 1
    assert backend.clock.is_trusted() == knows_the_time
    assert not backend.layout.is_agreed


def test_an_exit_out_of_time_leaves_the_upkeep_to_run_out(idle: Recorder, prefix: str) -> None:
    """Else each recorder of a process would wait for a hung server, also with nothing to write."""
    idle.run_once()
    for seconds, is_taken in ((0.0, True), (2.0, False)):
        idle.close(seconds)
        assert (idle.backend.driver.run(send("PTTL", keys.upkeep(prefix))) > 0) == is_taken


@pytest.mark.parametrize("is_open", [False, True], ids=["ended", "open"])
def test_an_exit_starts_no_server_and_logs_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_open: bool
) -> None:
    """Sightings that never reached an embedded server do not start a new server."""
    recorder = Recorder(by_header(f"embedded://{tmp_path}/site", "presence"), background=is_open)
    bob = wsgi.WsgiVisit(recorder, {"HTTP_X_USER": "bob"})
    if not is_open:
        bob.end()
    recorder.close()
    assert "no embedded server is running" in (recorder.stats().last_error or "")
    assert not (tmp_path / "site").exists()
    assert caplog.messages[-1] == "shutting down with 1 sightings unwritten"


def test_an_embedded_server_that_was_killed_is_started_again(tmp_path: Path) -> None:
    site = by_header(f"embedded://{tmp_path}/site", "presence")
    recorder, presence = Recorder(site), Presence(site)
    visit(recorder, "early")
    assert recorder.flush()
    client = client_of(site.redis_url)
    os.kill(client.info("server")["process_id"], signal.SIGKILL)
    visit(recorder, "bob")
    wait_until(recorder.flush)
    assert presence.is_online("bob")
    client.close()
    # Nor does the end of a lifespan prevent the next one.
    recorder.close()
    assert embedded.wait_until_stopped(tmp_path / "site")
    visit(recorder, "late")
    wait_until(recorder.flush)
    recorder.close()
    assert embedded.wait_until_stopped(tmp_path / "site")


def test_a_sighting_that_arrives_during_a_flush_is_no_failure(
    idle: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on_call(monkeypatch, Driver, "run", lambda *_: idle.record(("user", "late"), idle.stamp()))
    idle.close()
    stats = idle.stats()
    assert (stats.pending, stats.last_error) == (1, None)
    assert not caplog.messages


def test_only_an_exit_is_in_a_hurry(idle: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connection of a cold start may take longer than an exit has."""
    deadlines = list[float]()
    on_call(monkeypatch, Driver, "run", lambda _, __, end=math.inf: deadlines.append(end))
    assert idle.flush()
    assert set(deadlines) == {math.inf}
    visit(idle, "bob")
    idle.close()
    assert min(deadlines) < math.inf


# What is imported before Redis is used.


@pytest.mark.parametrize("module", ["paste", "asgi"])
def test_importing_and_wrapping_bring_no_redis_client_and_no_framework(module: str) -> None:
    program = f"""
import sys, presence_middleware, presence_middleware.{module}
unwanted = "redis valkey fakeredis starlette fastapi flask django pyramid webob werkzeug web click"
if "{module}" == "asgi":
    presence_middleware.asgi.PresenceMiddleware(print)
else:
    presence_middleware.paste.filter_app_factory(print, {{}})
print([name for name in unwanted.split() if name in sys.modules])
"""
    done = run_program(program)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# A Python that allows no comparison of bytes with text.


ASKS = """
from presence_middleware import presence_of, wsgi

def app(environ, start_response):
    start_response("200 OK", [])
    return [b"%d" % presence_of(environ).count("guest")]

site = wsgi.PresenceMiddleware(app)
(body,) = site({"REMOTE_ADDR": "1.2.3.4", "HTTP_USER_AGENT": "Lynx"}, print)
print(body.decode())
"""


def test_a_first_guest_is_counted_under_a_strict_python(variables: dict[str, str]) -> None:
    """Its id is hashed with a key that the process receives during the request."""
    done = run([sys.executable, "-bb", "-c", ASKS], env=environment(**variables))
    assert (done.stdout, done.stderr) == ("200 OK []\n1\n", "")


# An import that is slow, as in a container with a part of a processor.


SLOW_IMPORT = """
import sys, threading, time
from presence_middleware import Presence, recorder_for

began = threading.Event()

class Slow:
    def find_spec(self, name, *_):
        if name == "redis.cluster":
            began.set()
            time.sleep(float(sys.argv[1]))

sys.meta_path.insert(0, Slow())
"""
FLUSHES = """
recorder = recorder_for()
recorder.record(("user", "ann"), recorder.stamp())
began.wait()
print(recorder.flush())
"""


def test_a_first_question_waits_for_the_import_of_redis_py(variables: dict[str, str]) -> None:
    program, seconds = f"{SLOW_IMPORT}print(Presence().count())", f"{READ_SECONDS + 0.2}"
    done = run_program(program, seconds, **variables)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_flush_waits_for_the_thread_that_imports_redis_py(variables: dict[str, str]) -> None:
    done = run_program(SLOW_IMPORT + FLUSHES, f"{FLUSH_SECONDS / 2 + 0.2}", **variables)
    assert (done.stdout, done.stderr) == ("True\n", "")


UNKNOWN = """
import redis
from presence_middleware import Presence, PresenceUnavailable, recorder_for

del redis.utils.get_lib_version
recorder = recorder_for()
recorder.record(("user", "ann"), recorder.stamp())
print(recorder.flush())
try:
    Presence().count()
except PresenceUnavailable:
    print("no answer")
"""


def test_a_redis_py_that_cannot_be_imported_is_an_outage(variables: dict[str, str]) -> None:
    """Also if a later version lacks a name, which is no error of an import."""
    assert run_program(UNKNOWN, **variables).stdout == "False\nno answer\n"
