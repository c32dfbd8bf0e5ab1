"""The classic recipes for "who is online", each as its readers would use it here, corrected."""

from collections.abc import Iterator
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from presence_middleware import Presence
from presence_middleware.connections.clients import sync_client
from presence_middleware.stores import moment_of
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.backends import Server, wait_until
from tests.support.timed_site import NOON, Clock, get, settings

INFINITE = float("inf")


class WrappedSite:
    """A wrapped app whose `/online` lists who is online, at the times of the test."""

    def __init__(self, server: Server, prefix: str, **overrides: str) -> None:
        given = settings(server.url, prefix, **overrides)
        self.clock, self.redis, self.prefix = Clock(), sync_client(given.redis_url), prefix
        self.presence = Presence(given, clock=self.clock)
        self._app = PresenceMiddleware(self._page, settings=given, clock=self.clock)
        self.recorder = self._app.recorder

    def visit(self, moment: float, **environ: str) -> str:
        """The page that a request of that moment gets; moments must not go back."""
        self.clock.now = moment
        page = get(self._app, **environ)
        assert self.recorder.flush()
        return page

    def _page(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
        if environ["PATH_INFO"] != "/online":
            return [b"hello"]
        online = environ["presence_middleware.presence"].online(limit=None)
        return ["\n".join(who.id for who in online).encode()]


@pytest.fixture
def site(request: pytest.FixtureRequest, valkey: Server, prefix: str) -> Iterator[WrappedSite]:
    """A site with the settings that the test is marked with."""
    site = WrappedSite(valkey, prefix, **request.param)
    yield site
    site.recorder.close()


def _with(**overrides: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", [overrides], indirect=True)


# Brian Neal, "A better Who's Online with Redis & Python": a sorted set of users by time, of which
# he lists the last 15 minutes, and removes what is older.
@_with(identity="user=header:x-user", window="15m", retention="1s")
def test_users_of_the_last_15_minutes_and_nothing_stale_is_kept(site: WrappedSite) -> None:
    for moment, user in [(-3600, "bill"), (-902, "jane"), (-899, "rick"), (-60, "anna")]:
        site.visit(NOON + moment, HTTP_X_USER=user)
    site.visit(NOON - 30, HTTP_X_USER="rick")
    site.visit(NOON)  # a request of nobody
    assert [who.id for who in site.presence.online()] == ["rick", "anna"]
    assert site.presence.online()[0].last_seen == moment_of(NOON - 30)
    wait_until(lambda: site.redis.zrange(f"{site.prefix}:user:seen", 0, -1) == [b"anna", b"rick"])


# Sam & Max, "Compter les visiteurs en ligne": the visitors of the last 10 minutes in one call.
@_with(identity="user=auth, guest=visitor")
def test_visitors_of_the_last_10_minutes_in_one_call(site: WrappedSite) -> None:
    for minute in range(30):
        visitor = {"REMOTE_ADDR": f"192.0.2.{minute}", "HTTP_USER_AGENT": "Firefox"}
        for _ in range(3):
            site.visit(NOON + 60 * minute, **visitor)
    site.visit(NOON + 60 * 29, REMOTE_ADDR="192.0.2.29", HTTP_USER_AGENT="Safari")
    site.visit(NOON + 60 * 29, REMOTE_USER="sam", REMOTE_ADDR="192.0.2.29")
    assert site.presence.count("guest") == 10 + 1
    assert site.presence.counts() == {"user": 1, "guest": 11}


# 《Redis入门指南》: each request adds its User-Agent to the set of its minute; `/online` shows the
# union of ten. There, buckets are named by `%M`, so that last hour's come round again where a crash
# kept one from expiring, and ten of them miss who came 9 to 10 minutes ago.
@_with(identity="user=user-agent:raw", store="minute-sets")
def test_online_lists_every_user_agent_of_the_window_and_none_of_last_hour(
    site: WrappedSite,
) -> None:
    for minute in range(-70, -49):
        site.visit(NOON + 60 * minute, HTTP_USER_AGENT=f"last hour {minute}")
    in_window = {-599: "早 Browser", -595: "Lynx", -540: "Firefox", -61: "curl/8"}
    for moment, agent in in_window.items():
        site.visit(NOON + moment, HTTP_USER_AGENT=agent.encode().decode("latin-1"))  # PEP 3333
    page = site.visit(NOON, HTTP_USER_AGENT="Safari", PATH_INFO="/online")
    assert page.split("\n") == sorted([*in_window.values(), "Safari"])


# 《Redis入门指南》, and a question of many a forum: which of my friends are online? Friends are a
# set, or a sorted set with scores of their own; the classic five steps copy and trim in between.
@_with(identity="user=header:x-user")
@pytest.mark.parametrize("scores", [None, 1.0, 1e18, INFINITE, -INFINITE])
def test_friends_online_whatever_their_scores(site: WrappedSite, scores: float | None) -> None:
    for moment, user in [(-601, "gone"), (-300, "far"), (-200, "stranger"), (-1, "near")]:
        site.visit(NOON + moment, HTTP_X_USER=user)
    site.clock.now = NOON
    key, friends = f"{site.prefix}:friends:7", ["near", "far", "gone", "never"]
    if scores is None:
        site.redis.sadd(key, *friends)
    else:
        site.redis.zadd(key, dict.fromkeys(friends, scores))
    before = set(site.redis.scan_iter(f"{site.prefix}:*", _type="zset"))
    assert site.presence.online_friends(key) == ["near", "far"]
    assert set(site.redis.scan_iter(f"{site.prefix}:*", _type="zset")) == before, "no copies"


# Brian Neal and 《Redis入门指南》 alike: when was somebody here, who is not online any more?
@_with(identity="user=header:x-user")
def test_last_seen_of_somebody_offline(site: WrappedSite) -> None:
    site.visit(NOON, HTTP_X_USER="anna")
    site.visit(NOON + 86400, HTTP_X_USER="rick")
    assert not site.presence.is_online("anna")
    assert site.presence.last_seen("anna") == moment_of(NOON)
    assert site.presence.last_seen("bill") is None
