"""Logouts and goodbyes of processes: in an outage, right before a return, on older data."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import Presence, PresenceUnavailable, Settings, asgi, wsgi
from presence_middleware.backend import Backend
from presence_middleware.embedded import find_server
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Act, Store, moment_of
from presence_middleware.wsgi import WsgiVisit
from tests.support.acts import depart
from tests.support.backends import Server, wait_until
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import NOON, WINDOW, Clock, settings

DAY, GRACE = 86_400.0, 75.0


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may stop."""
    server = Server(str(find_server()), tmp_path)
    yield server
    server.stop()


def comes(recorder: Recorder, name: str) -> None:
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()


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


class Pages:
    """A site whose pages send a pulse: two processes, and a reader elsewhere."""

    def __init__(self, url: str, prefix: str) -> None:
        given = settings(url, prefix, pulse_path="/pulse", flush_interval="3m")
        self.clock = Clock()
        self.presence = Presence(given, clock=self.clock)
        self.workers = [Recorder(given, clock=self.clock, background=False) for _ in range(2)]

    def sees(self, *ids: str, ago: float = 0.0, worker: int = 0, kind: str = "user") -> None:
        """A process writes that ids were seen `ago` seconds before now."""
        for id in ids:
            self.workers[worker].record((kind, id), self.clock.now - ago)
        assert self.workers[worker].flush()

    def closes(self, *ids: str, ago: float = 0.0, worker: int = 1, kind: str = "user") -> None:
        """A process writes that ids said goodbye, by default not the process that saw them."""
        for id in ids:
            self.workers[worker].record((kind, id), self.clock.now - ago, act=Act.GOODBYE)
        assert self.workers[worker].flush()

    def online_from_until(self, id: str, seconds: float, kind: str = "user") -> None:
        """Assert that an id is online for so many more seconds, and not for longer."""
        began = self.clock.now
        for now, is_online in ((began + seconds - 1, True), (began + seconds + 1, False)):
            self.clock.now = now
            assert self.presence.is_online(id, kind) == is_online
        self.clock.now = began


@pytest.fixture
def pages(valkey: Server, prefix: str) -> Iterator[Pages]:
    pages = Pages(valkey.url, prefix)
    yield pages
    for worker in pages.workers:
        worker.close()


def test_who_closed_the_last_page_is_offline_after_the_grace(pages: Pages) -> None:
    for kind in ("user", "guest"):
        pages.sees("ann", ago=30, kind=kind)
    pages.closes("ann", kind="guest")
    pages.online_from_until("ann", GRACE, "guest")
    pages.online_from_until("ann", WINDOW - 30)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_late_sighting_from_before_the_goodbye_is_dropped(pages: Pages, worker: int) -> None:
    pages.sees("ann", ago=60)
    pages.closes("ann")
    pages.clock.now += 3
    pages.sees("ann", "bob", ago=4, worker=worker)
    pages.online_from_until("ann", GRACE - 3)
    pages.online_from_until("bob", WINDOW - 4)


def test_a_goodbye_that_was_written_before_its_sighting_is_repeated_with_it(pages: Pages) -> None:
    pages.closes("ann", ago=3, worker=0)
    pages.sees("ann", ago=4, worker=0)
    pages.online_from_until("ann", GRACE - 3)


def test_a_goodbye_from_ahead_of_a_clock_that_was_set_back_gives_way_to_the_next_sighting(
    pages: Pages,
) -> None:
    pages.sees("ann", ago=30)
    pages.closes("ann")
    pages.clock.now = NOON - 3600
    pages.sees("bob", worker=1)
    pages.clock.now += WINDOW + 1
    assert not pages.presence.is_online("bob")
    pages.clock.now = NOON + GRACE + 1
    assert not pages.presence.is_online("ann")
    assert pages.presence.last_seen("ann") == moment_of(NOON)
