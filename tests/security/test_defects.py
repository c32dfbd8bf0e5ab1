"""Regression tests for the defects that a security review found."""

import asyncio
import gc
import json
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any
from weakref import ref

import pytest
import redis
import redis.asyncio

from presence_middleware import (
    AsyncPresence,
    Presence,
    PresenceUnavailable,
    Settings,
    SettingsError,
    wsgi,
)
from presence_middleware.connections import clients
from presence_middleware.connections.health import RedisHealth
from presence_middleware.connections.server import ServerClock
from presence_middleware.recorder import Recorder, Visit
from presence_middleware.stores import Shards, paging, sorted_set
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server, wait_until

HALVES = ["\\udcc3\\udca9", "\\ud800", "a\\udcffb"]  # as JSON has them


def site(url: str, prefix: str, **others: object) -> Settings:
    given = {"redis_url": url, "prefix": prefix, "identity": "user=header:X-User", **others}
    return Settings.from_env({}, **given)


@pytest.mark.parametrize("half", HALVES)
def test_a_lone_surrogate_is_a_valid_id(half: str, valkey: Server, prefix: str) -> None:
    name = json.loads(f'"{half}"')
    settings = site(valkey.url, prefix)
    recorder, presence = Recorder(settings), Presence(settings)
    WsgiVisit(recorder, {"HTTP_X_USER": "bob"}).end()
    visit = WsgiVisit(recorder, {})
    visit.identify(name)
    visit.end()
    assert recorder.flush()
    assert presence.count() == 2
    assert presence.is_online(name)
    assert not presence.is_online(name + "x")
    presence.forget(name)
    assert presence.count() == 1
    recorder.close()


def test_an_internal_error_while_writing_loses_no_sighting(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(site(valkey.url, prefix))
    recorder.background = False
    WsgiVisit(recorder, {"HTTP_X_USER": "bob"}).end()
    with monkeypatch.context() as patch:
        patch.setattr(sorted_set.SortedSet, "write", lambda *_: 1 / 0)
        assert not recorder.flush()
    assert recorder.stats().pending == 1
    assert recorder.flush()
    recorder.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_finished_event_loop_is_released(valkey: Server, prefix: str) -> None:
    """Without `aclose`, a single connection stays open, not a connection per loop."""
    presence = AsyncPresence(site(valkey.url, prefix))
    for _ in range(5):
        asyncio.run(presence.count())
    assert len(clients._async) == 1
    clients._async.clear()
    gc.collect()


@pytest.mark.parametrize(
    "url", ["redis://a..b/0", "redis://localhost:1/0?socket_timeout=x", "unix:///no?ssl_x=1"]
)
def test_an_invalid_redis_address_is_an_ordinary_outage(url: str, prefix: str) -> None:
    settings = site(url, prefix)
    with pytest.raises(PresenceUnavailable):
        Presence(settings).count()
    recorder = Recorder(settings)
    WsgiVisit(recorder, {"HTTP_X_USER": "bob"}).end()
    assert not recorder.flush()
    assert recorder.stats().pending == 1
    recorder.close()


def test_a_demoted_primary_is_abandoned_and_no_key_is_logged(
    valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`SET visitor-key` fails on it, and the client's message quotes the command."""
    with redis.Redis.from_url(valkey.url) as client, redis.Redis.from_url(valkey.url) as admin:
        recorder = Recorder(site(valkey.url, prefix, identity="guest=visitor"), client=client)
        recorder.background = False
        WsgiVisit(recorder, {"REMOTE_ADDR": "192.0.2.1"}).end()
        admin.replicaof("127.0.0.1", "1")
        try:
            client.ping()
            demoted = client.client_id()
            assert not recorder.flush()
        finally:
            admin.replicaof("NO", "ONE")
        assert "read only replica" in str(recorder.stats().last_error)
        assert prefix not in f"{caplog.text}{recorder.stats()}"
        assert client.client_id() != demoted
        assert recorder.flush()
        recorder.close()


def run(plan: Generator[Any, Any, None], answer: Callable[[], list[Any]]) -> int:
    """Runs a plan with made-up replies; how many batches it sent."""
    batches = 0
    try:
        plan.send(None)
        while True:
            batches += 1
            plan.send(answer())
    except StopIteration:
        return batches


def test_a_slow_first_connection_does_not_widen_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = ServerClock(RedisHealth())
    clock.stamp = lambda: now[0]
    delays = iter([2.0, 0.001])

    def answer() -> list[Any]:
        now[0] += next(delays)
        return [(1_700_000_000 + int(now[0]), 0)]

    assert run(clock.synchronise(), answer) == 2
    assert clock._high - clock._low == pytest.approx(0.001, abs=1e-6)
    assert run(clock.synchronise(), answer) == 0


def test_in_an_outage_no_reader_waits_for_the_write(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(site(valkey.url, prefix))
    visit = WsgiVisit(recorder, {"HTTP_X_USER": "bob"})
    recorder.health.failed("")
    senders: list[threading.Thread] = []  # the recorder's own thread may well be among them
    monkeypatch.setattr(
        recorder.backend.writing_driver,
        "run",
        lambda *_: senders.append(threading.current_thread()),
    )
    visit.flush()
    assert recorder.stats().recorded == 1
    assert threading.current_thread() not in senders


def test_a_user_seen_again_during_a_listing_is_listed(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "PAGE", 10)
    store = Shards([sorted_set.SortedSet(prefix, "user", 600, 600, 10**6)], on_one_server=True)
    with redis.Redis.from_url(valkey.url) as client:
        for number in range(35):
            client.zadd(f"{prefix}:user:seen", {f"u{number:02}": 1000.0 + number})
        plan = store.online(1100.0, 600, None, None)
        batch, pages = next(plan), 0
        while True:
            reply = client.execute_command(*batch.commands[0])
            pages += 1
            if pages == 2:
                client.zadd(f"{prefix}:user:seen", {"u03": 1099.0})
            try:
                batch = plan.send([reply])
            except StopIteration as end:
                listed = [sighting.id for sighting in end.value]
                break
    assert len(listed) == len(set(listed)) == 35
    assert listed[0] == "u03"


def test_an_async_client_is_refused_where_a_thread_writes(prefix: str) -> None:
    client = redis.asyncio.Redis()
    with pytest.raises(SettingsError, match=r"a synchronous redis\.Redis"):
        wsgi.PresenceMiddleware(lambda *_: [], settings=site("redis://h", prefix), client=client)


def test_an_unused_recorder_is_collected_and_its_thread_ends(valkey: Server, prefix: str) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        settings = site(valkey.url, prefix, flush_interval="0.05s")
        recorder = Recorder(settings, client=client)
        WsgiVisit(recorder, {"HTTP_X_USER": "bob"}).end()
        assert recorder.flush()
        thread, gone = recorder.thread, ref(recorder)
        assert thread is not None
        del recorder
        wait_until(lambda: gc.collect() >= 0 and gone() is None)
        wait_until(lambda: thread not in threading.enumerate())


def test_an_environ_that_is_served_twice_counts_twice(valkey: Server, prefix: str) -> None:
    app = wsgi.PresenceMiddleware(lambda *_: [], settings=site(valkey.url, prefix))
    environ = {"HTTP_X_USER": "bob"}
    app(environ, lambda *_: None)  # type: ignore[arg-type]
    app(environ, lambda *_: None)  # type: ignore[arg-type]
    assert app.recorder.stats().recorded == 2
    app.recorder.close()


def test_a_disabled_site_collects_no_abandoned_visits(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(site("redis://h", prefix, enabled=False))
    abandoned: list[Visit] = []
    monkeypatch.setattr(recorder, "abandoned", abandoned.append)
    WsgiVisit(recorder, {}).abandon()
    assert not abandoned


def test_an_error_during_an_outage_is_logged_once(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(site("redis://localhost:1", prefix))
    recorder.background = False
    WsgiVisit(recorder, {"HTTP_X_USER": "bob"}).end()
    with caplog.at_level(logging.WARNING, "presence_middleware"):
        assert not recorder.flush()
        assert not recorder.flush()
    assert len(caplog.records) == 1
    recorder.close()
