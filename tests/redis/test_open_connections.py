"""Connections that stay open: the ids they keep online, for how long, and their cost."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, repeat
from typing import Any

import pytest

from presence_middleware import Settings
from presence_middleware.recorder.setup_hints import USERLESS_SIGNALS
from presence_middleware.stores import Act, moment_of
from presence_middleware.stores.plan import CHUNK
from presence_middleware.wsgi import Body, PresenceMiddleware, WsgiVisit
from tests.support.backends import Server
from tests.support.pulsing import PROTOCOLS, SAME, App, PulsingSite
from tests.support.timed_site import WINDOW, Process, Start

CHAIN = "user=auth, user=header:x-user, guest=header:x-guest"
NO_GUESTS = "user=auth, user=header:x-user"
GIVEN: dict[str, Any] = {"identity": CHAIN, "window": 60, "flush_interval": "2s"}
MANY = 2500


@pytest.fixture(params=["sorted-set", "minute-sets"])
def worker(request: pytest.FixtureRequest, start: Start) -> Process:
    # Kept for no longer than the window, so that the moments of leaving are soon forgotten, too.
    return start(**GIVEN, store=request.param, retention="1s")


@pytest.fixture(params=[CHAIN, NO_GUESTS])
def exact(request: pytest.FixtureRequest, start: Start) -> Process:
    """A worker of a site that keeps times, with guests and without."""
    return start(**{**GIVEN, "identity": request.param, "bots": "count"})


@pytest.mark.parametrize(
    ("method", "again"), [("leave", "ann"), ("leave", "bob"), ("forget", "ann")]
)
def test_after_leave_an_open_connection_counts_only_for_who_logs_in_on_it(
    worker: Process, method: str, again: str
) -> None:
    visits = [worker.opens("ann"), worker.opens("eve")]
    worker.saw("bob")
    worker.passes(100)
    assert worker.online() == ["ann", "eve"]
    for name in ("ann", "bob"):
        getattr(worker.presence, method)(name)
    for stopped in (0, 0, 0, 0, 300, 0, 0, 0):  # the moment of leaving is kept for 3 minutes
        assert worker.online() == ["eve"]
        worker.clock.now += stopped  # the process, as by a debugger
        worker.passes(60)
        getattr(worker.presence, method)("another")  # at which older ones are removed
    assert not worker.recorder.stats().dropped.get("left", 0) > 1, "refused once, and never again"
    visits[0].identify(again)
    worker.writes()
    assert worker.online() == sorted(["eve", again])
    worker.passes(200)
    assert worker.online() == sorted(["eve", again])
    worker.presence.leave(again)
    worker.passes(100)
    assert worker.online() == ["eve"]
    visits[0].identify(None)
    for visit in visits:
        visit.end()
    visits[0].identify(again)  # after its end
    visits[0].note()
    visits[0].end()
    worker.writes()
    assert again not in worker.online()


@pytest.mark.parametrize("late", ["identify", "session"])
@pytest.mark.parametrize("after", [2, 8, 20, 300])
def test_a_login_on_an_open_connection_is_recorded_with_the_next_write_and_kept(
    exact: Process, late: str, after: float
) -> None:
    worker, guests = exact, ["guest"] if "guest" in exact.recorder.resolver.kinds else []
    session: dict[str, str] = {}
    visit = worker.opens(session=session)
    worker.opens(session=session, headers=[(b"user-agent", b"curl/8.5.0")])
    worker.passes(after)
    if after > 5:
        worker.presence.leave("ann")  # elsewhere; it is no matter to who comes now
        worker.clock.now += 0.1
    if late == "session":
        session["user_id"] = "ann"
    else:
        visit.identify("ann")
    worker.passes(0.8, step=0.8)
    assert worker.online() == ["ann"]
    assert not guests or worker.online("guest") == (guests if after > 5 else [])
    assert worker.presence.count("bot") == (after > 5)
    worker.passes(300)
    assert worker.online() == ["ann"]
    assert not guests or worker.online("guest") == []
    worker.clock.now += 0.5
    visit.end()
    worker.writes()
    assert worker.presence.last_seen("ann") == moment_of(worker.clock.now), "until its end"


@pytest.mark.parametrize("is_read", [False, True])
def test_an_unclosed_body_does_not_keep_its_user_online(start: Start, *, is_read: bool) -> None:
    worker, lines = start(**GIVEN), repeat(b"line")
    app = PresenceMiddleware(lambda *_: lines, settings=worker.settings, clock=worker.clock)
    recorder = worker.recorder = app.recorder
    recorder.background = False
    body = app({"REMOTE_USER": "bob"}, lambda *_: lambda _: None)
    app({"HTTP_PURPOSE": "prefetch"}, lambda *_: lambda _: None)  # no visit, and not kept at all
    assert isinstance(body, Body)
    if is_read:
        next(iter(body))
    worker.passes(300)
    assert worker.online() == ["bob"]
    assert len(recorder.open_visits) == 1
    del body
    worker.passes(1)
    assert not recorder.open_visits
    worker.passes(60)
    assert worker.online() == []


@pytest.fixture
def many(own: Server, start: Start) -> Iterator[Process]:
    worker = start(own.url, **{**GIVEN, "window": 600})
    for number in range(MANY):
        WsgiVisit(worker.recorder, {"REMOTE_USER": f"user{number}"})
    yield worker
    worker.recorder.open_visits.clear()


def test_thousands_of_open_connections_are_written_together_every_third_of_the_window(
    many: Process, client: Any
) -> None:
    threads = threading.active_count()

    def scripts_in(seconds: float) -> int:
        client.config_resetstat()
        many.passes(seconds, step=5)
        stats: dict[str, Any] = client.info("commandstats")
        commands = [stats.get(f"cmdstat_{name}", {}) for name in ("eval", "evalsha")]
        # At first, the server does not have the script: some commands fail, and are repeated.
        return sum(each.get("calls", 0) - each.get("failed_calls", 0) for each in commands)

    batch = MANY / CHUNK
    assert [scripts_in(5), scripts_in(50)] == [batch, 0]
    assert [scripts_in(60) for _ in range(3)] == [batch] * 3
    assert many.presence.count() == MANY
    assert threading.active_count() <= threads + 1


def test_other_threads_have_their_turn_while_many_connections_are_refreshed(
    many: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, refreshed, over = [0], list[int](), threading.Event()
    usual = time.sleep

    def sleep(seconds: float) -> None:
        """Sleep until another has had a turn: a busy machine may give none in no time."""
        before = turns[0]
        usual(seconds)
        while turns[0] == before and not over.is_set():
            usual(0.001)

    def resting() -> set[str]:
        """Note the turns once all are refreshed: after that, I/O gives others a turn as well."""
        refreshed.append(turns[0])
        return {""}

    def requests() -> None:
        while not over.is_set():
            turns[0] += 1
            usual(0)

    thread, interval = threading.Thread(target=requests), sys.getswitchinterval()
    sys.setswitchinterval(100)  # threads are not interrupted: they have to yield
    try:
        with monkeypatch.context() as patch:
            patch.setattr(many.recorder.health, "resting", resting)
            patch.setattr(many.recorder.health, "is_well", lambda _: False)
            patch.setattr(time, "sleep", sleep)
            thread.start()
            before = turns[0]
            many.recorder.run_once()
    finally:
        over.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert refreshed[0] > before


def test_open_connections_are_refreshed_one_after_the_other(
    worker: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits = [worker.opens(f"user{number}") for number in range(10)]
    worker.clock.now += 30
    ticks = count(worker.recorder.stamp() + 30)
    monkeypatch.setattr(type(worker.clock), "__call__", lambda _: float(next(ticks)))
    worker.recorder.run_once()  # recorded as they arrived
    worker.recorder.run_once()
    assert len({visit.stamp for visit in visits}) == 10


# Goodbyes and pulses.


def test_a_goodbye_dismisses_no_connection_of_another_tab(start: Start) -> None:
    worker = start(pulse_path="/pulse")
    tab = worker.opens("ann")
    worker.passes(119)
    worker.did("ann", act=Act.GOODBYE)  # it still waits when the connection is refreshed
    for seconds in (30, 300):  # also when the grace of a goodbye is long over
        worker.passes(seconds)
        assert worker.presence.is_online("ann")
    assert worker.dropped == {}
    tab.end()
    worker.writes()
    worker.clock.now += WINDOW - 1
    assert worker.presence.is_online("ann")
    worker.clock.now += 2
    assert not worker.presence.is_online("ann")


UNNAMED = (
    f"no user among {USERLESS_SIGNALS} pulses: if users read pages with the script, the app does "
    'not log them in at PRESENCE_PULSE_PATH, so add data-to="/…" to the script, with a URL of the '
    "site that logs them in and takes POST; in Django, let PresenceMiddleware be last"
)

Pulsing = tuple[str, str | None, str | None, list[str]]
# A chain, the user of a page, the user of its first pulse, and what is logged.
PULSING: list[Pulsing] = [
    ("user=header:X-User, guest=ip:raw", "ann", "ann", []),
    ("user=header:X-User, guest=ip:raw", None, None, []),
    ("user=header:X-User", "ann", None, [UNNAMED]),
    # Or all is well: those who read are guests, and ann uses an admin site without the script.
    ("user=header:X-User, guest=ip:raw", "ann", None, [UNNAMED]),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("pulsing", PULSING)
def test_pulses_that_name_no_user_are_reported_once(
    protocol: str,
    pulsing: Pulsing,
    unwritten: Callable[..., Settings],
    caplog: pytest.LogCaptureFixture,
) -> None:
    chain, page, pulse, warnings = pulsing
    here = PulsingSite(protocol, unwritten(identity=chain, pulse_path="/pulse"), App(status=200))
    here.ask("GET", "/", headers={"X-User": page} if page else {})
    if pulse:
        here.pulse(headers={**SAME, "X-User": pulse})
    for times, expected in ((USERLESS_SIGNALS - 1, []), (1, warnings), (1, warnings)):
        for _ in range(times):
            here.pulse("presence=bye" if times == 1 else "presence=here:/")
        assert here.recorder.flush()
        here.recorder.run_once()
        found = [message.removeprefix("presence: ") for message in caplog.messages]
        assert [message for message in found if " pulses: " in message] == expected
