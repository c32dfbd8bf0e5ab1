"""Common set-up mistakes: each is reported once and by name, without false alarms."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain as chain_of
from typing import Any

import jwt
import pytest
from starlette.authentication import SimpleUser

from presence_middleware import Settings
from presence_middleware.recorder import Visit
from presence_middleware.recorder.verdict import Purpose
from presence_middleware.request import USER, AsgiRequest, WsgiRequest
from tests.security import signed
from tests.support.asking import Request, opened
from tests.support.backends import Server
from tests.support.memory import traced
from tests.support.statuses import FIREFOX
from tests.support.timed_site import Process

# WebOb, which reads Pyramid's sessions, imports it.
pytestmark = pytest.mark.filterwarnings("ignore:'cgi' is deprecated:DeprecationWarning")

# As docs/identity.md and the warnings have them.
FEW_VISITS, SECONDS, VISITS, SHARED_BY = 3, 10, 20, 50
SECRET = "a secret of the test's own, long enough for a token"
PUBLIC = "8.8.8.8"
VALUE = "what-a-client-sent"
DEFAULT = "user=auth, guest=visitor"
BY_HEADER = "user=header:X-User, guest=visitor"
NO_USER = f"no user among {VISITS} visits"
LOOK = '. To see why, run presence explain --header "Cookie: …"'

Sent = WsgiRequest | AsgiRequest
Make = Callable[..., Sent]


def sent(protocol: int, peer: str | None = PUBLIC, **given: Any) -> Sent:
    """Return a request over WSGI (0) or ASGI (1), with what is given of its user and headers."""
    user, session, headers = given.pop("user", None), given.pop("session", None), given
    named = {"user_agent": FIREFOX, **headers}.items()
    fields = [(name.replace("_", "-"), value.encode()) for name, value in named]
    return Request(fields, user, peer, session, mount="").views()[protocol]


over_wsgi, over_asgi = partial(sent, 0), partial(sent, 1)


class Site(Process):
    """A process of a site, and what it has logged."""

    def __init__(self, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__(settings)
        self._caplog = caplog

    def ask(
        self, *views: Sent, times: int = 1, status: int = 200, pause: float = 0, handler: Any = id
    ) -> None:
        """Send requests that arrive and are over, some seconds one after the other."""
        for _ in range(times):
            for view in views:
                self.clock.now += pause
                visit = opened(self.recorder, view)
                handler(visit)
                visit.answered(status)
                visit.end()

    @property
    def said(self) -> list[str]:
        """All that was said until now, after another round of the thread's."""
        self.recorder.run_once()
        for record in self._caplog.records:
            assert (record.name, record.levelno) == ("presence_middleware", logging.WARNING)
        return self._caplog.messages


Open = Callable[..., Site]


@pytest.fixture
def site(unwritten: Callable[..., Settings], caplog: pytest.LogCaptureFixture) -> Open:
    secrets = {"secret": SECRET, "session_secret": SECRET}

    def make(identity: str = DEFAULT, /, **others: object) -> Site:
        return Site(unwritten(identity=identity, **secrets, **others), caplog)

    return make


# What visits show.


def flask_cookie(secret: str = SECRET, **session: object) -> dict[str, str]:
    return {"cookie": f"session={signed.flask_cookie(secret, session)}"}


def token(**claims: object) -> dict[str, str]:
    return {"authorization": f"Bearer {jwt.encode(claims, SECRET)}"}


def chain(rule: str) -> str:
    return f'set PRESENCE_IDENTITY="{rule}, guest=visitor"'


AND_SECRET = " and PRESENCE_SESSION_SECRET to the secret of the app"
BY_TOKEN = chain("user=bearer:sub") + AND_SECRET
UNREAD = ", which no rule of PRESENCE_IDENTITY reads, and no user was found so far"
NEVER = " has never matched: "
PROXY = (
    "requests come through a proxy that PRESENCE_TRUSTED_PROXIES does not name, so people with the "
    "same browser count as one"
)
HOPS: dict[str, Any] = {"x_forwarded_for": "198.51.100.7"}
SESSION: dict[str, Any] = {"cookie": f"a=1; session={VALUE}"}
BEARER = {"authorization": f"Bearer {VALUE}"}
FLASK = "user=flask-session:"
USUAL = flask_cookie(_user_id=VALUE, _fresh=True)
NESTED = token(user={"email": VALUE, "roles": []})
MEMBER = {"session": {"member": {"username": VALUE}}, **SESSION}
ACCOUNT = {"session": {"account": VALUE}, **SESSION}
CHECK_SECRET = "check that PRESENCE_SESSION_SECRET is the secret of the framework"
NETWORKS = {  # by peer
    "10.0.0.1": "10.0.0.0/8",
    "127.0.0.1": "127.0.0.0/8",
    "172.16.3.4": "172.16.0.0/12",
    "192.168.0.1": "192.168.0.0/16",
    "::1": "::1/128",
    "fd00::1": "fc00::/7",
    "::ffff:10.0.0.1": "10.0.0.0/8",
    None: "unix",
}
# A cookie, the framework that sends it, the rule to set, and the rest of the remedy.
COOKIES = [
    ("session", "Flask", f"{FLASK}_user_id", " and PRESENCE_SESSION_SECRET to its SECRET_KEY"),
    ("session", "Starlette", "user=session:KEY", ""),
    ("session", "Pyramid", "user=pyramid-session:auth.userid", AND_SECRET),
    ("auth_tkt", "Pyramid", "user=auth-tkt", AND_SECRET),
    ("beaker.session.id", "Beaker", "user=session:KEY", ""),
]
DJANGO = "add presence_middleware.django.PresenceMiddleware at the end of MIDDLEWARE"
MINE = f"{FLASK}x@mine"
Mistake = tuple[str, dict[str, Any], str, str, str]
# The rules before guest=visitor, a request, the message about it, the remedy, and the framework.
# What a rule lacks is said as by `presence explain`: tests/unit/test_explain.py has the words.
MISTAKES: list[Mistake] = [
    *(
        ("user=auth", {"cookie": f"{name}={VALUE}"}, f"{name}{UNREAD}", chain(rule) + rest, made_by)
        for name, made_by, rule, rest in COOKIES
    ),
    ("user=auth", {"cookie": f"sessionid={VALUE}"}, f"sessionid{UNREAD}", DJANGO, "Django"),
    (MINE, {"cookie": "auth_tkt=x"}, UNREAD, chain(f"user=auth-tkt, {MINE}"), "Pyramid"),
    ("user=auth", BEARER, f"a bearer token{UNREAD}", BY_TOKEN, "a JWT"),
    (
        *("user=header:X-User", {"session": {"csrf": "x"}, **SESSION}, f"session{UNREAD}"),
        *(chain(f"{FLASK}_user_id, user=header:X-User"), "Flask"),
    ),
    (f"{FLASK}user", flask_cookie("another", user=VALUE), "another secret", CHECK_SECRET, ""),
    (f"{FLASK}user@session", USUAL, 'no key "user"; it', chain(f"{FLASK}_user_id@session"), ""),
    ("user=bearer:user", NESTED, "the key", chain("user=bearer:user.email"), ""),
    ("user=session:member", MEMBER, f"{NEVER}the key", chain("user=session:member.username"), ""),
    ("user=auth", ACCOUNT, f"auth{NEVER}the session", chain("user=session:account"), ""),
    *(
        ("user=auth", {"peer": peer, **HOPS}, PROXY, f'PRESENCE_TRUSTED_PROXIES="{at}", or', "")
        for peer, at in NETWORKS.items()
    ),
    ("user=auth", {"peer": "10.0.0.1", "forwarded": "for=::7"}, PROXY, '="10.0.0.0/8"', ""),
]


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("at_first", [FEW_VISITS, FEW_VISITS - 1], ids=["at once", "slowly"])
def test_a_mistake_that_visits_show_is_reported_once_with_the_line_to_set(
    mistake: Mistake, at_first: int, site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, request_, message, remedy, framework = mistake
    for name in ("flask", "starlette", "pyramid"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if framework.isalpha():  # no module is called "a JWT", and so all remedies are said
        monkeypatch.setitem(sys.modules, framework.lower(), sys)
    one = site(f"{rules}, guest=visitor")
    one.ask(over_wsgi(**request_), times=at_first)
    one.clock.now += SECONDS - 0.1
    assert one.said == []
    one.clock.now += 0.1
    if at_first < FEW_VISITS:
        assert one.said == []
        one.ask(over_wsgi(**request_))
    (notice,) = one.said
    assert message in notice
    assert remedy in notice
    assert f"so far: for {framework}, " in notice or not framework
    assert notice.endswith(LOOK) is (message != PROXY)
    one.ask(over_wsgi(**request_), times=2 * VISITS, pause=1)
    assert [other.partition(":")[0] for other in one.said] == [notice.partition(":")[0], NO_USER]
    for written in (VALUE, SECRET, "198.51", "10.0.0.1", "172.16.3.4"):
        assert written not in "".join(one.said)


def test_a_mistake_with_other_words_in_each_visit_is_reported_once(site: Open) -> None:
    """The keys of a session may be those of the pages that were visited."""
    one = site("user=session:user_id, guest=visitor")
    sessions = [{"email": VALUE, f"page_{number}": 1} for number in range(VISITS)]
    one.ask(*(over_wsgi(session=each) for each in sessions), pause=1)
    assert [each for each in one.said if "session:user_id has never matched" in each] == [
        f'the rule user=session:user_id{NEVER}the session has no key "user_id"; it has email, '
        f"page_{VISITS - 1}: {chain('user=session:email')}{LOOK}"
    ]


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


# The server, and what has no room.


@pytest.mark.parametrize(
    ("policy", "limit"),
    [("allkeys-lru", "50mb"), ("volatile-ttl", "50mb"), ("noeviction", "50mb"), ("allkeys-lru", 0)],
)
def test_a_server_that_may_evict_keys_is_reported_once(
    policy: str, limit: Any, own: Server, client: Any, site: Open
) -> None:
    client.config_set("maxmemory-policy", policy, "maxmemory", limit)
    one = site(redis_url=own.url)
    client.config_resetstat()
    text = f"the server may evict keys ({policy}): set maxmemory-policy noeviction"
    for _ in range(2):
        one.ask(over_wsgi())
        assert one.said == ([text] if limit and policy != "noeviction" else [])
    assert client.info("commandstats")["cmdstat_info"]["calls"] == 1


# What many requests show together.


def crowd(peer: str | None) -> Callable[[int], Sent]:
    return lambda number: over_wsgi(peer, user_agent=f"{VALUE} {number}")


def namesakes(view: Make = over_wsgi, **given: Any) -> Callable[[int], Sent]:
    """Requests, each from a network of its own."""
    return lambda number: view(f"23.4.{number >> 8}.{number & 255}", **given)


def networks(number: int) -> Sent:
    return over_wsgi(f"2001:4860:1:{number:x}::1")


TRUSTED = "PRESENCE_TRUSTED_PROXIES"
MEMBERS = "staff=header:X-Staff, member=auth, other=cookie:sid, guest=visitor"
BEHIND = {"trusted_proxies": "10.0.0.0/8, ::1, unix"}
GUESTS = "new guests from one"
SILENT = "come from one private address or unix socket without X-Forwarded-For"
HEADER = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
SAME = ["more than 50 addresses have the same id of kind user", "user=cookie:NAME"]
# An identity, settings, the seconds between requests, the request of each number, how many are
# right, and what the notice says.
Crowd = tuple[str, dict[str, Any], float, Callable[[int], Sent], int, list[str]]
STAFF = f"no member or staff among {VISITS} visits"
CROWDS: list[Crowd] = [
    # Most sites have more guests than users, and the first example of the README has no users.
    (DEFAULT, {}, 1, lambda _: over_wsgi(), VISITS - 1, [f"{NO_USER}: if some had logged in, "]),
    (BY_HEADER, {}, 1, lambda _: over_wsgi(), VISITS - 1, [NO_USER, LOOK]),
    (MEMBERS, {}, 1, lambda _: over_wsgi(), VISITS - 1, [STAFF, LOOK]),
    ("guest=visitor", BEHIND, 0, crowd(PUBLIC), 100, [f"more than 100 {GUESTS} address", TRUSTED]),
    ("guest=visitor", BEHIND, 0, networks, 2000, [f"more than 2000 {GUESTS} /48", TRUSTED]),
    ("guest=visitor", BEHIND, 0, crowd("::1"), 100, [SILENT, HEADER, TRUSTED]),
    ("guest=visitor", BEHIND, 0, crowd(None), 100, [SILENT, HEADER, TRUSTED]),
    (DEFAULT, {}, 0, namesakes(over_wsgi, user="user"), SHARED_BY, SAME),
    (DEFAULT, {}, 0, namesakes(over_asgi, user="user"), SHARED_BY, SAME),
    (DEFAULT, {}, 0, namesakes(over_asgi, user=SimpleUser("user")), SHARED_BY, SAME),
]


@pytest.mark.parametrize("handler", [lambda _: None, Visit.note], ids=["", "a handler asks"])
@pytest.mark.parametrize("crowd", CROWDS)
def test_what_many_requests_show_is_reported_once(
    crowd: Crowd, handler: Callable[[Visit], None], site: Open
) -> None:
    identity, others, pause, request_of, right, texts = crowd
    one = site(identity, **others)
    one.ask(*map(request_of, range(right)), pause=pause, handler=handler)
    assert one.said == []
    for _ in range(2):
        one.ask(*map(request_of, range(right, right + 60)), pause=pause, handler=handler)
        (notice,) = one.said
        assert all(text in notice for text in texts)
        assert not any(client in notice for client in (VALUE, PUBLIC, "2001:", "23.4."))


def visitors(number: int, **given: Any) -> Iterator[Sent]:
    return map(namesakes(**given), range(number))


SHARING = "user=auth, guest=user-agent, other=cookie:sid"
NO_VISITS = [{"PATH_INFO": "/healthz"}, {"HTTP_PRESENCE": "passive"}]
HERE = "127.0.0.1"
# A developer sends many requests, and cookies distinguish guests behind any proxy.
FROM_HERE = [
    *(over_wsgi(HERE, user="ann"), *[over_wsgi(HERE), over_wsgi("::1")] * 200),
    *(over_wsgi(HERE, cookie=f"sid={number}") for number in range(150)),
]
HIDDEN = over_wsgi("10.0.0.1", cookie=f"session={VALUE}", **HOPS).state
ASKED_BY_A_LAYER = WsgiRequest({**over_wsgi(**SESSION).state, USER: lambda: None})
# An identity, and a request that is right however often it comes.
RIGHT_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("user=auth, guest=django-session", {"cookie": f"sessionid={VALUE}"}),
    ("user=auth, guest=django-session:session", SESSION),
    ("user=auth, guest=cookie:auth_tkt:raw", {"cookie": f"auth_tkt={VALUE}"}),
    ("user=session:user.id, guest=visitor", {"cookie": f"beaker.session.id={VALUE}"}),
    (DEFAULT, {"cookie": f"PHPSESSID={VALUE}; xsessionid={VALUE}; Session={VALUE}"}),
    (DEFAULT, {"cookie": "a=sessionid; b=session=1; auth_tkt"}),
    (DEFAULT, {"cookie": "a=1;" + " " * 8000 + "x"}),  # once took minutes
    (DEFAULT, {"session": {"csrf": "x"}, **SESSION}),
    ("user=flask-session:_user_id", flask_cookie(csrf_token="x", _fresh=False)),
    ("user=bearer:sub, guest=visitor", token(sub="ann", exp=1)),
    (DEFAULT, HOPS),
    (DEFAULT, {"peer": "2001:4860::8888", "forwarded": "for=198.51.100.7"}),
    (DEFAULT, {"peer": "10.0.0.1", "x_real_ip": "198.51.100.7"}),
    (DEFAULT, {"peer": "10.0.0.1", "x_forwarded_for": "198.51.100.7, 10.0.0.1"}),
    ("user=auth, guest=cookie:sid", {"peer": "10.0.0.1", "cookie": "sid=1", **HOPS}),
]
# An identity, the seconds between requests, and these.
RIGHT: list[tuple[str, float, Iterable[Sent]]] = [
    *((each, 1, [over_wsgi(**given)] * (VISITS - 1)) for each, given in RIGHT_REQUESTS),
    (DEFAULT, 1, [ASKED_BY_A_LAYER] * (VISITS - 1)),
    # Once told apart, users are not looked at again.
    (
        SHARING,
        1,
        chain_of(
            (over_wsgi(f"23.4.0.{number}", user=f"user{number // 10}") for number in range(100)),
            visitors(3 * SHARED_BY, user="ann"),
        ),
    ),
    (SHARING, 60, visitors(3 * SHARED_BY, user="ann")),
    # Sharing is intended with `user-agent`, and a client may send any cookie.
    (
        SHARING,
        1,
        chain_of(
            [over_wsgi(user="ann")],
            visitors(2 * SHARED_BY),
            visitors(2 * SHARED_BY, cookie="sid=1", user_agent=""),
        ),
    ),
    *(
        (identity, 1, [over_wsgi(cookie=f"sid={VALUE}; session={VALUE}")] * 2 * VISITS)
        for identity in ("guest=visitor", "user=cookie:sid")
    ),
    *((f"user=auth, guest={source}", 1, FROM_HERE) for source in ("visitor", "cookie:sid")),
    (BY_HEADER, 1, [over_wsgi(user_agent="curl/8")] * 2 * VISITS),
    *((BY_HEADER, 1, [WsgiRequest({**HIDDEN, **each})] * 2 * VISITS) for each in NO_VISITS),
    (BY_HEADER, 1, [WsgiRequest({**over_wsgi().state, "PATH_INFO": "/logout"})] * 2 * VISITS),
]


@pytest.mark.parametrize(("identity", "pause", "requests"), RIGHT)
def test_what_is_right_is_not_reported(
    identity: str, pause: float, requests: Iterable[Sent], site: Open
) -> None:
    one = site(identity, logout="/logout")
    one.ask(*requests, pause=pause)
    one.clock.now += 2 * SECONDS
    assert one.said == []


# What all of them have in common.


@pytest.mark.parametrize(
    ("state", "error", "rest", "recorded"),
    [
        ({"PATH_INFO": 5, "HTTP_COOKIE": VALUE}, "TypeError", " and is not recorded: ", 0),
        ({"REMOTE_ADDR": PUBLIC, "HTTP_COOKIE": 5}, "AttributeError", ": the server or", 3),
    ],
    ids=["no path", "no cookie"],
)
def test_an_unreadable_request_is_reported_once_and_recorded_unless_its_path_is_unreadable(
    state: dict[str, Any], error: str, rest: str, recorded: int, site: Open
) -> None:
    one = site()
    one.ask(WsgiRequest(state), times=3)
    (notice,) = one.said
    assert notice.startswith(f"a request could not be read ({error}){rest}")
    assert VALUE not in notice
    assert one.recorder.stats().recorded == recorded


def test_a_forked_child_does_not_repeat_notices(site: Open) -> None:
    one = site()
    for _ in range(2):
        one.ask(over_wsgi(cookie=f"sessionid={VALUE}"), times=VISITS, pause=1)
        assert len(one.said) == 2
        one.recorder.reset()  # as a fork's child does


def test_few_requests_are_inspected(site: Open) -> None:
    """After the first requests, one a second; quiet seconds let more be inspected."""
    one = site()
    one.ask(over_wsgi(), times=1000)
    assert one.recorder.hints.look_at > one.clock.now
    assert one.said == [], "a few visits were inspected"
    one.clock.now += 1
    hidden = over_wsgi("10.0.0.1", **HOPS)
    one.ask(hidden, times=1000)
    one.clock.now += SECONDS
    assert one.said == [], "one visit was inspected"
    one.clock.now += FEW_VISITS
    one.ask(hidden, times=FEW_VISITS)
    assert PROXY in one.said[0]


def test_a_trusted_proxy_is_right_and_the_remedy_for_another_keeps_it(site: Open) -> None:
    one = site(trusted_proxies="192.168.0.0/16, unix")
    one.ask(over_wsgi("192.168.0.1", **HOPS), times=VISITS - 1, pause=1)
    assert one.said == []
    one.ask(over_wsgi("10.0.0.1", **HOPS), times=VISITS, pause=1)
    assert 'PRESENCE_TRUSTED_PROXIES="192.168.0.0/16, unix, 10.0.0.0/8"' in one.said[-1]


def test_remedies_that_differ_with_each_visit_take_a_bounded_share_of_memory(site: Open) -> None:
    hints = site("user=session:user_id, guest=visitor").recorder.hints
    with traced() as held:
        for number in range(2000):
            sent = over_wsgi(session={"email": VALUE, f"page_{number}": 1})
            hints.note(sent, 2.0 * number, Purpose.PAGE, ("guest", "x"))
        assert held() < 200_000


def test_each_kind_that_is_full_is_reported(site: Open) -> None:
    one = site("user=auth, staff=header:X-Staff, guest=visitor", max_members=2)
    one.ask(*(over_wsgi(user=f"{VALUE}{number}") for number in range(3)))
    one.ask(*(over_wsgi(x_staff=f"{VALUE}{number}") for number in range(3)))
    text = "is full and new ids are not recorded: raise PRESENCE_MAX_MEMBERS, which is 2"
    assert one.said == [f"kind user {text}", f"kind staff {text}"]


def test_a_crowd_of_which_a_process_cannot_hold_all_is_reported_once(site: Open) -> None:
    one = site(max_pending=2)
    one.ask(*(over_wsgi(user=f"{VALUE}{number}") for number in range(2)))
    assert one.said == []
    for _ in range(2):
        one.ask(*(over_wsgi(user=f"{VALUE}{number}") for number in range(3)))
        (text,) = one.said
        assert text.startswith("more than 2 people waited")
        assert text.endswith("raise PRESENCE_MAX_PENDING")
