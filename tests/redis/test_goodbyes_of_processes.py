"""Goodbyes in a process: among open connections, and pulses that name no user."""

import logging

import pytest

from presence_middleware.recorder.setup_hints import USERLESS_SIGNALS
from presence_middleware.stores import Act
from tests.support.backends import Server
from tests.support.process import Start
from tests.support.pulsing import PROTOCOLS, SAME, App, PulsingSite
from tests.support.timed_site import WINDOW, settings

GRACE = 75.0


def test_a_goodbye_dismisses_no_connection_of_another_tab(valkey: Server, start: Start) -> None:
    worker = start(valkey.url, pulse_path="/pulse")
    tab = worker.opens("ann")
    worker.passes(119)
    worker.did("ann", act=Act.GOODBYE)  # it still waits when the connection is refreshed
    for seconds in (30, GRACE * 4):
        worker.passes(seconds)
        assert worker.presence.is_online("ann")
    assert worker.dropped == {}
    tab.end()
    worker.writes()
    assert worker.is_online_until(worker.clock.now + WINDOW)


# The warning of pulses that name no user.


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("case", "is_warned"),
    [
        (("user=header:X-User, guest=ip:raw", "ann", "ann"), False),
        (("user=header:X-User, guest=ip:raw", "", ""), False),
        (("user=header:X-User", "ann", ""), True),
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
