"""The site of `presence demo` and its simulated crowd, without a server."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote
from wsgiref.types import WSGIApplication, WSGIEnvironment

import httpx
import pytest

from presence_middleware import PresenceUnavailable, Sample, Settings, embedded
from presence_middleware.demo import crowd as crowds
from presence_middleware.demo import server
from presence_middleware.demo.app import PAGES, Site
from presence_middleware.demo.crowd import Crowd, Visitor, fill_history, start_crowd
from presence_middleware.parsers import DAY
from presence_middleware.stores import moment_of
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.backends import wait_until
from tests.support.timed_site import NOON, Clock

LINGER = 25.0
PATHS = tuple(PAGES)


def settings(prefix: str, **others: str) -> Settings:
    given = {"PRESENCE_REDIS_URL": f"memory://{prefix}", "PRESENCE_WINDOW": "1m", **server.FIXED}
    return Settings.from_env({**given, **others})


def client_of(app: Any) -> httpx.Client:
    headers = {"User-Agent": crowds.AGENT}
    transport = httpx.WSGITransport(app=app)
    return httpx.Client(transport=transport, base_url="http://demo", headers=headers)


# The site


def test_a_site_without_a_board_shows_the_rest(prefix: str) -> None:
    app = PresenceMiddleware(Site(), settings=settings(prefix))
    with client_of(app) as client:
        html = client.get("/", headers={"Accept": "text/html"}).text
        assert "on this page" in html
        assert "pulse.js" in html
        assert "widget.js" not in html
        assert client.get("/online.json?page=/no").json()["here"] is None
        for file, type in (("/demo.js", "text/javascript"), ("/demo.css", "text/css")):
            assert client.get(file).headers["content-type"].startswith(type)
    app.recorder.close()


def test_a_login_counts_at_once_and_leads_back_to_its_page(prefix: str) -> None:
    app = PresenceMiddleware(Site(), settings=settings(prefix))
    with client_of(app) as client:
        for page, leads_to in [("/t/tea", "/t/tea"), ("//evil.example", "/"), ("", "/")]:
            answer = client.post("/login", data={"name": "Ada", "page": page})
            assert (answer.status_code, answer.headers["location"]) == (303, leads_to)
        wait_until(lambda: client.get("/t/tea").text.startswith("1 user online\n0 guests online"))
        client.post("/logout", data={"page": "/t/tea"})
        client.cookies.clear()
        for cookies, you in [("a,b=c; demo-name=Ada", "user Ada"), ("a,b=c", "guest ")]:
            assert f"you are {you}" in client.get("/", headers={"Cookie": cookies}).text
    app.recorder.close()


def test_clients_without_a_browser_get_a_short_list(prefix: str) -> None:
    app = PresenceMiddleware(Site(1), settings=settings(prefix))
    with client_of(app) as client:
        for number in range(5):
            client.get("/", headers={"User-Agent": f"Firefox/{number}"})
        wait_until(lambda: "6 guests online" in client.get("/").text)
        text = client.get("/").text
        assert len(re.findall("^  guest ", text, re.MULTILINE)) == 3
        assert "\n  3 more guests\n" in text
        assert "\n1 visitor is simulated, also in the chart: --crowd 0 switches" in text
    app.recorder.close()


# The crowd


class Log:
    """An app that notes its requests, and that each response is closed."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ...]] = []
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        yield b""

    def close(self) -> None:
        self.closed += 1

    def __call__(self, environ: WSGIEnvironment, start_response: Any) -> "Log":
        names = ("REMOTE_ADDR", "REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_COOKIE")
        self.requests.append(tuple(environ[name] for name in names))
        start_response("200 OK", [])
        return self


def requests_of(size: int, seconds: float, seed: int = 0) -> list[tuple[str, ...]]:
    log = Log()
    Crowd(log, PATHS, size, NOON, seed).run_until(NOON + seconds)
    assert log.closed == len(log.requests)
    return log.requests


def test_a_crowd_behaves_alike_with_the_same_seed() -> None:
    assert requests_of(20, 600) == requests_of(20, 600)
    assert requests_of(20, 600) != requests_of(20, 600, seed=1)


def test_each_visitor_has_an_address_for_documentation_and_users_have_a_label() -> None:
    most = 500  # of the command `demo`
    visitors = [Visitor(number, NOON) for number in range(most)]
    assert len({visitor.address for visitor in visitors}) == most
    assert all(visitor.address.startswith(crowds.NETWORKS) for visitor in visitors)
    names = [visitor.name for visitor in visitors if visitor.name]
    assert len(set(names)) == len(names) == len(crowds.NAMES)
    assert all(name.endswith(" (simulated)") for name in names)


class Expected:
    """What a crowd should look like, from its requests alone."""

    def __init__(self, app: WSGIApplication, clock: Clock) -> None:
        self._app, self._clock = app, clock
        self.seen: dict[str, tuple[float, str]] = {}
        """When each user was last seen, and the page, by name."""

    def __call__(self, environ: WSGIEnvironment, start_response: Any) -> Any:
        name = unquote(environ["HTTP_COOKIE"].removeprefix("demo-name="))
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == "/logout":
            del self.seen[name]
        elif name:
            signal = parse_qs(environ["QUERY_STRING"]).get("presence", [""])[0]
            page = path if method == "GET" else signal.removeprefix("here:")
            self.seen[name] = (self._clock(), page)
        return self._app(environ, start_response)


class Ticking(Clock):
    """A clock that goes on a little whenever it is read, so that a logout is after its request."""

    def __call__(self) -> float:
        self.now += 1e-5
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Ticking()


@pytest.fixture
def site(prefix: str, clock: Clock) -> Iterator[PresenceMiddleware]:
    site = PresenceMiddleware(Site(), settings=settings(prefix), clock=clock)
    site.recorder.background = False
    yield site
    site.recorder.close()


def run(crowd: Crowd, clock: Clock, until: float) -> None:
    """Run a crowd with the clock of its site."""
    while (due := crowd.run_until(clock.now)) <= until:
        clock.now = max(clock.now, due)
    clock.now = until


def test_a_crowd_is_counted_as_its_requests_say(site: PresenceMiddleware, clock: Clock) -> None:
    expected = Expected(site, clock)
    crowd = Crowd(expected, PATHS, 40, clock.now)
    presence = site.presence
    for _ in range(24):
        run(crowd, clock, clock.now + 15)
        site.recorder.flush()
        names = {sighting.id for sighting in presence.online("user")}
        assert names == set(expected.seen)
        for path in PATHS:
            here = {name for name, (_, page) in expected.seen.items() if page == path}
            assert {each.id for each in presence.online("user", room=path)} == here
        counts = presence.counts()
        assert counts["bot"] == 0
        in_rooms = [presence.count("guest", room=path) for path in PATHS]
        assert 15 <= counts["guest"] == sum(in_rooms) <= 32


def test_the_history_of_a_crowd_replaces_no_sample(site: PresenceMiddleware, clock: Clock) -> None:
    backend, minute = site.recorder.backend, int(clock.now // 60)
    backend.driver.run(backend.history.record(minute - 5, {"user": 7, "guest": 300}))
    past = Crowd(Log(), PATHS, 40, clock.now).past("user", "guest", LINGER)
    for _ in range(2):  # also if the demo starts again in the same minute
        fill_history(backend, past)
    samples = {sample.at: sample.count for sample in site.presence.history(24, "guest")}
    assert samples == {
        moment_of(60 * each): 300 if each == minute - 5 else counts["guest"]
        for each, counts in past.items()
    }
    peak = site.presence.peak("guest")
    assert peak == Sample(moment_of(60 * (minute - 5)), 300)
    users = site.presence.peak("user")
    assert users is not None
    assert users.count == past[int(users.at.timestamp() // 60)]["user"]
    assert users.count == max(counts["user"] for counts in past.values())
    # The minute is sampled already, when most of the crowd has not come yet.
    backend.upkeep.run(backend.driver)
    last = site.presence.history(1, "guest")[-1]
    assert (last.at, last.count) == (moment_of(60 * minute), past[minute]["guest"])


def test_the_history_of_a_crowd_leaves_a_minute_to_the_process_that_samples_it(
    site: PresenceMiddleware, clock: Clock
) -> None:
    backend, minute = site.recorder.backend, int(clock.now // 60)
    backend.upkeep.run(backend.driver)
    fill_history(backend, Crowd(Log(), PATHS, 5, clock.now).past("user", "guest", LINGER))
    samples = site.presence.history(24, "guest")
    assert samples[-1] == Sample(moment_of(60 * minute), 0)
    assert len(samples) == DAY / 60


def test_a_crowd_goes_on_until_it_is_stopped(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "PAUSE", (0.05, 0.1))
    site = PresenceMiddleware(Site(), settings=settings(prefix))
    stop = start_crowd(site, PATHS, 20)
    wait_until(lambda: site.presence.counts()["guest"] > 0)
    wait_until(lambda: site.recorder.stats().recorded > 100)
    stop()
    site.recorder.close()


def test_a_crowd_comes_also_if_redis_is_away(tmp_path: Path) -> None:
    away = settings("x", PRESENCE_REDIS_URL=f"unix://{tmp_path}/no")
    site = PresenceMiddleware(Site(), settings=away)
    stop = start_crowd(site, PATHS, 20)
    wait_until(lambda: site.recorder.stats().recorded > 10)
    stop()
    site.recorder.close()


# The server


def test_the_demo_tries_again_to_start_a_slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Path] = []

    def serve(directory: Path) -> None:
        attempts.append(directory)
        if len(attempts) < answers_at:
            raise PresenceUnavailable("gave no answer in 5 seconds")

    monkeypatch.setattr(embedded, "serve", serve)
    answers_at = 3
    server.start_server(Path("/demo"))
    assert attempts == [Path("/demo")] * 3
    answers_at, attempts[:] = 99, []
    with pytest.raises(PresenceUnavailable, match="gave no answer"):
        server.start_server(Path("/demo"))
    assert len(attempts) == server.STARTS


def test_a_worker_connects_before_its_first_request(prefix: str) -> None:
    site = PresenceMiddleware(Site(), settings=settings(prefix))
    attempts = []

    def counts() -> dict[str, int]:
        attempts.append(1)
        if len(attempts) == 1:
            raise PresenceUnavailable("Redis did not answer in time")
        return {}

    site.presence.counts = counts  # type: ignore[method-assign, assignment]
    server.connect(site)
    assert len(attempts) == 2
    site.recorder.close()


def test_a_single_worker_has_the_crowd() -> None:
    demo, arbiter = server.Demo(40), SimpleNamespace(WORKERS={})
    for number in range(3):
        demo.pre_fork(arbiter, worker := SimpleNamespace())
        arbiter.WORKERS[number] = worker
    assert [each.has_crowd for each in arbiter.WORKERS.values()] == [True, False, False]
    del arbiter.WORKERS[0]
    demo.pre_fork(arbiter, worker := SimpleNamespace())
    assert worker.has_crowd
    server.Demo(0).pre_fork(SimpleNamespace(WORKERS={}), worker)
    assert not worker.has_crowd
