"""Common set-up mistakes: each is reported once and by name, without false alarms."""

import gc
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import redis

from presence_middleware import Presence, Settings, asgi, wsgi
from presence_middleware.recorder import Recorder, Visit
from presence_middleware.recorder.setup_hints import (
    INSPECTED_REQUESTS,
    REMEMBERED_VISITS,
    SHARED_BY,
    UNREAD_SESSIONS,
    USERLESS_LOGOUTS,
    USERLESS_SIGHTINGS,
    SetupHints,
)
from presence_middleware.request import AsgiRequest, WsgiRequest
from presence_middleware.wsgi import WsgiVisit
from tests.support.asking import opened
from tests.support.backends import Server, wait_until
from tests.support.timed_site import Clock

# WebOb, which reads Pyramid's sessions, imports it.
pytestmark = pytest.mark.filterwarnings("ignore:'cgi' is deprecated:DeprecationWarning")

SECRET = "a secret of the test's own, long enough for a token"
PUBLIC = "8.8.8.8"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
VALUE = "what-a-client-sent"
DEFAULT = "user=auth, guest=visitor"
EVICTS = "the server may evict keys"

Make = Callable[..., WsgiRequest | AsgiRequest]


def over_wsgi(
    peer: str | None = PUBLIC, user: str | None = None, **headers: str
) -> WsgiRequest | AsgiRequest:
    given = {"REMOTE_ADDR": peer, "REMOTE_USER": user, "HTTP_USER_AGENT": FIREFOX}
    given |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    return WsgiRequest({key: value for key, value in given.items() if value is not None})


def over_asgi(
    peer: str | None = PUBLIC, user: str | None = None, **headers: str
) -> WsgiRequest | AsgiRequest:
    sent = {"user_agent": FIREFOX, **headers}.items()
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in sent]
    client = (peer, 1) if peer else None
    return AsgiRequest({"type": "http", "client": client, "user": user, "headers": named})


BOTH = pytest.mark.parametrize("view", [over_wsgi, over_asgi])


class Site:
    """A process of a site, whose thread sleeps while the test does what it would do."""

    def __init__(self, settings: Settings, caplog: pytest.LogCaptureFixture, **others: Any) -> None:
        self.recorder = Recorder(settings, **others)
        self.recorder.background = False
        self.presence = Presence(settings)
        self._caplog = caplog

    def ask(self, *views: WsgiRequest | AsgiRequest, times: int = 1) -> None:
        """Requests that arrive and are over."""
        for _ in range(times):
            for view in views:
                opened(self.recorder, view).end()

    @property
    def said(self) -> list[str]:
        """All that was said until now, after another round of the thread's."""
        self.recorder.run_once()
        self.recorder.background = False
        return [record.getMessage() for record in self._caplog.records]


Open = Callable[..., Site]


@pytest.fixture(autouse=True)
def no_django(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has imported Django's layer, as another test may have."""
    monkeypatch.delitem(sys.modules, "presence_middleware.django.middleware", raising=False)


@pytest.fixture
def site(valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture) -> Iterator[Open]:
    """Opens a process of a site."""

    def make(identity: str = DEFAULT, /, *, clock: Clock | None = None, **others: object) -> Site:
        given = {"redis_url": valkey.url, "prefix": prefix, "flush_interval": "3m", **others}
        given = {"identity": identity, "secret": SECRET, "session_secret": SECRET, **given}
        sites.append(Site(Settings.from_env({}, **given), caplog, clock=clock))
        return sites[-1]

    sites: list[Site] = []
    yield make
    for one in sites:
        one.recorder.close()


# A session arrives, and nothing reads it.

SESSIONS = [
    ("sessionid", "presence_middleware.django.PresenceMiddleware"),
    ("session", "user=flask-session:_user_id with PRESENCE_SESSION_SECRET"),
    ("session", "user=session:KEY"),
    ("session", "user=pyramid-session:KEY"),
    ("auth_tkt", "user=auth-tkt with PRESENCE_SESSION_SECRET"),
    ("beaker.session.id", "user=session:KEY"),
]


@BOTH
@pytest.mark.parametrize(("cookie", "advice"), SESSIONS)
def test_an_unread_session_is_reported_once_with_the_source_that_reads_it(
    cookie: str, advice: str, view: Make, site: Open
) -> None:
    one = site()
    one.ask(view(cookie=f"a=1; {cookie}={VALUE}"), times=UNREAD_SESSIONS - 1)
    assert one.said == []
    one.ask(view(cookie=f"{cookie}={VALUE}"))
    (notice,) = one.said
    assert notice.startswith(
        f"requests carry the cookie {cookie}, which no rule of PRESENCE_IDENTITY reads"
    )
    assert advice in notice
    assert VALUE not in notice
    one.ask(view(cookie=f"{cookie}={VALUE}"), times=USERLESS_SIGHTINGS - UNREAD_SESSIONS - 1)
    assert one.said == [notice]


def test_each_unread_session_is_reported(site: Open) -> None:
    one = site()
    names = {name for name, _ in SESSIONS}
    one.ask(over_wsgi(cookie="; ".join(f"{name}={VALUE}" for name in names)), times=UNREAD_SESSIONS)
    assert {notice.split()[4].strip(",") for notice in one.said} == names
    assert len(one.said) == len(names)


@BOTH
@pytest.mark.parametrize(
    ("identity", "cookie"),
    [
        ("user=auth, guest=django-session", "sessionid"),
        ("user=auth, guest=cookie:sessionid", "sessionid"),
        ("user=flask-session:_user_id@sessionid, guest=visitor", "sessionid"),
        ("user=flask-session:_user_id, guest=visitor", "session"),
        ("user=starlette-session:user, guest=visitor", "session"),
        ("user=pyramid-session:user, guest=visitor", "session"),
        ("user=flask-session:_user_id@session, guest=visitor", "session"),
        ("user=auth, guest=cookie:session", "session"),
        ("user=auth, guest=django-session:session", "session"),
        ("user=auth-tkt:session, guest=visitor", "session"),
        ("user=auth-tkt, guest=visitor", "auth_tkt"),
        ("user=auth, guest=cookie:auth_tkt:raw", "auth_tkt"),
        ("user=session:user, guest=visitor", "beaker.session.id"),
        ("user=session:user.id, guest=visitor", "beaker.session.id"),
        ("user=auth, guest=cookie:beaker.session.id", "beaker.session.id"),
        (DEFAULT, "PHPSESSID"),
        (DEFAULT, "xsessionid"),
        (DEFAULT, "Session"),
    ],
)
def test_a_session_that_is_read_or_belongs_to_another_app_is_not_reported(
    identity: str, cookie: str, view: Make, site: Open
) -> None:
    one = site(identity)
    one.ask(view(cookie=f"{cookie}={VALUE}"), times=USERLESS_SIGHTINGS - 1)
    assert one.said == []


@BOTH
def test_a_cookie_value_that_looks_like_a_session_is_not_reported(view: Make, site: Open) -> None:
    one = site()
    one.ask(view(cookie="a=sessionid; b=session=1; auth_tkt; c"), times=USERLESS_SIGHTINGS - 1)
    assert one.said == []


@pytest.mark.parametrize(
    ("identity", "source"),
    [
        ("user=flask-session:_user_id, guest=visitor", "sessionid"),
        ("user=django-session, guest=visitor", "session"),
        ("user=auth-tkt, guest=visitor", "session"),
        ("user=flask-session:_user_id@mine, guest=visitor", "auth_tkt"),
    ],
)
def test_a_source_of_another_framework_does_not_read_it(
    identity: str, source: str, site: Open
) -> None:
    one = site(identity)
    one.ask(over_wsgi(cookie=f"{source}={VALUE}"), times=UNREAD_SESSIONS)
    (notice,) = one.said
    assert f"requests carry the cookie {source}, " in notice


@BOTH
@pytest.mark.parametrize("identity", [DEFAULT, "user=header:X-User, user=auth, guest=visitor"])
def test_an_unread_session_is_not_reported_when_users_are_found(
    identity: str, view: Make, site: Open
) -> None:
    one = site(identity)
    one.ask(view(cookie=f"session={VALUE}", user="ann"))
    assert one.said == []
    one.ask(view(cookie=f"session={VALUE}"), times=5 * USERLESS_SIGHTINGS)
    assert one.said == []


# Users are named, and none is ever found.


def test_many_visits_without_a_user_are_reported_once(site: Open) -> None:
    one = site()
    one.ask(over_wsgi(), times=USERLESS_SIGHTINGS - 1)
    assert one.said == []
    one.ask(over_wsgi())
    (notice,) = one.said
    assert notice.startswith(f"no user among {USERLESS_SIGHTINGS} visits")
    one.ask(over_wsgi(), times=3 * USERLESS_SIGHTINGS)
    assert one.said == [notice]


def test_the_kinds_of_logins_are_named_and_no_others(site: Open) -> None:
    one = site("staff=header:X-Staff, member=auth, other=cookie:sid, guest=visitor")
    one.ask(over_wsgi(cookie=f"sid={VALUE}"), times=USERLESS_SIGHTINGS)
    (notice,) = one.said
    assert notice.startswith("no member or staff among")


def log_out(one: Site, status: int = 200, times: int = 1, **headers: str) -> None:
    for _ in range(times):
        request = over_wsgi(**headers)
        visit = opened(one.recorder, WsgiRequest({**request.state, "PATH_INFO": "/logout"}))
        visit.answered(status)
        visit.end()


def test_logouts_that_name_no_user_are_reported_once(site: Open) -> None:
    one = site(logout="/logout")
    one.ask(over_wsgi(user="ann"))
    log_out(one, times=USERLESS_LOGOUTS - 1)
    log_out(one, times=USERLESS_LOGOUTS, status=405)
    log_out(one, times=USERLESS_LOGOUTS, user_agent="curl/8")
    assert one.said == []
    log_out(one)
    (notice,) = one.said
    assert notice.startswith(f"no user among {USERLESS_LOGOUTS} logouts")
    assert "presence.leave(id)" in notice
    log_out(one, times=USERLESS_LOGOUTS)
    assert one.said == [notice]


def test_a_single_logout_of_a_user_prevents_the_notice_about_logouts(site: Open) -> None:
    one = site(logout="/logout")
    log_out(one, user="ann")
    log_out(one, times=USERLESS_LOGOUTS)
    assert one.said == []


def test_visits_of_bots_do_not_cause_the_notice_about_missing_users(site: Open) -> None:
    one = site()
    one.ask(over_wsgi(user_agent="curl/8"), times=2 * USERLESS_SIGHTINGS)
    assert one.said == []


def test_a_secret_that_verifies_nothing_is_reported(site: Open) -> None:
    one = site("user=flask-session:user, guest=visitor", session_secret=["another one"])
    one.ask(over_wsgi(cookie=f"session={VALUE}"), times=USERLESS_SIGHTINGS)
    (notice,) = one.said
    assert notice.endswith("check that PRESENCE_SESSION_SECRET is the secret of the framework")


def test_a_proxy_missing_from_the_trusted_networks_is_reported(site: Open) -> None:
    one = site(trusted_proxies="192.168.0.0/16")
    one.ask(over_wsgi("10.0.0.1", x_forwarded_for="198.51.100.7"))
    (notice,) = one.said
    assert "a proxy that PRESENCE_TRUSTED_PROXIES does not name" in notice


def test_a_django_session_is_not_reported_when_django_identifies_its_users(
    site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "presence_middleware.django.middleware", sys)
    one = site()
    one.ask(over_wsgi(cookie=f"sessionid={VALUE}"), times=UNREAD_SESSIONS)
    assert one.said == []


def test_an_unread_token_is_reported(site: Open) -> None:
    one = site()
    one.ask(over_wsgi(authorization=f"Bearer {VALUE}"), times=UNREAD_SESSIONS)
    (notice,) = one.said
    assert "user=bearer:sub with PRESENCE_SESSION_SECRET" in notice
    assert VALUE not in notice


@pytest.mark.parametrize(
    "cookie", ["a=1;" + " " * 8000 + "x", "a;" * 4000, "session" * 1000 + "=" * 90]
)
def test_every_cookie_is_inspected_quickly(cookie: str, site: Open) -> None:
    """A cookie of spaces once took minutes. The test allows half a second."""
    visit = opened(site().recorder, over_wsgi(cookie=cookie))
    began = time.process_time()
    notices = SetupHints(visit.backend.settings)
    for _ in range(100):
        notices.look(visit, 0.0)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("identity", ["guest=visitor", "user=cookie:sid", "a=ip, b=user-agent"])
def test_missing_users_are_not_reported_when_the_chain_has_no_login(
    identity: str, site: Open
) -> None:
    one = site(identity)
    one.ask(over_wsgi(cookie=f"sid={VALUE}"), times=2 * USERLESS_SIGHTINGS)
    assert one.said == []


def by_server(one: Site) -> None:
    one.ask(over_wsgi(user="ann"))


def by_header(one: Site) -> None:
    one.ask(over_asgi(x_user="ann"))


def by_a_layer(one: Site) -> None:
    environ: dict[str, Any] = {}
    visit = WsgiVisit(one.recorder, environ)
    environ["REMOTE_USER"] = "ann"
    visit.end()


def by_a_handler(one: Site) -> None:
    visit = opened(one.recorder, over_wsgi())
    visit.identify("ann")
    visit.end()


@pytest.mark.parametrize("found", [by_server, by_header, by_a_layer, by_a_handler])
@pytest.mark.parametrize("before", [0, USERLESS_SIGHTINGS // 2, USERLESS_SIGHTINGS - 1])
def test_a_single_user_prevents_the_notice_about_missing_users(
    found: Callable[[Site], None], before: int, site: Open
) -> None:
    one = site("user=auth, user=header:X-User, guest=visitor")
    one.ask(over_wsgi(cookie=f"session={VALUE}"), times=before)
    found(one)
    one.ask(over_wsgi(cookie=f"session={VALUE}"), times=5 * USERLESS_SIGHTINGS)
    assert one.said == []
    assert one.presence.is_online("ann")
    one.ask(over_wsgi(cookie=f"session={VALUE}"), times=5 * USERLESS_SIGHTINGS)
    assert one.said == []


def test_a_user_identified_by_a_handler_counts_in_a_chain_without_auth(site: Open) -> None:
    one = site("member=session:user, guest=visitor")
    by_a_handler(one)
    one.ask(over_wsgi(), times=2 * USERLESS_SIGHTINGS)
    assert one.said == []


# The clients' addresses are a proxy's.

PROXIES = [
    "10.0.0.1",
    "127.0.0.1",
    "172.16.3.4",
    "192.168.0.1",
    "::1",
    "fd00::1",
    "::ffff:10.0.0.1",
]


@BOTH
@pytest.mark.parametrize("peer", [*PROXIES, None])
@pytest.mark.parametrize(
    "header", [{"x_forwarded_for": "198.51.100.7"}, {"forwarded": "for=198.51.100.7"}]
)
@pytest.mark.parametrize("identity", [DEFAULT, "user=auth, guest=ip"])
def test_an_untrusted_proxy_is_reported_once(
    peer: str | None, header: dict[str, str], identity: str, view: Make, site: Open
) -> None:
    one = site(identity)
    one.ask(view(peer))
    assert one.said == []
    one.ask(view(peer, **header))
    (notice,) = one.said
    assert "a proxy that PRESENCE_TRUSTED_PROXIES does not name" in notice
    assert "198.51" not in notice
    one.ask(view(peer, **header), times=10)
    assert one.said == [notice]


@pytest.mark.parametrize(
    ("prefix_", "peer"), [("/24, /56", "10.0.0.1"), ("/32, /64", "fd00::1:2:3:4")]
)
def test_an_untrusted_proxy_is_reported_also_when_addresses_are_cut(
    prefix_: str, peer: str, site: Open
) -> None:
    one = site(ip_prefix=prefix_)
    one.ask(over_wsgi(peer, x_forwarded_for="198.51.100.7"))
    assert len(one.said) == 1


@BOTH
@pytest.mark.parametrize(
    ("peer", "header", "settings"),
    [
        (PUBLIC, {"x_forwarded_for": "198.51.100.7"}, {}),
        ("2001:4860:4860::8888", {"forwarded": "for=198.51.100.7"}, {}),
        ("::ffff:8.8.8.8", {"x_forwarded_for": "198.51.100.7"}, {}),
        ("10.0.0.1", {}, {}),
        (None, {}, {}),
        ("10.0.0.1", {"x_forwarded_host": "a", "x_real_ip": "198.51.100.7"}, {}),
        ("10.0.0.1", {"x_forwarded_for": ""}, {}),
        ("10.0.0.1", {"x_forwarded_for": "198.51.100.7"}, {"trusted_proxies": "1"}),
        ("10.0.0.1", {"x_forwarded_for": "198.51.100.7"}, {"trusted_proxies": "10.0.0.0/8"}),
        ("10.0.0.1", {"x_forwarded_for": "198.51.100.7, 10.0.0.1"}, {}),  # the server has looked
        (None, {"x_forwarded_for": "198.51.100.7"}, {"trusted_proxies": "unix"}),
        ("10.0.0.1", {"x_forwarded_for": "1.2.3.4"}, {"identity": "user=auth, guest=cookie:sid"}),
        ("10.0.0.1", {"x_forwarded_for": "1.2.3.4"}, {"identity": "guest=user-agent"}),
    ],
)
def test_direct_clients_and_irrelevant_headers_are_not_reported_as_proxies(
    peer: str | None, header: dict[str, str], settings: dict[str, str], view: Make, site: Open
) -> None:
    others = dict(settings)
    one = site(others.pop("identity", DEFAULT), **others)
    one.ask(view(peer, cookie="sid=1", **header), times=USERLESS_SIGHTINGS - 1)
    assert one.said == []


# The server, and what has no room.


@pytest.fixture(scope="module")
def small(valkey: Server) -> Iterator[Server]:
    """A server that evicts keys when its memory is full."""
    options = ("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(valkey.binary, Path(folder), *options)
        yield server
        server.stop()


@contextmanager
def configured(server: Server, **options: str) -> Iterator[None]:
    with redis.Redis.from_url(server.url) as client:
        before = {name: client.config_get(name)[name] for name in options}
        for name, value in options.items():
            client.config_set(name, value)
        yield
        for name, value in before.items():
            client.config_set(name, value)


def evicting(one: Site) -> list[str]:
    return [notice for notice in one.said if EVICTS in notice]


def test_a_server_that_may_evict_keys_is_reported_once(small: Server, site: Open) -> None:
    one = site(redis_url=small.url)
    one.ask(over_wsgi())
    (notice,) = one.said
    assert notice == f"{EVICTS} (allkeys-lru): set maxmemory-policy noeviction"
    one.ask(over_wsgi())
    assert one.said == [notice]


@pytest.mark.parametrize("policy", ["allkeys-random", "volatile-lru", "volatile-ttl"])
def test_every_policy_that_evicts_is_named(policy: str, small: Server, site: Open) -> None:
    with configured(small, **{"maxmemory-policy": policy}):
        one = site(redis_url=small.url)
        one.ask(over_wsgi())
        assert f"({policy})" in one.said[0]


@pytest.mark.parametrize(
    "options",
    [{"maxmemory-policy": "noeviction"}, {"maxmemory": "0"}],
    ids=["it refuses instead", "its memory has no limit"],
)
def test_a_server_that_evicts_nothing_is_not_reported(
    options: dict[str, str], small: Server, site: Open
) -> None:
    with configured(small, **options):
        one = site(redis_url=small.url)
        one.ask(over_wsgi())
        assert one.said == []


def test_recording_works_when_the_redis_user_may_not_read_the_eviction_policy(
    small: Server, prefix: str, site: Open
) -> None:
    with redis.Redis.from_url(small.url) as admin:
        admin.execute_command("ACL", "SETUSER", "site", "on", ">word", "~*", "+@all", "-info")
        one = site(redis_url=f"unix://site:word@{small.socket}")
        for _ in range(3):
            one.ask(over_wsgi(user="ann"))
            assert one.said == []
        stats = one.recorder.stats()
        assert (stats.flushed, stats.pending, stats.last_error) == (3, 0, None)
        assert one.presence.is_online("ann")
        refused = admin.execute_command("ACL", "LOG")
        assert any(b"info" in entry.values() or "info" in str(entry) for entry in refused)
        admin.execute_command("ACL", "DELUSER", "site")


def test_a_server_in_this_process_evicts_nothing(prefix: str, site: Open) -> None:
    one = site(redis_url=f"memory://{prefix}")
    one.ask(over_wsgi())
    assert one.said == []
    assert one.recorder.stats().last_error is None


def test_each_kind_at_its_member_limit_is_reported_once(site: Open) -> None:
    one = site("user=auth, staff=header:X-Staff, guest=visitor", max_members=2)
    one.ask(over_wsgi(user="ann"), over_wsgi(user="bob"))
    assert one.said == []
    one.ask(over_wsgi(user="ann"))
    assert one.said == []
    one.ask(over_wsgi(user=VALUE))
    (users,) = one.said
    assert users.startswith("kind user is full")
    for number in range(5):
        one.ask(over_wsgi(user=f"{VALUE}{number}"))
        assert one.said == [users]
    one.ask(*(over_wsgi(x_staff=f"{VALUE}{number}") for number in range(3)))
    _, staff = one.said
    assert staff.startswith("kind staff is full")
    assert VALUE not in users + staff


def test_an_address_with_too_many_guests_is_reported_once(site: Open) -> None:
    one = site("user=header:X-User, guest=visitor")
    one.ask(over_wsgi(x_user="ann"))
    for number in range(100):
        one.ask(over_wsgi(user_agent=f"{VALUE} {number}"))
    assert one.said == []
    one.ask(over_wsgi(user_agent=f"{VALUE} 100"))
    (notice,) = one.said
    assert notice == (
        "more than 100 new guests from one address: the rest is not recorded. If the "
        "address is a proxy, add it to PRESENCE_TRUSTED_PROXIES"
    )
    for number in range(200):
        one.ask(over_wsgi(user_agent=f"{VALUE} {number}"))
    assert one.said == [notice]
    assert VALUE not in notice
    assert PUBLIC not in notice


def test_an_ipv6_network_with_too_many_guests_is_reported_once(site: Open) -> None:
    one = site("user=header:X-User, guest=visitor")
    one.ask(over_wsgi(x_user="ann"))
    for number in range(2001):
        one.ask(over_wsgi(f"2001:4860:1:{number:x}::1"))
    (notice,) = one.said
    assert notice == (
        "more than 2000 new guests from one /48 of IPv6: the rest is not recorded. If "
        "its addresses are proxies, add them to PRESENCE_TRUSTED_PROXIES"
    )


# A proxy that passes on nothing about its clients.


@BOTH
@pytest.mark.parametrize("peer", [*PROXIES, None])
@pytest.mark.parametrize("settings", [{}, {"trusted_proxies": "10.0.0.0/8, ::1, unix"}])
def test_a_proxy_that_sends_no_header_is_reported_with_the_missing_line(
    peer: str | None, settings: dict[str, str], view: Make, site: Open
) -> None:
    one = site("user=header:X-User, guest=visitor", **settings)
    one.ask(view(PUBLIC, x_user="ann"))
    for number in range(100):
        one.ask(view(peer, user_agent=f"{VALUE} {number}"))
    assert one.said == []
    for number in range(100, 150):
        one.ask(view(peer, user_agent=f"{VALUE} {number}"))
    (notice,) = one.said
    assert "without X-Forwarded-For" in notice
    assert "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;" in notice
    assert "PRESENCE_TRUSTED_PROXIES" in notice
    assert VALUE not in notice
    assert one.recorder.stats().dropped == {}
    assert one.presence.counts()["guest"] == 150


def test_a_single_browser_on_localhost_is_not_reported_as_a_proxy(site: Open) -> None:
    """A developer sends many requests from one machine."""
    one = site("user=header:X-User, guest=visitor")
    one.ask(over_wsgi("127.0.0.1", x_user="ann"))
    one.ask(over_wsgi("127.0.0.1"), over_wsgi("::1"), times=1000)
    assert one.said == []


def test_a_proxy_without_header_is_not_reported_when_cookies_distinguish_guests(
    site: Open,
) -> None:
    one = site("user=header:X-User, guest=cookie:sid")
    one.ask(over_wsgi("127.0.0.1", x_user="ann"))
    for number in range(150):
        one.ask(over_wsgi("127.0.0.1", cookie=f"sid={number}"))
    assert one.said == []
    assert one.presence.counts()["guest"] == 150


# A name that everybody has.


class EveryoneIsUser:
    """What some apps set for each visitor, such as Starlette's `SimpleUser("user")`."""

    is_authenticated = True
    identity = display_name = "user"


def visitors(view: Make, how_many: int, **given: Any) -> Iterator[WsgiRequest | AsgiRequest]:
    """Yield requests, each from a network of its own."""
    return (view(f"23.4.{n >> 8}.{n & 255}", **given) for n in range(how_many))


@BOTH
def test_an_id_shared_by_all_visitors_is_reported_once(view: Make, site: Open) -> None:
    clock = Clock()
    one = site(clock=clock)
    one.ask(*visitors(view, SHARED_BY, user="user"))
    assert one.said == []
    clock.now += INSPECTED_REQUESTS  # enough for each of the next requests to be inspected
    one.ask(*visitors(view, SHARED_BY + 1, user="user"))
    (notice,) = one.said
    assert notice.startswith("more than 50 addresses have the same id of kind user")
    assert "PRESENCE_IDENTITY" in notice
    assert "user=cookie:NAME" in notice
    one.ask(*visitors(view, 3 * SHARED_BY, user="user"))
    assert one.said == [notice]


def test_a_shared_id_is_reported_also_when_an_inner_layer_logs_in(site: Open) -> None:
    one = site()
    visits = [opened(one.recorder, request) for request in visitors(over_asgi, SHARED_BY + 1)]
    assert one.said == []
    for visit in visits:
        visit.state["user"] = EveryoneIsUser()  # type: ignore[index]
        visit.end()
    (notice,) = one.said
    assert "have the same id of kind user" in notice


def test_a_shared_id_is_reported_also_after_the_first_requests(site: Open) -> None:
    """After the first requests of a process, a single request per second is inspected."""
    clock = Clock()
    one = site(clock=clock)
    one.ask(over_wsgi(user="user"), times=INSPECTED_REQUESTS)
    for request in visitors(over_wsgi, 2 * SHARED_BY, user="user"):
        clock.now += 1
        one.ask(request)
        assert len(one.said) <= 1
    assert len(one.said) == 1


def test_many_users_from_many_addresses_are_not_reported(site: Open) -> None:
    clock = Clock()
    one = site(clock=clock)
    for number, request in enumerate(visitors(over_wsgi, 300)):
        clock.now += 1
        one.ask(over_wsgi(request.peer, user=f"user{number // 10}"), request)
        one.ask(over_wsgi(request.peer, user="shared"))
    assert one.said == []
    clock.now += INSPECTED_REQUESTS
    one.ask(*visitors(over_wsgi, 300, user="shared"))
    assert one.said == [], "once told apart, users are not looked at again"


def test_a_user_with_many_addresses_in_one_network_is_not_reported(site: Open) -> None:
    """A telephone changes its IPv6 address often."""
    one = site()
    one.ask(*(over_wsgi(f"2001:4860:1:2::{n:x}", user="ann") for n in range(1, 300)))
    assert one.said == []


def test_a_user_whose_address_changes_over_days_is_not_reported(site: Open) -> None:
    clock = Clock()
    one = site(clock=clock)
    for request in visitors(over_wsgi, 3 * SHARED_BY, user="ann"):
        clock.now += 60
        one.ask(request)
    assert one.said == []


def test_guests_who_share_an_id_are_not_reported(site: Open) -> None:
    """Sharing is intended with `user-agent`, and a client may send any cookie."""
    clock = Clock()
    one = site("user=header:X-User, guest=user-agent, other=cookie:sid", clock=clock)
    one.ask(over_wsgi(x_user="ann"))
    one.ask(*visitors(over_wsgi, 3 * SHARED_BY))
    clock.now += INSPECTED_REQUESTS
    one.ask(*visitors(over_wsgi, 3 * SHARED_BY, cookie="sid=1", user_agent=""))
    assert one.said == []


def test_the_search_for_a_shared_id_remembers_few_visits(site: Open) -> None:
    one = site()
    visits = []
    for request in visitors(over_wsgi, INSPECTED_REQUESTS, user="user"):
        visit = opened(one.recorder, request)
        visit.end()
        visits.append(ref(visit))
    del visit
    gc.collect()
    remembered = [visit for visit in visits if visit() is not None]
    assert 0 < len(remembered) <= REMEMBERED_VISITS


def test_an_unreadable_request_is_reported_once(site: Open) -> None:
    one = site()
    one.ask(WsgiRequest({"PATH_INFO": 5, "HTTP_COOKIE": VALUE}), times=3)
    (notice,) = one.said
    assert "a request could not be read (TypeError)" in notice
    assert VALUE not in notice
    assert one.recorder.stats().recorded == 0


# What all of them have in common.


def test_notices_never_contain_client_data(
    small: Server, site: Open, caplog: pytest.LogCaptureFixture
) -> None:
    one = site(redis_url=small.url, max_members=1)
    secret = {"x_forwarded_for": "203.0.113.77", "authorization": f"Basic {VALUE}"}
    cookies = "; ".join(f"{name}={VALUE}" for name, _ in SESSIONS)
    for number in range(USERLESS_SIGHTINGS):
        agent = f"{VALUE} {number}"
        one.ask(over_wsgi("10.1.2.3", cookie=cookies, user_agent=agent, **secret))
    for number in range(USERLESS_SIGHTINGS + 1):
        one.ask(over_asgi(PUBLIC, cookie=cookies, user_agent=f"{VALUE} {number}"))
    assert len(one.said) == 4 + 1 + 1 + 1 + 1 + 1, one.said
    assert len(set(one.said)) == len(one.said)
    for written in (VALUE, "203.0.113.77", "10.1.2.3", PUBLIC, SECRET, str(small.socket)):
        assert written not in caplog.text
    assert {(record.name, record.levelno) for record in caplog.records} == {
        ("presence_middleware", logging.WARNING)
    }


def test_each_notice_appears_once_per_process_with_several_wrapped_apps(
    valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, flush_interval="0.02s")
    app: Any = lambda *_: []  # noqa: E731
    apps = [wsgi.PresenceMiddleware(app, settings=settings) for _ in range(3)]
    recorder = apps[0].recorder
    assert asgi.PresenceMiddleware(app, settings=settings).recorder is recorder
    for _ in range(UNREAD_SESSIONS):
        for one in apps:
            one({"HTTP_COOKIE": f"sessionid={VALUE}", "REMOTE_ADDR": PUBLIC}, app)
    wait_until(lambda: caplog.records)  # its own thread says it
    written = recorder.stats().flushed
    for one in apps:
        one({"HTTP_COOKIE": f"sessionid={VALUE}", "REMOTE_ADDR": PUBLIC}, app)
    wait_until(lambda: recorder.stats().flushed > written)
    recorder.close()
    assert len(caplog.records) == 1


def test_a_correctly_configured_site_gets_no_notices(site: Open) -> None:
    one = site(trusted_proxies="10.0.0.0/8", exclude="/healthz")
    for number in range(2 * USERLESS_SIGHTINGS):
        user = "ann" if number % 10 == 0 else None
        forwarded = f"198.51.100.{number}"
        cookie = f"session={VALUE}; csrftoken={VALUE}"
        one.ask(over_wsgi("10.0.0.1", user, cookie=cookie, x_forwarded_for=forwarded))
    assert one.said == []


def test_inspection_stops_after_the_first_requests(
    site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(visit: Visit, now: float) -> None:
        looks.append(now)
        really(visit, now)

    clock = Clock()
    one = site(clock=clock)
    really, looks = one.recorder.hints.look, list[float]()
    monkeypatch.setattr(one.recorder.hints, "look", look)
    one.ask(over_wsgi(user="ann"), times=3 * INSPECTED_REQUESTS)
    assert INSPECTED_REQUESTS <= len(looks) <= INSPECTED_REQUESTS + 1
    for second in range(1, 4):
        del looks[:]
        clock.now += 0.5
        one.ask(over_wsgi(user="ann"), times=100)
        assert looks == []
        clock.now += 0.5
        one.ask(over_wsgi(user="ann"), times=100)
        assert len(looks) == 1, second


def test_the_first_requests_of_a_process_cost_like_the_others(site: Open) -> None:
    clock = Clock()
    one = site(clock=clock)
    one.ask(over_wsgi(cookie=f"sessionid={VALUE}"), times=INSPECTED_REQUESTS + 1)
    assert one.recorder.hints.look_at > clock.now, "a small part of a thousand is inspected"
    assert INSPECTED_REQUESTS < 100


def test_quiet_seconds_let_more_requests_be_inspected(site: Open) -> None:
    clock = Clock()
    one = site(clock=clock)
    one.ask(over_wsgi(user_agent="curl/8"), times=2 * INSPECTED_REQUESTS)
    assert one.said == []
    clock.now += UNREAD_SESSIONS
    one.ask(over_wsgi(cookie=f"sessionid={VALUE}"), times=UNREAD_SESSIONS - 1)
    assert one.said == []
    one.ask(over_wsgi(cookie=f"sessionid={VALUE}"))
    assert len(one.said) == 1


def test_later_mistakes_are_still_reported(site: Open) -> None:
    clock = Clock()
    one = site(clock=clock)
    one.ask(over_wsgi(), times=2 * INSPECTED_REQUESTS)
    said = one.said
    one.ask(over_wsgi("10.0.0.1", x_forwarded_for="198.51.100.7"))
    assert one.said == said
    clock.now += 1
    one.ask(over_wsgi("10.0.0.1", x_forwarded_for="198.51.100.7"))
    assert len(one.said) == len(said) + 1


def test_requests_that_are_no_visit_are_not_looked_at(site: Open) -> None:
    one = site(identity="user=header:X-User, guest=visitor")
    environ = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": "198.51.100.7"}
    environ |= {"HTTP_COOKIE": f"session={VALUE}"}
    one.ask(WsgiRequest({**environ, "PATH_INFO": "/healthz"}), times=2 * USERLESS_SIGHTINGS)
    one.ask(WsgiRequest({**environ, "HTTP_PRESENCE": "passive"}), times=2 * USERLESS_SIGHTINGS)
    assert one.said == []


def test_a_forked_child_does_not_repeat_notices(site: Open) -> None:
    one = site()
    one.ask(over_wsgi(cookie=f"sessionid={VALUE}"), times=UNREAD_SESSIONS)
    assert len(one.said) == 1
    one.recorder.reset()  # as a fork's child does
    one.recorder.background = False
    one.ask(over_wsgi(cookie=f"sessionid={VALUE}"), times=UNREAD_SESSIONS)
    assert len(one.said) == 1
