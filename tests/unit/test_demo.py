"""The site of `presence demo` and its simulated crowd, without a server."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from presence_middleware import PresenceUnavailable, Settings, embedded
from presence_middleware.demo import crowd as crowds
from presence_middleware.demo import server
from presence_middleware.demo.app import Site
from presence_middleware.demo.crowd import Visitor
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.backends import wait_until
from tests.support.timed_site import NOON


@pytest.fixture
def client(prefix: str) -> Iterator[httpx.Client]:
    """A client of a site without a board, of which one visitor is simulated elsewhere."""
    given = {"PRESENCE_REDIS_URL": f"memory://{prefix}", "PRESENCE_WINDOW": "1m", **server.FIXED}
    app = PresenceMiddleware(Site(1), settings=Settings.from_env(given))
    headers = {"User-Agent": crowds.AGENT}
    transport = httpx.WSGITransport(app=app)
    with httpx.Client(transport=transport, base_url="http://demo", headers=headers) as client:
        yield client
    app.recorder.close()


# The site


def test_a_site_without_a_board_shows_the_rest(client: httpx.Client) -> None:
    html = client.get("/", headers={"Accept": "text/html"}).text
    assert "on this page" in html
    assert "pulse.js" in html
    assert "widget.js" not in html
    assert client.get("/online.json?page=/no").json()["here"] is None
    for file, type in (("/demo.js", "text/javascript"), ("/demo.css", "text/css")):
        assert client.get(file).headers["content-type"].startswith(type)


def test_a_login_counts_at_once_and_leads_back_to_its_page(client: httpx.Client) -> None:
    for page, leads_to in [("/t/tea", "/t/tea"), ("//evil.example", "/"), ("", "/")]:
        answer = client.post("/login", data={"name": "Ada", "page": page})
        assert (answer.status_code, answer.headers["location"]) == (303, leads_to)
    wait_until(lambda: client.get("/t/tea").text.startswith("1 user online\n0 guests online"))
    client.post("/logout", data={"page": "/t/tea"})
    client.cookies.clear()
    for cookies, you in [("a,b=c; demo-name=Ada", "user Ada"), ("a,b=c", "guest ")]:
        assert f"you are {you}" in client.get("/", headers={"Cookie": cookies}).text


def test_clients_without_a_browser_get_a_short_list(client: httpx.Client) -> None:
    for number in range(5):
        client.get("/", headers={"User-Agent": f"Firefox/{number}"})
    wait_until(lambda: "6 guests online" in client.get("/").text)
    text = client.get("/").text
    assert len(re.findall("^  guest ", text, re.MULTILINE)) == 3
    assert "\n  3 more guests\n" in text
    assert "\n1 visitor is simulated, also in the chart: --crowd 0 switches" in text


# The crowd


def test_each_visitor_has_an_address_for_documentation_and_users_have_a_label() -> None:
    most = 500  # of the command `demo`
    visitors = [Visitor(number, NOON) for number in range(most)]
    assert len({visitor.address for visitor in visitors}) == most
    assert all(visitor.address.startswith(crowds.NETWORKS) for visitor in visitors)
    names = [visitor.name for visitor in visitors if visitor.name]
    assert len(set(names)) == len(names) == len(crowds.NAMES)
    assert all(name.endswith(" (simulated)") for name in names)


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
