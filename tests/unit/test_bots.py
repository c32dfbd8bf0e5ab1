"""Crawlers: recognized by the community's list, then counted, skipped or treated as guests."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import crawleruseragents
import pytest
from crawleruseragents import CRAWLER_USER_AGENTS_DATA

from presence_middleware import Identity, Presence, QueryError, Settings, UnsupportedQuery
from presence_middleware.identity import bots
from presence_middleware.identity.bots import LOOKUPS, Crawlers
from presence_middleware.identity.resolver import IdentityResolver
from presence_middleware.identity.rules import parse_chain
from presence_middleware.recorder import recorder_for
from presence_middleware.request import WsgiRequest
from tests.security.signed import SCHEMES
from tests.support.asking import Request, State, ask_asgi, ask_wsgi, nothing
from tests.support.backends import Server

SECRET = "a secret of the test's own, long enough for a token"
GOOGLEBOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
CURL = "curl/8.5.0"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
CHROME = "Mozilla/5.0 ({}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 {}Safari/537.36"
SAFARI = "Mozilla/5.0 ({}) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.1 {}Safari/{}"

BROWSERS = [
    FIREFOX,
    CHROME.format("Windows NT 10.0; Win64; x64", ""),
    CHROME.format("Macintosh; Intel Mac OS X 10_15_7", ""),
    CHROME.format("X11; CrOS x86_64 14541.0.0", ""),
    CHROME.format("Linux; Android 10; K", "Mobile "),
    CHROME.format("Linux; Android 10; K", "Mobile ") + " EdgA/141.0.0.0",
    CHROME.format("Windows NT 10.0; Win64; x64", "") + " Edg/141.0.0.0",
    CHROME.format("Windows NT 10.0; Win64; x64", "") + " OPR/122.0.0.0",
    CHROME.format("X11; Linux x86_64", "") + " Vivaldi/7.6.3797.63",
    CHROME.format("X11; Linux x86_64", "") + " YaBrowser/25.8.0.0",
    SAFARI.format("Macintosh; Intel Mac OS X 10_15_7", "", "605.1.15"),
    SAFARI.format("iPhone; CPU iPhone OS 18_1 like Mac OS X", "Mobile/15E148 ", "604.1"),
    SAFARI.format("iPad; CPU OS 18_1 like Mac OS X", "Mobile/15E148 ", "604.1"),
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (Android 15; Mobile; rv:140.0) Gecko/140.0 Firefox/140.0",
    "Mozilla/5.0 (Linux; Android 14; SAMSUNG SM-S911B) AppleWebKit/537.36 (KHTML, like Gecko) "
    "SamsungBrowser/28.0 Chrome/130.0.0.0 Mobile Safari/537.36",
    "Mozilla/5.0 (Windows NT 6.1; WOW64; Trident/7.0; rv:11.0) like Gecko",
    "Mozilla/4.0 (compatible; MSIE 8.0; Windows NT 6.1; Trident/4.0)",
    "Opera/9.80 (Windows NT 6.1; WOW64) Presto/2.12.388 Version/12.18",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/605.1.15 (KHTML, like Gecko) "
    "konqueror/5.0.97 Safari/605.1.15",
    "Lynx/2.9.2 libwww-FM/2.14 SSL-MM/1.4.1 OpenSSL/3.0.13",
    "w3m/0.5.3+git20230121",
    "ELinks/0.16.1.1 (textmode; Linux; 80x24-2)",
]
# What patterns with a gap, or for whatever is not a dash, let through.
GAPS = [
    "ContextualBot{}outcomes.net",
    "ContextualBot/{} outcomes.net",
    "Mozilla/5.0 (compatible) Current{}RSS Reader",
    "Current/1.0 {} RSS Reader",
    "Spider{}spider.com",
    "Spider/{} (spider.com)",
    "AdsBot-Google{}",
    "BlogTraffic/1.{} Feed-Fetcher",
]
WRITTEN = ["7", "/ann@example.com/", "\x07", "\u202e", " 4915112345678 ", "4915112345678", "\udcff"]


def of(user_agent: str) -> WsgiRequest:
    return WsgiRequest({"HTTP_USER_AGENT": user_agent, "REMOTE_ADDR": "192.0.2.7"})


class Time:
    """Seconds of a clock that only the test moves, or that runs on with every look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


@pytest.fixture(scope="module")
def named() -> Callable[[str], str | None]:
    """Tells a crawler's name with no limit to how many are looked up."""
    crawlers = Crawlers(Time(step=1.0))
    return lambda user_agent: crawlers(of(user_agent))


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The User-Agents that were looked up in the list, in order."""

    def is_crawler(user_agent: str) -> bool:
        found.append(user_agent)
        return look(user_agent)

    look: Callable[[str], bool] = crawleruseragents.is_crawler
    found: list[str] = []
    monkeypatch.setattr(crawleruseragents, "is_crawler", is_crawler)
    return found


def test_every_listed_user_agent_gets_a_short_printable_crawler_name(
    named: Callable[[str], str | None],
) -> None:
    agents = [agent for entry in CRAWLER_USER_AGENTS_DATA for agent in entry["instances"]]
    names = {agent: named(agent) for agent in agents}
    assert [agent for agent, name in names.items() if not name] == []
    assert len(names) > 1500
    for agent, name in names.items():
        assert name is not None
        assert name in agent
        assert len(name) <= 64
        assert name.isascii()
        assert name.isprintable()
        assert name == name.strip()


@pytest.mark.parametrize("user_agent", [*BROWSERS, "", " ", "-", "é", "\udcff", "Googlebo", "bot"])
def test_browsers_are_not_crawlers(user_agent: str, named: Callable[[str], str | None]) -> None:
    assert named(user_agent) is None


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        (GOOGLEBOT, "Googlebot"),
        (CURL, "curl"),
        ("Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)", "bingbot"),
        (f"{CHROME.format('X11; Linux x86_64', '')} HeadlessChrome/141", "HeadlessChrome"),
        ("GPTBot", "GPTBot"),
        ("python-requests/2.32.3", "python-requests"),
        ("AdsBot-Google (+http://www.google.com/adsbot.html)", "AdsBot-Google"),
        ("AdsBot-Google", "AdsBot-Google"),
        ("googlebot-lookalike", None),  # the list's patterns say in which case
    ],
)
def test_crawlers_are_named_as_in_the_list(
    user_agent: str, name: str | None, named: Callable[[str], str | None]
) -> None:
    assert named(user_agent) == name


@pytest.mark.parametrize("agent", GAPS)
def test_crawler_names_never_contain_text_from_the_client(
    agent: str, named: Callable[[str], str | None]
) -> None:
    found = {written: named(agent.format(written)) for written in WRITTEN}
    (name,) = {name for name in found.values() if name}  # with not all is it a crawler's
    assert name.isprintable()


def test_every_pattern_with_a_wildcard_is_tested() -> None:
    """A new pattern of the list that matches arbitrary text needs a line in `GAPS`."""
    patterns = [entry["pattern"] for entry in CRAWLER_USER_AGENTS_DATA]
    loose = {text for text in patterns if re.search(r"(?<!\\)[*+{.]|\[\^|\\[dwDWS]", text)}
    tried = [agent.format("7") for agent in GAPS]
    assert len(loose) > 3
    assert not {text for text in loose if not any(re.search(text, agent) for agent in tried)}


def test_a_user_agent_is_looked_up_once(looked_up: list[str]) -> None:
    crawlers = Crawlers(Time(step=1.0))
    agents = [GOOGLEBOT, FIREFOX, CURL]
    for _ in range(20):
        assert [crawlers(of(agent)) for agent in agents] == ["Googlebot", None, "curl"]
    assert looked_up == agents


def test_a_request_without_a_user_agent_is_not_looked_up(looked_up: list[str]) -> None:
    crawlers = Crawlers(Time(step=1.0))
    assert crawlers(WsgiRequest({})) is crawlers(of("")) is None
    assert looked_up == []


def test_lookups_per_second_are_limited_and_cached_user_agents_are_free(
    looked_up: list[str],
) -> None:
    now = Time()
    crawlers = Crawlers(now)
    assert crawlers(of(GOOGLEBOT)) == "Googlebot"
    for number in range(1000):
        assert crawlers(of(f"{FIREFOX} {number}")) is None
        assert crawlers(of(GOOGLEBOT)) == "Googlebot"
    assert len(looked_up) == LOOKUPS
    now.now = 0.999
    assert crawlers(of(CURL)) is None, "past the budget, nobody is a crawler"
    now.now = 1.0
    assert crawlers(of(CURL)) == "curl", "nor is it remembered that one was none"
    for number in range(1000):
        crawlers(of(f"{FIREFOX} of another second {number}"))
    assert len(looked_up) == 2 * LOOKUPS
    now.now = 60.0
    for number in range(1000):
        crawlers(of(f"{FIREFOX} after a quiet minute {number}"))
    assert len(looked_up) == 3 * LOOKUPS, "what was not used is not saved up"


def test_a_flood_of_user_agents_evicts_no_crawler_and_the_caches_are_bounded(
    looked_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bots, "REMEMBERED", 100)
    crawlers = Crawlers(Time(step=1.0))
    for flood in (f"{FIREFOX} {{}}", "curl/{}", "Googlebot/2.1 (no {})"):
        for number in range(450):
            crawlers(of(flood.format(number)))
            if number % 50 == 0:
                assert crawlers(of(GOOGLEBOT)) == "Googlebot"
        looked = len(looked_up)
        for number in range(450):
            crawlers(of(flood.format(number)))
        assert len(looked_up) - looked >= 350, "most of them were forgotten"
    assert looked_up.count(GOOGLEBOT) == 1


def test_the_caches_contain_no_user_agent() -> None:
    crawlers = Crawlers(Time(step=1.0))
    for agent in (f"{FIREFOX} written-by-a-client", f"{GOOGLEBOT} written-by-a-client"):
        crawlers(of(agent))
        assert "written-by-a-client" not in f"{vars(crawlers)}"


LONG = 65536


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (b"a" * LONG, None),
        (b"(" * LONG, None),
        (b" " * LONG, None),
        (b"\xff" * LONG, None),
        ("é".encode() * (LONG // 2), None),
        (b"ContextualBot" * (LONG // 13), None),
        (b"ContextualBot outcomes.ne" * (LONG // 25), None),
        (b"Spider" * (LONG // 6), None),
        (b"Current RSS " * (LONG // 12), None),
        (GOOGLEBOT.encode() + b"a" * LONG, "Googlebot"),
        (b"Spider" * 100 + b"spider.com" * (LONG // 10), "Spider"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_user_agent_of_64_kb_costs_little(
    agent: bytes, name: str | None, prefix: str, valkey: Server
) -> None:
    settings = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, secret=SECRET)
    request = Request([("User-Agent", agent)])
    started = time.process_time()
    found = [ask(settings, request) for ask in (ask_wsgi, ask_asgi) for _ in range(3)]
    assert time.process_time() - started < 1.0
    assert {who.kind for who in found if who} == {"bot" if name else "guest"}
    assert {who.id for who in found if who and name} == ({name} if name else set())
    assert recorder_for(settings).flush()
    counts = {"user": 0, "guest": not name, "bot": bool(name)}
    assert Presence(settings).counts() == counts
    recorder_for(settings).close()


def test_a_crawler_name_far_into_the_user_agent_is_ignored(
    named: Callable[[str], str | None],
) -> None:
    assert named("a " * 5000 + "Googlebot/2.1") is None


@pytest.mark.parametrize(
    ("identity", "awaits"), [("user=auth, guest=ip", True), ("guest=ip", False)]
)
def test_a_crawler_may_still_log_in_where_a_layer_sets_users(identity: str, awaits: bool) -> None:
    resolver = IdentityResolver(
        parse_chain(identity), secret=SECRET, session_secrets=(), bots="count"
    )
    found = resolver.resolve(of(GOOGLEBOT))
    assert found is not None
    assert (found[1].kind, found[1].awaits_login) == ("bot", awaits)


# From here on, whole sites: over WSGI, and over ASGI by HTTP and by WebSocket.


def ask_websocket(
    settings: Settings, request: Request, inner: Callable[[State], object] = nothing
) -> Identity | None:
    socket = replace(request, state={**request.state, "type": "websocket"})
    return ask_asgi(settings, socket, inner)


def chain(identity: str, mode: str = "count", **others: object) -> Settings:
    """Settings that need no Redis."""
    given: dict[str, Any] = {"identity": identity, "bots": mode, "enabled": False}
    return Settings.from_env({}, secret=SECRET, session_secret=SECRET, **given, **others)


def by(agent: str, *headers: tuple[str, str], **others: Any) -> Request:
    sent = [("User-Agent", agent), *headers]
    return Request([(name, value.encode()) for name, value in sent], **others)


def of_header(view: WsgiRequest) -> str | None:
    """A function of the site's own."""
    return view.header("x-user")


USER = ("X-User", "ann")
JWT = SCHEMES["jwt"].make(SECRET, {"who": "ann", "exp": 4102444800})
LOGINS: list[tuple[str, Request]] = [
    ("auth", by(GOOGLEBOT, user="ann")),
    ("auth", by(GOOGLEBOT, session={"user_id": "ann"})),
    ("header:X-User", by(GOOGLEBOT, USER)),
    ("session:id", by(GOOGLEBOT, session={"id": "ann"})),
    ("environ:site.user", by(GOOGLEBOT, state={"site.user": "ann"})),
    ("scope:site.user", by(GOOGLEBOT, state={"site.user": "ann"})),
    ("tests.unit.test_bots:of_header", by(GOOGLEBOT, USER)),
    *(
        (f"{name}-session:who", by(GOOGLEBOT, ("Cookie", f"session={SCHEMES[name].make(SECRET)}")))
        for name in ("flask", "starlette")
    ),
    ("bearer:who", by(GOOGLEBOT, ("Authorization", f"Bearer {JWT}"))),
]


def log_in(state: State) -> None:
    state["REMOTE_USER" if "REQUEST_METHOD" in state else "user"] = "ann"


def identify(state: State) -> None:
    state["presence_middleware.visit"].identify("ann")


COOKIE, COOKIES = ("Cookie", "sid=1"), ("Cookie", "sid=1; sessionid=2")
MONITOR = ("X-Bot", "pinger")
FORGEABLE = ["cookie:sid", "cookie:sid:raw", "django-session", "user-agent", "ip", "ip:raw"]
SITE, BACKWARDS = "user=header:X-User, guest=cookie:sid", "guest=cookie:sid, user=auth"
NAMED = "bot=header:X-Bot, user=auth, guest=visitor"
CRAWLER, PINGER, ANN = "bot:Googlebot - guest", "bot:pinger " * 3, "user:ann " * 3
USUAL = "user=auth, guest=visitor"
# A chain, a request, a layer, and who it is if bots are counted, skipped, or nobody looks for them.
CHAINS: list[tuple[str, Request, Callable[[State], object], str]] = [
    *((f"user={source}, guest=visitor", asked, nothing, ANN) for source, asked in LOGINS),
    *((f"user={source}, guest=visitor", by(GOOGLEBOT), nothing, CRAWLER) for source, _ in LOGINS),
    *(
        ("user=auth, guest=visitor", by(GOOGLEBOT), inner, "user:ann " * 3)
        for inner in (log_in, identify)
    ),
    *(
        (identity.format(source), by(agent, COOKIES), nothing, who.replace("KIND", kind))
        for source in (*FORGEABLE, "visitor")
        for identity, kind in (
            *(("guest={}", "guest"), ("user=auth, guest={}", "guest")),
            ("user={}" if source == "visitor" else "user={}, guest=visitor", "user"),
        )
        for agent, who in ((GOOGLEBOT, "bot:Googlebot - KIND"), (FIREFOX, "KIND KIND KIND"))
    ),
    ("guest=visitor", by(GOOGLEBOT, user="ann"), nothing, CRAWLER),  # nothing reads the login
    (SITE, by(GOOGLEBOT), nothing, "bot:Googlebot - -"),
    (SITE, by(GOOGLEBOT, COOKIE), nothing, CRAWLER),
    (SITE, by(GOOGLEBOT, COOKIE, USER), nothing, ANN),
    (SITE, by(FIREFOX), nothing, "- - -"),
    (SITE, by(FIREFOX, COOKIE), nothing, "guest guest guest"),
    (BACKWARDS, by(GOOGLEBOT), nothing, "bot:Googlebot - -"),
    (BACKWARDS, by(GOOGLEBOT, user="ann"), nothing, ANN),
    (BACKWARDS, by(GOOGLEBOT, COOKIE), nothing, CRAWLER),
    (BACKWARDS, by(FIREFOX, COOKIE), nothing, "guest guest guest"),
    ("guest=cookie:sid, user=header:X-User", by(GOOGLEBOT), nothing, "bot:Googlebot - -"),
    ("guest=cookie:sid, user=header:X-User", by(GOOGLEBOT, USER), nothing, ANN),
    ("guest=ip, user=auth", by(GOOGLEBOT), nothing, CRAWLER),
    ("guest=ip, user=auth", by(FIREFOX), nothing, "guest guest guest"),
    ("guest=ip, user=header:X-User", by(GOOGLEBOT), nothing, CRAWLER),
    ("user=auth", by(GOOGLEBOT), nothing, "bot:Googlebot - -"),
    ("user=auth", by(FIREFOX), nothing, "- - -"),
    (NAMED, by(GOOGLEBOT), nothing, CRAWLER),
    (NAMED, by(GOOGLEBOT, user="a"), nothing, "user:a " * 3),
    (NAMED, by(FIREFOX), nothing, "guest guest guest"),
    *((NAMED, by(agent, MONITOR), nothing, PINGER) for agent in (GOOGLEBOT, FIREFOX)),
]


@pytest.mark.parametrize(("identity", "request_", "inner", "expected"), CHAINS)
def test_who_a_request_is_from_in_each_mode(
    identity: str, request_: Request, inner: Callable[[State], object], expected: str
) -> None:
    for mode, who in zip(("count", "skip", "off"), expected.split(), strict=True):
        kind, _, id = who.partition(":")
        settings = chain(identity, mode)
        if identity == NAMED:
            assert settings.kinds == ("bot", "user", "guest")
            assert settings.store_of("bot") == "hyperloglog"
        for ask in (ask_wsgi, ask_asgi, ask_websocket):
            found = ask(settings, request_, inner)
            assert (found and found.kind) == (None if kind == "-" else kind), (mode, ask)
            assert not id or found == Identity(kind, id)
            assert found == ask(settings, request_, inner), "it is the same again"


@pytest.fixture
def visited(valkey: Server, prefix: str) -> Iterator[Callable[..., Settings]]:
    """A site where two crawlers, one of them twice, and two browsers have been."""

    def visit(**others: object) -> Settings:
        settings = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, **others)
        for request in (by(GOOGLEBOT), by(f"{GOOGLEBOT} again"), by(CURL), by(FIREFOX)):
            for ask in (ask_wsgi, ask_asgi, ask_websocket):
                ask(settings, request)
        ask_wsgi(settings, by(CURL, user="ann"))
        assert recorder_for(settings).flush()
        sites.append(settings)
        return settings

    sites: list[Settings] = []
    yield visit
    for settings in sites:
        recorder_for(settings).close()


def test_crawlers_are_counted_as_a_kind_of_their_own(visited: Callable[..., Settings]) -> None:
    presence = Presence(visited())
    assert presence.counts() == {"user": 1, "guest": 1, "bot": 2}
    assert presence.count("bot") == 2
    assert presence.count() == 1
    questions: list[Callable[[], object]] = [
        lambda: presence.online("bot"),
        lambda: presence.is_online("Googlebot", "bot"),
        lambda: presence.last_seen("Googlebot", "bot"),
    ]
    for question in questions:
        with pytest.raises(UnsupportedQuery, match="'bot' is stored as a hyperloglog"):
            question()


@pytest.mark.parametrize("store", ["bot=sorted-set", "bot=minute-sets"])
def test_crawlers_can_be_listed_from_a_store_with_names(
    store: str, visited: Callable[..., Settings]
) -> None:
    presence = Presence(visited(store=store))
    assert presence.counts() == {"user": 1, "guest": 1, "bot": 2}
    assert {sighting.id for sighting in presence.online("bot")} == {"Googlebot", "curl"}
    assert presence.is_online("Googlebot", "bot")


def test_a_store_for_all_kinds_does_not_change_the_store_of_crawlers(
    visited: Callable[..., Settings],
) -> None:
    settings = visited(store="minute-sets")
    assert [settings.store_of(kind) for kind in settings.kinds] == [
        *("minute-sets", "minute-sets", "hyperloglog")
    ]
    assert Presence(settings).counts() == {"user": 1, "guest": 1, "bot": 2}


def test_skipped_crawlers_are_not_recorded(visited: Callable[..., Settings]) -> None:
    settings = visited(bots="skip")
    presence = Presence(settings)
    assert presence.counts() == {"user": 1, "guest": 1}
    with pytest.raises(QueryError, match="unknown kind 'bot'"):
        presence.count("bot")
    stats = recorder_for(settings).stats()
    assert (stats.recorded, stats.dropped) == (4, {}), "three times Firefox, once Ann"


def test_crawlers_are_guests_when_detection_is_off(visited: Callable[..., Settings]) -> None:
    settings = visited(bots="off")
    assert settings.kinds == ("user", "guest")
    assert Presence(settings).counts() == {"user": 1, "guest": 4}


def test_an_inner_layer_identifies_a_bot_only_where_bots_are_counted() -> None:
    def identify(state: State) -> None:
        state["presence_middleware.visit"].identify("pinger", kind="bot")

    assert ask_wsgi(chain("user=auth"), by(FIREFOX), identify) == Identity("bot", "pinger")
    for mode in ("skip", "off"):
        with pytest.raises(QueryError, match="unknown kind 'bot'"):
            ask_wsgi(chain("user=auth, guest=visitor", mode), by(FIREFOX), identify)


def test_bot_modes_are_case_insensitive_and_unknown_modes_are_refused() -> None:
    assert Settings.from_env({"PRESENCE_BOTS": " Skip "}).bots == "skip"
    assert Settings.from_env({}).bots == "count"
    with pytest.raises(ValueError, match="PRESENCE_BOTS='no': expected one of count, skip, off"):
        Settings.from_env({"PRESENCE_BOTS": "no"})
