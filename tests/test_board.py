"""The board's answers, each from a request and what was found: without any I/O."""

import hmac
import json
import re
import threading
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from presence_middleware import PresenceUnavailable, Sample, Settings, Sighting, UnsupportedQuery
from presence_middleware.board.routes import Board
from presence_middleware.board.messages import Request, Response
from presence_middleware.board.reads import Found, Read
from presence_middleware.board.cache import Slot

TOKEN = "the-token-of-the-board"
BEARER = f"Bearer {TOKEN}"
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
COUNTS = {"user": 128, "guest": 940, "bot": 31}
PUBLIC = ["", "/", "/board.css", "/board.js", "/widget.js", "/counts", "/history", "/peak"]
NAMED = ["/online", "/last-seen"]
ODD_IDS = ["<script>alert(1)</script>", "\x1b[2J\x07", "abc\u202ecba", "\udc80", '"&amp;', "日本"]


def settings(**others: Any) -> Settings:
    given = {"board_path": "/who/is-here", "board_token": TOKEN, **others}
    return Settings.from_env({}, **given)


SETTINGS = settings()


def found_for(path: str) -> Any:
    """What Redis could have said."""
    return {
        "/counts": COUNTS,
        "/history": Found(NOON, [Sample(NOON - timedelta(minutes=n), n) for n in (90, 60, 1)]),
        "/peak": Sample(NOON, 4211),
        "/online": Found(NOON, [Sighting("42", NOON), Sighting("7", None)]),
        "/last-seen": Found(NOON, (True, NOON)),
    }.get(path)


def slot_of(found: Any) -> Slot:
    slot = Slot(threading.Event(), 0.0, 1.0)
    with slot.filled(lambda: 0.0):
        if isinstance(found, Exception):
            raise found
        slot.answer = found
    return slot


def ask(
    path: str,
    query: str = "",
    *,
    method: str = "GET",
    of: Settings = SETTINGS,
    found: Any = None,
    reads: list[Read] | None = None,
    **headers: str,
) -> Response:
    """The response, where Redis says `found`; what is read goes to `reads`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = Board(of).answer(Request(method, path, query, named.get))
    slot = slot_of(found_for(path) if found is None else found)
    try:
        read = next(answer)
        while True:
            if reads is not None:
                reads.append(read)
            read = answer.send(slot)
    except StopIteration as end:
        response: Response = end.value
        return response


def header(response: Response, name: str) -> str | None:
    return dict(response.headers).get(name)


def test_the_numbers_are_for_everybody() -> None:
    assert json.loads(ask("/counts").body) == {"counts": COUNTS}
    assert json.loads(ask("/history").body) == {
        "kind": "user",
        "samples": [
            ["2026-01-05T10:30:00Z", 90],
            ["2026-01-05T11:00:00Z", 60],
            ["2026-01-05T11:59:00Z", 1],
        ],
    }
    peak = json.loads(ask("/peak", "kind=guest").body)
    assert peak == {"kind": "guest", "peak": {"at": "2026-01-05T12:00:00Z", "count": 4211}}


def test_names_are_for_whoever_has_the_token() -> None:
    assert json.loads(ask("/online", authorization=BEARER).body) == {
        "kind": "user",
        "online": [
            {"id": "42", "last_seen": "2026-01-05T12:00:00Z"},
            {"id": "7", "last_seen": None},
        ],
        "now": "2026-01-05T12:00:00Z",
    }
    assert json.loads(ask("/last-seen", "id=42&kind=guest", authorization=BEARER).body) == {
        "kind": "guest",
        "id": "42",
        "online": True,
        "last_seen": "2026-01-05T12:00:00Z",
        "now": "2026-01-05T12:00:00Z",
    }


def basic(password: str) -> str:
    return "Basic " + b64encode(password.encode()).decode()


@pytest.mark.parametrize("path", NAMED)
@pytest.mark.parametrize(
    ("authorization", "challenge"),
    [
        (None, "Basic"),
        ("", "Basic"),
        (TOKEN, "Basic"),
        (basic(f"{TOKEN}:"), "Basic"),
        (basic("ann:wrong"), "Basic"),
        ("Basic !", "Basic"),
        ("Bearer", "Bearer"),
        (f"Bearer {TOKEN}x", "Bearer"),
        (f"Bearer {TOKEN[:-1]}", "Bearer"),
        ("Bearer \udcff日", "Bearer"),
    ],
)
def test_without_the_token_no_name_is_even_read(
    path: str, authorization: str | None, challenge: str
) -> None:
    reads: list[Read] = []
    given: Any = {} if authorization is None else {"authorization": authorization}
    refused = ask(path, "id=42", reads=reads, **given)
    assert refused.status == 401
    assert (header(refused, "WWW-Authenticate") or "").startswith(f"{challenge} ")
    assert TOKEN not in str(refused)
    assert reads == []


@pytest.mark.parametrize(
    "authorization", [BEARER, f"bearer  {TOKEN} ", basic(f":{TOKEN}"), basic(f"ann:{TOKEN}")]
)
def test_the_token_is_a_bearer_token_or_the_password_of_anybody(authorization: str) -> None:
    assert ask("/online", authorization=authorization).status == 200


@pytest.mark.parametrize("authorization", ["", BEARER, "Bearer ", basic(":")])
def test_where_no_token_is_set_there_are_no_names(authorization: str) -> None:
    refused = ask("/online", of=settings(board_token=""), authorization=authorization)
    assert refused.status == 403
    assert b"PRESENCE_BOARD_TOKEN" in refused.body


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(hmac, "compare_digest", lambda *pair: compared.append(pair))
    assert ask("/online", authorization="Bearer x").status == 401
    assert compared == [(b"x", TOKEN.encode())]


@pytest.mark.parametrize("path", [*PUBLIC, *NAMED])
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


def test_the_time_alone_makes_no_other_answer() -> None:
    later = Found(NOON + timedelta(seconds=9), found_for("/online").what)
    one, other = (ask("/online", found=f, authorization=BEARER) for f in (None, later))
    assert header(one, "ETag") == header(other, "ETag")
    assert one.body != other.body
    nobody = ask("/online", found=Found(NOON, []), authorization=BEARER)
    assert header(nobody, "ETag") != header(one, "ETag")


@pytest.mark.parametrize("path", [*PUBLIC, *NAMED, "/nothing"])
def test_head_is_get_without_a_body(path: str) -> None:
    get, head = (ask(path, "id=1", method=m, authorization=BEARER) for m in ("GET", "HEAD"))
    assert (head.status, head.headers, head.body) == (get.status, get.headers, b"")
    assert header(head, "Content-Length") == str(len(get.body))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
def test_the_board_is_for_looking(method: str) -> None:
    refused = ask("/online", method=method, authorization=BEARER)
    assert (refused.status, header(refused, "Allow")) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/nothing", "/counts/", "/static/board.css", "/../x", "//"])
def test_there_is_nothing_else(path: str) -> None:
    assert ask(path).status == 404


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("/who/is-here", ""),
        ("/who/is-here/", "/"),
        ("/who/is-here/counts", "/counts"),
        ("/who/is-here-not", None),
        ("/who", None),
        ("/", None),
        ("", None),
    ],
)
def test_what_is_below_the_path_is_the_boards(path: str, below: str | None) -> None:
    assert Board(SETTINGS).below(path) == below


@pytest.mark.parametrize("id", ODD_IDS)
def test_an_id_is_text_whatever_it_holds(id: str) -> None:
    response = ask("/online", found=Found(NOON, [Sighting(id, NOON)]), authorization=BEARER)
    assert response.body.isascii()
    assert b"\x1b" not in response.body
    assert json.loads(response.body)["online"][0]["id"] == id
    assert header(response, "Content-Type") == "application/json"
    assert header(response, "X-Content-Type-Options") == "nosniff"


@pytest.mark.parametrize("path", [*PUBLIC, *NAMED, "/nothing"])
@pytest.mark.parametrize("authorization", [BEARER, ""])
def test_nothing_of_elsewhere_may_run_or_frame_what_is_answered(
    path: str, authorization: str
) -> None:
    response = ask(path, "id=1", authorization=authorization)
    policy = header(response, "Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert header(response, "Cache-Control")


@pytest.mark.parametrize("path", NAMED)
def test_no_cache_keeps_a_name(path: str) -> None:
    assert header(ask(path, "id=1", authorization=BEARER), "Cache-Control") == "no-store"


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    page = ask("").body.decode()
    assert not re.search(r"<style|style=|\son\w+=|<script>|https?:|//", page)
    assert re.findall(r'(?:src|href)="(.*?)"', page) == ["is-here/board.css", "is-here/board.js"]
    assert re.findall(r'(?:src|href)="(.*?)"', ask("/").body.decode()) == ["board.css", "board.js"]
    for script in ("/board.js", "/widget.js"):
        assert not re.search(rb"innerHTML|outerHTML|insertAdjacent|eval", ask(script).body)


@pytest.mark.parametrize("path", ["/counts", "/history", "/peak", *NAMED])
def test_an_outage_is_said_without_its_reasons(path: str) -> None:
    down = PresenceUnavailable("Error 111 connecting to 10.1.2.3:6379")
    response = ask(path, "id=1", found=down, authorization=BEARER)
    assert response.status == 503
    assert header(response, "Retry-After")
    assert b"10.1.2.3" not in response.body
    assert ask("", found=down).status == 200


@pytest.mark.parametrize(
    ("path", "query", "says"),
    [
        ("/online", "kind=member", "no kind 'member' here"),
        ("/history", "kind=%3Cb%3E", "no kind '<b>' here"),
        ("/last-seen", "", "id is missing"),
        ("/last-seen", "id=%20", "id is missing"),
        *[("/history", f"hours={hours}", "hours is") for hours in ("0", "-1", "1.5", "1e9", "x")],
    ],
)
def test_a_question_without_sense_is_refused(path: str, query: str, says: str) -> None:
    response = ask(path, query, authorization=BEARER)
    assert response.status == 400
    assert says in json.loads(response.body)["error"]


def test_what_a_store_cannot_answer_is_said() -> None:
    cannot = UnsupportedQuery("only sorted-set can")
    assert ask("/online", found=cannot, authorization=BEARER).status == 400


@pytest.mark.parametrize(("hours", "read"), [("1", 24), ("24", 24), ("25", 168), ("999999", 168)])
def test_of_a_history_a_day_or_everything_is_read(hours: str, read: int) -> None:
    reads: list[Read] = []
    body = ask("/history", f"hours={hours}", reads=reads).body
    assert [each.arguments for each in reads] == [("user", read)]
    assert len(json.loads(body)["samples"]) == (1 if hours == "1" else 3)


def test_a_long_id_is_looked_for_as_it_is_kept() -> None:
    reads: list[Read] = []
    ask("/last-seen", "id=" + "x" * 5000, reads=reads, authorization=BEARER)
    ask("/last-seen", "id=%ff", reads=reads, authorization=BEARER)
    assert all(len(read.arguments[1]) < 64 for read in reads)


def test_of_minute_sets_no_times_are_asked() -> None:
    reads: list[Read] = []
    of = settings(store="minute-sets")
    ask("/last-seen", "id=1", reads=reads, of=of, authorization=BEARER)
    assert reads[0].arguments == ("user", "1", False)


def test_the_page_knows_which_kinds_have_a_list() -> None:
    page = ask("", of=settings(store="guest=hyperloglog", board_token="")).body.decode()
    assert 'data-kinds="user guest bot" data-listed="user"' in page
    assert 'data-names="off"' in page
