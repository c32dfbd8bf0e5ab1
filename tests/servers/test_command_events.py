"""`presence events` prints a line for each event, and `presence wait` ends when few are online."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from subprocess import Popen

import pytest

from presence_middleware import Presence, Settings
from presence_middleware.cli.commands import presence as command
from tests.servers.test_command_answers import SHOWN, WILD, Script
from tests.support.backends import Server, wait_until
from tests.support.faults import OUTAGES, Place
from tests.support.terminal import piped

SITE = {"PRESENCE_IDENTITY": "user=header:X-User, guest=visitor", "PRESENCE_EVENTS": "user"}


def visit_until(presence: Presence, condition: Callable[[], object], id: str = "first{}") -> None:
    numbers = count()

    def is_true() -> object:
        presence.touch(id.format(next(numbers)))
        return condition()

    wait_until(is_true)


@dataclass
class Events:
    """The command in a process of its own, and the lines that it has printed so far."""

    presence: Presence
    process: "Popen[str]"
    reading: ThreadPoolExecutor
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def begin(self) -> None:
        visit_until(self.presence, lambda: self.lines)

    def has(self, text: str) -> None:
        wait_until(lambda: any(line.endswith(text) for line in self.lines))

    def end(self, signum: int = signal.SIGINT) -> int:
        self.process.send_signal(signum)
        return self.ended()

    def ended(self) -> int:
        status = self.process.wait(30)
        self.reading.shutdown()
        return status


@contextmanager
def following(variables: dict[str, str], *options: str) -> Iterator[Events]:
    with piped("events", *options, **variables) as process, ThreadPoolExecutor() as pool:
        events = Events(Presence(Settings.from_env(variables)), process, pool)
        for stream, lines in ((process.stdout, events.lines), (process.stderr, events.errors)):
            pool.submit(lines.extend, (line.rstrip("\n") for line in stream))
        try:
            yield events
        finally:
            process.kill()


@pytest.fixture
def site(variables: dict[str, str]) -> dict[str, str]:
    return variables | SITE


def test_json_of_the_members_of_a_key_has_all_fields_and_its_cursor_goes_on(
    site: dict[str, str], valkey: Server, prefix: str
) -> None:
    key = f"{prefix}:friends"
    valkey.client.sadd(key, "ann", "bob", b"\xff")
    with following(site, "user", "--json", "--among", key) as events:

        def comes_and_goes() -> bool:
            events.presence.touch("eve")
            events.presence.touch("ann")
            events.presence.leave("ann")
            return bool(events.lines)

        wait_until(comes_and_goes)
        events.presence.touch("bob")
        wait_until(lambda: '"bob"' in events.lines[-1])
        assert not any("eve" in line for line in events.lines)
        event = json.loads(next(line for line in events.lines if "true" in line))
        assert sorted(event) == ["at", "cursor", "id", "kind", "online"]
        assert (event["kind"], event["id"], event["online"]) == ("user", "ann", True)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event["at"])
        with events.presence.events(after=event["cursor"], among=["bob"]) as others:
            assert next(others).id == "bob"


def test_invalid_arguments_are_reported(site: dict[str, str], valkey: Server, prefix: str) -> None:
    valkey.client.sadd(f"{prefix}:many", *range(1001))
    valkey.client.set(f"{prefix}:text", "ann")
    for options, error in (
        (["--among", f"{prefix}:many"], "has 1001 members: at most 1000 are possible"),
        (["--among", f"{prefix}:text"], "is a string: pass the key of a set"),
        (["--among", f"{prefix}:none"], "does not exist: pass the key of a set"),
        (["--among", "\udcff"], "'\\udcff': pass the key of a set"),
        (["guest"], "PRESENCE_EVENTS"),
        (["nobody"], "nobody"),
        (["--name", "two words"], "name is 'two words'"),
    ):
        ended = Script(site)("events", *options)
        assert (ended.exit_code, ended.stdout, error in ended.stderr) == (2, "", True)


@pytest.mark.slow
def test_without_redis_the_command_ends_with_3(own: Server) -> None:
    site = SITE | {"PRESENCE_REDIS_URL": own.url}
    with following(site) as events:
        events.begin()
        own.stop()
        assert events.ended() == 3
        assert "no events can be read: Redis did not answer" in events.errors[-1]
    assert Script(site)("events").exit_code == 3


def test_a_pipe_receives_a_line_for_each_event_and_of_lost_ones_a_report(own: Server) -> None:
    with following(SITE | {"PRESENCE_REDIS_URL": own.url}) as events:
        events.begin()
        own.stop()
        own.start()  # without its data
        visit_until(events.presence, lambda: events.errors, "again{}")
        assert events.errors[0].startswith("presence: ")
        assert "lost" in events.errors[0]
        events.presence.touch(WILD)
        events.presence.leave(WILD)
        events.has("\toffline\t" + SHOWN)
        states = [line.split("\t")[1:3] for line in events.lines if "[red]" in line]
        assert states == [["user", "online"], ["user", "offline"]]
        at = datetime.fromisoformat(events.lines[-1].split("\t")[0])
        assert abs(datetime.now(UTC) - at) < timedelta(seconds=60)
        assert len(events.errors) == 1, "the outage itself was short, and is none"
        assert events.end() == 0


def test_another_named_command_goes_on(site: dict[str, str], valkey: Server, prefix: str) -> None:
    key = f"{prefix}:user:reader:mailer"
    with following(site, "--name", "mailer") as events:
        wait_until(lambda: valkey.client.get(key))
        events.presence.touch("ann")
        events.has("\tann")
        handled = valkey.client.get(f"{key}/handled")
        wait_until(lambda: valkey.client.get(f"{key}/handled") != handled)
        assert events.end(signal.SIGTERM) == 143
        assert events.errors == []
        assert (valkey.client.exists(key), valkey.client.exists(f"{key}/handled")) == (0, 1)
        events.presence.touch("bob")
    with following(site, "--name", "mailer") as events:
        events.has("\tbob")
        assert len(events.lines) == 1


# `presence wait`


@pytest.fixture
def presence(presence: Presence) -> Presence:
    presence.touch("ann")
    presence.touch("bob")
    return presence


def calls(server: Server, command: str) -> int:
    found = server.client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})
    return int(found["calls"])


def test_wait_ends_when_somebody_leaves(
    presence: Presence, variables: dict[str, str], valkey: Server
) -> None:
    with piped("wait", "--below", "2", "--timeout", "40s", **variables) as waiting:
        before = calls(valkey, "zcount")
        wait_until(lambda: calls(valkey, "zcount") > before)
        began = time.monotonic()
        presence.leave("ann")
        assert waiting.wait(20) == 0
        assert time.monotonic() - began < 4.5


def test_wait_ends_at_sigterm_also_as_the_first_process_of_a_container(
    presence: Presence, variables: dict[str, str], valkey: Server
) -> None:
    before = calls(valkey, "zcount")
    with piped("wait", **variables) as waiting:
        wait_until(lambda: calls(valkey, "zcount") > before)
        waiting.terminate()
        # That of a handler: without one, Linux ends all processes but the first.
        assert waiting.wait(20) == 128 + signal.SIGTERM


def test_wait_tells_too_many_from_no_answer(presence: Presence, variables: dict[str, str]) -> None:
    script = Script(variables)
    assert script("wait", "--below", "3").exit_code == 0
    assert script("wait", "--timeout", "0.3s").exit_code == 1
    assert script("wait", PRESENCE_REDIS_URL="redis://127.0.0.1:1").exit_code == 3
    assert script("wait", "--timeout", "soon").exit_code == 2


def test_wait_survives_outages(place: Place, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presence_middleware.cli.commands.ASK_EVERY", 0.01)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # a thread can set no handler
    for name, value in {"REDIS_URL": place.url, "PREFIX": prefix}.items():
        monkeypatch.setenv(f"PRESENCE_{name}", value)
    reader = Presence(Settings.from_env(redis_url=place.server.url))
    reader.touch("ann")
    asked = calls(place.server, "zcount")
    with ThreadPoolExecutor() as thread:
        waiting = thread.submit(command.main, ["wait"], standalone_mode=False)
        wait_until(lambda: calls(place.server, "zcount") > asked)
        before = place.proxy.connections
        with OUTAGES["hangs up"](place):
            wait_until(lambda: place.proxy.connections > before + 1)
            assert not waiting.done()
            reader.leave("ann")
        assert waiting.result(30) is None
