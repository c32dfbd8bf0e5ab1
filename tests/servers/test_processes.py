"""Where no thread runs, or a thread is dead or stuck; clocks; forks; and the loop of Trio."""

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis
import trio

from presence_middleware import AsyncPresence, Presence, Settings, WouldBlock, asgi, presence_of
from presence_middleware.connections import health
from presence_middleware.connections import server as server_clock
from presence_middleware.connections.health import RedisHealth
from presence_middleware.recorder import Recorder, worker
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server, client_of, wait_until
from tests.support.commands import run_program
from tests.support.faults import hung
from tests.support.servers import NEVER
from tests.support.statuses import Call
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import Start, by_header, visit

# Where no thread runs


@pytest.fixture
def settings(valkey: Server, prefix: str) -> Settings:
    return by_header(valkey.url, prefix, flush_interval=NEVER)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "threads_run", lambda: False)


@pytest.mark.usefixtures("no_threads")
def test_without_threads_requests_refresh_an_open_connection(valkey: Server, start: Start) -> None:
    site = start(valkey.url, flush_interval="1s")
    site.recorder.background = True
    open_visit = WsgiVisit(site.recorder, {"HTTP_X_USER": "bob"})
    for _ in range(20):
        site.clock.now += 60
        visit(site.recorder, "alice")
        assert site.online() == ["alice", "bob"]
    open_visit.end()


@pytest.mark.usefixtures("no_threads")
def test_without_threads_few_requests_wait_in_an_outage(own: Server, prefix: str) -> None:
    recorder = Recorder(by_header(own.url, prefix, flush_interval="1s"))
    took = []
    with hung(own), Stopwatch() as watch:
        for number in range(500):
            began = watch.seconds
            visit(recorder, f"u{number}")
            took.append(watch.seconds - began)
        assert recorder.stats().last_error, "one of them has tried to write"
    *others, longest = sorted(took)
    assert longest < 1.0  # one timeout
    assert max(others) < 0.25
    recorder.close()
    assert Presence(recorder.settings).count() == 500


# A thread that is dead, or stuck


@pytest.fixture
def always_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each visit wakes the thread, as if a second lay between two."""
    monkeypatch.setattr(worker, "WAKE_AGAIN", 0.0)


@pytest.mark.usefixtures("always_wakes")
def test_a_stuck_write_is_logged_once_each_time_and_delays_no_request(
    own: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "STUCK_SECONDS", 0.1)
    client = redis.Redis.from_url(own.url, socket_timeout=None)
    recorder = Recorder(by_header(own.url, prefix, flush_interval="0.1s"), client=client)
    visit(recorder, "first")
    wait_until(lambda: recorder.stats().flushed == 1)
    for stuck in (1, 2):
        with hung(own), Stopwatch() as watch:
            took: list[float] = []

            def is_said(watch: Stopwatch = watch, stuck: int = stuck) -> bool:
                began = watch.seconds
                visit(recorder, "bob")
                took.append(watch.seconds - began)  # noqa: B023
                return len(caplog.messages) >= stuck

            wait_until(is_said)
            assert all(is_said() for _ in range(100))
        assert max(took) < 0.1
        assert len(caplog.messages) == stuck
        assert "no write to Redis has completed" in caplog.messages[-1]
        assert recorder.flush()
    client.close()


@pytest.mark.usefixtures("always_wakes")
def test_a_long_interval_is_not_logged_as_stuck(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "STUCK_SECONDS", 0.0)
    recorder = Recorder(settings)
    visit(recorder, "first")
    wait_until(lambda: recorder.stats().flushed == 1)
    for name in ("bob", "alice"):
        visit(recorder, name)
    recorder.close()
    assert not caplog.messages


# Clocks


def test_clocks_may_be_hours_apart(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    true, came = time.time, dict[str, float]()
    for name, hours in (("ann", 1), ("bob", 0), ("cy", -2)):
        recorder, presence = Recorder(settings, background=False), Presence(settings)
        monkeypatch.setattr(time, "time", lambda ahead=hours * 3600: true() + ahead)
        came[name] = true()
        visit(recorder, name)
        assert recorder.flush()
        found = {each.id: each.last_seen for each in presence.online()}
        assert found.keys() == came.keys()
        for id, last_seen in found.items():
            assert last_seen
            assert last_seen.timestamp() == pytest.approx(came[id], abs=2)


def test_the_server_is_asked_again_after_ten_seconds_and_if_another_may_answer() -> None:
    health, now = RedisHealth(), 100.0
    clock = server_clock.ServerClock(health, lambda: now)
    clock.is_server_time = True

    def is_asked() -> bool:
        plan = clock.synchronise()
        for _ in plan:
            with suppress(StopIteration):
                plan.send([(1_700_000_000, 0)])
            return True
        return False

    assert [is_asked(), is_asked()] == [True, False]
    now += 10.5
    assert [is_asked(), is_asked()] == [True, False]
    health.lost_connection()
    assert [is_asked(), is_asked()] == [True, False]


def test_nobody_stays_online_through_a_sleep(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its monotonic clock stands still, and another host cleans up its last write meanwhile."""
    settings, true = by_header("memory://slept", prefix), time.time
    recorder = Recorder(settings, background=False)
    visit(recorder, "ann")
    assert recorder.flush()
    monkeypatch.setattr(time, "time", lambda: true() + 8 * 3600)
    Recorder(settings, client=client_of(settings.redis_url), background=False).run_once()
    recorder.health.lost_connection()
    recorder.run_once()
    visit(recorder, "bob")
    assert recorder.flush()
    assert [each.id for each in Presence(settings).online()] == ["bob"]


# Forks, and the end


IMPORTING = """
import os, queue, signal, sys, threading, time
from contextlib import suppress
from presence_middleware import Presence

class SlowImports:
    begun = queue.SimpleQueue()

    def find_spec(self, name, *_):
        # The first connection of Python 3.13 and later imports a part of email.
        names = "presence_middleware.", "redis.backoff", "redis.retry", "email.message"
        if name.startswith(names):
            self.begun.put(name)
            time.sleep(0.1)

presence = Presence.from_env()
sys.meta_path.insert(0, SlowImports())
reader = threading.Thread(target=presence.count)
reader.start()
children = {}
while reader.is_alive() or not SlowImports.begun.empty():
    with suppress(queue.Empty):
        name = SlowImports.begun.get(timeout=0.01)
        pid = os.fork()
        if not pid:
            signal.alarm(5)  # ends the child if it waits for the import of its parent
            presence.count()
            os._exit(0)
        children[pid] = name
print([name for pid, name in children.items() if os.waitpid(pid, 0)[1]], len(children) > 2)
"""


ALONE = """
import os

hooks = []
os.register_at_fork = lambda after_in_child=int, **_: hooks.append(after_in_child)
from presence_middleware import Presence

presence = Presence.from_env()
for hook in hooks:
    hook()
print(len(hooks) > 1, presence.count())
"""


LATE = """
import asyncio, os, sys

from presence_middleware import AsyncPresence

loop = asyncio.new_event_loop()
print(loop.run_until_complete(AsyncPresence.from_env().count()))
# Python ends this module after the others.
os.kept = loop, sys.modules["redis.asyncio.connection"]
"""


PROGRAMS = {
    # How children record, test_recorder.py shows, and uWSGI and `--preload` in test_servers.py.
    "a child that was forked during an import reads": (IMPORTING, "[] True\n"),
    # As a worker of uWSGI with `--py-call-osafterfork`: an error would be in its log.
    "a child may call the last hook of a fork alone": (ALONE, "True 0\n"),
    # As that of Daphne does when `runserver` loads a site again.
    "a loop that outlives other modules prints no error": (LATE, "0\n"),
}


@pytest.mark.parametrize(("program", "output"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_process_forks_and_ends_without_an_error(
    program: str, output: str, variables: dict[str, str]
) -> None:
    done = run_program(program, **variables)
    assert (done.stdout, done.stderr) == (output, "")


# Tasks and trio


def test_under_trio_async_readers_refuse_and_a_thread_reads_for_them(settings: Settings) -> None:
    settings = replace(settings, events=("user",))
    seen: list[bool] = []

    async def handler(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        question: Any
        own = AsyncPresence(settings)
        for presence in (own, presence_of(scope)):
            for question in (presence.count, partial(presence.leave, "bob"), presence.events):
                with pytest.raises(WouldBlock, match=r"Presence in a thread.*to_thread"):
                    await question()
        await own.aclose()
        seen.append(await trio.to_thread.run_sync(Presence(settings).is_online, "ann"))

    async def visit() -> None:
        site = asgi.PresenceMiddleware(handler, settings=settings)
        scope = Call({"X-User": "bob"}).request.scope()
        await site(scope, trio.sleep_forever, lambda _: trio.lowlevel.checkpoint())

    Presence(settings).touch("ann")
    trio.run(visit)
    assert seen == [True]
    wait_until(lambda: {seen.id for seen in Presence(settings).online()} == {"ann", "bob"})


@pytest.mark.usefixtures("always_wakes")
def test_a_dead_thread_is_replaced_at_the_next_wake(valkey: Server, prefix: str) -> None:
    recorder = Recorder(by_header(valkey.url, prefix))
    visit(recorder, "bob")
    assert recorder.worker.thread is not None
    recorder.worker.stopping.set()
    recorder.worker.wake()
    recorder.worker.thread.join(10)
    assert not recorder.worker.thread.is_alive()
    visit(recorder, "alice")
    wait_until(lambda: recorder.stats().flushed == 2)
