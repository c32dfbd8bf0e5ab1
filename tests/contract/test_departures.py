"""Logouts: during an outage, right before a return, of unknown ids, and on older data."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import Presence, PresenceUnavailable, QueryError, Settings, asgi, wsgi
from presence_middleware.backend import Backend
from presence_middleware.embedded import find_server
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Act, Store, moment_of
from presence_middleware.wsgi import WsgiVisit
from tests.support.acts import depart
from tests.support.backends import Server, wait_until
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import NOON, WINDOW, Clock, Site, settings

DAY = 86_400.0


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may stop."""
    server = Server(str(find_server()), tmp_path)
    yield server
    server.stop()


def comes(recorder: Recorder, name: str) -> None:
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()


@pytest.mark.parametrize("store", ["sorted-set"])
def test_leaving_moves_no_last_seen_time(site: Site) -> None:
    site.saw("ann", ago=5 * DAY)
    site.presence.leave("ann")
    assert site.presence.last_seen("ann") == moment_of(NOON - 5 * DAY)
    site.presence.leave("never came")
    assert site.presence.last_seen("never came") is None


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_a_connection_that_was_refreshed_while_its_user_logged_out_does_not_count(
    store: str, valkey: Server, prefix: str
) -> None:
    given, clock = settings(valkey.url, prefix, store=store), Clock()
    recorder = Recorder(given, clock=clock, background=False)
    arrived, logged_out, clock.now = clock.now, clock.now + 98, clock.now + 100
    recorder.record(("user", "ann"), clock.now, arrived)
    recorder.record(("user", "ann"), logged_out, act=Act.LEFT)
    assert recorder.flush()
    assert not Presence(given, clock=clock).is_online("ann")
    recorder.close()


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_departures_of_more_than_a_window_ago_are_forgotten(site: Site) -> None:
    site.presence.leave("ann")
    site.clock.now += WINDOW + 121
    others = {f"user{number}" for number in range(50)}  # of all shards
    for id in others:
        site.presence.leave(id)
    held = [id for key, ids in site.held().items() if key.endswith(":left") for id in ids]
    assert set(held) == others


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_none_as_id_is_ignored(site: Site) -> None:
    site.saw("ann")
    site.presence.leave(None)
    site.presence.touch(None)
    site.presence.forget(None)
    assert site.presence.online_among(["ann", "None"]) == ["ann"]


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_an_id_in_bytes_is_text(site: Site) -> None:
    site.saw("ann")
    assert site.presence.is_online(b"ann")
    site.presence.leave(b"ann")
    assert not site.presence.is_online("ann")
    with pytest.raises(QueryError):
        site.presence.leave(b"\xff")


@pytest.mark.parametrize("through", ["the middleware", "a reader of the same process"])
def test_a_user_who_returns_right_after_leaving_is_online(
    valkey: Server, prefix: str, through: str
) -> None:
    given = Settings.from_env(
        {}, redis_url=valkey.url, prefix=prefix, identity="user=header:X-User", flush_interval="3m"
    )
    app = wsgi.PresenceMiddleware(lambda *_: [], settings=given)
    app.recorder.background = False
    presence = app.presence if through == "the middleware" else Presence(given)
    for number in range(100):
        name = f"user{number % 7}"
        comes(app.recorder, name)
        assert app.recorder.flush()
        presence.leave(name)
        assert not presence.is_online(name)
        comes(app.recorder, name)
        assert app.recorder.flush()
        assert presence.is_online(name), f"after {number} times"
    assert app.recorder.stats().dropped == {}
    app.recorder.close()


def test_a_request_from_before_the_logout_is_refused_however_late_it_ends(
    valkey: Server, prefix: str
) -> None:
    given = Settings.from_env(
        {}, redis_url=valkey.url, prefix=prefix, identity="user=header:X-User", flush_interval="3m"
    )
    recorder, presence = Recorder(given, background=False), Presence(given)
    for _ in range(50):
        slow = WsgiVisit(recorder, {"HTTP_X_USER": "ann"})
        presence.leave("ann")
        slow.end()
        assert recorder.flush()
        assert not presence.is_online("ann")
    recorder.close()


def asgi_logout(given: Settings, name: str) -> None:
    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await scope["presence_middleware.presence"].leave(name)

    async def never(*_: object) -> Any:
        raise AssertionError

    scope = {"type": "http", "path": "/logout", "headers": []}
    asyncio.run(asgi.PresenceMiddleware(app, settings=given)(scope, never, never))


def wsgi_logout(given: Settings, name: str) -> None:
    def app(environ: dict[str, Any], _: object) -> list[bytes]:
        environ["presence_middleware.presence"].leave(name)
        return []

    wsgi.PresenceMiddleware(app, settings=given)({"PATH_INFO": "/logout"}, lambda *_: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("log_out", [wsgi_logout, asgi_logout])
@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_a_logout_in_an_outage_waits_and_holds(
    own: Server, prefix: str, store: str, log_out: Any
) -> None:
    given = Settings.from_env(
        {},
        redis_url=own.url,
        prefix=prefix,
        identity="user=header:X-User",
        store=store,
        flush_interval="0.05s",
    )
    elsewhere = Recorder(Settings.from_env({}, **{**vars_of(given), "flush_interval": "3m"}))
    elsewhere.background = False
    app = wsgi.PresenceMiddleware(lambda *_: [], settings=given)
    for name in ("ann", "bob", "cid"):
        comes(app.recorder, name)
    assert app.recorder.flush()
    with redis.Redis.from_url(own.url) as client:
        client.save()
    own.stop()
    comes(elsewhere, "ann")  # before the logout, on another worker
    for name in ("ann", "bob"):
        log_out(given, name)
    comes(app.recorder, "bob")  # and in again
    own.start()
    wait_until(lambda: app.recorder.flush() and elsewhere.flush())
    assert Presence(given).online_among(["ann", "bob", "cid"]) == ["bob", "cid"]
    app.recorder.close()
    elsewhere.close()


def vars_of(given: Settings) -> dict[str, Any]:
    return {setting.name: getattr(given, setting.name) for setting in fields(given)}


def test_departures_are_repeated_to_a_server_that_returns_with_older_data(
    own: Server, prefix: str, store: str
) -> None:
    """As after a kill with a snapshot of before, or a failover to a replica that lagged."""
    given = settings(own.url, prefix, store=store)
    clocks = Clock(), Clock()
    workers = [Recorder(given, clock=clock, background=False) for clock in clocks]
    presence = Presence(backend=workers[0].backend)
    for number, worker in enumerate(workers):
        for name in ("old", "gone", "erased"):
            worker.record(("user", f"{name}{number}"), NOON)
        assert worker.flush()
    with redis.Redis.from_url(own.url) as client:
        client.save()
    for clock in clocks:
        clock.now += 20
    for number, worker in enumerate(workers):
        worker.record(("user", f"new{number}"), worker.stamp())
        assert worker.flush()
        if store != "hyperloglog":
            departing = Presence(backend=worker.backend)
            departing.leave(f"gone{number}")
            departing.forget(f"erased{number}")
    own.stop()
    own.start()
    for clock in clocks:
        clock.now += 20
    for worker in workers:
        worker.run_once()
        assert worker.flush()
    if store == "hyperloglog":
        assert presence.count() == 8
    else:
        assert {who.id for who in presence.online()} == {"old0", "old1", "new0", "new1"}
    if store == "sorted-set":
        assert presence.last_seen("gone0") == moment_of(NOON)
        assert presence.last_seen("erased1") is None
    for worker in workers:
        worker.close()


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_departures_of_unknown_ids_are_bounded(valkey: Server, prefix: str, store: str) -> None:
    given = settings(valkey.url, prefix, store=store, max_members=20)
    presence = Presence(given, clock=Clock())
    for number in range(100):
        presence.leave(f"nobody{number}")
        presence.forget(f"never{number}")
    with redis.Redis.from_url(valkey.url) as client:
        assert 0 < client.zcard(f"{prefix}:user:left") <= 20


def test_departures_live_for_the_window(valkey: Server, prefix: str) -> None:
    presence = Presence(settings(valkey.url, prefix))
    presence.leave("ann")
    with redis.Redis.from_url(valkey.url) as client:
        assert WINDOW < client.ttl(f"{prefix}:user:left") <= WINDOW + 121


def test_offline_ids_make_room_for_new_ids(valkey: Server, prefix: str) -> None:
    given = settings(valkey.url, prefix, max_members=5)
    clock = Clock()
    recorder = Recorder(given, clock=clock, background=False)
    presence = Presence(backend=recorder.backend)
    for number in range(5):
        recorder.record(("user", f"old{number}"), NOON)
    assert recorder.flush()
    clock.now += WINDOW + 1
    for name in ("old0", "new0", "new1"):
        recorder.record(("user", name), clock.now)
    assert recorder.flush()
    assert {who.id for who in presence.online()} == {"old0", "new0", "new1"}
    assert recorder.stats().dropped == {}
    assert presence.last_seen("old4") is not None, "no more of them go than are needed"
    presence.touch("new2")
    presence.touch("new3")
    assert presence.count() == 5
    with pytest.raises(PresenceUnavailable, match="PRESENCE_MAX_MEMBERS"):
        presence.touch("new4")
    recorder.record(("user", "new5"), clock.now)
    assert recorder.flush()
    assert recorder.stats().dropped == {"members": 1}
    recorder.close()


def test_a_logout_does_not_wait_for_a_server_that_is_known_to_be_away(
    own: Server, prefix: str
) -> None:
    given = Settings.from_env({}, redis_url=own.url, prefix=prefix, flush_interval="0.05s")
    app = wsgi.PresenceMiddleware(lambda *_: [], settings=given)
    own.stop()
    comes(app.recorder, "ann")
    wait_until(lambda: app.recorder.health.is_outage)
    with Stopwatch() as watch:
        for _ in range(100):
            wsgi_logout(given, "ann")
    assert watch.seconds < 0.5  # one timeout
    own.start()
    app.recorder.close()


@pytest.mark.parametrize("act", [Act.GOODBYE, Act.LEFT])
def test_a_moment_ahead_of_the_server_is_lowered_to_its_clock(
    valkey: Server, prefix: str, act: Act
) -> None:
    """Otherwise a process whose estimate is too late would refuse who comes back."""
    site = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, pulse_path="/pulse")
    backend = Backend(site)
    shard, run = backend.stores["user"].all[0], backend.driver.run
    passed = Backend(site, clock=time.time).stores["user"].all[0]
    ahead = int(time.time() + 60) * 1_000_000
    with redis.Redis.from_url(valkey.url) as client:

        def counted_at(store: Store, moment: int) -> tuple[int, int]:
            """Return the moment at which a departure counts, in seconds and microseconds."""
            for key in client.scan_iter(f"{prefix}:*"):
                client.delete(key)
            seen = ("ann", moment - 100_000_000, moment - 100_000_000, None)
            run(store.write([seen], [(act, "ann", moment, None)]))
            key = "bye" if act is Act.GOODBYE else "left"
            scores: Any = client.zrange(f"{prefix}:user:{key}", 0, -1, withscores=True)
            return divmod(round(float(scores[-1][1]) * 1e6), 1_000_000)

        before = client.time()
        at = counted_at(shard, ahead)
        assert before <= at <= client.time()
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
    run(depart(shard, act, "ann", between))
    assert not presence.is_online("ann")
    run(shard.touch("ann", early, late))
    assert presence.is_online("ann")
