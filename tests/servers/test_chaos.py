"""Real servers under constant traffic while Redis is killed, stopped, filled, made read-only, slow.

Each request goes to a wrapped app and to the bare one beside it. They must answer alike and equally
fast, and afterwards everybody must be online whom the traffic's own list has.
"""

import contextlib
import http.client
import random
import re
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from presence_middleware import Presence, Settings
from tests.support.backends import Server, wait_until
from tests.support.faults import OUTAGES, Fault, at_a_place, hung, slow
from tests.support.servers import ROOT, WebServer, gunicorn, uvicorn
from tests.support.stopwatch import Stopwatch

NOISE = 0.05  # seconds; a request that waited for Redis would take ten times that
SLACK = 0.5  # seconds by which the clock of a server that hangs may be misread
DISTURBED = ("hung", "killed and restarted", "full", "read-only")
FAULTS: dict[str, Fault] = {**{name: OUTAGES[name] for name in DISTURBED}, "slow": slow}
SITE, WRAPPER = "tests.support.site", "presence_middleware.{0}_app:application"
SERVERS = {"gunicorn": (gunicorn, "wsgi", 2), "uvicorn": (uvicorn, "asgi", 1)}
Asked = tuple[float, float]
"""When the last request of somebody began and ended."""


@dataclass
class Traffic:
    """One request after another, to both; who asked, and when for the last time."""

    name: str
    bare: WebServer
    wrapped: WebServer
    asked: dict[str, Asked] = field(default_factory=dict)
    bare_seconds: list[float] = field(default_factory=list)
    wrapped_seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def warm_up(self) -> None:
        """Wait for a first answer of each server, whose workers may still import the app."""
        for server in (self.bare, self.wrapped):
            connection = http.client.HTTPConnection(server.address)
            assert answer(connection, f"{self.name}-0")[0] == 200
            connection.close()

    def go_on(self, over: threading.Event) -> None:
        ways = [(self.bare, self.bare_seconds), (self.wrapped, self.wrapped_seconds)]
        connections = {server: http.client.HTTPConnection(server.address) for server, _ in ways}
        with Stopwatch() as watch:
            while not over.wait(0.003):
                newest = len(self.asked)
                who = f"{self.name}-{random.choice([newest, random.randint(0, newest)])}"
                answers, before = [], time.time()
                for server, seconds in random.sample(ways, 2):
                    began = watch.seconds
                    answers.append(answer(connections[server], who))
                    seconds.append(watch.seconds - began)
                self.asked[who] = before, time.time()
                if answers[0] != answers[1] or answers[0][0] != 200:
                    self.problems.append(f"{who}: {answers}")
        for connection in connections.values():
            connection.close()


def answer(connection: http.client.HTTPConnection, who: str) -> tuple[object, ...]:
    """All of an answer but its date; or how the request failed."""
    try:
        connection.request("GET", f"/{who}", headers={"X-User": who})
        response = connection.getresponse()
        headers = [header for header in response.getheaders() if header[0].lower() != "date"]
        return response.status, response.reason, headers, response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return (repr(error),)


def most(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


@contextlib.contextmanager
def served(settings: dict[str, str], folder: Path) -> Iterator[list[Traffic]]:
    """Traffic yet to come, to each server."""
    with contextlib.ExitStack() as stack:
        traffic = []
        for name, (serve, protocol, workers) in SERVERS.items():
            app = f"{SITE}:{protocol}_app"
            wrapped = serve(WRAPPER.format(protocol), workers)
            bare = WebServer(serve(app, workers), ROOT, folder / f"{name}-bare")
            other = WebServer(wrapped, ROOT, folder / name, **settings, PRESENCE_APP=app)
            traffic.append(Traffic(name, stack.enter_context(bare), stack.enter_context(other)))
        yield traffic


@contextlib.contextmanager
def going_on(traffic: list[Traffic]) -> Iterator[None]:
    over = threading.Event()
    threads = [threading.Thread(target=each.go_on, args=(over,)) for each in traffic]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def online(presence: Presence) -> dict[str, float]:
    found = presence.online(limit=None)
    return {seen.id: seen.last_seen.timestamp() for seen in found if seen.last_seen}


def everybody(traffic: list[Traffic]) -> dict[str, Asked]:
    """Who has asked, by the lists of the traffic."""
    return {who: times for each in traffic for who, times in list(each.asked.items())}


def lacking(presence: Presence, expected: dict[str, Asked]) -> set[str]:
    """Who is not online, or not as of when he asked."""
    found = online(presence)
    return {
        who
        for who, (began, ended) in expected.items()
        if not began - SLACK < found.get(who, 0) < ended + SLACK
    }


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("stopped", "broken"),
    [(4, 0.7), pytest.param(30, 5, marks=[pytest.mark.soak, pytest.mark.timeout(200)])],
)
def test_sites_answer_normally_while_redis_fails(
    stopped: float, broken: float, valkey: Server, tmp_path: Path, prefix: str
) -> None:
    variables = {
        "PRESENCE_PREFIX": prefix,
        "PRESENCE_IDENTITY": "user=header:X-User",
        "PRESENCE_FLUSH_INTERVAL": "0.1s",
    }
    with (
        at_a_place(valkey.binary, tmp_path) as place,
        served({**variables, "PRESENCE_REDIS_URL": place.url}, tmp_path) as traffic,
    ):
        presence = Presence(Settings.from_env(variables, redis_url=place.url))
        for each in traffic:
            each.warm_up()
        wait_until(lambda: len(online(presence)) == len(traffic))
        with going_on(traffic):
            for fault in FAULTS.values():
                with fault(place):
                    time.sleep(stopped if fault is hung else broken)
                expected = everybody(traffic)
                wait_until(lambda: expected.keys() <= online(presence).keys(), 30)  # noqa: B023
                # A server that hung may do in the end what it was asked before: then everybody is
                # there, and the workers have yet to find out.
                wait_until(lambda: all(map(is_recording, traffic)), 30)
        wait_until(lambda: not lacking(presence, everybody(traffic)))
        assert online(presence).keys() <= everybody(traffic).keys()
        for each in traffic:
            check(each)


def is_recording(traffic: Traffic) -> bool:
    """Whether each of its workers that told of an outage has told of its end."""
    said = traffic.wrapped.output
    return said.count("cannot record who is online") == said.count("recording again after")


def check(traffic: Traffic) -> None:
    """The site was not disturbed, and each of its workers said so much of each fault."""
    assert traffic.problems == []
    assert most(traffic.wrapped_seconds) < most(traffic.bare_seconds) + NOISE
    assert max(traffic.wrapped_seconds) < max(traffic.bare_seconds) + 9 * NOISE
    said = traffic.wrapped.output
    outages = said.count("cannot record who is online")
    assert len(FAULTS) <= outages <= len(FAULTS) * SERVERS[traffic.name][-1]
    ends = re.findall(r"^recording again after \S+: wrote \d+ .*, dropped 0$", said, re.MULTILINE)
    ours = [line for line in said.splitlines() if not line.startswith(("[", "INFO:"))]
    assert len(ends) == outages == len(ours) / 2, ours
