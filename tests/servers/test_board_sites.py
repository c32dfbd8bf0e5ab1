"""The board on a site: the same under WSGI and ASGI."""

from dataclasses import replace
from typing import Any

import pytest

from presence_middleware import Presence, Settings
from presence_middleware.recorder import recorder_for
from tests.support.asking import Answer
from tests.support.statuses import OWN, Ask, Call, over_asgi, over_wsgi

TOKEN = "the-token-of-the-board"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PATHS = [
    *("", "/", "/board.css", "/board.js", "/widget.js", "/counts", "/history", "/peak"),
    *("/chart.svg", "/online", "/last-seen?id=bob", "/last-seen?id=%3Cb%3E%e6%97%a5%ff"),
    *("/nothing", "/%ff"),
]
BOTH = pytest.mark.parametrize("send", [over_wsgi, over_asgi])


@pytest.fixture
def site(settings: Settings) -> Settings:
    return replace(settings, board_path="/presence", board_token=TOKEN)


def but_time(answer: Answer) -> Any:
    if dict(answer.headers).get("content-type") != "application/json" or not answer.body:
        return answer.body
    return {name: value for name, value in answer.json().items() if name != "now"}


@pytest.mark.parametrize("path", PATHS)
def test_wsgi_and_asgi_answer_with_the_same_bytes(site: Settings, path: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        for headers in ({}, BEARER, {"If-None-Match": "*", **BEARER}):
            url = f"/presence{path}"
            call = Call(headers, url, method)
            one, other = over_wsgi(site, call), over_asgi(site, call)
            assert (one.status, one.headers) == (other.status, other.headers)
            assert but_time(one) == but_time(other)


def test_the_board_shows_at_most_a_hundred_users(site: Settings) -> None:
    presence = Presence(site)
    for id in (*map(str, range(101)), "<b>eve</b>"):
        presence.touch(id)
    online = over_wsgi(site, Call(BEARER, "/presence/online")).json()["online"]
    assert (len(online), online[0]["id"]) == (100, "<b>eve</b>")
    found = over_wsgi(site, Call(BEARER, "/presence/last-seen?id=zoe&id=%3Cb%3Eeve%3C/b%3E"))
    assert found.json()["last_seen"] == {"zoe": None, "<b>eve</b>": online[0]["last_seen"]}


@BOTH
def test_the_board_is_found_below_a_mount_point(site: Settings, send: Ask) -> None:
    assert b'src="presence/board.js"' in send(site, Call(path="/presence", mount="/shop")).body
    script = send(site, Call(path="/presence/board.js"))
    assert send(site, Call(path="/presence/board.js", mount="/shop")).body == script.body != OWN
    assert send(site, Call(path="/presence-not", mount="/shop")).body == OWN


@BOTH
def test_looking_at_the_board_is_not_recorded_as_a_visit(site: Settings, send: Ask) -> None:
    for path in PATHS:
        send(site, Call(BEARER, f"/presence{path}"))
    assert recorder_for(site).stats().recorded == 0
    assert recorder_for(site).open_visits == {}
    send(site, Call(path="/elsewhere"))
    assert recorder_for(site).stats().recorded == 1


@BOTH
def test_any_host_header_and_any_query_are_answered(site: Settings, send: Ask) -> None:
    for host in ("[", "a b", "", "http://x/"):
        assert send(site, Call({"Host": host}, "/presence")).status == 200
    for raw, id in {"日".encode(): "日", b"a#b": "a#b", b"\xff": None, b"%ff": None}.items():
        url = b"/presence/last-seen?kind=guest&id=" + raw
        found = send(site, Call({"Host": "[", **BEARER}, url)).json()
        assert found["kind"] == "guest"
        assert id in (None, found["id"])
