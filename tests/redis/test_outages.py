"""Every way in which Redis can fail or be full: answers stay as they are, and nobody is lost."""

import logging
import math
import re
import signal
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest
import redis

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable, Settings
from presence_middleware.connections.drivers import Driver
from presence_middleware.connections.health import MAX_PAUSE_SECONDS, RedisHealth
from presence_middleware.connections.limits import remaining
from presence_middleware.doctor import examine
from presence_middleware.errors import QueryError, RedisRefused
from presence_middleware.events.iterators import Events
from presence_middleware.people import People
from presence_middleware.recorder import Recorder, Visit, writer
from presence_middleware.recorder.guests import QUOTA
from presence_middleware.request import VISIT, WsgiRequest
from presence_middleware.stores import Act, History, moment_of
from presence_middleware.wsgi import PresenceMiddleware, WsgiVisit
from tests.support import timed_site
from tests.support.asking import exchange_wsgi, opened, plain_environ
from tests.support.backends import Server, send, wait_until
from tests.support.beside import Interrupt, is_interrupted
from tests.support.commands import run_program
from tests.support.faults import (
    OUTAGES,
    PASSWORD,
    READABLE,
    SLOW_OUTAGES,
    Place,
    adding_up,
    hung,
    killed,
    restarted,
)
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import NOON, WINDOW, Clock, Recording, Start, awaited, get

SOON = 1.3  # seconds after which a reader has answered, or raised: two timeouts, and some noise
NOTICEABLE = 0.4  # seconds; less than a single timeout
GRACE = 75
NAMES = [f"user{number}" for number in range(50)]


def settings(place: Place, prefix: str, **others: object) -> Settings:
    given = {
        "redis_url": place.url,
        "identity": "user=header:X-User",
        "window": "3m",
        "retention": "1s",  # else who is offline waits for the sake of the last-seen time
        "pulse_path": "/pulse",
        "flush_interval": "0.05s",
        **others,
    }
    return Settings.from_env({}, prefix=prefix, **given)


def site(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [("X-Own", "1")])
    return [b"hello ", environ["HTTP_X_USER"].encode()]


def ask(app: WSGIApplication, name: str) -> tuple[Any, ...]:
    answer = exchange_wsgi(app, plain_environ(HTTP_X_USER=name))
    return answer.status, answer.headers, answer.body


def timed(app: WSGIApplication) -> tuple[list[tuple[Any, ...]], list[float]]:
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


@pytest.mark.parametrize(
    "outage", [*OUTAGES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_OUTAGES)]
)
def test_an_outage_changes_no_answer_and_loses_nobody_of_the_window(
    outage: str, place: Place, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "presence_middleware")
    # Where readers are answered, a busy machine may delay the answer.
    url = place.url + "?socket_timeout=9" * (outage in READABLE)
    clock, given = Clock(), settings(place, prefix, redis_url=url)
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
            for read in (presence.count, lambda: awaited(given, AsyncPresence.count)):
                assert bool(answers_or_raises(read)) is (outage not in READABLE)
            clock.now += 31  # "gone" was seen more than a window ago
            wait_until(lambda: not recorder.flush() and recorder.stats().dropped)
            assert recorder.stats().dropped == {"expired": 1}
        clock.now += 5
        wait_until(recorder.flush)
    assert presence.online_among(["leaves", "gone", *NAMES]) == NAMES
    assert set(presence.last_seen_among(NAMES).values()) == {moment_of(NOON + 150)}  # they arrived
    clock.now = NOON + 150 + GRACE + 1
    assert presence.online_among(NAMES) == NAMES[1:], "all but who has closed the page"
    recorder.close()
    first, last = [record.message for record in caplog.records if "record" in record.message]
    assert re.match("cannot record who is online, keeping [01] sightings for later: Redis ", first)
    assert last.startswith("recording again after ")
    assert last.endswith(f"s: wrote {len(NAMES)} sightings that had waited, dropped 1")
    assert PASSWORD not in caplog.text


def test_the_end_of_an_outage_says_what_was_dropped_in_it(caplog: pytest.LogCaptureFixture) -> None:
    health, people = RedisHealth(), People(1, WINDOW, WINDOW)
    people.dropped.update(expired=1, left=9)
    for _ in range(2):
        people.dropped["full"] += 1
        health.outage(PresenceUnavailable("away"), pending=1)
        health.all_written(1, people.dropped_in_outages)
    ends = [each.rpartition(", ")[2] for each in caplog.messages if "recording again" in each]
    assert ends == ["dropped 2", "dropped 1"]


@pytest.mark.parametrize(("fault", "lost"), [(hung, 0), (restarted, 1)])
def test_an_outage_ends_also_if_nobody_comes(
    own: Server, start: Start, caplog: pytest.LogCaptureFixture, fault: Any, lost: int
) -> None:
    process = start(own.url)
    process.saw("ann")
    with fault(own):
        process.looks()
    backend = process.recorder.backend
    backend.upkeep.run(backend.driver)  # as the thread of those who follow events
    process.recorder.run_once()
    process.recorder.run_once()
    begins, ends = caplog.messages
    assert begins.startswith("cannot record who is online, keeping 0 sightings")
    assert re.match(f"recording again after .*: wrote {lost} sightings", ends)


@pytest.mark.parametrize("outage", ["refused", "full", "no permission"])
def test_an_outage_lasts_when_all_who_waited_have_expired(
    place: Place, start: Start, caplog: pytest.LogCaptureFixture, outage: str
) -> None:
    process = start(place.url, retention=1.0)
    process.saw("ann")
    with OUTAGES[outage](place):
        process.did("gone")
        while process.dropped != {"expired": 1} or not process.recorder.people.is_empty:
            process.clock.now += WINDOW
            process.recorder.flush()
        process.looks()
        assert process.recorder.health.is_outage
    process.looks()
    begins, ends = [message for message in caplog.messages if "record" in message]
    assert begins.startswith("cannot record who is online, keeping 1 sightings")
    assert re.match("recording again after .*: wrote 0 sightings .*, dropped 1$", ends)


def test_a_key_of_another_type_is_an_outage_of_its_shard_until_that_is_written(
    valkey: Server, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    process = start()
    seen = f"{process.settings.prefix}:user:seen"
    valkey.client.set(seen, "of another type")
    with pytest.raises(QueryError, match="Redis refused: WRONGTYPE "):
        process.presence.touch("ann")
    process.did("ann")
    guests = ["bob", "carol", "dave"]  # once it fails, and then it is not tried for a while
    for guest in guests:
        process.did(guest, kind="guest")
        process.recorder.run_once()
    assert process.online("guest") == guests
    valkey.client.delete(seen)
    (failure,) = caplog.messages
    assert failure.startswith("cannot record who is online")
    process.writes()
    assert process.online() == ["ann"]
    assert caplog.messages[1].startswith("recording again after")


@pytest.mark.parametrize("is_new_first", [False, True])
def test_a_guest_stays_one_when_the_server_lost_the_shared_key(
    place: Place, prefix: str, *, is_new_first: bool
) -> None:
    given = settings(place, prefix, identity="user=header:X-User, guest=visitor", shards=64)
    old, new = Recorder(given, background=False), Recorder(given, background=False)
    guest, *silent = [WsgiRequest({"REMOTE_ADDR": f"192.0.2.{n}"}) for n in range(9)]
    for each in (guest, *silent):
        opened(old, each).end()
    wait_until(old.flush)
    with killed(place):
        timed_site.visit(old, "bob")
        assert not old.flush()
    for recorder in (new, old) if is_new_first else (old, new):  # the first chooses the key
        wait_until(recorder.flush)
        opened(recorder, guest).end()
        wait_until(recorder.flush)
        recorder.run_once()  # what the server had lost
    wait_until(old.flush)
    assert Presence(given).count("guest") == 1 + len(silent)


def test_a_guest_waits_until_the_shared_key_is_known(
    place: Place, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a Cluster, the node that stores it may be away alone."""
    given = settings(place, prefix, identity="guest=visitor")
    recorder = Recorder(given, background=False)
    guests = [{"REMOTE_ADDR": "192.0.2.7", "HTTP_USER_AGENT": f"Firefox {n}"} for n in range(QUOTA)]
    with monkeypatch.context() as patched:
        patched.setattr(writer, "agree", lambda *_: send("SET", "too", "few", "NX", "XX"))
        for guest in guests:
            opened(recorder, WsgiRequest(guest)).end()
        assert not recorder.flush()
    wait_until(recorder.flush)
    for guest in guests:
        opened(recorder, WsgiRequest(guest)).end()
    assert recorder.flush()
    assert not recorder.stats().dropped, "the known are always refreshed"
    assert [len(who.id) for who in Presence(given).online("guest")] == [32] * QUOTA


def test_a_handler_that_is_interrupted_in_a_write_loses_nobody(place: Place, prefix: str) -> None:
    recorder = Recorder(settings(place, prefix, flush_interval="20s"), background=False)
    timed_site.visit(recorder, "ann")
    assert recorder.flush()  # so that the next write need not ask for anything before
    usual = signal.signal(signal.SIGALRM, Mock(side_effect=Interrupt))
    try:
        with hung(place):
            visit = WsgiVisit(recorder, {"HTTP_X_USER": "bob"})
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Interrupt):
                visit.count()
    finally:
        signal.signal(signal.SIGALRM, usual)
    assert recorder.stats().pending == 1
    assert recorder.flush()
    assert recorder.stats().flushed == 2


def test_a_handler_that_is_interrupted_loses_nobody_wherever_it_is(recording: Recording) -> None:
    places = 0

    def write() -> None:
        timed_site.visit(recorder, f"user-{places}")
        recorder.flush()

    while True:
        recorder = recording(identity="user=header:X-User")
        if not is_interrupted(write, places, People._enqueue, People.take, Driver.run):
            break
        assert remaining() == math.inf  # a later read has its own deadline
        timed_site.visit(recorder, f"user-{places}")
        assert recorder.flush()
        places += 1
    assert places > 20
    assert Presence(recorder.settings).count() == places + 1


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("is_usual", [False, True])
def test_a_request_that_is_interrupted_once_is_a_visit_wherever_it_is(
    unwritten: Callable[..., Settings], *, is_usual: bool, asks: bool
) -> None:
    given = unwritten(identity="user=header:X-User")

    def respond(environ: WSGIEnvironment, _: StartResponse) -> list[bytes]:
        if asks:
            environ[VISIT].note()
        return []

    app, places = PresenceMiddleware(respond, settings=given), 0
    recorder = app.recorder
    functions = Visit.end, Recorder.record, People.note, People._enqueue
    while True:
        recorder.usual_until = math.inf if is_usual else -math.inf
        environ = plain_environ(HTTP_X_USER=f"user-{places}")
        if not is_interrupted(partial(app, environ, Mock()), places, *functions):
            break
        places += 1
    assert places > 5
    assert recorder.flush()
    users = [f"user-{place}" for place in range(places + 1)]
    assert Presence(given).online_among(users) == users


@pytest.mark.parametrize("name", ["presence-flush", "presence-events"])
def test_a_start_that_is_interrupted_leaves_no_second_thread(
    valkey: Server, prefix: str, name: str
) -> None:
    given = timed_site.by_header(valkey.url, prefix, events="user")
    recorder, presence, opened = Recorder(given), Presence(given), list[Events]()

    def begin() -> None:
        if name == "presence-events":
            opened.append(presence.events())
        else:
            timed_site.visit(recorder, "ann")

    def running() -> int:
        return [each.name for each in threading.enumerate()].count(name)

    assert is_interrupted(begin, 0, threading.Event.wait)  # for the thread that starts
    begin()
    wait_until(lambda: running() == 1)
    opened.clear()
    recorder.worker.stop(10)
    wait_until(lambda: running() == 0)


def test_pauses_between_attempts_grow_are_bounded_and_are_random() -> None:
    health = RedisHealth(0.05)
    assert health.resting() == set()
    pauses = [health.pause(failures) for failures in range(1, 31)]
    assert pauses[2] < 0.5
    assert 0.8 * MAX_PAUSE_SECONDS <= min(pauses[10:]) < max(pauses[10:]) <= MAX_PAUSE_SECONDS
    assert len(set(pauses[10:])) == 20
    health.failed("node")
    assert health.resting() == {"node"}
    health.succeeded("node")
    assert health.resting() == set()
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
    health.all_written(1, 0)
    assert health.is_well("node")


def test_a_server_that_is_away_is_asked_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start()
    worker.saw("ann")  # now the clock and the settings are agreed on
    failing = Mock(side_effect=redis.ConnectionError)
    worker.did(*(f"u{number}" for number in range(5000)))  # more than a round trip has
    worker.did("eve", kind="guest")
    flushes = worker.recorder.stats().flushes
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "execute", failing)
        assert not worker.recorder.flush()
        worker.clock.now += writer.LOOK_EVERY
        worker.recorder.run_once()  # neither what waits nor the looks of a minute try it so soon
    assert failing.call_count == 1
    assert worker.recorder.stats().flushes == flushes + 1, "an attempt that failed is one, too"


def test_a_reader_does_not_ask_a_server_that_the_write_before_it_found_away(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = start().recorder
    recorder.record(("user", "ann"), recorder.stamp())
    failing = Mock(side_effect=redis.ConnectionError)
    monkeypatch.setattr(Driver, "execute", failing)
    with pytest.raises(PresenceUnavailable):  # of what must be agreed on first
        recorder.read(recorder.backend.queries.count())
    assert failing.call_count == 1


def test_all_shards_of_a_server_are_one_failure(own: Server, client: Any, start: Start) -> None:
    worker = start(own.url, shards=8)
    worker.saw("ann")  # now the clock and the settings are agreed on
    client.config_set("maxmemory", 1)
    worker.did(*(f"u{number}" for number in range(50)))
    worker.recorder.run_once()
    assert [each.count for each in worker.recorder.health.failing.values()] == [1]


# Full servers, long outages, and processes that differ.


def test_a_full_server_records_again(own: Server, client: Any, prefix: str, start: Start) -> None:
    worker, key = start(own.url), f"{prefix}:guest:seen"
    stale = {f"{'x' * 200}{number}": NOON - 2 * WINDOW for number in range(5000)}
    client.zadd(key, stale)
    client.config_set("maxmemory", client.info("memory")["used_memory"])
    worker.did("ann")
    assert worker.recorder.read(worker.recorder.backend.queries.count()) == 0
    worker.recorder.run_once()
    assert "maxmemory" in (worker.recorder.stats().last_error or "")
    assert client.zcard(key) < len(stale), "though nothing was written"
    removals = [client.info("commandstats")["cmdstat_zremrangebyscore"]["calls"]]
    worker.recorder.run_once()
    removals.append(client.info("commandstats")["cmdstat_zremrangebyscore"]["calls"])
    assert removals[0] == removals[1], "a full server is not kept busy"
    worker.passes(310, step=31)
    assert client.zcard(key) == 0
    worker.writes()
    assert worker.presence.last_seen("ann", "user") == moment_of(NOON)


def test_last_seen_times_outlive_an_outage_longer_than_a_window(own: Server, start: Start) -> None:
    worker = start(own.url, identity="user=header:X-User, guest=visitor", max_pending=10)
    own.stop()
    worker.did("ann")
    worker.did("x", kind="guest")
    worker.clock.now += WINDOW + 1
    assert not worker.recorder.flush()
    assert worker.dropped == {"expired": 1}, "nobody asks when a guest was last seen"
    own.start()
    worker.writes()
    assert not worker.presence.is_online("ann")
    assert worker.presence.last_seen("ann") == moment_of(NOON)
    own.stop()
    worker.did(*(f"user{number}" for number in range(6)))
    worker.clock.now += WINDOW + 1
    assert not worker.recorder.flush()
    assert worker.recorder.stats().pending == 0, "whoever is online now has room to wait"
    own.start()


def test_a_logging_filter_that_raises_fails_no_request_and_no_outage_stays(
    own: Server, prefix: str
) -> None:
    def raises(_: logging.LogRecord) -> bool:
        raise RuntimeError("a filter of the site's own")

    given = timed_site.settings(own.url, prefix, identity=f"user={__name__}:broken, guest=visitor")
    log = logging.getLogger("presence_middleware")
    log.addFilter(raises)
    try:
        app = PresenceMiddleware(lambda *_: [b"hello"], settings=given)
        app.recorder.background = False
        own.stop()
        assert get(app) == "hello"
        assert not app.recorder.flush()
        assert app.recorder.health.is_outage
        own.start()
        assert app.recorder.flush()
        assert not app.recorder.health.is_outage
    finally:
        log.removeFilter(raises)


def broken(_: object) -> str:
    """A function of the site's own."""
    raise LookupError


@pytest.mark.slow
def test_twelve_recorders_take_two_seconds_together_to_end(own: Server, prefix: str) -> None:
    program = """
import sys, time
from presence_middleware import Settings
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
recorders = []
for number in range(12):
    given = Settings.from_env(prefix=f"{sys.argv[1]}{number}", identity="user=header:X-User")
    recorders.append(Recorder(given))
    WsgiVisit(recorders[-1], {"HTTP_X_USER": "ann"}).end()
print(time.monotonic())
"""
    with hung(own):
        done = run_program(program, prefix, PRESENCE_REDIS_URL=own.url)
        took = time.monotonic() - float(done.stdout)
    assert done.returncode == 0
    assert took < 5.0, "one by one that would be seven and more"
    assert done.stderr.count("shutting down with 1 sightings unwritten") <= 12


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"window": "5m"}, "PRESENCE_WINDOW"),
        ({"retention": "1h"}, "PRESENCE_RETENTION"),
        ({"secret": "another secret of a test"}, "PRESENCE_SECRET"),
        ({"store": "user=minute-sets"}, "PRESENCE_STORE user"),
        ({"events": "user"}, "PRESENCE_EVENTS"),
        ({"rooms": "/t/{topic}"}, "PRESENCE_ROOMS"),
        ({"pulse_path": "/pulse"}, "PRESENCE_PULSE_PATH"),
        # Not the store of a kind that this process does not have, nor may name.
        ({"bots": "count"}, "the list of kinds (PRESENCE_IDENTITY, PRESENCE_BOTS)"),
    ],
)
def test_differing_settings_of_processes_are_logged_by_name(
    start: Start, other: dict[str, str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    chain = {"identity": "user=header:x-user, guest=visitor"}
    workers = [start(**{**chain, **given}) for given in ({}, other)]
    for _ in range(2):
        for worker in workers:
            worker.saw("ann")
            worker.recorder.health.lost_connection()  # so that they look again
    said = [message for message in caplog.messages if "in another process of this site" in message]
    assert {message.split(" is ")[0] for message in said} == {name}
    assert len(said) == 2, "each says so once"
    assert all("another site needs a PRESENCE_PREFIX of its own" in message for message in said)
    assert "another secret" not in caplog.text
    found = examine(workers[0].recorder.backend)
    (finding,) = [each for each in found if each.what.startswith("setting")]
    assert not finding.is_right
    assert name in finding.what


@pytest.mark.parametrize("act", [Act.LEFT, Act.ERASED])
def test_whoever_left_stays_away_while_the_windows_of_processes_differ(
    start: Start, act: Act
) -> None:
    """In a deploy, a process with a shorter window cleans up, and the one before it is idle."""
    before = start(window="1h")
    after_deploy = start(clock=before.clock, window="1m")
    before.saw("ann")
    after_deploy.saw("ann", act=act)
    before.clock.now += 600
    after_deploy.saw("bob", act=act)
    after_deploy.clean_up()
    before.looks()
    before.writes()
    assert before.online() == []


def test_the_longest_retention_is_respected(valkey: Server, start: Start, prefix: str) -> None:
    long = start(retention="10d")
    short = start(retention="1s", clock=long.clock)

    def goes_on() -> None:
        for _ in range(3):
            short.did("bob")
            short.passes(31, step=31)

    long.saw("ann")
    long.clock.now += 2 * WINDOW
    goes_on()
    assert long.presence.last_seen("ann") == moment_of(NOON)
    assert valkey.client.ttl(f"{prefix}:user:seen") > 9 * 86_400
    long.clock.now += 3601  # the other is gone for an hour
    goes_on()
    assert long.presence.last_seen("ann") is None


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_the_doctor_warns_from_nine_tenths_of_the_room(start: Start, store: str) -> None:
    worker = start(store=store, max_members=10)
    for names, is_right in (range(8), True), ([9], False):
        worker.saw(*(f"user{number}" for number in names))
        found = examine(worker.recorder.backend)
        (capacity,) = [each for each in found if each.what.startswith("capacity of user")]
        assert capacity.is_right is is_right


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        # As a node of a Cluster that is down.
        (redis.exceptions.ClusterDownError("The cluster is down"), "The cluster is down"),
        # As a proxy in front of Redis that mixes up its clients.
        (["nonsense"], "did not write"),
    ],
)
def test_wrong_replies_to_a_request_that_asks_raise_presence_unavailable(
    start: Start, replies: Any, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    visits = [WsgiVisit(worker.recorder, {"HTTP_X_USER": name}) for name in ("ann", "bob")]
    assert visits[0].count() == 1  # all that a first read needs is settled
    execute = redis.client.Pipeline.execute

    def broken(pipeline: redis.client.Pipeline, raise_on_error: bool = True) -> list[object]:
        if isinstance(replies, Exception):
            raise replies
        return [*execute(pipeline, raise_on_error)[:-1], replies]

    with monkeypatch.context() as patch:
        patch.setattr(redis.client.Pipeline, "execute", broken)
        with pytest.raises(PresenceUnavailable, match=error):
            visits[1].count()
    worker.writes()
    assert worker.presence.count() == 2
    if isinstance(replies, Exception):  # a refusal is an answer, after which a request asks again
        assert visits[1].count() == 2


def test_a_failed_sample_is_tried_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = start()
    other = start(clock=holder.clock)

    with monkeypatch.context() as patch:
        patch.setattr(History, "record", Mock(side_effect=PresenceUnavailable("refused")))
        holder.recorder.run_once()
    assert not holder.recorder.health.is_outage
    assert holder.presence.history() == []
    other.recorder.run_once()
    assert holder.presence.history() == [], "that is the work of the process that holds the lease"
    holder.recorder.run_once()
    assert len(holder.presence.history()) == 1
