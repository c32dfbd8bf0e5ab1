"""The responses of the board to requests, of a site in this process."""

import hmac
import json
import re
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import pytest

from presence_middleware import Presence, PresenceUnavailable, Settings
from presence_middleware.board import MAX_PARAMETERS, Response
from presence_middleware.board.cache import Cache, SharedRead
from presence_middleware.board.routes import Board
from presence_middleware.connections.url import parse_url
from presence_middleware.request import WsgiRequest
from presence_middleware.stores import Plan
from tests.support.statuses import basic
from tests.support.timed_site import Clock
from tests.unit.test_svg import elements, paths, texts

TOKEN = "the-token-of-the-board"
BEARER = f"Bearer {TOKEN}"
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
DATA = ["/counts", "/history", "/peak", "/chart.svg"]
NAMED = ["/online", "/last-seen"]
UNKNOWN = ["/nothing", "/counts/", "/static/board.css", "/../x"]
PATHS = ["", "/", "/board.css", "/board.js", "/widget.js", *DATA, *NAMED]
ODD_IDS = ["<script>alert(1)</script>", "\x1b[2J\x07", "abc\u202ecba", '"&amp;', "日本"]


def settings(**others: Any) -> Settings:
    return Settings.from_env({}, **{"board_path": "/who/is-here", "board_token": TOKEN, **others})


SETTINGS = settings()
NUMBERS = count()
Samples = dict[int, int]
"""Counts by minutes before noon, oldest first."""

HISTORY: Samples = {90: 90, 60: 60, 1: 1}
CHARTED: Samples = {90: 90, 60: 60, 57: 1200}


class Site:
    """What a board reads: the data of a test, in this process, at noon."""

    def __init__(self, of: Settings = SETTINGS, samples: Samples = HISTORY) -> None:
        self.settings = replace(of, redis_url=parse_url(f"memory://board-{next(NUMBERS)}"))
        self.clock, self.cache, self.reads = Clock(NOON.timestamp()), Cache(), 0
        self.presence = Presence(self.settings, clock=self.clock)
        self.backend = self.presence.backend
        minute = int(NOON.timestamp()) // 60
        for ago, number in samples.items():
            self.run(self.backend.history.record(minute - ago, {"user": number}))
        for id in ("7", "42"):
            self.presence.touch(id)
        self.presence.touch("42", "guest")
        self.reads = 0

    def run(self, plan: Plan[Any]) -> Any:
        self.reads += 1
        return self.backend.driver.run(plan)

    def ask(self, path: str, query: str = "", method: str = "GET", **headers: str) -> Response:
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "QUERY_STRING": query}
        environ["PATH_INFO"] = f"{self.settings.board_path}{path}"
        environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        request = WsgiRequest(environ)
        answer = Board(self.backend).answer(request)
        if isinstance(answer, SharedRead):
            answer = self.cache.get(answer, self.run)
        return answer.to(request)


def ask(
    path: str, query: str = "", *, method: str = "GET", of: Settings | None = None, **headers: str
) -> Response:
    return Site(of or SETTINGS).ask(path, query, method, **headers)


def header(response: Response, name: str) -> str | None:
    return dict(response.headers).get(name)


NOW = "2026-01-05T12:00:00Z"
PEAK = {"at": "2026-01-05T10:30:00Z", "count": 90}
SAMPLES = [["2026-01-05T10:30:00Z", 90], ["2026-01-05T11:00:00Z", 60], ["2026-01-05T11:59:00Z", 1]]
ONLINE = [{"id": "7", "last_seen": NOW}, {"id": "42", "last_seen": NOW}]
SEEN = {"kind": "guest", "id": "42", "online": True, "last_seen": NOW, "now": NOW}


@pytest.mark.parametrize(
    ("store", "path", "query", "answer"),
    [
        ("sorted-set", "/counts", "", {"counts": {"user": 2, "guest": 1, "bot": 0}}),
        ("sorted-set", "/history", "", {"kind": "user", "step": 60, "samples": SAMPLES}),
        ("sorted-set", "/peak", "", {"kind": "user", "peak": PEAK}),
        ("sorted-set", "/peak", "kind=guest", {"kind": "guest", "peak": None}),
        ("sorted-set", "/online", "", {"kind": "user", "online": ONLINE, "now": NOW}),
        ("sorted-set", "/last-seen", "id=42&kind=guest", SEEN),
        ("minute-sets", "/last-seen", "id=42&kind=guest", {**SEEN, "last_seen": None}),
    ],
)
def test_each_path_answers_with_json(store: str, path: str, query: str, answer: object) -> None:
    response = ask(path, query, of=settings(store=store), authorization=BEARER)
    assert json.loads(response.body) == answer
    assert header(response, "Content-Type") == "application/json"


NOBODY = {"user": 0, "guest": 0}
ROOMS = {
    **{"room=/t/42": "/t/42", "room=%2Ft%2F42%2Fa-title": "/t/42", "room=/home": None},
    **{"room=/t/caf%C3%A9": "/t/café", "room=chat:7": None, "room=": None},
    f"room=/t/{'x' * 300}": None,
}


def test_counts_of_a_room_are_public_if_its_path_is_declared() -> None:
    site, named = Site(settings(rooms="/t/{topic}/*")), settings(rooms="named")
    for query, room in ROOMS.items():
        answer = site.ask("/counts", query)
        assert answer.status == 200
        assert json.loads(answer.body) == {"room": room, "counts": NOBODY if room else {}}
        assert json.loads(ask("/counts", query, of=named).body) == {"room": None, "counts": {}}


AWAY = Mock(
    spec=["run"],
    **{"run.side_effect": PresenceUnavailable("Error 111 connecting to 10.1.2.3:6379")},
)


@pytest.mark.parametrize("path", NAMED)
def test_without_the_token_no_name_is_read_from_redis(path: str) -> None:
    """Nor is Redis asked: it is away."""
    site, without = Site(), Site(settings(board_token=""))
    for each in (site, without):
        each.backend.driver = AWAY
    refused = [None, "", TOKEN, basic(f"{TOKEN}:"), basic("ann:wrong"), "Basic !"]
    refused += ["Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \udcff日"]
    for given in refused:
        headers: Any = {} if given is None else {"authorization": given}
        response = site.ask(path, "id=42", **headers)
        challenge = "Bearer" if given and given.startswith("Bearer") else "Basic"
        assert response.status == 401, given
        assert (header(response, "WWW-Authenticate") or "").startswith(f"{challenge} ")
        assert TOKEN not in str(response)
    for given in ("", BEARER, "Bearer ", basic(":")):
        response = without.ask(path, "id=42", authorization=given)
        assert response.status == 403
        assert b"PRESENCE_BOARD_TOKEN" in response.body
    away = site.ask(path, "id=42", authorization=BEARER)
    assert (away.status, header(away, "Retry-After")) == (503, "2")
    assert b"10.1.2.3" not in away.body
    assert site.ask("").status == 200
    for given in (BEARER, f"bearer  {TOKEN} ", basic(f":{TOKEN}"), basic(f"ann:{TOKEN}")):
        assert ask(path, "id=42", authorization=given).status == 200, given


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(hmac, "compare_digest", lambda *pair: compared.append(pair))
    assert ask("/online", authorization="Bearer x").status == 401
    assert compared == [(b"x", TOKEN.encode())]


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_is_not_sent_twice(path: str) -> None:
    first = ask(path, "id=42", authorization=BEARER)
    etag = header(first, "ETag")
    assert first.status == 200
    assert etag
    for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        again = ask(path, "id=42", authorization=BEARER, if_none_match=known)
        assert (again.status, again.body) == (304, b"")
        assert header(again, "ETag") == etag
        assert header(again, "Content-Length") is None
    assert ask(path, "id=42", authorization=BEARER, if_none_match='"x"').status == 200


def test_the_etag_does_not_depend_on_the_time() -> None:
    site, others = Site(), Site()
    others.presence.touch("another")
    before = site.ask("/online", authorization=BEARER)
    site.clock.now, site.cache = site.clock.now + 9, Cache()
    after = site.ask("/online", authorization=BEARER)
    assert header(before, "ETag") == header(after, "ETag")
    assert before.body != after.body
    assert header(others.ask("/online", authorization=BEARER), "ETag") != header(before, "ETag")


@pytest.mark.parametrize("path", [*PATHS, *UNKNOWN])
def test_every_response_is_safe_for_a_browser(path: str) -> None:
    get, head = (ask(path, "id=1", method=m, authorization=BEARER) for m in ("GET", "HEAD"))
    assert (head.status, head.headers, head.body) == (get.status, get.headers, b"")
    assert header(head, "Content-Length") == str(len(get.body))
    assert get.status == (404 if path in UNKNOWN else 200)
    for method in ("PUT", "DELETE", "OPTIONS", "get", "POST"):
        refused = ask(path, "id=1", method=method, authorization=BEARER)
        assert (refused.status, header(refused, "Allow")) == (405, "GET, HEAD")
    for response in (get, refused, ask(path, "id=1")):
        policy = header(response, "Content-Security-Policy") or ""
        assert policy.startswith("default-src 'none';")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert header(response, "X-Content-Type-Options") == "nosniff"
        assert header(response, "Cache-Control") == "no-store" or path not in NAMED
        assert header(response, "Cache-Control")


def test_odd_ids_are_shown_as_text() -> None:
    site = Site()
    for id in ODD_IDS:
        site.presence.touch(id)
    body = site.ask("/online", authorization=BEARER).body
    assert body.isascii()
    assert b"\x1b" not in body
    assert set(ODD_IDS) < {each["id"] for each in json.loads(body)["online"]}


def test_the_page_has_no_inline_or_external_resources() -> None:
    page = ask("").body.decode()
    assert not re.search(r"<style|style=|\son\w+=|<script>|https?:|//", page)
    assert re.findall(r'(?:src|href)="(.*?)"', page) == ["is-here/board.css", "is-here/board.js"]
    assert re.findall(r'(?:src|href)="(.*?)"', ask("/").body.decode()) == ["board.css", "board.js"]
    for script in ("/board.js", "/widget.js"):
        assert not re.search(rb"innerHTML|outerHTML|insertAdjacent|eval", ask(script).body)


@pytest.mark.parametrize(
    ("path", "query", "says"),
    [
        *[("/chart.svg", f"width={width}", "width is") for width in ("0", "-9", "1e3", "1000000")],
        *[("/chart.svg", f"offset={offset}", "offset is") for offset in ("x", "1440", "-1440")],
        ("/online", "kind=member", "unknown kind 'member'"),
        ("/history", "kind=%3Cb%3E", "unknown kind '<b>'"),
        ("/last-seen", "", "id is missing"),
        ("/last-seen", "id=%20", "id is missing"),
        *[("/history", f"hours={hours}", "hours is") for hours in ("0", "-1", "1.5", "1e9", "x")],
        ("/counts", "room=/t/42", "this site has no rooms: PRESENCE_ROOMS is empty"),
        ("/history", "&".join(["hours=1"] * 30000), "longer than 8192 characters"),
        ("/history", "&".join(["hours=1"] * (MAX_PARAMETERS + 1)), "more than 101 parameters"),
    ],
)
def test_an_invalid_query_is_refused(path: str, query: str, says: str) -> None:
    response = ask(path, query, authorization=BEARER)
    assert response.status == 400
    assert says in json.loads(response.body)["error"]


@pytest.mark.parametrize(
    ("path", "queries"),
    [
        ("/counts", ["", "room=/t/1", "room=/t/2"]),
        ("/peak", ["kind=user", "kind=guest"]),
        ("/online", ["kind=user", "kind=guest"]),
        ("/history", ["kind=user", "kind=guest", "hours=48"]),
        ("/chart.svg", ["kind=user", "kind=guest", "hours=48", "width=400", "offset=60"]),
        ("/last-seen", ["id=1", "id=2", "id=1&id=2", "id=2&id=1", "id=1&kind=guest"]),
    ],
)
def test_different_questions_have_different_answers(path: str, queries: list[str]) -> None:
    site = Site(settings(rooms="/t/{topic}"))
    answers = [site.ask(path, query, authorization=BEARER).body for query in queries]
    assert len(set(answers)) == len(queries)
    reads = site.reads
    for query in queries:
        site.ask(path, query, authorization=BEARER)
    assert site.reads == reads <= len(queries), "each question is asked once"


def test_a_history_that_has_not_changed_has_the_same_etag() -> None:
    def etag(hours: int, samples: Samples) -> str | None:
        return header(Site(samples=samples).ask("/history", f"hours={hours}"), "ETag")

    etags = [etag(hours, HISTORY) for hours in (1, 2, 24, 2)]
    assert etags[1] == etags[2] == etags[3]
    assert etags[0] != etags[1]
    assert etag(24, {**HISTORY, 0: 5}) not in etags
    assert etag(168, HISTORY) == etag(999999, HISTORY), "that of the retention"


def test_a_chart_shows_the_last_hours_and_their_peak() -> None:
    chart = drawn("hours=1")
    assert [each.get("data-count") for each in elements(chart, "circle")] == ["1200"]
    assert texts(chart, "label") == ["1,200 at 11:03"]
    assert texts(drawn("hours=1&offset=345"), "label") == ["1,200 at 16:48"]  # Nepal
    # An hour ago is not in the last hour; 90 minutes ago is.
    (line,) = paths(chart, "line")
    assert line.count("M") + line.count("L") == 1
    assert elements(drawn("hours=1", {5: 0}), "circle") == []


def test_a_chart_is_in_the_colour_of_its_kind() -> None:
    site, minute = Site(), int(NOON.timestamp()) // 60 - 5
    site.run(site.backend.history.record(minute, dict.fromkeys(SETTINGS.kinds, 5)))
    for number, kind in enumerate(SETTINGS.kinds):
        groups = elements(ET.fromstring(site.ask("/chart.svg", f"kind={kind}").body), "g")
        assert [each.get("class") for each in groups] == [f"c{number}"]


@pytest.mark.parametrize(
    ("asked", "width"), [("1", 280), ("301", 301), ("840", 840), ("99999", 1200)]
)
def test_the_width_of_a_chart_has_bounds(asked: str, width: int) -> None:
    assert (drawn(f"width={asked}").get("viewBox") or "").split()[2] == str(width)


def test_the_policy_allows_the_style_of_a_chart_and_no_other() -> None:
    response = ask("/chart.svg")
    assert header(response, "Content-Type") == "image/svg+xml"
    (style,) = elements(ET.fromstring(response.body), "style")
    digest = b64encode(sha256((style.text or "").encode()).digest()).decode()
    policy = header(response, "Content-Security-Policy") or ""
    assert f"style-src 'self' 'sha256-{digest}';" in policy


def drawn(query: str, samples: Samples = CHARTED) -> ET.Element:
    return ET.fromstring(Site(samples=samples).ask("/chart.svg", query).body)


@pytest.mark.parametrize(
    ("given", "listed"),
    [({"store": "guest=hyperloglog", "board_token": ""}, "user"), ({"store": "hyperloglog"}, "")],
)
def test_the_page_asks_for_no_token_that_lists_nothing(given: dict[str, str], listed: str) -> None:
    page = ask("", of=settings(**given)).body.decode()
    assert f'data-kinds="user guest bot" data-listed="{listed}"' in page
    assert 'data-names="off"' in page
