"""A flood of forged guests: it uses little memory, and no known user is lost."""

import gc
import os
import random
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crawleruseragents
import pytest
import redis

from presence_middleware import Identity, Presence, Settings, wsgi
from presence_middleware.identity import bots, guests, resolver
from presence_middleware.identity.bots import LOOKUPS, Crawlers
from presence_middleware.people import People
from presence_middleware.recorder import Stats
from presence_middleware.request import WsgiRequest
from presence_middleware.stores import moment_of
from tests.support.backends import Server, matrix, wait_until
from tests.support.timed_site import WINDOW, Clock

FEW = 15_000
MANY = 1_000_000
SIZES = pytest.mark.parametrize("flood", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])

MOST_MEMBERS = 2000
MOST_PENDING = 800
MOST_REMEMBERED = 500
A_ROUND = 1000  # requests between two writes: more than may wait
LASTS = 3 * WINDOW
ASK_EVERY = WINDOW / 10  # how often those who are really there ask

GOOGLEBOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"

Request = dict[str, str]
Forge = Callable[[int], Request]


def address(n: int) -> str:
    """One of sixteen million, and no private one."""
    return f"23.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"


def cookies(n: int) -> Request:
    return {"REMOTE_ADDR": address(n // 20_000), "HTTP_COOKIE": f"sid=forged{n}"}


def user_agents(n: int) -> Request:
    return {"REMOTE_ADDR": address(n // 50), "HTTP_USER_AGENT": f"Forged/{n} (really)"}


def addresses(n: int) -> Request:
    return {"REMOTE_ADDR": address(n), "HTTP_USER_AGENT": "Forged/1.0"}


FLOODS = pytest.mark.parametrize("forge", [cookies, *matrix(user_agents, addresses)])
USERS = [{"REMOTE_ADDR": f"9.9.9.{n}", "REMOTE_USER": f"user{n}"} for n in range(10)]
GUESTS = [
    {"REMOTE_ADDR": f"8.8.8.{n}", "HTTP_USER_AGENT": f"Real/{n}", "HTTP_COOKIE": f"sid=real{n}"}
    for n in range(10)
]


KINDS = ("user", "guest")
PEOPLE = (*USERS, *GUESTS)


def app(environ: dict[str, Any], start_response: object) -> list[bytes]:
    return []


class Flooded:
    """A site under the WSGI wrapper, a clock, and those who are really there."""

    def __init__(
        self, server: Server, prefix: str, forge: Forge, *, flush_interval: str = "3m"
    ) -> None:
        """With that interval, the test says when it is time to write."""
        source = "cookie:sid" if forge is cookies else "visitor"
        self.settings = Settings.from_env(
            {},
            redis_url=server.url,
            prefix=prefix,
            identity=f"user=auth, guest={source}",
            secret="0123456789abcdef",
            max_members=MOST_MEMBERS,
            max_pending=MOST_PENDING,
            flush_interval=flush_interval,
        )
        self.redis = redis.Redis.from_url(server.url)
        self.clock = Clock()
        self._wrapped = wsgi.PresenceMiddleware(app, settings=self.settings, clock=self.clock)
        self.recorder = self._wrapped.recorder
        self.presence = Presence(self.settings, clock=self.clock)
        self._asked, self._random = 0, random.Random(7)
        found = [self.ask(request) for request in PEOPLE]
        self.people = {
            kind: [who.id for who in found if who and who.kind == kind] for kind in KINDS
        }
        assert [len(ids) for ids in self.people.values()] == [len(USERS), len(GUESTS)]
        assert self.recorder.flush()

    def ask(self, request: Request) -> Identity | None:
        """One request; who it was found to be from."""
        environ: dict[str, Any] = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", **request}
        self._wrapped(environ, lambda *_: list[bytes]().append)
        found: Identity | None = environ["presence_middleware.visit"].identity
        return found

    def ask_now_and_then(self, later: float) -> None:
        """Time goes on, and those who are really there ask every so often, not quite in step."""
        self.clock.now += later
        if self._random.random() < later * len(PEOPLE) / ASK_EVERY:
            self.ask(PEOPLE[self._asked % len(PEOPLE)])
            self._asked += 1

    def missing(self) -> list[str]:
        """Who of them is not online."""
        online = {
            id for kind in KINDS for id in self.presence.online_among(self.people[kind], kind)
        }
        return [id for ids in self.people.values() for id in ids if id not in online]

    def stats(self) -> Stats:
        """The counters, which add up, whatever was dropped."""
        found = self.recorder.stats()
        dropped = sum(found.dropped.values())
        assert found.recorded == found.coalesced + found.flushed + found.pending + dropped
        return found

    def used_memory(self) -> int:
        """Bytes that the server uses."""
        return int(self.redis.info("memory")["used_memory"])

    def members(self) -> int:
        """The members of the largest key."""
        found = self.redis.scan_iter(match=f"{self.settings.prefix}:*:seen", count=1000)
        return max(int(self.redis.zcard(key)) for key in found)

    def close(self) -> None:
        self.recorder.close()
        self.redis.close()


def held() -> int:
    """Bytes that this process holds in objects of Python's."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def traced() -> Iterator[None]:
    """Memory is measured."""
    tracemalloc.start(1)
    yield
    tracemalloc.stop()


@pytest.mark.slow
@SIZES
@FLOODS
@pytest.mark.timeout(500)
@pytest.mark.usefixtures("traced")
def test_a_flood_uses_little_memory_and_evicts_no_user(
    valkey: Server, prefix: str, forge: Forge, flood: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "COUNTED", MOST_REMEMBERED)
    monkeypatch.setattr(resolver, "REMEMBERED", MOST_REMEMBERED)
    site = Flooded(valkey, prefix, forge)
    server, process = site.used_memory(), held()
    for n in range(flood):
        site.ask_now_and_then(LASTS / flood)
        site.ask(forge(n))
        if n % A_ROUND == 0:
            assert site.stats().pending <= MOST_PENDING
            site.recorder.run_once()  # what the thread does now and then
            assert site.missing() == [], f"after {n} requests"
            assert site.members() <= MOST_MEMBERS
    assert site.used_memory() - server < 1_000_000
    # Twice as many people are remembered as may wait, and each takes less than a kilobyte.
    assert held() - process < 2_500 * MOST_PENDING
    dropped = site.stats().dropped
    assert sum(dropped.values()) > flood / 2, "it was a flood"
    assert ({"quota"} if forge is cookies else {"members", "full"}) <= dropped.keys()
    site.close()


@pytest.fixture
def own_server(tmp_path: Path, valkey: Server) -> Iterator[Server]:
    """A server that the test may stop."""
    server = Server(valkey.binary, tmp_path)
    yield server
    os.kill(server.process.pid, signal.SIGCONT)
    server.stop()


def hang(server: Server) -> None:
    os.kill(server.process.pid, signal.SIGSTOP)


def go_on(server: Server) -> None:
    os.kill(server.process.pid, signal.SIGCONT)


def failures(site: Flooded) -> int:
    """How often in a row the thread has tried in vain."""
    return site.recorder.health.failures("")


@pytest.mark.parametrize(
    ("stop", "start"), [(hang, go_on), (Server.stop, Server.start)], ids=["hung", "killed"]
)
def test_a_flood_during_an_outage_is_bounded_and_loses_no_pending_user(
    own_server: Server,
    prefix: str,
    stop: Callable[[Server], None],
    start: Callable[[Server], None],
) -> None:
    site = Flooded(own_server, prefix, addresses, flush_interval="0.05s")
    stop(own_server)
    site.clock.now += WINDOW / 2
    for request in PEOPLE:
        site.ask(request)
    forged, most = 0, 0
    # The thread tries again and again meanwhile: what it holds in its hands waits as well.
    while forged < FEW or failures(site) < 3:
        site.ask(addresses(forged))
        forged += 1
        most = max(most, site.recorder.stats().pending)
    site.clock.now += WINDOW / 4
    for request in PEOPLE:
        site.ask(request)
    asked = moment_of(site.clock.now)
    site.clock.now += WINDOW / 2
    start(own_server)
    wait_until(site.recorder.flush)
    assert site.missing() == []
    for kind, ids in site.people.items():
        assert {site.presence.last_seen(id, kind) for id in ids} == {asked}, "the known refresh"
    assert most <= MOST_PENDING
    assert site.stats().dropped["full"] > 0
    site.close()


def test_a_user_being_written_is_refreshed_when_the_buffer_is_full() -> None:
    """If the write fails, the newest sighting of this user must stay in the buffer."""
    people, who = People(limit=3, window=600), ("user", "ann")
    people.note(who, 1.0, 1.0)
    people.take(3)
    for n in range(10):
        people.note(("guest", f"forged{n}"), 1.0, 1.0)
    assert people.pending == 3
    people.note(who, 2.0, 2.0)
    people.restore()
    assert people.pending <= 3
    assert {each.person.who: each.seen for each in people.take(3)}[who] == 2.0


# Crawlers: how often the list is looked through, never how long it takes.


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The User-Agents that were looked up in the list."""
    found: list[str] = []
    is_crawler = crawleruseragents.is_crawler

    def counted(user_agent: str) -> bool:
        found.append(user_agent)
        return bool(is_crawler(user_agent))

    monkeypatch.setattr(crawleruseragents, "is_crawler", counted)
    return found


def test_a_flood_of_user_agents_is_looked_up_within_the_budget(
    valkey: Server, prefix: str, lookups: list[str]
) -> None:
    started = time.monotonic()
    site = Flooded(valkey, prefix, user_agents)
    crawler = {"REMOTE_ADDR": "66.249.66.1", "HTTP_USER_AGENT": GOOGLEBOT}
    assert site.ask(crawler) == ("bot", "Googlebot")
    for n in range(FEW):
        site.ask(user_agents(n))
        if n % 100 == 0:
            assert site.ask(crawler) == ("bot", "Googlebot")
    assert lookups.count(GOOGLEBOT) == 1
    assert len(lookups) <= LOOKUPS * (time.monotonic() - started + 2)
    site.close()


def test_the_lookup_budget_is_renewed_every_second(lookups: list[str]) -> None:
    clock = Clock()
    crawlers = Crawlers(clock)
    for n in range(10 * 1000):
        clock.now += 0.01
        crawlers(WsgiRequest({"HTTP_USER_AGENT": f"Forged/{n}"}))
    assert 98 * LOOKUPS <= len(lookups) <= 101 * LOOKUPS


@pytest.mark.parametrize("forged", ["Forged/{}", "Googlebot/2.1 (no {})", "{}bot/1.0 (+http://x)"])
def test_a_recognized_crawler_stays_a_crawler_during_a_flood(
    forged: str, lookups: list[str]
) -> None:
    """This also holds when the flood claims to be a crawler."""
    clock = Clock()
    crawlers, known = Crawlers(clock), WsgiRequest({"HTTP_USER_AGENT": GOOGLEBOT})
    assert crawlers(known) == "Googlebot"
    for n in range(20_000):
        clock.now += 0.01
        crawlers(WsgiRequest({"HTTP_USER_AGENT": forged.format(n)}))
        if n % 7 == 0:
            assert crawlers(known) == "Googlebot", f"after {n} requests"
    assert len(crawlers._crawlers) + len(crawlers._others) <= 2 * bots.REMEMBERED
