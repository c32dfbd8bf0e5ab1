"""The site of `presence demo` and its simulated crowd, without a server."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import pytest

from presence_middleware import Sample, Settings
from presence_middleware.demo import crowd as crowds
from presence_middleware.demo import server
from presence_middleware.demo.app import Site
from presence_middleware.demo.crowd import Visitor
from presence_middleware.stores import merge_plans, moment_of
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.backends import wait_until
from tests.support.timed_site import NOON, Clock


@pytest.fixture
def client(prefix: str) -> Iterator[httpx.Client]:
    """A client of a site without a board, of which one visitor is simulated elsewhere."""
    given = {"PRESENCE_REDIS_URL": f"memory://{prefix}", "PRESENCE_WINDOW": "1m", **server.FIXED}
    app = PresenceMiddleware(Site(1), settings=Settings.from_env(given))
    headers = {"User-Agent": crowds.AGENT}
    transport = httpx.WSGITransport(app=app)
    with httpx.Client(transport=transport, base_url="http://demo", headers=headers) as client:
        yield client


# The site


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


def test_a_crowd_comes_and_its_past_replaces_no_sample(variables: dict[str, str]) -> None:
    given = Settings.from_env({**variables, **server.FIXED})
    site = PresenceMiddleware(Site(), settings=given, clock=Clock())
    site.recorder.background = False
    visitors, backend = [Visitor(number, NOON) for number in range(40)], site.recorder.backend
    minute = NOON // 60
    for due in crowds.requests(visitors, site):
        if due > NOON + 120:
            break
    assert site.recorder.flush()
    assert site.presence.count("guest") > 10
    assert all(each.id.endswith(" (simulated)") for each in site.presence.online())
    backend.driver.run(backend.history.record(int(minute) - 5, {"user": 7, "guest": 300}))
    past = crowds.past(visitors, NOON, 25.0)
    assert past[int(minute)]["guest"] > 10
    records = [backend.history.record(each, counts) for each, counts in past.items()]
    backend.driver.run(merge_plans(records))
    samples = {sample.at: sample.count for sample in site.presence.history(24, "guest")}
    assert samples == {
        moment_of(60 * each): 300 if each == minute - 5 else counts["guest"]
        for each, counts in past.items()
    }
    assert site.presence.peak("guest") == Sample(moment_of(60 * (minute - 5)), 300)


# The server


def test_a_crowd_comes_while_redis_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = {"PRESENCE_REDIS_URL": f"unix://{tmp_path}/no", **server.FIXED}
    site = PresenceMiddleware(Site(), settings=Settings.from_env(away))
    site.recorder.background = False
    pause = Mock(side_effect=InterruptedError)
    clocks = {"time": time.time, "monotonic": time.monotonic, "sleep": pause}
    monkeypatch.setattr(crowds, "time", SimpleNamespace(**clocks))
    with pytest.raises(InterruptedError):
        crowds.run_crowd(site, 20)
    assert site.recorder.stats().recorded > 10


def test_a_site_without_a_board_shows_the_rest(client: httpx.Client) -> None:
    html = client.get("/", headers={"Accept": "text/html"}).text
    assert "on this page" in html
    assert "pulse.js" in html
    assert "widget.js" not in html


def test_each_visitor_has_an_address_for_documentation() -> None:
    addresses = {crowds.Visitor(number, NOON).address for number in range(500)}  # the most
    assert len(addresses) == 500
    assert all(address.startswith(crowds.NETWORKS) for address in addresses)


def test_a_single_worker_has_the_crowd() -> None:
    demo, arbiter = server.Demo(40), SimpleNamespace(WORKERS={})
    for number in range(3):
        demo.pre_fork(arbiter, worker := SimpleNamespace(age=number + 1))
        arbiter.WORKERS[number] = worker
    assert [each.has_crowd for each in arbiter.WORKERS.values()] == [True, False, False]
    del arbiter.WORKERS[0]
    demo.pre_fork(arbiter, worker := SimpleNamespace(age=4))
    assert worker.has_crowd
