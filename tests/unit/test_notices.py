"""Common set-up mistakes: each is reported once and by name, without false alarms."""

import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import flask
import jwt
import pytest
import redis
from flask.sessions import SecureCookieSessionInterface

from presence_middleware import Presence, Settings, asgi, wsgi
from presence_middleware.recorder import Recorder
from presence_middleware.recorder.setup_hints import (
    FEW_VISITS,
    INSPECTED_REQUESTS,
    SECONDS,
    SHARED_BY,
    VISITS,
)
from presence_middleware.request import USER, AsgiRequest, WsgiRequest
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
BY_HEADER = "user=header:X-User, guest=visitor"
NO_USER = f"no user among {VISITS} visits, so PRESENCE_IDENTITY seems to miss logins"
LOOK = '. To see why, run presence explain --header "Cookie: …"'

Make = Callable[..., WsgiRequest | AsgiRequest]


def over_wsgi(
    peer: str | None = PUBLIC, user: str | None = None, session: object = None, **headers: str
) -> WsgiRequest | AsgiRequest:
    given = {"REMOTE_ADDR": peer, "REMOTE_USER": user, "HTTP_USER_AGENT": FIREFOX}
    given |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    found: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return WsgiRequest(found if session is None else {**found, "beaker.session": session})


def over_asgi(
    peer: str | None = PUBLIC, user: str | None = None, session: object = None, **headers: str
) -> WsgiRequest | AsgiRequest:
    sent = {"user_agent": FIREFOX, **headers}.items()
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in sent]
    scope = {"type": "http", "client": peer and (peer, 1), "user": user, "headers": named}
    return AsgiRequest(scope if session is None else {**scope, "session": session})


BOTH = pytest.mark.parametrize("view", [over_wsgi, over_asgi])


class Site:
    """A process of a site, whose thread sleeps while the test does what it would do."""

    def __init__(self, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
        self.clock = Clock()
        self.recorder = Recorder(settings, clock=self.clock, background=False)
        self.presence = Presence(settings, clock=self.clock)
        self._caplog = caplog

    def ask(self, *views: WsgiRequest | AsgiRequest, times: int = 1, status: int = 200) -> None:
        """Send requests that arrive and are over."""
        for _ in range(times):
            for view in views:
                visit = opened(self.recorder, view)
                visit.answered(status)
                visit.end()

    @property
    def said(self) -> list[str]:
        """All that was said until now, after another round of the thread's."""
        self.recorder.run_once()
        return [record.getMessage() for record in self._caplog.records]


Open = Callable[..., Site]


@pytest.fixture
def site(valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture) -> Iterator[Open]:
    """Opens a process of a site."""

    def make(identity: str = DEFAULT, /, **others: object) -> Site:
        given = {"redis_url": valkey.url, "prefix": prefix, "flush_interval": "3m", **others}
        given = {"identity": identity, "secret": SECRET, "session_secret": SECRET, **given}
        sites.append(Site(Settings.from_env({}, **given), caplog))
        return sites[-1]

    sites: list[Site] = []
    yield make
    for one in sites:
        one.recorder.close()


# What visits show.


def flask_cookie(secret: str = SECRET, **session: object) -> dict[str, str]:
    app = flask.Flask(__name__)
    app.secret_key = secret
    serializer = SecureCookieSessionInterface().get_signing_serializer(app)
    assert serializer
    return {"cookie": f"session={serializer.dumps(session)!s}"}


def token(**claims: object) -> dict[str, str]:
    return {"authorization": f"Bearer {jwt.encode(claims, SECRET)}"}


class Shows(NamedTuple):
    """A mistake that each request shows: its message, and the line that mends it."""

    request: dict[str, Any]
    message: str
    remedy: str
    identity: str = DEFAULT
    framework: str = ""
    settings: dict[str, str] = {}  # noqa: RUF012 - only read


def carries(what: str) -> str:
    return f"requests carry {what}, which no rule of PRESENCE_IDENTITY reads, and no user was found"


def chain(rule: str) -> str:
    return f'set PRESENCE_IDENTITY="{rule}, guest=visitor"'


WITH_SECRET = " and PRESENCE_SESSION_SECRET to the secret of the app"
HOPS = {"x_forwarded_for": "198.51.100.7"}
PROXY = (
    "requests come through a proxy that PRESENCE_TRUSTED_PROXIES does not name, so people with the "
    "same browser count as one"
)
NETWORKS = {
    "10.0.0.1": "10.0.0.0/8",
    "127.0.0.1": "127.0.0.0/8",
    "172.16.3.4": "172.16.0.0/12",
    "::1": "::1/128",
    "fd00::1": "fc00::/7",
    "::ffff:10.0.0.1": "10.0.0.0/8",
    None: "unix",
}
MISTAKES = {
    "Django": Shows(
        {"cookie": f"a=1; sessionid={VALUE}"},
        carries("the cookie sessionid"),
        "for Django, add presence_middleware.django.PresenceMiddleware at the end of MIDDLEWARE",
    ),
    "Flask": Shows(
        {"cookie": f"session={VALUE}"},
        carries("the cookie session"),
        "for Flask, call presence_middleware.flask.init_app(app), or "
        + chain("user=flask-session:_user_id")
        + " and PRESENCE_SESSION_SECRET to its SECRET_KEY",
        framework="flask",
    ),
    "Starlette": Shows(
        {"cookie": f"session={VALUE}"},
        carries("the cookie session"),
        "for Starlette, " + chain("user=session:KEY"),
        framework="starlette",
    ),
    "Pyramid": Shows(
        {"cookie": f"session={VALUE}"},
        carries("the cookie session"),
        "for Pyramid, " + chain("user=pyramid-session:auth.userid") + WITH_SECRET,
        framework="pyramid",
    ),
    "tickets": Shows(
        {"cookie": f"auth_tkt={VALUE}"},
        carries("the cookie auth_tkt"),
        chain("user=auth-tkt, user=flask-session:_user_id@mine") + WITH_SECRET,
        identity="user=flask-session:_user_id@mine, guest=visitor",
    ),
    "Beaker": Shows(
        {"cookie": f"beaker.session.id={VALUE}"},
        carries("the cookie beaker.session.id"),
        chain("user=session:KEY"),
    ),
    "a token": Shows(
        {"authorization": f"Bearer {VALUE}"},
        carries("a bearer token"),
        chain("user=bearer:sub") + WITH_SECRET,
    ),
    "another secret": Shows(
        flask_cookie("another", user=VALUE),
        "the rule user=flask-session:user has never matched: signed with another secret",
        "check that PRESENCE_SESSION_SECRET is the secret of the framework",
        identity="user=flask-session:user, guest=visitor",
    ),
    "another key": Shows(
        flask_cookie(_user_id=VALUE, _fresh=True),
        'has never matched: the session has no key "user"; it has _fresh, _user_id',
        chain("user=flask-session:_user_id@session"),
        identity="user=flask-session:user@session, guest=visitor",
    ),
    "a dictionary in a token": Shows(
        token(user={"email": VALUE, "roles": []}),
        'the key "user" of the token is a dictionary: name a field, such as user.email; it has '
        "email, roles",
        chain("user=bearer:user.email"),
        identity="user=bearer:user, guest=visitor",
    ),
    "a dictionary in a session": Shows(
        {"session": {"member": {"username": VALUE}}, "cookie": f"session={VALUE}"},
        'the key "member" of the session is a dictionary: name a field, such as member.username',
        chain("user=session:member.username"),
        identity="user=session:member, guest=visitor",
    ),
    "a session with a key of its own": Shows(
        {"session": {"account": VALUE}, "cookie": f"session={VALUE}"},
        "the rule user=auth has never matched: the session has no usual key of a user; it has ",
        chain("user=session:account"),
    ),
    **{
        f"proxy {peer}": Shows({"peer": peer, **HOPS}, PROXY, f'_PROXIES="{network}", or add')
        for peer, network in NETWORKS.items()
    },
    "proxy with Forwarded": Shows(
        {"peer": "10.0.0.1", "forwarded": "for=198.51.100.7"},
        PROXY,
        'set PRESENCE_TRUSTED_PROXIES="10.0.0.0/8", or',
        identity="user=auth, guest=ip",
        settings={"ip_prefix": "/24, /56"},
    ),
    "another proxy": Shows(
        {"peer": "10.0.0.1", **HOPS},
        PROXY,
        'set PRESENCE_TRUSTED_PROXIES="192.168.0.0/16, 10.0.0.0/8", or',
        settings={"trusted_proxies": "192.168.0.0/16"},
    ),
}


@BOTH
@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("is_quick", [True, False], ids=["at once", "slowly"])
def test_a_mistake_that_visits_show_is_reported_once_with_the_line_to_set(
    name: str, view: Make, *, is_quick: bool, site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    shows = MISTAKES[name]
    if shows.framework:
        monkeypatch.setitem(sys.modules, shows.framework, sys)
    one = site(shows.identity, **shows.settings)
    one.ask(view(**shows.request), times=(VISITS if is_quick else FEW_VISITS) - 1)
    assert one.said == []
    one.clock.now += 0 if is_quick else SECONDS
    if not is_quick:
        assert one.said == []
    one.ask(view(**shows.request))
    notice, *others = one.said
    assert shows.message in notice
    assert shows.remedy in notice
    assert notice.endswith(LOOK) is not notice.startswith("requests come")
    assert [other.partition(":")[0] for other in others] == ([NO_USER] if is_quick else [])
    one.clock.now += 2 * VISITS
    one.ask(view(**shows.request), times=2 * VISITS)
    assert len(one.said) == 2
    for written in (VALUE, SECRET, "198.51", "10.0.0.1", "172.16.3.4"):
        assert written not in "".join(one.said)


def test_a_framework_that_is_not_in_use_is_not_advised(
    site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flask", sys)
    monkeypatch.delitem(sys.modules, "starlette", raising=False)
    monkeypatch.delitem(sys.modules, "pyramid", raising=False)
    one = site()
    one.ask(over_wsgi(cookie=f"session={VALUE}"), times=VISITS)
    assert "Starlette" not in one.said[0]
    assert "Pyramid" not in one.said[0]


RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{identity} reads {cookie}": (identity, {"cookie": f"{cookie}={VALUE}"})
        for identity, cookie in [
            ("user=auth, guest=django-session", "sessionid"),
            ("user=auth, guest=cookie:sessionid", "sessionid"),
            ("user=auth, guest=django-session:session", "session"),
            ("user=auth-tkt:session, guest=cookie:sid", "x"),
            ("user=auth, guest=cookie:auth_tkt:raw", "auth_tkt"),
            ("user=session:user.id, guest=visitor", "beaker.session.id"),
            (DEFAULT, "PHPSESSID"),
            (DEFAULT, "xsessionid"),
            (DEFAULT, "Session"),
        ]
    },
    "cookies that look like sessions": (DEFAULT, {"cookie": "a=sessionid; b=session=1; auth_tkt"}),
    "an expired token": ("user=bearer:sub, guest=visitor", token(sub="ann", exp=1)),
    "a guest of Flask": ("user=flask-session:_user_id", flask_cookie(csrf_token="x", _fresh=False)),
    "a guest of Starlette": (DEFAULT, {"session": {"csrf": "x"}, "cookie": "session=x"}),
    "no proxy": (DEFAULT, {**HOPS}),
    "no proxy, IPv6": (DEFAULT, {"peer": "2001:4860::8888", "forwarded": "for=198.51.100.7"}),
    "a peer without headers": (DEFAULT, {"peer": "10.0.0.1", "x_real_ip": "198.51.100.7"}),
    "a peer that the server has read from the header": (
        DEFAULT,
        {"peer": "10.0.0.1", "x_forwarded_for": "198.51.100.7, 10.0.0.1"},
    ),
    "addresses that do not matter": (
        "user=auth, guest=cookie:sid",
        {"peer": "10.0.0.1", "cookie": "sid=1", **HOPS},
    ),
    "a crawler": (BY_HEADER, {"user_agent": "curl/8"}),
}


@BOTH
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_reported(name: str, view: Make, site: Open) -> None:
    identity, request = RIGHT[name]
    one = site(identity)
    one.ask(view(**request), times=VISITS - 1)
    one.clock.now += 2 * SECONDS
    assert one.said == []


@pytest.mark.parametrize(
    ("proxies", "peer"), [("1", "10.0.0.1"), ("10.0.0.0/8", "10.0.0.1"), ("unix", None)]
)
def test_a_trusted_proxy_is_not_reported(proxies: str, peer: str | None, site: Open) -> None:
    one = site(trusted_proxies=proxies)
    one.ask(over_wsgi(peer, **HOPS), times=VISITS - 1)
    one.clock.now += SECONDS
    assert one.said == []


def test_a_session_is_not_reported_when_a_layer_of_ours_asks_it(site: Open) -> None:
    one = site()
    request = over_wsgi(cookie=f"sessionid={VALUE}")
    asked = WsgiRequest({**request.state, USER: lambda: None})
    one.ask(asked, times=VISITS - 1)
    one.clock.now += SECONDS
    assert one.said == []


@pytest.mark.parametrize(
    ("identity", "users"),
    [
        (BY_HEADER, "user"),
        ("staff=header:X-Staff, member=auth, other=cookie:sid, guest=visitor", "member or staff"),
    ],
)
def test_visits_without_a_user_are_reported_once(identity: str, users: str, site: Open) -> None:
    one = site(identity)
    one.ask(over_wsgi(user_agent="curl/8"), times=INSPECTED_REQUESTS)
    one.clock.now += INSPECTED_REQUESTS
    one.ask(over_wsgi(), times=VISITS - 1)
    assert one.said == []
    one.ask(over_wsgi())
    (notice,) = one.said
    assert notice.startswith(f"no {users} among {VISITS} visits")
    assert notice.endswith(LOOK)
    one.clock.now += VISITS
    one.ask(over_wsgi(), times=VISITS)
    assert one.said == [notice]


@pytest.mark.parametrize("identity", ["guest=visitor", "user=cookie:sid", "a=ip, b=user-agent"])
def test_no_user_is_missed_where_the_chain_has_no_login(identity: str, site: Open) -> None:
    one = site(identity)
    one.ask(over_wsgi(cookie=f"sid={VALUE}; session={VALUE}"), times=2 * VISITS)
    assert one.said == []


def by_server(one: Site) -> None:
    one.ask(over_wsgi(user="ann"))


def by_header(one: Site) -> None:
    one.ask(over_asgi(x_user="ann"))


def by_a_layer(one: Site) -> None:
    environ: dict[str, Any] = {}
    visit = wsgi.WsgiVisit(one.recorder, environ)
    environ["REMOTE_USER"] = "ann"
    visit.end()


def by_a_handler(one: Site) -> None:
    visit = opened(one.recorder, over_wsgi())
    visit.identify("ann")
    visit.end()


@pytest.mark.parametrize("found", [by_server, by_header, by_a_layer, by_a_handler])
@pytest.mark.parametrize("before", [0, VISITS - 1])
def test_a_single_user_prevents_the_notices_about_logins(
    found: Callable[[Site], None], before: int, site: Open
) -> None:
    one = site("user=auth, user=header:X-User, guest=visitor")
    one.ask(over_wsgi(cookie=f"session={VALUE}"), times=before)
    found(one)
    for _ in range(2):
        one.clock.now += INSPECTED_REQUESTS
        one.ask(over_wsgi(cookie=f"session={VALUE}"), times=INSPECTED_REQUESTS)
        assert one.said == []
    assert one.presence.is_online("ann")


@pytest.mark.parametrize("user", [None, "ann"])
def test_logouts_that_name_no_user_are_reported_once(user: str | None, site: Open) -> None:
    one = site(logout="/logout")

    def log_out(times: int = 1, status: int = 200, **given: Any) -> None:
        state = over_wsgi(**given).state
        one.ask(WsgiRequest({**state, "PATH_INFO": "/logout"}), times=times, status=status)

    one.ask(over_wsgi(user="ann"))
    log_out(user=user)
    log_out(VISITS - 2)
    log_out(VISITS, status=405)
    log_out(VISITS, user_agent="curl/8")
    assert one.said == []
    log_out()
    said = one.said
    assert len(said) == (0 if user else 1)
    for notice in said:
        assert notice.startswith(f"no user among {VISITS} logouts")
        assert "presence.leave(id)" in notice
    log_out(VISITS)
    assert one.said == said


@pytest.mark.parametrize(
    "cookie", ["a=1;" + " " * 8000 + "x", "a;" * 4000, "session" * 1000 + "=" * 90]
)
def test_every_cookie_is_inspected_quickly(cookie: str, site: Open) -> None:
    """A cookie of spaces once took minutes. The test allows half a second."""
    one = site()
    began = time.process_time()
    for _ in range(100):
        one.clock.now += 1
        one.ask(over_wsgi(cookie=cookie))
    assert time.process_time() - began < 0.5


# The server, and what has no room.


@pytest.fixture(scope="module")
def small(valkey: Server) -> Iterator[Server]:
    """A server with a limit of memory."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(valkey.binary, Path(folder), "--maxmemory", "50mb")
        yield server
        server.stop()


@pytest.mark.parametrize(
    ("policy", "limit"),
    [("allkeys-lru", "50mb"), ("volatile-ttl", "50mb"), ("noeviction", "50mb"), ("allkeys-lru", 0)],
)
def test_a_server_that_may_evict_keys_is_reported_once(
    policy: str, limit: Any, small: Server, site: Open
) -> None:
    with redis.Redis.from_url(small.url) as client:
        client.config_set("maxmemory-policy", policy, "maxmemory", limit)
    one = site(redis_url=small.url)
    text = f"the server may evict keys ({policy}): set maxmemory-policy noeviction"
    for _ in range(2):
        one.ask(over_wsgi())
        assert one.said == ([text] if limit and policy != "noeviction" else [])


def test_recording_works_when_the_redis_user_may_not_read_the_eviction_policy(
    small: Server, site: Open
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
        assert any("info" in str(entry) for entry in admin.execute_command("ACL", "LOG"))
        admin.execute_command("ACL", "DELUSER", "site")


def test_a_server_in_this_process_evicts_nothing(prefix: str, site: Open) -> None:
    one = site(redis_url=f"memory://{prefix}")
    one.ask(over_wsgi())
    assert one.said == []
    assert one.recorder.stats().last_error is None


def test_each_kind_at_its_member_limit_is_reported_once(site: Open) -> None:
    one = site("user=auth, staff=header:X-Staff, guest=visitor", max_members=2)
    for _ in range(2):
        one.ask(over_wsgi(user="ann"), over_wsgi(user="bob"))
        assert one.said == []
    text = "is full and new ids are not recorded: raise PRESENCE_MAX_MEMBERS, which is 2"
    for number in range(3):
        one.ask(over_wsgi(user=f"{VALUE}{number}"))
        assert one.said == [f"kind user {text}"]
    one.ask(*(over_wsgi(x_staff=f"{VALUE}{number}") for number in range(3)))
    assert one.said == [f"kind user {text}", f"kind staff {text}"]


CROWDS: dict[str, tuple[int, Callable[[int], dict[str, str | None]], str]] = {
    "an address": (
        100,
        lambda number: {"user_agent": f"{VALUE} {number}"},
        "more than 100 new guests from one address: the rest is not recorded. If the address is a "
        "proxy, add it to PRESENCE_TRUSTED_PROXIES",
    ),
    "an IPv6 network": (
        2000,
        lambda number: {"peer": f"2001:4860:1:{number:x}::1"},
        "more than 2000 new guests from one /48 of IPv6: the rest is not recorded. If its "
        "addresses are proxies, add them to PRESENCE_TRUSTED_PROXIES",
    ),
    **{
        f"a silent proxy at {peer}": (
            100,
            lambda number, peer=peer: {"peer": peer, "user_agent": f"{VALUE} {number}"},  # type: ignore[misc]
            "more than 100 guests come from one private address or unix socket without "
            "X-Forwarded-For: it seems to be a proxy, and people with the same browser count as "
            "one. Let the proxy send that header (nginx: proxy_set_header X-Forwarded-For "
            "$proxy_add_x_forwarded_for;) and add the proxy to PRESENCE_TRUSTED_PROXIES",
        )
        for peer in NETWORKS
    },
}


@BOTH
@pytest.mark.parametrize("name", CROWDS)
def test_a_crowd_of_guests_is_reported_once(name: str, view: Make, site: Open) -> None:
    quota, guest, text = CROWDS[name]
    one = site(BY_HEADER, trusted_proxies="10.0.0.0/8, ::1, unix")
    one.ask(view(x_user="ann"))
    one.ask(*(view(**guest(number)) for number in range(quota)))
    assert one.said == []
    one.ask(*(view(**guest(number)) for number in range(quota, quota + 50)))
    assert one.said == [text]
    is_silent = "silent" in name
    assert one.presence.counts()["guest"] == quota + (50 if is_silent else 0)


def test_who_comes_from_this_host_is_no_crowd_of_guests(site: Open) -> None:
    """A developer sends many requests, and cookies distinguish guests behind any proxy."""
    one = site(BY_HEADER)
    one.ask(over_wsgi("127.0.0.1", x_user="ann"))
    one.ask(over_wsgi("127.0.0.1"), over_wsgi("::1"), times=200)
    other = site("user=header:X-User, guest=cookie:sid")
    other.ask(over_wsgi("127.0.0.1", x_user="ann"))
    other.ask(*(over_wsgi("127.0.0.1", cookie=f"sid={number}") for number in range(150)))
    assert one.said == other.said == []


# A name that everybody has.


class EveryoneIsUser:
    """What some apps set for each visitor, such as Starlette's `SimpleUser("user")`."""

    is_authenticated = True
    identity = display_name = "user"


def visitors(one: Site, view: Make, number: int, pause: float = 1.0, **given: str) -> None:
    """Send requests, each from a network of its own, and end each as an inner layer set it."""
    for n in range(number):
        one.clock.now += pause
        visit = opened(one.recorder, view(f"23.4.{n >> 8}.{n & 255}", **given))
        if given.get("user") == "set by a layer":
            visit.state["user"] = EveryoneIsUser()  # type: ignore[index]
        visit.end()


@pytest.mark.parametrize(
    ("view", "user"), [(over_wsgi, "user"), (over_asgi, "user"), (over_asgi, "set by a layer")]
)
def test_an_id_shared_by_all_visitors_is_reported_once(view: Make, user: str, site: Open) -> None:
    one = site()
    visitors(one, view, SHARED_BY, user=user)
    assert one.said == []
    visitors(one, view, SHARED_BY + 1, user=user)
    (notice,) = one.said
    assert notice.startswith("more than 50 addresses have the same id of kind user")
    assert "user=cookie:NAME" in notice
    visitors(one, view, 2 * SHARED_BY, user=user)
    assert one.said == [notice]


def distinct(one: Site) -> None:
    for number in range(100):
        one.clock.now += 1
        one.ask(over_wsgi(f"23.4.0.{number}", user=f"user{number // 10}"))
    visitors(one, over_wsgi, 3 * SHARED_BY, user="once told apart, users are not looked at again")


def in_one_network(one: Site) -> None:
    """A telephone changes its IPv6 address often."""
    for number in range(1, 200):
        one.clock.now += 1
        one.ask(over_wsgi(f"2001:4860:1:2::{number:x}", user="ann"))


def over_days(one: Site) -> None:
    visitors(one, over_wsgi, 3 * SHARED_BY, 60.0, user="ann")


def guests(one: Site) -> None:
    """Sharing is intended with `user-agent`, and a client may send any cookie."""
    one.ask(over_wsgi(user="ann"))
    visitors(one, over_wsgi, 2 * SHARED_BY)
    visitors(one, over_wsgi, 2 * SHARED_BY, cookie="sid=1", user_agent="")


@pytest.mark.parametrize("come", [distinct, in_one_network, over_days, guests])
def test_ids_that_distinguish_users_are_not_reported(
    come: Callable[[Site], None], site: Open
) -> None:
    one = site("user=auth, guest=user-agent, other=cookie:sid")
    come(one)
    assert one.said == []


# What all of them have in common.


def test_an_unreadable_request_is_reported_once(site: Open) -> None:
    one = site()
    one.ask(WsgiRequest({"PATH_INFO": 5, "HTTP_COOKIE": VALUE}), times=3)
    (notice,) = one.said
    assert "a request could not be read (TypeError)" in notice
    assert VALUE not in notice
    assert one.recorder.stats().recorded == 0


def test_notices_are_warnings_without_data_of_clients(
    site: Open, caplog: pytest.LogCaptureFixture
) -> None:
    one = site(max_members=1)
    cookies = "; ".join(f"{name}={VALUE}" for name in ("sessionid", "session", "auth_tkt", "x"))
    sent = {
        "cookie": cookies,
        "x_forwarded_for": "203.0.113.77",
        "authorization": f"Bearer {VALUE}",
    }
    for number in range(120):
        one.ask(over_wsgi("10.1.2.3", user_agent=f"{VALUE} {number}", **sent))
        one.ask(over_asgi(user_agent=f"{VALUE} {number}", **sent))
    one.clock.now += SECONDS
    assert len(one.said) == len(set(one.said)) == 1 + 4 + 1 + 1 + 1, one.said
    for written in (VALUE, "203.0.113.77", "10.1.2.3", PUBLIC, SECRET):
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
    environ = {"HTTP_COOKIE": f"sessionid={VALUE}", "REMOTE_ADDR": PUBLIC}
    for number in range(VISITS):
        apps[number % 3](dict(environ), app)
    wait_until(lambda: len(caplog.records) == 2)  # its own thread says it
    written = recorder.stats().flushed
    for one in apps:
        one(dict(environ), app)
    wait_until(lambda: recorder.stats().flushed > written)
    recorder.close()
    assert len(caplog.records) == 2


def test_few_requests_are_inspected(site: Open) -> None:
    """After the first requests, one a second; quiet seconds let more be inspected."""
    one = site()
    one.ask(over_wsgi(user_agent="curl/8"), times=1000)
    assert one.recorder.hints.look_at > one.clock.now
    one.clock.now += 1
    one.ask(over_wsgi("10.0.0.1", **HOPS), times=1000)
    one.clock.now += SECONDS
    assert one.said == [], "one visit was inspected"
    one.clock.now += FEW_VISITS
    one.ask(over_wsgi("10.0.0.1", **HOPS), times=FEW_VISITS)
    assert PROXY in one.said[0]


def test_requests_that_are_no_visit_are_not_inspected(site: Open) -> None:
    one = site(BY_HEADER)
    environ = {**over_wsgi("10.0.0.1", **HOPS).state, "HTTP_COOKIE": f"session={VALUE}"}
    one.ask(WsgiRequest({**environ, "PATH_INFO": "/healthz"}), times=2 * VISITS)
    one.ask(WsgiRequest({**environ, "HTTP_PRESENCE": "passive"}), times=2 * VISITS)
    assert one.said == []


def test_a_forked_child_does_not_repeat_notices(site: Open) -> None:
    one = site()
    for _ in range(2):
        one.ask(over_wsgi(cookie=f"sessionid={VALUE}"), times=VISITS)
        assert len(one.said) == 2
        one.clock.now += VISITS
        one.recorder.reset()  # as a fork's child does
