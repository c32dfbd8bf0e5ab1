"""The site of `presence demo` and its simulated crowd, without a server."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from wsgiref.types import WSGIEnvironment

import httpx
import pytest

from presence_middleware import PresenceUnavailable, Sample, Settings, embedded
from presence_middleware.demo import crowd as crowds
from presence_middleware.demo import server
from presence_middleware.demo.app import PAGES, Site
from presence_middleware.demo.crowd import Crowd, Visitor, fill_history
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
    """An app that notes its requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ...]] = []

    def __call__(self, environ: WSGIEnvironment, start_response: Any) -> list[bytes]:
        names = ("REMOTE_ADDR", "REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_COOKIE")
        self.requests.append(tuple(environ[name] for name in names))
        start_response("200 OK", [])
        return []


def requests_of(size: int, seconds: float, seed: int = 0) -> list[tuple[str, ...]]:
    log = Log()
    Crowd(log, PATHS, size, NOON, seed).run_until(NOON + seconds)
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


def test_the_history_of_a_crowd_replaces_no_sample(prefix: str) -> None:
    site = PresenceMiddleware(Site(), settings=settings(prefix), clock=Clock())
    site.recorder.background = False
    backend, minute = site.recorder.backend, int(NOON // 60)
    backend.driver.run(backend.history.record(minute - 5, {"user": 7, "guest": 300}))
    past = Crowd(Log(), PATHS, 40, NOON).past("user", "guest", LINGER)
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


def test_a_single_worker_has_the_crowd() -> None:
    demo, arbiter = server.Demo(40), SimpleNamespace(WORKERS={})
    for number in range(3):
        demo.pre_fork(arbiter, worker := SimpleNamespace())
        arbiter.WORKERS[number] = worker
    assert [each.has_crowd for each in arbiter.WORKERS.values()] == [True, False, False]
    del arbiter.WORKERS[0]
    demo.pre_fork(arbiter, worker := SimpleNamespace())
    assert worker.has_crowd
