"""Real servers under constant traffic while Redis is killed, stopped, filled, made read-only, slow.

Each request goes to a wrapped app and to the bare one beside it. They must answer alike and equally
fast, and afterwards everybody must be online whom the traffic's own list has.
"""

import http.client
import random
import re
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from presence_middleware import Presence, Settings
from tests.support.backends import wait_until
from tests.support.faults import OUTAGES, Fault, Place, hung, slow
from tests.support.servers import ROOT, Command, WebServer, gunicorn, uvicorn
from tests.support.stopwatch import Stopwatch

NOISE = 0.05  # seconds; a request that waited for Redis would take ten times that
SLACK = 0.5  # seconds by which the clock of a server that hangs may be misread
DISTURBED = ("hung", "killed and restarted", "full", "read-only")
FAULTS: dict[str, Fault] = {**{name: OUTAGES[name] for name in DISTURBED}, "slow": slow}
SERVERS = {"wsgi": (gunicorn, 2), "asgi": (uvicorn, 1)}
SETTINGS = {"PRESENCE_IDENTITY": "user=header:X-User", "PRESENCE_FLUSH_INTERVAL": "0.1s"}
OUTAGE, END = "cannot record who is online", "recording again after"


class Traffic:
    """One request after another to a bare app and to the wrapped one, and what came of them."""

    def __init__(self, protocol: str, folder: Path, **settings: str) -> None:
        serve, self.workers = SERVERS[protocol]
        app = f"tests.support.site:{protocol}_app"
        self.name = protocol

        def server(command: Command, name: str, **settings: str) -> WebServer:
            return WebServer(command, ROOT, folder / f"{protocol}-{name}", **settings)

        wrapper = serve(f"presence_middleware.{protocol}_app:application", self.workers)
        self.wrapped = server(wrapper, "wrapped", **settings, PRESENCE_APP=app)
        self.seconds: dict[WebServer, list[float]] = {
            server(serve(app, self.workers), "bare"): [],
            self.wrapped: [],
        }
        self.asked: dict[str, tuple[float, float]] = {}
        """When the last request of each user began and ended."""
        self.problems: list[str] = []

    def go_on(self, over: threading.Event) -> None:
        connections = {each: http.client.HTTPConnection(each.address) for each in self.seconds}
        with Stopwatch() as watch:
            while not over.wait(0.003):
                newest = len(self.asked)
                who = f"{self.name}-{random.choice([newest, random.randint(0, newest)])}"
                answers, before = [], time.time()
                for server in random.sample([*connections], 2):
                    began = watch.seconds
                    answers.append(answer(connections[server], who))
                    self.seconds[server].append(watch.seconds - began)
                self.asked[who] = before, time.time()
                if answers[0] != answers[1] or answers[0][0] != 200:
                    self.problems.append(f"{who}: {answers}")
        for connection in connections.values():
            connection.close()

    def is_recording(self) -> bool:
        """Whether each of its workers that told of an outage has told of its end."""
        return self.wrapped.output.count(OUTAGE) == self.wrapped.output.count(END)

    def check(self) -> None:
        """The site was not disturbed, and each of its workers said so much of each fault."""
        assert self.problems == []
        bare, wrapped = self.seconds.values()
        assert most(wrapped) < most(bare) + NOISE
        assert max(wrapped) < max(bare) + 9 * NOISE
        said = self.wrapped.output
        outages = said.count(OUTAGE)
        assert len(FAULTS) <= outages <= len(FAULTS) * self.workers
        ends = re.findall(rf"^{END} \S+: wrote \d+ .*, dropped 0$", said, re.MULTILINE)
        ours = [line for line in said.splitlines() if not line.startswith(("[", "INFO:"))]
        assert len(ends) == outages == len(ours) / 2, ours


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


@contextmanager
def going_on(traffic: list[Traffic]) -> Iterator[None]:
    over = threading.Event()
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(each.go_on, over) for each in traffic]
        try:
            yield
        finally:
            over.set()
    for each in running:
        each.result()


@pytest.mark.matrix
@pytest.mark.parametrize(
    "seconds",
    [(4, 0.7), pytest.param((30, 5), marks=[pytest.mark.soak, pytest.mark.timeout(200)])],
)
def test_sites_answer_normally_while_redis_fails(
    seconds: tuple[float, float], place: Place, tmp_path: Path, prefix: str, stack: ExitStack
) -> None:
    stopped, broken = seconds
    settings = {**SETTINGS, "PRESENCE_PREFIX": prefix, "PRESENCE_REDIS_URL": place.url}
    presence = Presence(Settings.from_env(settings))
    traffic = [Traffic(protocol, tmp_path, **settings) for protocol in SERVERS]

    def asked() -> dict[str, tuple[float, float]]:
        """Who has asked, by the lists of the traffic."""
        return {who: times for each in traffic for who, times in list(each.asked.items())}

    def online() -> dict[str, float]:
        found = presence.online(limit=None)
        return {seen.id: seen.last_seen.timestamp() for seen in found if seen.last_seen}

    def is_true() -> bool:
        """Whether everybody is online as of their last request, and nobody else."""
        found, expected = online(), asked()
        return found.keys() <= expected.keys() and all(
            began - SLACK < found.get(who, 0) < ended + SLACK
            for who, (began, ended) in expected.items()
        )

    for each in traffic:
        for server in each.seconds:
            # Workers may still import the app when their server listens.
            with stack.enter_context(server).client("A") as client:
                client.get("/").raise_for_status()
    with going_on(traffic):
        wait_until(lambda: len(online()) > len(traffic))
        for fault in FAULTS.values():
            with fault(place):
                time.sleep(stopped if fault is hung else broken)
            expected = asked()
            wait_until(lambda: expected.keys() <= online().keys())  # noqa: B023
            # A server that hung may do in the end what it was asked before: then everybody is
            # there, and the workers have yet to find out.
            wait_until(lambda: all(each.is_recording() for each in traffic))
    wait_until(is_true)
    for each in traffic:
        each.check()
