"""Goodbyes in a process: in an outage, after lost data, among open connections and with it off."""

import itertools
import logging
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import Presence
from presence_middleware.asgi import AsgiVisit
from presence_middleware.embedded import find_server
from presence_middleware.recorder import Recorder, Visit
from presence_middleware.recorder import lost as module
from presence_middleware.recorder.setup_hints import USERLESS_SIGNALS
from presence_middleware.stores import Act, moment_of
from tests.support.backends import Server
from tests.support.pulsing import PROTOCOLS, SAME, App, PulsingSite
from tests.support.timed_site import NOON, WINDOW, Clock, settings

GRACE = 75.0
ANN = ("user", "ann")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    server = Server(str(find_server()), tmp_path)
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.stop()


class Worker:
    """A process of a site with a pulse, whose rounds the test starts, and a reader elsewhere."""

    def __init__(self, url: str, prefix: str, **given: Any) -> None:
        chain = {"identity": "user=header:x-user, guest=ip:raw", "flush_interval": "0.05s"}
        site = settings(url, prefix, **{"pulse_path": "/pulse", **chain, **given})
        self.clock = Clock()
        self.recorder = Recorder(site, clock=self.clock, background=False)
        self.presence = Presence(site, clock=self.clock)

    def opens(self, name: str) -> Visit:
        """A connection of a user, which stays open."""
        return AsgiVisit(
            self.recorder, {"type": "websocket", "headers": [(b"x-user", name.encode())]}
        )

    def clicks(self, name: str) -> None:
        self.opens(name).end()

    def closes(self, name: str) -> None:
        self.recorder.record(("user", name), self.clock.now, act=Act.GOODBYE)

    def passes(self, seconds: float) -> None:
        """Let time go by, with a round of the thread in each second."""
        for _ in range(round(seconds)):
            self.clock.now += 1
            self.recorder.run_once()

    def is_online_at(self, moment: float) -> bool:
        before, self.clock.now = self.clock.now, moment
        is_online = self.presence.is_online("ann")
        self.clock.now = before
        return is_online


def test_a_goodbye_waits_in_an_outage(own: Server, prefix: str) -> None:
    worker = Worker(own.url, prefix)
    worker.clicks("ann")
    assert worker.recorder.flush()
    worker.clock.now += 30
    own.process.send_signal(signal.SIGSTOP)
    worker.closes("ann")
    assert not worker.recorder.flush(1.0)
    assert worker.recorder.has_pending
    own.process.send_signal(signal.SIGCONT)
    worker.clock.now += 20
    assert worker.recorder.flush()
    assert not worker.recorder.has_pending
    assert worker.is_online_at(NOON + 30 + GRACE - 1)
    assert not worker.is_online_at(NOON + 30 + GRACE + 1)
    assert worker.presence.last_seen("ann") == moment_of(NOON + 30)
    worker.recorder.close()


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_goodbye_is_repeated_after_the_server_lost_its_data(
    own: Server, prefix: str, *, comes_back: bool
) -> None:
    worker = Worker(own.url, prefix)
    worker.clicks("ann")
    assert worker.recorder.flush()
    worker.clock.now += 10
    worker.closes("ann")
    assert worker.recorder.flush()
    if comes_back:
        worker.clock.now += 1
        worker.clicks("ann")
        assert worker.recorder.flush()
    worker.clock.now += module.CHECK_EVERY + 1
    worker.recorder.run_once()
    with redis.Redis.from_url(own.url) as client:
        client.flushall()
    assert not worker.presence.is_online("ann")
    worker.clock.now += module.CHECK_EVERY + 1
    worker.recorder.run_once()
    assert worker.recorder.flush()
    until = NOON + 11 + WINDOW if comes_back else NOON + 10 + GRACE
    assert worker.is_online_at(until - 1)
    assert not worker.is_online_at(until + 1)
    last_seen = NOON + (11 if comes_back else 10)
    assert worker.presence.last_seen("ann") == moment_of(last_seen)
    worker.recorder.close()


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("goodbye_first", [False, True])
def test_a_logout_with_a_goodbye_stays_a_logout_also_after_lost_data(
    own: Server, prefix: str, *, goodbye_first: bool, is_waiting: bool
) -> None:
    """The page of the logout is closed as well: its goodbye must not replace the logout."""
    worker = Worker(own.url, prefix)
    worker.clicks("ann")
    assert worker.recorder.flush()
    for is_goodbye in (goodbye_first, not goodbye_first):
        worker.clock.now += 1
        if is_goodbye:
            worker.closes("ann")
        else:
            worker.recorder.record(ANN, worker.clock.now, act=Act.LEFT)
        assert is_waiting or worker.recorder.flush()
    assert worker.recorder.flush()
    assert not worker.presence.is_online("ann")
    worker.clock.now += module.CHECK_EVERY + 1
    worker.recorder.run_once()
    with redis.Redis.from_url(own.url) as client:
        client.flushall()
    worker.clock.now += module.CHECK_EVERY + 1
    worker.recorder.run_once()
    assert worker.recorder.flush()
    assert not worker.presence.is_online("ann")
    worker.recorder.close()


def test_a_goodbye_does_not_move_a_logout_that_waits(own: Server, prefix: str) -> None:
    """Else it would take a user offline who has logged in again meanwhile."""
    worker = Worker(own.url, prefix)
    worker.clicks("ann")
    assert worker.recorder.flush()
    worker.recorder.record(ANN, worker.clock.now + 1, act=Act.LEFT)
    worker.clock.now += 2
    worker.clicks("ann")
    worker.clock.now += 1
    worker.closes("ann")
    assert worker.recorder.flush()
    assert worker.presence.is_online("ann")
    worker.recorder.close()


@pytest.mark.parametrize("backend_url", ["memory", "valkey"], indirect=True)
def test_a_goodbye_dismisses_no_connection_of_another_tab(backend_url: str, prefix: str) -> None:
    worker = Worker(backend_url, prefix)
    tab = worker.opens("ann")
    worker.passes(119)
    worker.closes("ann")  # it still waits when the connection is refreshed
    worker.passes(30)
    assert worker.presence.is_online("ann")
    worker.passes(GRACE * 4)
    assert worker.presence.is_online("ann")
    assert worker.recorder.stats().dropped == {}
    tab.end()
    worker.recorder.flush()
    assert worker.is_online_at(worker.clock.now + WINDOW - 1)
    assert not worker.is_online_at(worker.clock.now + WINDOW + 1)
    worker.recorder.close()


@pytest.mark.parametrize("order", ["click, pulse, bye", "click, bye, pulse", "bye, click, pulse"])
def test_clicks_and_goodbyes_of_a_single_flush_count_in_their_order(
    valkey: Server, prefix: str, order: str
) -> None:
    worker = Worker(valkey.url, prefix)
    worker.clicks("ann")
    assert worker.recorder.flush()
    for step in order.split(", "):
        worker.clock.now += 0.02
        if step == "bye":
            worker.closes("ann")
        else:
            worker.clicks("ann")
    assert worker.recorder.flush()
    until = NOON + 0.06 + (GRACE if order.endswith("bye") else WINDOW)
    assert worker.is_online_at(until - 1)
    assert not worker.is_online_at(until + 1)
    worker.recorder.close()


def test_pages_that_open_and_close_all_the_time_are_a_single_user(
    valkey: Server, prefix: str
) -> None:
    worker = Worker(valkey.url, prefix)
    for _ in range(50):
        worker.clock.now += 0.1
        worker.clicks("ann")
        worker.closes("ann")
        worker.recorder.flush()
        assert worker.presence.counts() == {"user": 1, "guest": 0}
    worker.clicks("ann")
    assert worker.recorder.stats().dropped == {}
    worker.recorder.close()


def transcript(server: Server, prefix: str, protocol: str, given: dict[str, Any]) -> list[str]:
    """Return the commands of a worker that answers some requests, in a form to compare.

    Its prefix, and the random name and key of its process, are replaced.
    """
    ordinary = given.pop("ordinary")
    site = settings(server.url, prefix, identity="user=auth, guest=visitor", **given)
    app = PulsingSite(protocol, site, App(status=200))
    recorder = app.recorder = Recorder(site, clock=Clock(), background=False)
    app.wsgi.recorder = app.asgi.recorder = recorder
    with redis.Redis.from_url(server.url) as client, client.monitor() as monitor:
        client.script_flush()
        for user, path in itertools.product((None, "ann"), ("/pulse", "/pulse.js", "/me")):
            for query in ("presence=here:/", "presence=bye", ""):
                app.ask("POST", "/" if ordinary else path, "" if ordinary else query, user=user)
                assert recorder.flush()
            app.ask("GET", "/" if ordinary else path, user=user)
        assert recorder.flush()
        recorder.run_once()
        client.echo("end")
        commands = []
        for command in monitor.listen():
            if command["command"] == "ECHO end":
                break
            if prefix in command["command"]:
                commands.append(command["command"].replace(prefix, "P"))
    recorder.close()
    return [re.sub(r"\b[0-9a-f]{16,64}\b", "H", command) for command in commands]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_the_pulse_off_its_requests_send_what_any_request_sends(
    own: Server, prefix: str, protocol: str
) -> None:
    sent = transcript(own, f"{prefix}a", protocol, {"ordinary": False})
    assert sent == transcript(own, f"{prefix}b", protocol, {"ordinary": True})
    assert len(sent) > 10
    keys = set(re.findall(r"P:[\w:]+", " ".join(sent)))
    assert not any(key.endswith((":at", ":moved", ":progress")) for key in keys)
    on = transcript(own, f"{prefix}c", protocol, {"ordinary": False, "pulse_path": "/pulse"})
    assert any("P:user:bye" in command for command in on)


# The warning of pulses that name no user.


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("case", "is_warned"),
    [
        (("user=header:X-User, guest=ip:raw", "ann", ""), True),
        (("user=header:X-User, guest=ip:raw", "ann", "ann"), False),
        (("user=header:X-User, guest=ip:raw", "", ""), False),
        (("user=header:X-User", "", ""), True),
        (("user=header:X-User", "ann", ""), True),
        (("user=header:X-User", "ann", "ann"), False),
    ],
)
def test_pulses_that_name_no_user_are_reported_once(
    valkey: Server,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
    case: tuple[str, str, str],
    *,
    is_warned: bool,
) -> None:
    chain, pages, pulses = case
    site = settings(valkey.url, prefix, identity=chain, pulse_path="/pulse", flush_interval="3m")
    here = PulsingSite(protocol, site, App(status=200))

    def warnings() -> list[str]:
        assert here.recorder.flush()
        here.recorder.run_once()
        found = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        return [message for message in found if " pulses: " in message]

    here.ask("GET", "/", headers={"X-User": pages} if pages else {})
    if pulses:
        here.pulse(headers={**SAME, "X-User": pulses})
    for _ in range(USERLESS_SIGNALS - 1):
        here.pulse()
    assert warnings() == []
    for _ in range(2):
        here.pulse("presence=bye")
        expected = [
            f"no user among {USERLESS_SIGNALS} pulses: the app does not log users in at "
            'PRESENCE_PULSE_PATH. Add data-to="/…" to the script, with a URL of the site that '
            "logs them in and takes POST"
        ]
        found = [message.removeprefix("presence: ") for message in warnings()]
        assert found == (expected if is_warned else [])


def test_what_a_browser_sends_with_a_pulse_is_in_no_log(
    valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    site = settings(valkey.url, prefix, pulse_path="/pulse", identity="user=header:X-User")
    here = PulsingSite("wsgi", site)
    secret = {"X-User": "canary-id", "Cookie": "session=canary-cookie", "Origin": "http://canary"}
    for headers in (secret, {**secret, **SAME}, {**secret, "Sec-Fetch-Site": "canary-site"}):
        for query in ("presence=here:/canary-path", "presence=bye", f"presence={'canary' * 9999}"):
            here.pulse(query, headers=headers)
    here.recorder.flush()
    here.recorder.run_once()
    assert "canary" not in caplog.text
    here.recorder.close()
