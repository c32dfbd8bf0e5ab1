"""`presence explain`: who a request counts as, and why."""

import json
import time

import jwt
import pytest
from itsdangerous import URLSafeSerializer

from presence_middleware import Request, Settings
from presence_middleware.explain import environ_of, explain
from tests.security.signed import at, flask_cookie, starlette_cookie
from tests.support.commands import run_command
from tests.support.statuses import FIREFOX, GOOGLEBOT

pytestmark = pytest.mark.filterwarnings("ignore:'cgi' is deprecated:DeprecationWarning")

SECRET = "a secret of the test's own, long enough for a token"
VALUE = "canary-value"
BROWSER, CRAWLER = f"User-Agent: {FIREFOX}", f"User-Agent: {GOOGLEBOT}"
BY_APP = "set by the app, so it cannot be seen from outside: ask in a handler with visit.identity"
UNLESS = ", unless the app shows another user"
NOT_ASKED = "not asked"


def session(secret: str = SECRET, **content: object) -> str:
    return f"Cookie: theme=x; session={flask_cookie(secret, content)}"


def token(**claims: object) -> str:
    return f"Authorization: Bearer {jwt.encode(claims, SECRET)}"


def old_session() -> str:
    with at(time.time() - 15 * 86400):
        return f"Cookie: session={starlette_cookie(SECRET)}"


def by_key(request: Request) -> str | None:
    return {"k1": "shop-7"}.get(request.header("x-key") or "")


def broken(_: Request) -> str:
    raise KeyError(VALUE)


HERE = f"{__name__}:"
FLASK, JWT, HEADER = "user=flask-session:_user_id", "user=bearer:sub", "user=header:X-User"
OTHER = "user=flask-session:user"
USUAL = session(_user_id=VALUE, _fresh=True, _id=VALUE)
MANY = session(account={"id": VALUE}, a=1, b=1, c=1, d=1, e=1, f=1, g=1, h=1, i=1)
LOGIN = f"Cookie: login={URLSafeSerializer(SECRET).dumps({'x': VALUE})!s}"
TO_TRY = 'no: the session has no key "user"; it has {} (try flask-session:{})'
# Of a rule, what it prints for a header.
RULES: list[tuple[str, str, str]] = [
    (FLASK, session(_user_id=42), "user 42"),
    (FLASK, BROWSER, "no: no such cookie"),
    (FLASK, session("another", _user_id=42), "no: signed with another secret"),
    (FLASK, f"Cookie: session={'x' * 9000}", "no: longer than 8192 characters, or not ASCII"),
    (OTHER, USUAL, TO_TRY.format("_fresh, _id, _user_id", "_user_id")),
    (
        "user=flask-session:user@session",
        session(user={"email": VALUE, "name": VALUE}),
        'no: the key "user" of the session is a dictionary: name a field, such as user.email; '
        "it has email, name (try flask-session:user.email@session)",
    ),
    (OTHER, session(user=[VALUE]), 'no: the key "user" of the session is a list, which is no id'),
    (OTHER, MANY, TO_TRY.format("a, account, b, c, d, e, f, g, 2 others", "account.id")),
    ("user=starlette-session:user", old_session(), "no: expired"),
    (JWT, token(sub="ann"), "user ann"),
    (JWT, BROWSER, "no: no such token"),
    (JWT, token(email=VALUE), 'no: the token has no key "sub"; it has email (try bearer:email)'),
    ("user=signed:@login", LOGIN, "no: the cookie has no usual key of a user; it has x"),
    ("user=auth-tkt", f"Cookie: auth_tkt={VALUE}", "no: signed with another secret"),
    (HEADER, "X-User: ann", "user ann"),
    (HEADER, BROWSER, "no: no such header"),
    ("user=cookie:sid:raw", "Cookie: sid=1", "user 1"),
    ("user=environ:HTTP_X_USER", "x-user: ann", "user ann"),
    ("user=scope:state.user", BROWSER, BY_APP),
    ("user=auth", BROWSER, BY_APP),
    ("user=identify", BROWSER, BY_APP),
    ("user=basic", f"Authorization: Basic {VALUE}", "no: no user of HTTP Basic"),
    (f"user={HERE}by_key", "X-Key: k1", "user shop-7"),
    (f"user={HERE}by_key", BROWSER, "no: it returned no id"),
    (f"user={HERE}broken", BROWSER, "no: it raised KeyError"),
    ("user=ip:raw", BROWSER, "user 203.0.113.9"),
    ("user=user-agent:raw", "X-User: ann", "no: no User-Agent"),
]


def sent(
    *headers: str, line: str = "GET / HTTP/1.1", address: str = "203.0.113.9"
) -> dict[str, str]:
    return environ_of(line, headers, address)


def explained(settings: dict[str, str], sent: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    given = {"session_secret": SECRET, "secret": SECRET, **settings}
    answer = explain(Settings.from_env({}, **given), sent)
    texts = [answer["request"], answer["conclusion"], *answer["hints"]]
    return texts, {rule["name"]: rule["result"] for rule in answer["rules"]}


# Signatures have a time, and processes that run tests together must agree on names.
@pytest.mark.parametrize(("rule", "header", "expected"), RULES, ids=map(str, range(len(RULES))))
def test_each_rule_says_what_it_finds_or_why_nothing(rule: str, header: str, expected: str) -> None:
    texts, steps = explained({"identity": rule, "bots": "off"}, sent(header))
    assert steps == {rule: expected}
    printed = "\n".join([*texts, *steps.values()])
    assert VALUE not in printed
    assert SECRET not in printed


CHAIN = "user=auth, user=header:X-User, guest=ip:raw"
SITE = {"identity": CHAIN, "rooms": "/t/{x}/*", "pulse_path": "/pulse", "board_path": "/who"}
SITE |= {"exclude": "/healthz, /sign-out", "logout": "/logout, /sign-out", "bots": "off"}
NO = "no visit: not counted: "
SAME, FOREIGN = "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"
GUEST = f"counted as guest{UNLESS}"
IF_ACCEPTED = "counted as user if the response has a status of 200 to 299, 101 or 304; with 401 or"
NO_LOGIN = "not counted: no response to OPTIONS accepts a login; with 401 or 403"
HIDING = "user=header:X-User, hidden=identify:tests.support.hiding:is_hidden, guest=visitor"
PULSE = "pulse: a page"
LEAVES = f"logout: not counted: a logout, which takes user offline if it succeeds{UNLESS}"
CHECKED = {"identity": "user=header:X-User:checked, guest=ip:raw"}
BACKWARDS = {"bots": "count", "identity": "guest=cookie:a, user=header:X-User"}
PREFLIGHT = ["options /", "Origin: a", "Access-Control-Request-Method: PUT"]
ANN = "X-User: ann"
# A request line and its headers, settings, what it is and what it counts as.
REQUESTS: list[tuple[list[str], dict[str, str], str]] = [
    (["GET /"], {}, f"page: counted as guest{UNLESS}"),
    (["GET /t/%34%32/x?y=1"], {}, f"page, room /t/42: counted as guest{UNLESS}"),
    (["GET /", ANN], {}, f"page: counted as user{UNLESS}"),
    (["GET /"], {"identity": "user=cookie:sid"}, "page: not counted: no rule finds an id"),
    (["GET /healthz"], {}, "excluded: not counted: its path is in PRESENCE_EXCLUDE"),
    (["GET /logout", ANN], {}, LEAVES),
    (["GET /logout"], {}, f"logout: {GUEST}"),
    (["GET /sign-out", ANN], {}, LEAVES),
    (["GET /sign-out"], {}, LEAVES.replace("user offline", "nobody offline")),
    (["GET /", "Purpose: prefetch"], {}, f"{NO}a prefetch"),
    (["GET /", "Presence: passive"], {}, f"{NO}it has the header Presence: passive"),
    (PREFLIGHT, {}, f"{NO}a CORS preflight"),
    (["GET /", FOREIGN], {}, f"{NO}a page of another site embeds or fetches it"),
    (["GET /"], {"enabled": "0"}, f"{NO}PRESENCE_ENABLED is off"),
    (["GET /who/counts"], {}, f"{NO}the middleware itself answers it"),
    (["POST /pulse?presence=here:/t/7", SAME], {}, f"{PULSE} is still open, room /t/7: {GUEST}"),
    (["POST /x?presence=bye", SAME], {}, f"{PULSE} was closed: {GUEST}"),
    (["POST /pulse?presence=bye"], {}, f"{NO}a page of another site sent it"),
    (["GET /", ANN], CHECKED, f"page: {IF_ACCEPTED} 403 counted as guest"),
    (["OPTIONS /", ANN], CHECKED, f"page: {NO_LOGIN} counted as guest"),
    (["GET /", "X-User: 42"], {"identity": HIDING}, "page: counted as hidden"),
    (["GET /", CRAWLER], {"bots": "count"}, f"page: counted as bot{UNLESS}"),
    (["GET /", CRAWLER], {"bots": "skip"}, f"page: not counted: a crawler{UNLESS}"),
    (["GET /", CRAWLER, ANN], BACKWARDS, "page: counted as user"),
]


@pytest.mark.parametrize(("lines", "given", "said"), REQUESTS)
def test_a_request_is_named_and_counted(lines: list[str], given: dict[str, str], said: str) -> None:
    texts, _ = explained({**SITE, **given}, sent(*lines[1:], line=f"{lines[0]} HTTP/1.1"))
    assert ": ".join(texts) == said


def test_the_steps_are_those_of_the_search() -> None:
    chain = "user=header:X-User, other=flask-session:x:hashed, guest=visitor"
    assert list(explained({"identity": chain}, sent(CRAWLER))[1].items()) == [
        ("user=header:X-User", "no: no such header"),
        ("other=flask-session:x:hashed", "no: no such cookie"),
        ("bot=crawler", "bot Googlebot"),
        ("guest=visitor", NOT_ASKED),
    ]
    keyless = {"identity": "user=header:X-User, guest=visitor", "secret": ""}
    _, steps = explained(keyless, sent(BROWSER))
    assert steps["bot=crawler"] == "no: it is in no list of crawlers"
    assert steps["guest=visitor"] == "guest with an id that is hashed with a key in Redis"


def test_hints_are_those_of_the_log() -> None:
    forwarded = "X-Forwarded-For: 9.9.9.9", "X-Forwarded-For: 1.2.3.4"
    headers = *forwarded, f"Cookie: sessionid={VALUE}"
    proxied = sent(*headers, address="127.0.0.1")
    texts, steps = explained({"identity": "user=header:X-User, guest=ip:raw"}, proxied)
    assert steps["guest=ip:raw"] == "guest 127.0.0.1"
    proxy, cookie = texts[2:]
    assert proxy.startswith("hint: requests come through a proxy")
    assert 'set PRESENCE_TRUSTED_PROXIES="127.0.0.0/8"' in proxy
    assert cookie.startswith("hint: requests carry the cookie sessionid, which no rule")
    named = sent(*headers, "X-User: ann", address="127.0.0.1")
    texts, _ = explained({"identity": "user=header:X-User, guest=ip:raw"}, named)
    assert texts[2:] == [proxy], "a user was found"
    _, steps = explained({"identity": "guest=ip:raw", "trusted_proxies": "127.0.0.0/8"}, proxied)
    assert steps["guest=ip:raw"] == "guest 1.2.3.4"


@pytest.mark.parametrize("text", ["", "GET /", "GET / FTP/1", "GET / HTTP/1.1\nno header"])
def test_text_that_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        sent(line=text)


RAW = (
    b"post /t/42 HTTP/1.1\r\nHost: x\r\nX-User: \xfcmit\x1b\r\nCookie: a=1\r\nCookie: b=2\r\n\r\n"
    b"a body, which is ignored"
)


def test_the_command_asks_neither_app_nor_redis() -> None:
    given = {
        "PRESENCE_REDIS_URL": "redis://127.0.0.1:1",
        "PRESENCE_IDENTITY": "guest=cookie:b:raw, user=header:X-User",
        "PRESENCE_APP": "nosuch:app",
        "PRESENCE_ROOMS": "/t/{x}",
    }

    def run(*options: str, status: int = 0) -> str:
        ended = run_command("explain", *options, env=given, given=RAW)
        assert ended.exit_code == status, ended.stderr
        return ended.stderr if status else ended.stdout

    assert run("-").splitlines() == [
        "page, room /t/42",
        "1 bot=crawler         no: it is in no list of crawlers",
        "2 guest=cookie:b:raw  guest 2",
        "3 user=header:X-User  not asked",
        "counted as guest",
    ]
    found = json.loads(run("-", "--header", "Purpose: prefetch", "--json"))
    assert (found["request"], found["conclusion"]) == ("no visit", "not counted: a prefetch")
    options = ("--path", "/x", "--method", "GET", "--address", "::1", "--header", "X-User: \x1b")
    assert "3 user=header:X-User  user \\x1b\n" in run(*options)
    assert run("--path", "/t/\udcff").startswith("page, room /t/\\udcff\n")
    for header in ("Cookie", ": of nothing"):
        assert "expected NAME: VALUE" in run("--header", header, status=2)
    assert "--path begins with /" in run("--path", "https://shop.example/x", status=2)
    assert "'localhost'" in run("--address", "localhost", status=2)
    given["PRESENCE_IDENTITY"] = "user=nosuch.module:function"
    assert "PRESENCE_IDENTITY" in run(status=2)
