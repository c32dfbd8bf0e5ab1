"""Sites under pressure: full servers, long outages, exits, log filters that raise, made-up ids."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from presence_middleware import Presence, PresenceUnavailable, Settings
from presence_middleware.connections.drivers import Driver
from presence_middleware.doctor import examine
from presence_middleware.embedded import find_server
from presence_middleware.recorder import Recorder
from presence_middleware.stores import History, Plan, moment_of
from presence_middleware.wsgi import PresenceMiddleware, WsgiVisit
from tests.support.backends import Server
from tests.support.servers import environment
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import NOON, WINDOW, Clock, get, settings


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may stop, and whose memory it may fill."""
    server = Server(str(find_server()), tmp_path)
    yield server
    os.kill(server.process.pid, signal.SIGCONT)
    server.stop()


def test_a_full_server_is_cleaned_up_and_records_again(own: Server, prefix: str) -> None:
    clock = Clock()
    given = settings(own.url, prefix, identity="guest=ip:raw, user=header:X-User")
    recorder = Recorder(given, clock=clock, background=False)
    with redis.Redis.from_url(own.url) as client:
        stale = {f"{'x' * 200}{number}": NOON - 2 * WINDOW for number in range(5000)}
        client.zadd(f"{prefix}:guest:seen", stale)
        full = client.info("memory")["used_memory"]
        client.config_set("maxmemory", full)
        recorder.record(("user", "ann"), clock.now)
        recorder.run_once()
        assert "maxmemory" in (recorder.stats().last_error or "")
        assert client.zcard(f"{prefix}:guest:seen") < len(stale), "though nothing was written"
        for _ in range(10):
            clock.now += 31
            recorder.run_once()
        assert client.zcard(f"{prefix}:guest:seen") == 0
    assert recorder.flush()
    assert Presence(backend=recorder.backend).last_seen("ann", "user") == moment_of(NOON)
    recorder.close()


def test_a_last_seen_time_outlives_an_outage_longer_than_the_window(
    own: Server, prefix: str
) -> None:
    clock = Clock()
    given = settings(own.url, prefix, identity="user=header:X-User, guest=visitor", max_pending=10)
    recorder = Recorder(given, clock=clock, background=False)
    presence = Presence(backend=recorder.backend)
    own.stop()
    recorder.record(("user", "ann"), clock.now)
    recorder.record(("guest", "x"), clock.now)
    clock.now += WINDOW + 1
    assert not recorder.flush()
    assert recorder.stats().dropped == {"expired": 1}, "nobody asks when a guest was last seen"
    own.start()
    assert recorder.flush()
    assert not presence.is_online("ann")
    assert presence.last_seen("ann") == moment_of(NOON)
    own.stop()
    for number in range(6):
        recorder.record(("user", f"user{number}"), clock.now)
    clock.now += WINDOW + 1
    assert not recorder.flush()
    assert recorder.stats().pending == 0, "whoever is online now has room to wait"
    own.start()
    recorder.close()


def test_a_sample_that_failed_is_tried_again_in_its_minute(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, clock = settings(valkey.url, prefix), Clock()
    holder, other = (Recorder(given, clock=clock, background=False) for _ in range(2))
    presence = Presence(given, clock=clock)

    def fails(*_: object) -> Plan[None]:
        raise PresenceUnavailable("refused")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(History, "record", fails)
        holder.run_once()
    assert presence.history() == []
    other.run_once()
    assert presence.history() == [], "that is the work of the process that holds the lease"
    holder.run_once()
    assert len(presence.history()) == 1


@pytest.mark.parametrize(
    ("identity", "is_kept"),
    [
        ("user=auth, visitor=visitor", {"user": True, "visitor": False}),
        ("member=cookie:sid, guest=header:X-Guest", {"member": False, "guest": True}),
    ],
)
def test_kinds_with_ids_made_up_by_clients_are_stored_for_the_window(
    identity: str, is_kept: dict[str, bool]
) -> None:
    given = Settings.from_env({}, identity=identity, secret="a secret of this test")
    for kind, kept in is_kept.items():
        assert (given.keep_seconds(kind) > given.window) is kept


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
def test_six_recorders_take_two_seconds_together_to_end(own: Server, prefix: str) -> None:
    program = """
import sys
from presence_middleware import Settings
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
recorders = []
for number in range(6):
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
    assert watch.seconds < 4.0, "one by one that would be twelve"
    assert said.count("shutting down with 1 sightings unwritten") <= 6
    process.stdout.close()
    process.stderr.close()


def test_a_key_that_was_evicted_alone_is_written_again(valkey: Server, prefix: str) -> None:
    """As under `volatile-lru`: the other keys of the shard are there still."""
    clock = Clock()
    recorder = Recorder(settings(valkey.url, prefix), clock=clock, background=False)
    presence = Presence(backend=recorder.backend)
    for name in ("ann", "bob"):
        recorder.record(("user", name), clock.now)
    assert recorder.flush()
    with redis.Redis.from_url(valkey.url) as client:
        client.delete(f"{prefix}:user:seen")
    clock.now += 11
    recorder.run_once()
    recorder.flush()
    assert presence.count() == 2
    recorder.close()


def test_an_evicted_key_is_written_again_although_another_process_writes_first(
    valkey: Server, prefix: str
) -> None:
    clock, site = Clock(), settings(valkey.url, prefix)
    first, second = (Recorder(site, clock=clock, background=False) for _ in range(2))
    first.record(("user", "ann"), clock.now)
    assert first.flush()
    with redis.Redis.from_url(valkey.url) as client:
        client.delete(f"{prefix}:user:seen")
    second.record(("user", "bob"), clock.now)
    assert second.flush()
    clock.now += 11
    first.run_once()
    first.flush()
    assert Presence(backend=first.backend).count() == 2
    for recorder in (first, second):
        recorder.close()


def test_a_request_that_queries_while_the_driver_fails_is_still_recorded(
    valkey: Server, prefix: str
) -> None:
    recorder = Recorder(settings(valkey.url, prefix), background=False)
    visit = WsgiVisit(recorder, {"HTTP_X_USER": "ann"})
    assert visit.run(visit.backend.queries.count()) == 1
    visit.end()
    recorder.close()
    assert isinstance(recorder.backend.driver, Driver)


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
    prefix: str,
    other: dict[str, str],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorders = [
        Recorder(settings(valkey.url, prefix, **given), background=False) for given in ({}, other)
    ]
    for _ in range(2):
        for recorder in recorders:
            WsgiVisit(recorder, {"HTTP_X_USER": "ann"}).end()
            assert recorder.flush()
            recorder.health.lost_connection()  # so that they look again
    said = [message for message in caplog.messages if "in another process of this site" in message]
    assert {message.split(" is ")[0] for message in said} == {name}
    assert len(said) == 2, "each says so once"
    assert "another secret" not in caplog.text
    (finding,) = [each for each in examine(recorders[0].backend) if each.what.startswith("setting")]
    assert not finding.is_right
    assert name in finding.what
    for recorder in recorders:
        recorder.close()


def test_the_longest_retention_of_all_processes_is_respected(valkey: Server, prefix: str) -> None:
    clock = Clock()
    long, short = (
        Recorder(settings(valkey.url, prefix, retention=kept), clock=clock, background=False)
        for kept in ("10d", "1s")
    )
    long.record(("user", "ann"), clock.now)
    assert long.flush()
    clock.now += 2 * WINDOW
    for _ in range(3):
        short.record(("user", "bob"), clock.now)
        short.run_once()
        clock.now += 31
    assert Presence(backend=long.backend).last_seen("ann") == moment_of(NOON)
    with redis.Redis.from_url(valkey.url) as client:
        assert client.ttl(f"{prefix}:user:seen") > 9 * 86_400
    clock.now += 3601  # the other is gone for an hour
    for _ in range(3):
        short.record(("user", "bob"), clock.now)
        short.run_once()
        clock.now += 31
    assert Presence(backend=long.backend).last_seen("ann") is None
    for recorder in (long, short):
        recorder.close()


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
def test_the_doctor_warns_from_nine_tenths_of_the_room(
    valkey: Server, prefix: str, store: str
) -> None:
    recorder = Recorder(settings(valkey.url, prefix, store=store, max_members=10), background=False)

    def is_right() -> bool:
        found = examine(recorder.backend)
        (room,) = [each for each in found if each.what.startswith("capacity of user")]
        return room.is_right

    for number in range(8):
        WsgiVisit(recorder, {"HTTP_X_USER": f"user{number}"}).end()
    assert recorder.flush()
    assert is_right()
    WsgiVisit(recorder, {"HTTP_X_USER": "user9"}).end()
    assert recorder.flush()
    assert not is_right()
    recorder.close()


def visit_after_a_read(recorder: Recorder) -> WsgiVisit:
    """Return the visit of bob, after ann has asked: all that a first read needs is settled."""
    comes = WsgiVisit(recorder, {"HTTP_X_USER": "ann"})
    assert comes.run(comes.backend.queries.count()) == 1
    return WsgiVisit(recorder, {"HTTP_X_USER": "bob"})


def test_a_server_that_refuses_a_whole_round_trip_raises_presence_unavailable(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a node of a Cluster that is down."""
    recorder = Recorder(settings(valkey.url, prefix), background=False)
    again = visit_after_a_read(recorder)

    def refuse(pipeline: redis.client.Pipeline, raise_on_error: bool = True) -> list[object]:
        raise redis.exceptions.ClusterDownError("The cluster is down")

    with monkeypatch.context() as down:
        down.setattr(redis.client.Pipeline, "execute", refuse)
        with pytest.raises(PresenceUnavailable, match="The cluster is down"):
            again.run(again.backend.queries.count())
    assert recorder.flush()
    assert again.run(again.backend.queries.count()) == 2
    recorder.close()


def test_an_invalid_reply_raises_presence_unavailable(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a proxy in front of Redis that mixes up its clients."""
    recorder = Recorder(settings(valkey.url, prefix), background=False)
    again = visit_after_a_read(recorder)
    execute = redis.client.Pipeline.execute

    def mixed_up(pipeline: redis.client.Pipeline, raise_on_error: bool = True) -> list[object]:
        return [*execute(pipeline, raise_on_error)[:-1], ["nonsense"]]

    monkeypatch.setattr(redis.client.Pipeline, "execute", mixed_up)
    with pytest.raises(PresenceUnavailable, match="did not write"):
        again.run(again.backend.queries.count())
    monkeypatch.undo()
    recorder.close()
