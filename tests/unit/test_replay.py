"""Access logs: their lines, whose clocks may be wrong, and who is online at each minute."""

import itertools
import time
from collections.abc import Iterable
from operator import length_hint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from presence_middleware import Settings
from presence_middleware.replay.files import AHEAD, FOLLOWING, read_logs, without_lines_ahead
from presence_middleware.replay.lines import MAX_LINE, Line, Tally, parse
from presence_middleware.replay.site import (
    MAX_QUIET,
    Moment,
    Summary,
    Visitors,
    count_minutes,
    count_online,
)
from presence_middleware.request import WsgiRequest
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.timed_site import Clock, get

NOON = 1767614400  # 2026-01-05 12:00:00 UTC
Seen = tuple[int, str]  # when, who


def told(seen: Iterable[Seen], window: float) -> list[Moment]:
    """The minutes of some sightings of users, in the order of a log."""
    tally = Tally()
    sightings = ((at, ("user", id) if id else None) for at, id in seen)
    moments = list(count_minutes(sightings, ("user",), window, tally))
    assert not tally.odd
    return moments


def counted(seen: list[Seen], window: float) -> list[Moment]:
    """The same by brute force: from the first full minute after a line to that after the last."""
    first, last = (-(-at // 60) for at in (min(seen)[0], max(seen)[0]))
    moments = []
    for now in range(first * 60, last * 60 + 1, 60):
        online = {id for at, id in seen if now - window < at <= now} - {""}
        moments.append(Moment(now, (len(online),)))
    return moments


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Seen], float]:
    """Lines of a few people, in any order within a window."""
    window = draw(st.sampled_from([30, 60, 61, 90.5, 600, 3600]))
    seconds = st.sampled_from([0, 1, 29, 30, 31, 59, 60, 61, 120, 599, 600, 601, 3600])
    line = st.tuples(seconds, st.floats(0, 1), st.sampled_from(["ann", "bob", "eve", ""]))
    newest, seen = NOON, []
    for later, back, id in draw(st.lists(line, min_size=1, max_size=40)):
        newest += later
        seen.append((newest - int(back * window), id))
    return seen, window


@given(logs())
@example(([(NOON + at, id) for at, id in ((10, "ann"), (50, "ann"), (120, ""))], 90.5))
def test_every_minute_matches_a_brute_force_count(log: tuple[list[Seen], float]) -> None:
    assert told(*log) == counted(*log)


def test_a_day_without_anybody_is_a_gap() -> None:
    """Otherwise a line from an unset clock would create every minute since 1970."""
    moments = told([(60, "ann"), (NOON, "ann"), (NOON + 86400, "ann")], 600)
    assert len(moments) == (10 + MAX_QUIET) + (1440 + 1)
    assert [moment for moment in moments if any(moment.counts)][10] == Moment(NOON, (1,))


def test_a_long_series_keeps_the_highest_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presence_middleware.replay.site.MAX_POINTS", 8)
    series = Summary(("user", "guest"))
    for minute in range(100):
        series.add(Moment(NOON + minute * 60, (minute % 37, 1)))
    assert series.step == 16 * 60
    assert [at % series.step for at in series.points] == [0] * len(series.points)
    assert max(series.points.values()) == (36, 1)
    assert list(series.points.items())[-1] == ((NOON + 99 * 60) // 960 * 960, (25, 1))
    assert {later - at for at, later in itertools.pairwise(series.points)} == {series.step}
    assert [peak and peak.count for peak in series.peaks.values()] == [36, 1]


COMMON = b'192.0.2.7 - - [05/Jan/2026:12:00:30 +0000] "GET / HTTP/1.1" 200 12'
COMBINED = COMMON + b' "http://from.example/" "Firefox"'
AT = 1767614430


def read(line: bytes) -> Line:
    request = parse(line)
    assert request, line
    return request


def test_both_formats_are_read() -> None:
    for line in (COMMON, COMMON + b"\r\n", COMBINED, COMBINED + b' "10.0.0.1" 0.003\n'):
        assert read(line).at == AT
        request = read(line).request
        assert (request.address, request.peer, request.user) == ("192.0.2.7", "192.0.2.7", None)
        assert (request.method, request.path) == ("GET", "/")
    request = read(COMMON).request
    assert request.user_agent is request.header("referer") is request.cookie("session") is None
    request = read(COMBINED).request
    assert request.user_agent == request.header("user-agent") == "Firefox"
    assert request.header("referer") == "http://from.example/"


@pytest.mark.parametrize(
    ("old", "new", "name", "expected"),
    [
        (b"192.0.2.7", b"2001:db8::7", "address", "2001:db8::7"),
        (b"- - [", b"- ann [", "user", "ann"),
        (b"- - [", b"id ann b. [", "user", "ann b."),
        (b"- - [", b'- "" [', "user", None),
        (b"- - [", b"- \\xc3\\xa9ve [", "user", "éve"),
        (b"12:00:30 +0000", b"17:30:30 +0530", "at", AT),
        (b"12:00:30", b"11:59:60", "at", AT - 30),  # a leap second
        (b"GET /", b"POST /a?b=/c", "path", "/a"),
        (b"GET /", b"GET /caf%C3%A9%20/%FF", "path", "/café /\udcff"),
        (b"GET /", b"GET /caf\\xc3\\xa9", "path", "/café"),
        (b"GET /", b"GET /a\\x3fb", "path", "/a"),  # as the server saw it
        (b"GET /", b"GET /a%3Fb", "path", "/a?b"),
        (b"GET /", b"GET http://host/a?b", "path", "/a"),
        (b"GET /", b"GET http://host?b", "path", "/"),
        (b"GET /", b"GET http://[/a", "path", "http://[/a"),
        (b"GET /", b"OPTIONS *", "path", "*"),
        (b"GET / HTTP/1.1", b"GET /old", "path", "/old"),
        (b"GET / HTTP/1.1", b"M-SEARCH / HTTP/1.1", "method", "M-SEARCH"),
        (b'"Firefox"', b'"-"', "user_agent", None),
        (b'"Firefox"', b'"a \\"b\\" \\\\ \\x41\\t"', "user_agent", 'a "b" \\ A\t'),
        (b'"Firefox"', b'"\xe9"', "user_agent", "\udce9"),
        (b" 12 ", b" - ", "user_agent", "Firefox"),
    ],
)
def test_fields_are_those_of_requests(old: bytes, new: bytes, name: str, expected: object) -> None:
    assert old in COMBINED
    line = read(COMBINED.replace(old, new))
    assert getattr(line if name == "at" else line.request, name) == expected


def test_the_user_of_a_401_response_is_ignored() -> None:
    for status, user in ((b"401", None), (b"200", "ann"), (b"304", "ann"), (b"503", "ann")):
        line = COMBINED.replace(b"- - [", b"- ann [").replace(b" 200 ", b" %s " % status)
        assert read(line).request.user == user


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"\n", b"GET /", b"\x1f\x8b\x08", b"\xff" * 300),
        COMMON.replace(b"GET / HTTP/1.1", b"-"),  # a connection on which nothing was asked
        COMMON.replace(b"GET / HTTP/1.1", rb"\x16\x03\x01"),
        COMMON.replace(b"05/Jan", b"31/Feb"),
        *(COMMON.replace(b"2026", year) for year in (b"0000", b"0001", b"1969", b"9999")),
        COMMON.replace(b"+0000", b"+9900"),
        COMBINED.removesuffix(b'"'),
        b"www.example.com:443 " + COMBINED,  # with the host in front: "- -" is no user
        b"www.example.com:443 " + COMBINED.replace(b"- - [", b"- ann ["),
    ],
)
def test_malformed_lines_are_unreadable(line: bytes) -> None:
    assert parse(line) is None


@given(st.data())
def test_a_damaged_line_parses_to_a_request_or_none(data: Any) -> None:
    place, end = (data.draw(st.integers(0, len(COMBINED))) for _ in range(2))
    parse(COMBINED[:place] + data.draw(st.binary(max_size=20)) + COMBINED[end:])


@pytest.mark.parametrize(
    "part", [b'"', b"\\", b'\\"', b" ", b"a ", b' "', b"[", b" [", b"%", b'" "', b"- - [05/Jan"]
)
def test_every_line_is_parsed_quickly(part: bytes) -> None:
    """It takes at most a few times as long as a valid line of the same length."""
    began = time.process_time()
    for before in (b"", b"a - ", COMMON[:-20], COMMON + b' "', COMBINED[:-1]):
        parse(before + part * (MAX_LINE // len(part)))
    assert time.process_time() - began < 2


def test_lines_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    good = COMBINED + b"\n"
    edge = COMBINED[:-1] + b"x" * (MAX_LINE - len(COMBINED) - 1) + b'"\n'
    assert len(edge) == MAX_LINE
    log.write_bytes(good + b"x" * (3 * MAX_LINE) + b"\n" + edge + b"x" + edge + good + COMBINED)
    tally = Tally()
    assert len(list(read_logs([str(log)], tally))) == 4
    assert (tally.lines, tally.odd) == (6, {"unreadable": 2})


AGENTS = ["Firefox", "Googlebot/2.1", "curl/8", ""]
SITES = [
    {},
    {"bots": "skip"},
    {"bots": "off", "identity": "user=auth, guest=ip"},
    {"identity": "guest=user-agent:raw, user=header:referer"},
    {"ip_prefix": "/24, /56", "trusted_proxies": "1"},
    {"exclude": "/a*, /poll"},
    {"identity": "user=tests.unit.test_replay:from_path, guest=visitor"},
]


def from_path(view: Any) -> str | None:
    """A function of the site's own."""
    return view.path[2:] or None


@pytest.mark.parametrize("site", SITES, ids=str)
def test_replay_finds_the_same_identities_as_the_middleware(site: dict[str, str]) -> None:
    settings = Settings.from_env(
        {}, redis_url="memory://replay", secret="a secret of a test", **site
    )
    found = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        visit = environ["presence_middleware.visit"]
        found.append(visit.identity if visit.is_counting else None)
        start_response("200 OK", [])
        return []

    middleware = PresenceMiddleware(app, settings=settings, clock=Clock(AT))
    visitors = Visitors(settings, Tally())
    for agent in AGENTS:
        for user in ("ann", ""):
            for path in ("/", "/a", "/abc", "/poll", "/robots.txt"):
                environ = {"REMOTE_USER": user, "HTTP_USER_AGENT": agent, "PATH_INFO": path}
                given = {key: value for key, value in environ.items() if value}
                given |= {"REMOTE_ADDR": "192.0.2.7", "HTTP_REFERER": "r", "REQUEST_METHOD": "GET"}
                get(middleware, **given)
                assert visitors.who(Line(AT, WsgiRequest(given))) == found[-1], (agent, user, path)
    assert any(found)


DAY = 86400
FAR = NOON + 99 * 365 * DAY
TODAY = NOON + 1000 * DAY  # when the logs are read


def line_at(at: int) -> Line:
    return Line(at, WsgiRequest({"REMOTE_ADDR": "192.0.2.7", "HTTP_USER_AGENT": "Firefox"}))


def kept(times: Iterable[int], now: float = TODAY) -> tuple[list[int], int]:
    """Return the times of the lines that are kept, and how many are set aside."""
    tally = Tally()
    found = [each.at for each in without_lines_ahead(map(line_at, times), tally, now)]
    return found, tally.odd["ahead"]


def minutes(count: int, start: int = NOON) -> list[int]:
    return [start + 60 * number for number in range(count)]


LOG = minutes(300)
MONTHLY = [NOON + 30 * DAY * number for number in range(30)]
AFTER = minutes(300, NOON + 30 * DAY)
# Lines, those of them that are kept, and when they are read.
LOGS: list[tuple[list[int], list[int], float]] = [
    # A burst of lines far ahead, those of a host with a wrong clock. Lone ones are drawn below.
    ([*LOG[:150], *minutes(2, FAR), *LOG[150:]], LOG, TODAY),
    ([*LOG[:150], *minutes(FOLLOWING // 2 - 1, FAR), *LOG[150:]], LOG, TODAY),
    # The last lines are accepted unless they are in the future.
    ([*LOG, TODAY], [*LOG, TODAY], TODAY),
    ([*LOG, TODAY], LOG, TODAY - 2 * DAY),
    ([*LOG, *minutes(3, FAR)], LOG, TODAY),
    *(
        (log, log, TODAY)
        for log in (
            MONTHLY,
            [60, *LOG],  # a line of 1970
            # Long downloads, for example, are logged by some servers when they end.
            [*LOG, *AFTER[:3], NOON, NOON + 60, *AFTER[3:]],
            # The clock of the reading machine may be wrong.
            [*LOG, *minutes(300, FAR)],
            minutes(3, FAR),
        )
    ),
    *(
        ([*LOG, *later], [*LOG, *later], later[-1])
        for gap in (DAY + 60, 20 * 365 * DAY)
        for later in (minutes(1, LOG[-1] + gap), minutes(300, LOG[-1] + gap))
    ),
]


@pytest.mark.parametrize(("lines", "log", "now"), LOGS)
def test_only_lines_far_ahead_are_set_aside(lines: list[int], log: list[int], now: float) -> None:
    assert kept(lines, now) == (log, len(lines) - len(log))


def waiting(log: list[int]) -> list[int]:
    """Return how many lines were read beyond each line when it was returned."""
    unread = iter(log)
    lines = without_lines_ahead(map(line_at, unread), Tally(), TODAY)
    return [len(log) - length_hint(unread) - number for number, _ in enumerate(lines, 1)]


def test_only_lines_before_a_gap_wait_and_for_a_hundred_others_at_most() -> None:
    assert max(waiting([*LOG, *AFTER])) == FOLLOWING
    assert set(waiting([*LOG[:200], NOON - 3 * DAY, *LOG[200:]])[199:]) == {0}


@st.composite
def with_lines_ahead(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Return a log in order, with gaps, and the same one with lines far ahead in it."""
    steps = st.sampled_from([0, 1, 60, 3600, DAY, DAY + 1, 40 * DAY])
    log, now = [], NOON
    for step in draw(st.lists(steps, min_size=1, max_size=24)):
        now += step
        log.append(now)
    mixed = list(log)
    for place in draw(st.lists(st.integers(0, len(log)), max_size=len(log) // 3)):
        mixed.insert(place, FAR + draw(st.integers(0, 10 * DAY)))
    return log, mixed


@given(with_lines_ahead())
def test_a_log_is_read_as_if_lines_ahead_were_not_in_it(given: tuple[list[int], list[int]]) -> None:
    log, mixed = given
    found, aside = kept(mixed)
    assert found == log
    assert aside == len(mixed) - len(log)


def line_of(at: str, user: str) -> str:
    return f'192.0.2.7 - {user} [{at} +0000] "GET / HTTP/1.1" 200 1 "-" "Firefox"\n'


def test_each_log_is_checked_separately(tmp_path: Path) -> None:
    """Otherwise a line of the year 2125 would move the rest of its log behind all others."""
    one = [line_of(f"05/Jan/2026:12:{minute:02}:00", "ann") for minute in range(0, 60, 2)]
    other = [line_of(f"05/Jan/2026:12:{minute:02}:00", "bob") for minute in range(1, 60, 2)]
    one.insert(10, line_of("05/Jan/2125:12:00:00", "eve"))
    for name, lines in (("one", one), ("other", other)):
        (tmp_path / name).write_text("".join(lines))
    tally = Tally()
    merged = read_logs([str(tmp_path / "one"), str(tmp_path / "other")], tally)
    moments = list(count_online(merged, Settings.from_env({}, window="2m"), tally))
    assert (tally.lines, tally.odd) == (61, {"ahead": 1})
    assert [moment.at for moment in moments] == [NOON + 60 * minute for minute in range(60)]
    assert [moment.counts[0] for moment in moments] == [1] + [2] * 59
    assert AHEAD == DAY
