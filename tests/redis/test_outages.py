"""Every way in which Redis can fail: the site's answers stay as they are, and nobody is lost."""

import asyncio
import logging
import re
import signal
import statistics
from collections.abc import Callable
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment
from wsgiref.util import setup_testing_defaults

import pytest
import redis

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable, Settings
from presence_middleware.connections.drivers import Driver
from presence_middleware.connections.health import MAX_PAUSE_SECONDS, RedisHealth
from presence_middleware.errors import RedisRefused
from presence_middleware.recorder import Recorder
from presence_middleware.request import WsgiRequest
from presence_middleware.stores import Act, moment_of
from presence_middleware.wsgi import PresenceMiddleware, WsgiVisit
from tests.support.asking import exchange_wsgi, opened
from tests.support.backends import Server, wait_until
from tests.support.faults import (
    OUTAGES,
    PASSWORD,
    READABLE,
    SLOW_OUTAGES,
    Place,
    adding_up,
    hung,
    restarted,
)
from tests.support.process import Start
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import NOON, Clock

SOON = 1.3  # seconds after which a reader has answered, or raised: two timeouts, and some noise
NOTICEABLE = 0.4  # seconds; less than a single timeout
GRACE = 75
NAMES = [f"user{number}" for number in range(50)]


def settings(place: Place, prefix: str, **others: object) -> Settings:
    given = {
        "identity": "user=header:X-User",
        "window": "3m",
        "retention": "1s",  # else who is offline waits for the sake of the last-seen time
        "pulse_path": "/pulse",
        "flush_interval": "0.05s",
        **others,
    }
    return Settings.from_env({}, redis_url=place.url, prefix=prefix, **given)


def site(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [("X-Own", "1")])
    return [b"hello ", environ["HTTP_X_USER"].encode()]


def ask(app: WSGIApplication, name: str) -> tuple[Any, ...]:
    """Return the status, the headers and the body of the response of the app."""
    environ: WSGIEnvironment = {"HTTP_X_USER": name}
    setup_testing_defaults(environ)
    answer = exchange_wsgi(app, environ)
    return answer.status, answer.headers, answer.body


def timed(app: WSGIApplication) -> tuple[list[tuple[Any, ...]], list[float]]:
    """The answers to everybody, and the seconds of each."""
    answers, seconds = [], []
    with Stopwatch() as watch:
        for name in NAMES:
            began = watch.seconds
            answers.append(ask(app, name))
            seconds.append(watch.seconds - began)
    return answers, seconds


def answers_or_raises(read: Callable[[], object]) -> str:
    """Return the error of a reader, which comes in time and contains no secret, or nothing."""
    said = ""
    with Stopwatch() as watch:
        try:
            read()
        except PresenceUnavailable as error:
            said = str(error)
            assert said
    assert watch.seconds < SOON
    assert PASSWORD not in said
    return said


def count_async(settings: Settings) -> None:
    async def count() -> None:
        presence = AsyncPresence(settings)
        try:
            await presence.count()
        finally:
            await presence.aclose()

    asyncio.run(count())


@pytest.mark.parametrize(
    "outage",
    [*OUTAGES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_OUTAGES)],
)
def test_an_outage_changes_no_answer_and_loses_nobody_of_the_window(
    outage: str, place: Place, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "presence_middleware")
    clock, given = Clock(), settings(place, prefix)
    wrapped = PresenceMiddleware(site, settings=given, clock=clock)
    recorder, presence = wrapped.recorder, wrapped.presence
    with adding_up(recorder):
        for name in ("before", "leaves"):
            ask(wrapped, name)
        wait_until(lambda: recorder.stats().flushed == 2)
        with (OUTAGES | SLOW_OUTAGES)[outage](place):
            ask(wrapped, "gone")
            wait_until(lambda: recorder.health.is_outage)
            clock.now += 150
            answers, seconds = timed(wrapped)
            expected, bare_seconds = timed(site)
            assert answers == expected
            recorder.record(("user", "leaves"), clock.now, act=Act.LEFT)
            recorder.record(("user", NAMES[0]), clock.now, act=Act.GOODBYE)
            assert sum(seconds) < sum(bare_seconds) + NOTICEABLE
            assert statistics.median(seconds) < statistics.median(bare_seconds) + 0.002
            for read in (presence.count, lambda: count_async(given)):
                assert bool(answers_or_raises(read)) is (outage not in READABLE)
            clock.now += 31  # "gone" was seen more than a window ago
            wait_until(lambda: not recorder.flush() and recorder.stats().dropped)
            assert recorder.stats().dropped == {"expired": 1}
        clock.now += 5
        wait_until(recorder.flush)
    assert presence.online_among(["leaves", "gone", *NAMES]) == NAMES
    assert {presence.last_seen(name) for name in NAMES} == {moment_of(NOON + 150)}  # they arrived
    clock.now = NOON + 150 + GRACE + 1
    assert presence.online_among(NAMES) == NAMES[1:], "all but who has closed the page"
    recorder.close()
    first, last = [record.message for record in caplog.records if "record" in record.message]
    assert re.match("cannot record who is online, keeping [01] sightings for later: Redis ", first)
    assert last.startswith("recording again after ")
    assert last.endswith(f"s: wrote {len(NAMES)} sightings that had waited, dropped 1")
    assert PASSWORD not in caplog.text


def test_a_guest_stays_one_when_the_server_has_lost_the_shared_key(
    place: Place, prefix: str
) -> None:
    given = settings(place, prefix, identity="user=header:X-User, guest=visitor")
    old, new = Recorder(given), Recorder(given)
    guest = WsgiRequest({"REMOTE_ADDR": "192.0.2.7"})
    opened(old, guest).end()
    wait_until(old.flush)
    with restarted(place):
        WsgiVisit(old, {"HTTP_X_USER": "bob"}).end()
        wait_until(lambda: old.health.is_outage)
    wait_until(lambda: old.flush() and not old.health.is_outage)
    for recorder in (new, old):
        opened(recorder, guest).end()
        wait_until(recorder.flush)
    assert Presence(given).count("guest") == 1
    for recorder in (new, old):
        recorder.close()


class Interrupt(BaseException):
    """As a server or gevent raises it in a handler whose time is up."""


def interrupt(*_: object) -> None:
    raise Interrupt


def test_a_handler_that_is_interrupted_while_it_writes_loses_nobody(
    place: Place, prefix: str
) -> None:
    recorder = Recorder(settings(place, prefix, flush_interval="20s"))
    recorder.background = False
    WsgiVisit(recorder, {"HTTP_X_USER": "ann"}).end()
    assert recorder.flush()  # so that the next write need not ask for anything before
    usual = signal.signal(signal.SIGALRM, interrupt)
    try:
        with hung(place):
            visit = WsgiVisit(recorder, {"HTTP_X_USER": "bob"})
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Interrupt):
                visit.flush()
    finally:
        signal.signal(signal.SIGALRM, usual)
    assert recorder.stats().pending == 1
    assert recorder.flush()
    assert recorder.stats().flushed == 2
    recorder.close()


def test_pauses_between_attempts_grow_are_bounded_and_are_random() -> None:
    health = RedisHealth(0.05)
    assert health.is_due("node")
    pauses = [health.pause(failures) for failures in range(1, 31)]
    assert pauses[2] < 0.5
    assert 0.8 * MAX_PAUSE_SECONDS <= min(pauses[10:]) < max(pauses[10:]) <= MAX_PAUSE_SECONDS
    assert len(set(pauses[10:])) == 20
    health.failed("node")
    assert not health.is_due("node")
    assert health.is_due("another node")
    health.succeeded("node")
    assert health.is_due("node")
    assert RedisHealth(60).pause(1) >= 48  # a site that writes seldom does not write oftener


def test_a_failure_concerns_its_target_or_the_whole_server_until_a_success() -> None:
    health = RedisHealth()
    health.failed("node", RedisRefused("OOM"))
    assert (health.is_well("node"), health.is_well("other")) == (False, True)
    assert health.is_refusing()
    health.failed("node", PresenceUnavailable("silence"))
    assert not health.is_refusing()
    health.failed("", RedisRefused("OOM"))
    assert not health.is_well("other")
    assert health.is_refusing()
    health.succeeded("other")
    assert (health.is_well("other"), health.is_well("node")) == (True, False)
    health.all_written()
    assert health.is_well("node")


def test_a_server_that_is_away_is_asked_once_however_many_wait(
    valkey: Server, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(valkey.url)
    worker.saw("ann")  # now the clock and the settings are agreed on
    asked: list[object] = []

    def fails(_: Driver, __: object, batch: object) -> None:
        asked.append(batch)
        raise redis.ConnectionError

    worker.did(*(f"u{number}" for number in range(5000)))  # more than a round trip has
    worker.did("eve", kind="guest")
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "execute", fails)
        assert not worker.recorder.flush()
    assert len(asked) == 1
