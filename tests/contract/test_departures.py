"""Logouts and goodbyes of processes: in an outage, right before a return, on older data."""

import asyncio
import time
from itertools import cycle
from typing import Any

import pytest
import redis

from presence_middleware import Presence, Settings, asgi, wsgi
from presence_middleware.backend import Backend
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Act, Store
from presence_middleware.wsgi import WsgiVisit
from tests.support.acts import depart
from tests.support.backends import Server, wait_until
from tests.support.process import Start
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import NOON, Clock, by_header, settings

GRACE = 75.0


def comes(recorder: Recorder, name: str) -> None:
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_a_connection_that_was_refreshed_while_its_user_logged_out_does_not_count(
    store: str, valkey: Server, start: Start
) -> None:
    worker = start(valkey.url, store=store)
    worker.clock.now += 100
    worker.recorder.record(("user", "ann"), worker.clock.now, NOON)
    worker.saw("ann", act=Act.LEFT, ago=2)
    assert worker.online() == []


@pytest.mark.parametrize("through", ["the middleware", "a reader of the same process"])
def test_a_user_who_returns_right_after_leaving_is_online_and_no_earlier_request_is(
    valkey: Server, prefix: str, through: str
) -> None:
    app = wsgi.PresenceMiddleware(
        lambda *_: [], settings=by_header(valkey.url, prefix, flush_interval="3m")
    )
    app.recorder.background = False
    presence = app.presence if through == "the middleware" else Presence(app.recorder.settings)
    for number in range(30):
        name = f"user{number}"
        comes(app.recorder, name)
        assert app.recorder.flush()
        slow = WsgiVisit(app.recorder, {"HTTP_X_USER": name})
        presence.leave(name)
        slow.end()
        assert app.recorder.flush()
        assert not presence.is_online(name)
        comes(app.recorder, name)
        assert app.recorder.flush()
        assert presence.is_online(name), f"after {number} times"
    assert set(app.recorder.stats().dropped) <= {"left"}
    app.recorder.close()


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
def test_a_logout_in_an_outage_waits_and_holds_and_no_request_waits_for_it(
    own: Server, prefix: str, store: str, log_out: Any
) -> None:
    given = by_header(own.url, prefix, store=store)
    waiting = by_header(own.url, prefix, store=store, flush_interval="3m")
    elsewhere = Recorder(waiting, background=False)
    app = wsgi.PresenceMiddleware(lambda *_: [], settings=given)
    for name in ("ann", "bob", "cid"):
        comes(app.recorder, name)
    assert app.recorder.flush()
    with redis.Redis.from_url(own.url) as client:
        client.save()
    own.stop()
    comes(elsewhere, "ann")  # before the logout, on another worker
    comes(app.recorder, "cid")
    wait_until(lambda: app.recorder.health.is_outage)
    with Stopwatch() as watch:
        for _ in range(10):
            for name in ("ann", "bob"):
                log_out(given, name)
    assert watch.seconds < 0.5  # one timeout
    comes(app.recorder, "bob")  # and in again
    own.start()
    wait_until(lambda: app.recorder.flush() and elsewhere.flush())
    names, there = ["ann", "bob", "cid", "dan"], ["bob", "cid", "dan"]
    comes(app.recorder, "dan")
    assert app.recorder.flush()
    assert Presence(given).online_among(names) == there
    own.stop()
    own.start()  # with the data of before the logouts
    comes(app.recorder, "dan")  # finds the loss
    wait_until(lambda: app.recorder.flush() and Presence(given).online_among(names) == there)
    app.recorder.close()
    elsewhere.close()


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


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
@pytest.mark.parametrize("act", [Act.LEFT, Act.ERASED])
def test_whoever_leaves_returns_and_leaves_at_once_is_offline(
    valkey: Server, prefix: str, store: str, act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it takes less time than the bounds of the server's clock are apart."""
    recorder = Recorder(settings(valkey.url, prefix, store=store), background=False)
    clock, now = recorder.backend.clock, recorder.stamp()
    with monkeypatch.context() as patched:
        patched.setattr(clock, "stamp", cycle([now - 5, now + 5]).__next__)
        recorder.backend.driver.run(clock.synchronise())
    presence = Presence(backend=recorder.backend)
    for number in range(3):
        recorder.record(("user", "ann"), now + number / 100)
        assert recorder.flush()
        assert presence.is_online("ann")
        recorder.record(("user", "ann"), now + number / 100 + 0.005, act=act)
        assert recorder.flush()
        assert not presence.is_online("ann")
    recorder.close()
