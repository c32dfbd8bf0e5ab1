"""A flood of forged guests: it uses little memory, and no known user is lost.

Floods of crawlers are in tests/unit/test_bots.py, and those of an outage in
tests/redis/test_recorder.py.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from presence_middleware import Identity, Presence, Settings, wsgi
from presence_middleware.identity import resolver
from presence_middleware.recorder import Stats, guests
from tests.support.backends import Server, matrix
from tests.support.faults import adds_up
from tests.support.memory import traced
from tests.support.timed_site import WINDOW, Clock

MANY = 200_000
MOST_MEMBERS = 2000
MOST_PENDING = 800
MOST_REMEMBERED = 500
A_ROUND = 1000  # requests between two writes: more than may wait
LASTS = 3 * WINDOW
ASK_EVERY = WINDOW / 10  # how often those who are really there ask

Request = dict[str, str]
Forge = Callable[[int], Request]


def address(n: int) -> str:
    """One of sixteen million, and no private one."""
    return f"23.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"


def cookies(n: int) -> Request:
    return {"REMOTE_ADDR": address(n // 20_000), "HTTP_COOKIE": f"sid=forged{n}"}


def addresses(n: int) -> Request:
    return {"REMOTE_ADDR": address(n), "HTTP_USER_AGENT": "Forged/1.0"}


USERS = [{"REMOTE_ADDR": f"9.9.9.{n}", "REMOTE_USER": f"user{n}"} for n in range(10)]
GUESTS = [
    {"REMOTE_ADDR": f"8.8.8.{n}", "HTTP_USER_AGENT": f"Real/{n}", "HTTP_COOKIE": f"sid=real{n}"}
    for n in range(10)
]
PEOPLE = (*USERS, *GUESTS)


class Flooded:
    """A site under the WSGI wrapper, a clock, and those who are really there."""

    def __init__(self, settings: Settings) -> None:
        self.clock = Clock()
        self._wrapped = wsgi.PresenceMiddleware(lambda *_: [], settings=settings, clock=self.clock)
        self.recorder = self._wrapped.recorder
        self.presence = Presence(settings, clock=self.clock)
        found = [self.ask(request) for request in PEOPLE]
        self.people = [who for who in found if who is not None]
        assert [who.kind for who in self.people] == ["user"] * len(USERS) + ["guest"] * len(GUESTS)
        assert self.recorder.flush()

    def ask(self, request: Request) -> Identity | None:
        environ: dict[str, Any] = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", **request}
        self._wrapped(environ, lambda *_: list[bytes]().append)
        found: Identity | None = environ["presence_middleware.visit"].identity
        return found

    def missing(self) -> list[Identity]:
        return [who for who in self.people if not self.presence.is_online(who.id, who.kind)]

    def stats(self) -> Stats:
        """The counters, which add up, whatever was dropped."""
        assert adds_up(self.recorder)
        return self.recorder.stats()


@pytest.mark.slow
@pytest.mark.parametrize("forge", [cookies, *matrix(addresses)])
@pytest.mark.timeout(500)
def test_a_flood_uses_little_memory_and_evicts_no_user(
    own: Server, unwritten: Callable[..., Settings], forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "COUNTED", MOST_REMEMBERED)
    monkeypatch.setattr(resolver, "REMEMBERED", MOST_REMEMBERED)
    given = {"max_members": MOST_MEMBERS, "max_pending": MOST_PENDING, "secret": "s" * 32}
    chain = f"user=auth, guest={'cookie:sid' if forge is cookies else 'visitor'}"
    settings = unwritten(redis_url=own.url, identity=chain, **given)
    site = Flooded(settings)
    chance, real = random.Random(7), 0

    def used() -> int:
        return int(own.client.info("memory")["used_memory"])

    with traced() as held:
        server, process = used(), held()
        for n in range(MANY):
            site.clock.now += LASTS / MANY
            if chance.random() < LASTS / MANY * len(PEOPLE) / ASK_EVERY:
                site.ask(PEOPLE[real % len(PEOPLE)])  # not quite in step
                real += 1
            site.ask(forge(n))
            if n % A_ROUND == 0:
                assert site.stats().pending <= MOST_PENDING
                site.recorder.run_once()  # what the thread does now and then
                assert site.missing() == [], f"after {n} requests"
                keys = own.client.scan_iter(match=f"{settings.prefix}:*:seen", count=1000)
                assert max(int(own.client.zcard(key)) for key in keys) <= MOST_MEMBERS
        assert used() - server < 1_000_000
        # Twice as many people are remembered as may wait, and each takes less than a kilobyte.
        assert held() - process < 2_500 * MOST_PENDING
    dropped = site.stats().dropped
    assert sum(dropped.values()) > MANY / 2, "it was a flood"
    assert ({"quota"} if forge is cookies else {"members", "full"}) <= dropped.keys()
