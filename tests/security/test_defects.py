"""Regression tests for the defects that reviews of the security found."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock
from weakref import ref

import pytest
import redis
import trio

from presence_middleware import AsyncPresence, Presence, asgi, wsgi
from presence_middleware.connections.health import RedisHealth
from presence_middleware.connections.server import ServerClock
from presence_middleware.errors import SettingsError
from presence_middleware.recorder import Recorder
from presence_middleware.recorder.request_filter import matching_paths
from presence_middleware.request import AsgiRequest
from presence_middleware.stores import Act, Batch, Plan
from presence_middleware.stores.sorted_set import SortedSet
from presence_middleware.wsgi import WsgiVisit
from tests.support.asking import never
from tests.support.backends import Server, by_trips, wait_until
from tests.support.timed_site import Clock, Recording, by_header

BOB = {"HTTP_X_USER": "bob"}
BY_HEADER = {"identity": "user=header:X-User"}


# ---- Redis.


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_finished_event_loop_is_released(valkey: Server, prefix: str) -> None:
    """Without `aclose`, a single connection stays open, not a connection per loop."""
    presence = AsyncPresence(by_header(f"{valkey.url}?client_name={prefix}", prefix))

    async def ask_and_close() -> None:
        await presence.count()
        await presence.aclose()

    def are_open(most: int) -> bool:
        gc.collect()
        return [each["name"] for each in valkey.client.client_list()].count(prefix) <= most

    for _ in range(5):
        asyncio.run(presence.count())
        wait_until(lambda: are_open(1))
    asyncio.run(ask_and_close())
    wait_until(lambda: are_open(0))


@pytest.mark.parametrize("has_written", [False, True])
def test_a_demoted_primary_is_abandoned_and_no_key_is_logged(
    valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture, *, has_written: bool
) -> None:
    """`SET visitor-key` or a script fails on it, and the client's message quotes the command."""
    client = redis.Redis.from_url(valkey.url)
    settings = by_header(valkey.url, prefix, identity="guest=visitor")
    recorder = Recorder(settings, client=client, background=False)
    for address in ("192.0.2.1", "192.0.2.2"):
        assert not has_written or recorder.flush()
        WsgiVisit(recorder, {"REMOTE_ADDR": address}).end()
    valkey.client.replicaof("127.0.0.1", "1")
    try:
        client.ping()
        demoted = client.client_id()
        assert not recorder.flush()
    finally:
        valkey.client.replicaof("NO", "ONE")
    assert "read only replica" in str(recorder.stats().last_error)
    assert prefix not in f"{caplog.text}{recorder.stats()}"
    assert client.client_id() != demoted
    assert recorder.flush()
    client.close()


def test_a_slow_first_connection_does_not_widen_the_clock() -> None:
    now, delays = 100.0, iter([2.0, 0.001])
    clock = ServerClock(RedisHealth(), lambda: now)
    clock.is_server_time = True

    def late(batch: Batch) -> Plan[Any]:
        nonlocal now
        yield batch
        now += next(delays)
        return [(1_700_000_000 + int(now), 0)]

    assert len(list(by_trips(clock.synchronise(), late))) == 2, "round trips"
    low, high = clock.bounds
    assert high - low == pytest.approx(1000, abs=1)
    assert not list(by_trips(clock.synchronise(), late))


def test_in_an_outage_no_reader_waits_for_the_write(recording: Recording) -> None:
    recorder = recording(redis_url="redis://localhost:1", **BY_HEADER)
    recorder.health.failed("")
    WsgiVisit(recorder, {**BOB}).note()
    recorder.write_for_reader()
    assert recorder.stats().recorded == 1
    assert recorder.health.failing[""].count == 1, "it has not tried"


def test_an_unused_recorder_is_collected_and_its_thread_ends(valkey: Server, prefix: str) -> None:
    recorder = Recorder(by_header(valkey.url, prefix, flush_interval="0.05s"), client=valkey.client)
    WsgiVisit(recorder, {**BOB}).end()
    assert recorder.flush()
    thread, gone = recorder.worker.thread, ref(recorder)
    assert thread is not None
    del recorder
    wait_until(lambda: gc.collect() >= 0 and gone() is None)
    wait_until(lambda: thread not in threading.enumerate())


# ---- Who it is.


class Meanwhile:
    """A slow source of ids, during which something happens once."""

    happens: Callable[[], object] | None = None
    found: str | None = None

    @classmethod
    def read(cls, _: object) -> str | None:
        happens, cls.happens = cls.happens, None
        if happens is not None:
            happens()
        return cls.found


SLOWLY = f"{__name__}:Meanwhile.read"


def test_a_user_who_is_named_during_identification_replaces_who_was_there(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meanwhile, "found", "ann")
    clock = Clock()
    recorder = recording(clock, identity=f"user={SLOWLY}")
    visit = WsgiVisit(recorder, {})
    clock.now += 60
    visit.refresh(clock(), 30)
    recorder.depart(("user", "ann"), Act.LEFT)
    clock.now += 60
    monkeypatch.setattr(Meanwhile, "happens", lambda: visit.identify("bob"))
    visit.refresh(clock(), 30)
    recorder.flush()
    online = Presence(recorder.settings, clock=clock).online()
    assert [seen.id for seen in online] == ["bob"]


def test_a_reused_environ_counts_again_and_does_not_keep_its_user(prefix: str) -> None:
    seen = []

    def app(environ: dict[str, Any], _: object) -> list[bytes]:
        if environ["PATH_INFO"] == "/login":
            environ["presence_middleware.user"] = lambda: "ada"
        seen.append(environ["presence_middleware.visit"].identity)
        return []

    wrapped = wsgi.PresenceMiddleware(
        app, settings=by_header(f"memory://{prefix}", prefix, identity="user=auth, guest=ip:raw")
    )
    environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.7"}
    for path in ("/login", "/", "/"):
        environ["PATH_INFO"] = path
        wrapped(environ, lambda *_: list[bytes]().append)
    assert seen == [("user", "ada"), *([("guest", "192.0.2.7")] * 2)]
    assert wrapped.recorder.stats().recorded == 3


def test_every_path_and_header_is_inspected_quickly() -> None:
    """Each took a hundred milliseconds and more; a tenth of that is enough on any machine."""
    excluded = matching_paths(("/*/a/*.js", "/*a*b*c"))
    began = time.process_time()
    assert "/" + "a/" * 16_000 not in excluded
    AsgiRequest({"headers": [(b"cookie", b"a=b")] * 10_000}).header("cookie")
    assert time.process_time() - began < 0.1


# ---- Settings.


def test_a_late_app_does_not_start_with_wrong_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework builds its layers in the loop: it would start to serve and fail on each request.

    Without a lifespan, the request raises the error.
    """
    send = AsyncMock()

    async def late(type: str) -> None:
        await asgi.PresenceMiddleware(never)({"type": type}, never, send)

    monkeypatch.setenv("PRESENCE_WINDOW", "soon")
    asyncio.run(late("lifespan"))
    (sent,) = send.await_args_list[0].args
    assert sent["type"] == "lifespan.startup.failed"
    assert "PRESENCE_WINDOW='soon': expected" in sent["message"]
    trio.run(late, "lifespan")
    assert [call.args for call in send.await_args_list] == [(sent,), (sent,)]
    with pytest.raises(SettingsError, match="PRESENCE_WINDOW"):
        asyncio.run(late("http"))
    with pytest.raises(SettingsError, match="PRESENCE_WINDOW"):
        asgi.PresenceMiddleware(never)


# ---- Ourselves.


def test_internal_errors_lose_nobody(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recording(**BY_HEADER)
    WsgiVisit(recorder, {**BOB}).end()
    with monkeypatch.context() as patch:
        patch.setattr(SortedSet, "write", lambda *_: 1 / 0)
        assert not recorder.flush()
    assert recorder.flush()
    assert recorder.stats().flushed == 1
