"""People, guests and bots of real traffic, as a count of it by other means has them.

Nothing here is asked of the package but what it answers: the log, the crawlers among the
User-Agents, what is no visit and who is online are each worked out anew, the slow way.
"""

import re
from collections import defaultdict
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crawleruseragents import CRAWLER_USER_AGENTS_DATA

from presence_middleware import Presence, Settings, wsgi
from presence_middleware.identity import bots
from tests.support.backends import matrix
from tests.support.timed_site import Clock, get

LOG = Path(__file__).parents[3] / "shared" / "data" / "apache_access.log"
MACHINES = ["favicon.ico", "robots.txt", "health", "healthz", "livez", "readyz", "ping", "metrics"]
PATTERNS = [re.compile(entry["pattern"]) for entry in CRAWLER_USER_AGENTS_DATA]
WINDOWS = (600.0, 60.0, 333.3)
PREFETCHED = 11  # every so many requests, one that a browser made ahead
LATE = 2  # of those who are logged in, every so many by a handler

Who = tuple[str, str]


class Request(NamedTuple):
    """A request of the log, and what a site would know besides."""

    number: int
    at: float
    path: str
    environ: dict[str, Any]
    login: str
    is_prefetch: bool


@pytest.fixture
def requests() -> list[Request]:
    if not LOG.exists():
        pytest.skip("the log ../shared/data/apache_access.log is not beside this repository")
    return [_request(*each) for each in enumerate(LOG.read_text().splitlines())]


def _request(number: int, line: str) -> Request:
    before, asked, _, _, _, agent, _ = line.split('"')
    address, _, _, moment = before.strip().split(" ", 3)
    at = datetime.strptime(moment, "[%d/%b/%Y:%H:%M:%S %z]").timestamp()
    method, target, _ = asked.split(" ")
    path, _, query = target.partition("?")
    last = int(address.rpartition(".")[2])
    login = f"user{last}" if last % 5 == 0 else ""  # some have several addresses
    is_prefetch = number % PREFETCHED == 0
    environ = {"REMOTE_ADDR": address, "REQUEST_METHOD": method, "PATH_INFO": path}
    environ |= {"QUERY_STRING": query, "HTTP_USER_AGENT": "" if agent == "-" else agent}
    environ |= {"HTTP_SEC_PURPOSE": "prefetch"} if is_prefetch else {}
    if login:  # of some, only a handler finds out
        environ["REMOTE_USER" if number % LATE else "site.login"] = login
    return Request(number, at, path, environ, login, is_prefetch)


@cache
def crawler(agent: str) -> str:
    """The name of the first crawler in a User-Agent: each pattern of the list is tried alone."""
    found = [
        (match.start(), place, match[0])
        for place, pattern in enumerate(PATTERNS)
        if (match := pattern.search(agent))
    ]
    return min(found)[2].strip("()/:;,+- ") if found else ""


class Crowds:
    """Who was there when, by kind."""

    def __init__(self) -> None:
        self.last: dict[str, dict[str, float]] = defaultdict(dict)
        self.minutes: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))

    def saw(self, request: Request) -> None:
        parts = request.path.split("/")
        is_machine = len(parts) == 2 and parts[0] == "" and parts[1] in MACHINES
        if is_machine or request.is_prefetch:
            return
        kind, id = self._who(request)
        self.last[kind][id] = max(request.at, self.last[kind].get(id, 0.0))
        self.minutes[kind][int(request.at) // 60].add(id)

    def _who(self, request: Request) -> Who:
        agent = request.environ["HTTP_USER_AGENT"]
        if request.login:
            return "user", request.login
        if name := crawler(agent):
            return "bot", name
        return "guest", f"{request.environ['REMOTE_ADDR']} {agent}"

    def online(self, kind: str, now: float, window: float) -> dict[str, float]:
        """Exactly: newer than the window is long."""
        return {id: at for id, at in self.last[kind].items() if now - at < window}

    def touched(self, kind: str, now: float, window: float) -> set[str]:
        """Of every minute that the window has a part in."""
        first = int(now - window) // 60
        return {id for minute, ids in self.minutes[kind].items() if minute >= first for id in ids}


def hello(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    if login := environ.get("site.login"):
        environ["presence_middleware.visit"].identify(login)
    return [b"hello"]


def check(presence: Presence, crowds: Crowds, settings: Settings, now: float) -> None:
    """Asks everything that the settings let one ask, of every window."""
    for window in WINDOWS:
        at = (now, window)
        counts = presence.counts(window=window)
        assert list(counts) == ["user", "guest", "bot"]
        for kind, count in counts.items():
            if settings.store_of(kind) == "hyperloglog":
                expected = len(crowds.touched(kind, now, window))
                assert count == pytest.approx(expected, rel=0.03, abs=2), (kind, *at)
                continue
            online = crowds.online(kind, now, window)
            assert count == len(online), (kind, *at)
            listed = presence.online(kind, limit=None, window=window)
            times = [who.last_seen.timestamp() for who in listed if who.last_seen]
            assert times == sorted(online.values(), reverse=True), (kind, *at)
            if kind != "guest":  # whose ids are hashed
                assert {who.id for who in listed} == set(online), (kind, *at)


@pytest.mark.parametrize("store", ["", *matrix("bot=sorted-set")])
def test_users_guests_and_bots_match_an_independent_count(
    store: str,
    variables: dict[str, str],
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bots, "LOOKUPS", 10**9)  # a replay has days of new crawlers in a second
    settings = Settings.from_env({**variables, "PRESENCE_STORE": store})
    clock, crowds, checkpoints = Clock(0), Crowds(), 0
    app = wsgi.PresenceMiddleware(hello, settings=settings, clock=clock)
    presence = Presence(settings, clock=clock)
    newest = 0.0
    for request, following in zip(requests, [*requests[1:], None], strict=True):
        clock.now = request.at
        get(app, **request.environ)
        crowds.saw(request)
        newest = max(newest, request.at)
        ends = following is None or following.at - request.at > 1200
        moments = [newest] if request.number % 23 == 0 else []
        moments += [newest + later for later in (0, 0.5, 59, 60, 300, 599, 601)] if ends else []
        for moment in moments:
            clock.now = moment
            assert app.recorder.flush(), app.recorder.stats()
            check(presence, crowds, settings, moment)
            checkpoints += 1
    stats = app.recorder.stats()
    app.recorder.close()
    assert checkpoints > 400
    assert stats.dropped == {}, "no address has more guests than it may"
    # Otherwise the comparison would prove less than it seems to.
    assert {kind for kind, seen in crowds.last.items() if len(seen) > 20} == {*presence.counts()}
    assert sum(bool(crawler(each.environ["HTTP_USER_AGENT"])) for each in requests) > 1000
    assert sum(request.path[1:] in MACHINES for request in requests) > 400
