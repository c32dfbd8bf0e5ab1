"""Crawlers: recognized by the community's list, then counted, skipped or treated as guests."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from shutil import make_archive
from typing import Any

import crawleruseragents
import pytest
from crawleruseragents import CRAWLER_USER_AGENTS_DATA

from presence_middleware import Identity, Settings
from presence_middleware.identity import bots
from presence_middleware.identity.bots import LOOKUPS, CrawlerList, Crawlers
from presence_middleware.request import WsgiRequest
from tests.security.signed import SCHEMES, flask_cookie, starlette_cookie
from tests.support.asking import Request, State, ask_asgi, ask_wsgi, names, nothing
from tests.support.beside import on_call
from tests.support.commands import run_program
from tests.support.statuses import FIREFOX, GOOGLEBOT
from tests.support.timed_site import Clock

SECRET = "a secret of the test's own, long enough for a token"
CURL = "curl/8.5.0"
CHROME = "Mozilla/5.0 ({}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 {}Safari/537.36"
SAFARI = "Mozilla/5.0 ({}) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.1 {}Safari/{}"

BROWSERS = [
    FIREFOX,
    CHROME.format("Windows NT 10.0; Win64; x64", ""),
    CHROME.format("Linux; Android 10; K", "Mobile "),
    CHROME.format("Windows NT 10.0; Win64; x64", "") + " Edg/141.0.0.0",
    SAFARI.format("Macintosh; Intel Mac OS X 10_15_7", "", "605.1.15"),
    SAFARI.format("iPhone; CPU iPhone OS 18_1 like Mac OS X", "Mobile/15E148 ", "604.1"),
    "Mozilla/5.0 (Android 15; Mobile; rv:140.0) Gecko/140.0 Firefox/140.0",
    "Mozilla/5.0 (Linux; Android 14; SAMSUNG SM-S911B) AppleWebKit/537.36 (KHTML, like Gecko) "
    "SamsungBrowser/28.0 Chrome/130.0.0.0 Mobile Safari/537.36",
    "Mozilla/5.0 (Windows NT 6.1; WOW64; Trident/7.0; rv:11.0) like Gecko",
    "Mozilla/4.0 (compatible; MSIE 8.0; Windows NT 6.1; Trident/4.0)",
    "Lynx/2.9.2 libwww-FM/2.14 SSL-MM/1.4.1 OpenSSL/3.0.13",
    "ELinks/0.16.1.1 (textmode; Linux; 80x24-2)",
]
# What patterns with a gap, or for whatever is not a dash, let through.
GAPS = [
    "ContextualBot{}outcomes.net",
    "Mozilla/5.0 (compatible) Current{}RSS Reader",
    "Spider{}spider.com",
    "AdsBot-Google{}",
    "BlogTraffic/1.{} Feed-Fetcher",
]
WRITTEN = ["7", "/ann@example.com/", "\x07", "\u202e", " 4915112345678 ", "4915112345678", "\udcff"]


def of(user_agent: str) -> WsgiRequest:
    return WsgiRequest({"HTTP_USER_AGENT": user_agent, "REMOTE_ADDR": "192.0.2.7"})


Named = Callable[[str], str | None]


@pytest.fixture(scope="module")
def named() -> Named:
    """Tells a crawler's name with no limit to how many are looked up."""
    crawlers = Crawlers(count(1.0).__next__)
    return lambda user_agent: crawlers(of(user_agent))


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The User-Agents that were looked up in the list, in order."""
    found: list[str] = []
    on_call(monkeypatch, CrawlerList, "name_of", lambda _, user_agent: found.append(user_agent))
    return found


def test_the_list_is_read_whatever_the_locale_is() -> None:
    """Under mod_wsgi, it is that of Apache, which is C on Debian."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = run_program("from presence_middleware import recorder_for; recorder_for()", **locale)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_list_is_read_from_a_zip_file(tmp_path: Path) -> None:
    package = Path(crawleruseragents.__file__).parent
    archive = make_archive(str(tmp_path / "site"), "zip", package.parent, package.name)
    program = """
import sys
sys.path.insert(0, sys.argv[1])
from presence_middleware.identity.bots import crawler_list
print(crawler_list().name_of(sys.argv[2]))
"""
    ended = run_program(program, archive, GOOGLEBOT)
    assert (ended.stdout, ended.stderr) == ("Googlebot\n", "")


def test_every_listed_user_agent_gets_a_short_printable_crawler_name(named: Named) -> None:
    agents = {agent for entry in CRAWLER_USER_AGENTS_DATA for agent in entry["instances"]}
    assert len(agents) > 1500
    for agent in agents:
        name = named(agent)
        assert name, agent
        assert name in agent
        assert len(name) <= 64
        assert name.isascii()
        assert name.isprintable()
        assert name == name.strip()


NAMES: dict[str, str | None] = {
    **dict.fromkeys([*BROWSERS, "", " ", "-", "é", "\udcff", "Googlebo", "bot"]),
    GOOGLEBOT: "Googlebot",
    CURL: "curl",
    "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)": "bingbot",
    f"{CHROME.format('X11; Linux x86_64', '')} HeadlessChrome/141": "HeadlessChrome",
    "GPTBot": "GPTBot",
    "W3C-checklink/4.2 [4.20] libwww-perl/5.803": "W3C-checklink",
    "AdsBot-Google (+http://www.google.com/adsbot.html)": "AdsBot-Google",
    "a " * 5000 + "Googlebot/2.1": None,  # not so far into it
    "googlebot-lookalike": None,  # the list's patterns say in which case
}


def test_crawlers_are_named_as_in_the_list_and_browsers_are_none(named: Named) -> None:
    assert {agent: named(agent) for agent in NAMES} == NAMES


@pytest.mark.parametrize("agent", GAPS)
def test_crawler_names_never_contain_text_from_the_client(agent: str, named: Named) -> None:
    found = {written: named(agent.format(written)) for written in WRITTEN}
    (name,) = {name for name in found.values() if name}  # with not all is it a crawler's
    assert name.isprintable()


def test_lookups_a_second_are_limited_and_cached_user_agents_are_free(looked_up: list[str]) -> None:
    now = Clock(0.0)
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
    monkeypatch.setattr(bots, "MOST_AGENTS", 100)
    crawlers = Crawlers(count(1.0).__next__)
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


# From here on, whole sites: over WSGI, and over ASGI by HTTP and by WebSocket.


def ask_websocket(
    settings: Settings, request: Request, inner: Callable[[State], object] = nothing
) -> Identity | None:
    return ask_asgi(settings, replace(request, state={**request.state, "type": "websocket"}), inner)


def by(agent: str, *headers: tuple[str, str], **others: Any) -> Request:
    sent = [("User-Agent", agent), *headers]
    return Request([(name, value.encode()) for name, value in sent], **others)


USER = ("X-User", "ann")
JWT = SCHEMES["jwt"].make(SECRET, {"who": "ann", "exp": 4102444800})
LOGINS: list[tuple[str, Request]] = [
    ("auth", by(GOOGLEBOT, user="ann")),
    ("auth", by(GOOGLEBOT, session={"user_id": "ann"})),
    ("header:X-User", by(GOOGLEBOT, USER)),
    ("environ:site.user", by(GOOGLEBOT, state={"site.user": "ann"})),
    ("flask-session:who", by(GOOGLEBOT, ("Cookie", f"session={flask_cookie(SECRET)}"))),
    ("starlette-session:who", by(GOOGLEBOT, ("Cookie", f"session={starlette_cookie(SECRET)}"))),
    ("bearer:who", by(GOOGLEBOT, ("Authorization", f"Bearer {JWT}"))),
]


def log_in(state: State) -> None:
    state["REMOTE_USER" if "REQUEST_METHOD" in state else "user"] = "ann"


COOKIE, COOKIES = ("Cookie", "sid=1"), ("Cookie", "sid=1; sessionid=2")
MONITOR = ("X-Bot", "pinger")
FORGEABLE = ["cookie:sid", "cookie:sid:raw", "django-session", "user-agent", "ip", "ip:raw"]
SITE, BACKWARDS = "user=header:X-User, guest=cookie:sid", "guest=cookie:sid, user=auth"
NAMED = "bot=header:X-Bot, user=auth, guest=visitor"
CRAWLER, PINGER, ANN = "bot:Googlebot - guest", "bot:pinger " * 3, "user:ann " * 3
# A chain, a request, a layer, and who it is if bots are counted, skipped, or nobody looks for them.
CHAINS: list[tuple[str, Request, Callable[[State], object], str]] = [
    *((f"user={source}, guest=visitor", asked, nothing, ANN) for source, asked in LOGINS),
    *((f"user={source}, guest=visitor", by(GOOGLEBOT), nothing, CRAWLER) for source, _ in LOGINS),
    *(("user=auth, guest=visitor", by(GOOGLEBOT), inner, ANN) for inner in (log_in, names("ann"))),
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
    ("guest=cookie:sid, user=header:X-User", by(GOOGLEBOT), nothing, "bot:Googlebot - -"),
    ("guest=cookie:sid, user=header:X-User", by(GOOGLEBOT, USER), nothing, ANN),
    ("guest=ip, user=auth", by(GOOGLEBOT), nothing, CRAWLER),
    ("user=auth", by(GOOGLEBOT), nothing, "bot:Googlebot - -"),
    (NAMED, by(GOOGLEBOT), nothing, CRAWLER),
    (NAMED, by(GOOGLEBOT, user="a"), nothing, "user:a " * 3),
    *((NAMED, by(agent, MONITOR), nothing, PINGER) for agent in (GOOGLEBOT, FIREFOX)),
]


@pytest.mark.parametrize(("identity", "request_", "inner", "expected"), CHAINS)
def test_who_a_request_is_from_in_each_mode(
    identity: str, request_: Request, inner: Callable[[State], object], expected: str
) -> None:
    given = {"identity": identity, "secret": SECRET, "session_secret": SECRET}
    for mode, who in zip(("count", "skip", "off"), expected.split(), strict=True):
        kind, _, id = who.partition(":")
        settings = Settings.from_env({}, **given, bots=mode, enabled=False)  # needs no Redis
        if identity == NAMED:
            assert settings.kinds == ("bot", "user", "guest")
            assert settings.store_of("bot") == "hyperloglog"
        for ask in (ask_wsgi, ask_asgi, ask_websocket):
            found = ask(settings, request_, inner)
            assert (found and found.kind) == (None if kind == "-" else kind), (mode, ask)
            assert not id or found == Identity(kind, id)
            assert found == ask(settings, request_, inner), "it is the same again"
