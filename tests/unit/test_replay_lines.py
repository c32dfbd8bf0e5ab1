"""Lines of access logs: all fields are read, and malformed lines do no harm."""

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence_middleware import Settings
from presence_middleware.replay import Logs, Replay
from presence_middleware.replay.combined import Line, parse
from presence_middleware.replay.lines import MAX_LINE
from presence_middleware.request import WsgiRequest
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.log_lines import request_of
from tests.support.timed_site import Clock, get

COMMON = b'192.0.2.7 - - [05/Jan/2026:12:00:30 +0000] "GET / HTTP/1.1" 200 12'
COMBINED = COMMON + b' "http://from.example/" "Firefox"'
AT = 1767614430


def read(line: bytes) -> Line:
    request = parse(line)
    assert request, line
    return request


def written(value: bytes) -> bytes:
    """As Apache writes a field."""
    shown = (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in value)
    escapes = {'"': '\\"', "\\": "\\\\"}
    return "".join(escapes.get(character, character) for character in shown).encode()


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
        (b"GET /", b"GET http://host/a?b", "path", "/a"),
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
def test_fields_have_the_values_of_the_request(
    old: bytes, new: bytes, name: str, expected: object
) -> None:
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
        COMMON.replace(b"2026", b"0000"),
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


FIELD = st.binary(min_size=1, max_size=40).filter(lambda field: field != b"-")


@given(agent=FIELD, path=FIELD, user=FIELD.filter(lambda user: user != b'""'))
def test_a_request_is_the_same_as_on_the_site(agent: bytes, path: bytes, user: bytes) -> None:
    line = COMBINED.replace(b"Firefox", written(agent)).replace(b"- - [", b"- %s [" % written(user))
    request = read(line.replace(b"GET /", b"GET /" + quote(path).encode())).request
    environ = {
        "HTTP_USER_AGENT": agent.decode("latin-1"),
        "PATH_INFO": "/" + path.decode("latin-1"),
        "REMOTE_USER": user.decode("latin-1"),
    }
    site = WsgiRequest(environ)
    assert request.user_agent == site.user_agent
    assert request.path == site.path
    assert request.user == site.user


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
    logs = Logs([str(log)])
    assert len(list(logs)) == 4
    assert (logs.parser.lines, logs.parser.unreadable) == (6, 2)


def test_logs_are_merged_by_time(tmp_path: Path) -> None:
    """The logs may be rotated, in any order, or come from several hosts."""
    for name, minutes in (("new", "579"), ("other", "246"), ("old", "13")):
        lines = (COMBINED.replace(b"12:00", b"12:0" + minute.encode()) for minute in minutes)
        (tmp_path / name).write_bytes(b"\n".join(lines))
    logs = Logs([str(tmp_path / name) for name in ("new", "old", "other")])
    assert [(request.at - AT) // 60 for request in logs] == [1, 2, 3, 4, 5, 6, 7, 9]


AGENTS = ["Firefox", "Googlebot/2.1", "curl/8", ""]
SITES = [
    {},
    {"bots": "skip"},
    {"bots": "off", "identity": "user=auth, guest=ip"},
    {"identity": "guest=ip, user=auth"},
    {"identity": "user=auth"},
    {"identity": "guest=user-agent:raw, user=header:referer"},
    {"ip_prefix": "/24, /56", "trusted_proxies": "1"},
    {"exclude": "/a*, /poll"},
    {"identity": "user=tests.unit.test_replay_lines:from_path, guest=visitor"},
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
        found.append(visit.identity if visit.is_counted else None)
        start_response("200 OK", [])
        return []

    middleware = PresenceMiddleware(app, settings=settings, clock=Clock(AT))
    replay = Replay(settings, lambda _: None)
    for agent in AGENTS:
        for user in ("ann", ""):
            for path in ("/", "/a", "/abc", "/poll", "/robots.txt"):
                environ = {"REMOTE_USER": user, "HTTP_USER_AGENT": agent, "PATH_INFO": path}
                given = {key: value for key, value in environ.items() if value}
                get(middleware, REMOTE_ADDR="192.0.2.7", HTTP_REFERER="r", **given)
                line = Line(AT, request_of("192.0.2.7", agent, path, user, "r"))
                who = replay.add(line)
                assert who == found[-1], (agent, user, path)
    middleware.recorder.close()
    assert any(found)
