"""Sites under pressure: full servers, long outages, exits, and processes that differ."""

import logging
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import redis

from presence_middleware import PresenceUnavailable
from presence_middleware.doctor import examine
from presence_middleware.stores import History, Plan, moment_of
from presence_middleware.wsgi import PresenceMiddleware, WsgiVisit
from tests.support.backends import Server
from tests.support.process import Start
from tests.support.servers import environment
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import NOON, WINDOW, get, settings


def test_a_full_server_is_cleaned_up_and_records_again(
    own: Server, client: Any, prefix: str, start: Start
) -> None:
    worker, key = start(own.url), f"{prefix}:guest:seen"
    stale = {f"{'x' * 200}{number}": NOON - 2 * WINDOW for number in range(5000)}
    client.zadd(key, stale)
    client.config_set("maxmemory", client.info("memory")["used_memory"])
    worker.did("ann")
    worker.recorder.run_once()
    assert "maxmemory" in (worker.recorder.stats().last_error or "")
    assert client.zcard(key) < len(stale), "though nothing was written"
    worker.passes(310, step=31)
    assert client.zcard(key) == 0
    worker.writes()
    assert worker.presence.last_seen("ann", "user") == moment_of(NOON)


def test_a_last_seen_time_outlives_an_outage_longer_than_the_window(
    own: Server, start: Start
) -> None:
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
    own: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(_: logging.LogRecord) -> bool:
        raise RuntimeError("a filter of the site's own")

    given = settings(own.url, prefix, identity=f"user={__name__}:broken, guest=visitor")
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
        app.recorder.close()
    finally:
        log.removeFilter(raises)


def broken(_: object) -> str:
    """A function of the site's own."""
    raise LookupError


@pytest.mark.slow
def test_twelve_recorders_take_two_seconds_together_to_end(own: Server, prefix: str) -> None:
    program = """
import sys
from presence_middleware import Settings
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
recorders = []
for number in range(12):
    given = Settings.from_env(prefix=f"{sys.argv[1]}{number}", identity="user=header:X-User")
    recorders.append(Recorder(given))
    WsgiVisit(recorders[-1], {"HTTP_X_USER": "ann"}).end()
print("ready", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, prefix],
        env=environment(PRESENCE_REDIS_URL=own.url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    os.kill(own.process.pid, signal.SIGSTOP)
    assert process.stdout.readline() == "ready\n"
    with Stopwatch() as watch:
        process.stdin.close()
        said = process.stderr.read()
        assert process.wait(30) == 0
    assert watch.seconds < 4.0, "one by one that would be seven and more"
    assert said.count("shutting down with 1 sightings unwritten") <= 12
    process.stdout.close()
    process.stderr.close()


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
    ],
)
def test_differing_settings_of_processes_are_logged_by_name(
    valkey: Server,
    start: Start,
    other: dict[str, str],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chain = {"identity": "user=header:x-user, guest=visitor"}
    workers = [start(valkey.url, **{**chain, **given}) for given in ({}, other)]
    for _ in range(2):
        for worker in workers:
            worker.saw("ann")
            worker.recorder.health.lost_connection()  # so that they look again
    said = [message for message in caplog.messages if "in another process of this site" in message]
    assert {message.split(" is ")[0] for message in said} == {name}
    assert len(said) == 2, "each says so once"
    assert "another secret" not in caplog.text
    found = examine(workers[0].recorder.backend)
    (finding,) = [each for each in found if each.what.startswith("setting")]
    assert not finding.is_right
    assert name in finding.what


def test_the_longest_retention_of_all_processes_is_respected(
    valkey: Server, start: Start, prefix: str
) -> None:
    long = start(valkey.url, retention="10d")
    short = start(valkey.url, retention="1s", clock=long.clock)

    def goes_on() -> None:
        for _ in range(3):
            short.did("bob")
            short.passes(31, step=31)

    long.saw("ann")
    long.clock.now += 2 * WINDOW
    goes_on()
    assert long.presence.last_seen("ann") == moment_of(NOON)
    with redis.Redis.from_url(valkey.url) as client:
        assert client.ttl(f"{prefix}:user:seen") > 9 * 86_400
    long.clock.now += 3601  # the other is gone for an hour
    goes_on()
    assert long.presence.last_seen("ann") is None


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_the_doctor_warns_from_nine_tenths_of_the_room(
    valkey: Server, start: Start, store: str
) -> None:
    worker = start(valkey.url, store=store, max_members=10)
    for names, is_right in (range(8), True), ([9], False):
        worker.saw(*(f"user{number}" for number in names))
        found = examine(worker.recorder.backend)
        assert [each.is_right for each in found if each.what.startswith("capacity of user")] == [
            is_right
        ]


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
    valkey: Server, start: Start, replies: Any, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(valkey.url)
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


def test_a_sample_that_failed_is_tried_again_in_its_minute(
    valkey: Server, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = start(valkey.url)
    other = start(valkey.url, clock=holder.clock)

    def fails(*_: object) -> Plan[None]:
        raise PresenceUnavailable("refused")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(History, "record", fails)
        holder.recorder.run_once()
    assert holder.presence.history() == []
    other.recorder.run_once()
    assert holder.presence.history() == [], "that is the work of the process that holds the lease"
    holder.recorder.run_once()
    assert len(holder.presence.history()) == 1
