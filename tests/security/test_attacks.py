"""Forged requests: whom a site takes them for, and that nobody else is recorded.

`ATTACKS` is the table. Each row is sent over WSGI and ASGI, and no forgery is worth a word of the
log. The rows of who is right are in it as well, or a site that knows nobody would pass.
"""

import base64
import hmac
import json
import logging
import random
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha1, sha256, sha512
from ipaddress import ip_address
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from itsdangerous import TimestampSigner, URLSafeSerializer, URLSafeTimedSerializer
from pyramid.authentication import AuthTktCookieHelper
from pyramid.request import Request as PyramidRequest
from webob.cookies import SignedSerializer

from presence_middleware import Presence, Settings
from presence_middleware.identity import sessions
from presence_middleware.parsers import DAY
from presence_middleware.recorder import recorder_for
from presence_middleware.stores import STORES
from tests.security.signed import (
    ANN,
    KEY,
    OTHER,
    PUBLIC,
    SCHEMES,
    Scheme,
    at,
    datasette_cookie,
    flask_cookie,
    jwt_of,
    starlette_cookie,
)
from tests.support.asking import Inner, Request, State, ask_asgi, ask_wsgi, ids, nothing
from tests.support.backends import Server
from tests.support.beside import on_call

# Of WebOb, when it makes a ticket with tokens.
pytestmark = pytest.mark.filterwarnings("ignore:Cookie value contains:RuntimeWarning")
SECRET = "a secret of the test's own, long enough"
Who = tuple[str, str] | None
USER, GUEST = ("user", "ann"), ("guest", "192.0.2.7")


class Attack(NamedTuple):
    """Requests as they are sent to a site with some settings, and whom it takes each for."""

    settings: dict[str, Any]
    requests: Iterable[Request]
    who: tuple[Who, ...]
    """One of these, and nobody else is recorded."""
    inner: Inner = nothing
    now: float | None = None
    """The time; None for that of this machine."""


# ---- Addresses. A chain of real proxies, each of which appends who is at its other end.

CLIENT, CLIENT_6, EVIL = "198.51.100.7", "2001:db8::7", "6.6.6.6"
NETWORKS = "10.0.0.0/8, fd00::/8"
Fields = list[tuple[str, str]]
Append = Callable[[Fields, str], Fields]
"""What a proxy passes on of the fields that came, from a peer."""


def node(address: str) -> str:
    """An address in the form of RFC 7239 6."""
    return f'"[{address}]"' if ip_address(address).version == 6 else address


def joined(name: str, fields: Fields, value: str) -> Fields:
    """The fields with those of one name made one, and a value appended: what nginx does."""
    values = [said for key, said in fields if key.lower() == name.lower()]
    others = [(key, said) for key, said in fields if key.lower() != name.lower()]
    return [*others, (name, ", ".join([*values, value]))]


def x_forwarded_for(fields: Fields, peer: str) -> Fields:
    return joined("X-Forwarded-For", fields, peer)


def forwarded_with_host(fields: Fields, peer: str) -> Fields:
    """Tells, in quotes, also the Host that the client sent."""
    host = dict(fields).get("Host", "site.example").replace("\\", "\\\\").replace('"', '\\"')
    return joined("Forwarded", fields, f'for={node(peer)};host="{host}"')


def through(append: Append, proxies: int, fields: Fields, client: str) -> Request:
    """A request as the site gets it, `proxies` of its own in front."""
    peer = client
    for number in range(1, proxies + 1):
        fields = append(fields, peer)
        peer = f"fd00::{number}" if number % 2 == 0 else f"10.0.0.{number}"
    return Request([(name, value.encode("latin-1")) for name, value in fields], peer=peer)


APPENDING_X: list[Append] = [
    x_forwarded_for,
    lambda fields, peer: [*fields, ("X-Forwarded-For", peer)],  # as HAProxy appends it
]
APPENDING_FORWARDED: list[Append] = [
    forwarded_with_host,
    lambda fields, peer: [*fields, ("forwarded", f"by=_proxy;For={node(peer)}")],
]
FORGED_ADDRESSES = [("X-Forwarded-For", b"6.6.6.6"), ("Forwarded", b"for=6.6.6.6")]
IGNORED = ["X-Real-IP", "X-Client-IP", "Client-IP", "True-Client-IP", "CF-Connecting-IP", "Via"]


def takes_headers_away(state: State) -> None:
    """A layer such as paste.deploy's PrefixMiddleware."""
    state.pop("HTTP_X_FORWARDED_FOR", None)
    if "REQUEST_METHOD" in state:
        state["REMOTE_ADDR"] = EVIL
    else:
        state["headers"], state["client"] = [], (EVIL, 1)


ADDRESSES = {
    **{
        f"a forged address of {peer} without proxies": Attack(
            {},
            [Request([(name, value)], peer=peer) for name, value in FORGED_ADDRESSES],
            (("guest", peer.removeprefix("::ffff:")),),
        )
        for peer in (CLIENT, "10.0.0.1", "127.0.0.1", "::ffff:10.0.0.1")
    },
    "a layer takes the header of the proxy away": Attack(
        {"trusted_proxies": 1},
        [through(x_forwarded_for, 1, [], CLIENT)] * 2,
        (("guest", CLIENT),),
        takes_headers_away,
    ),
    "an address that is no text": Attack(
        {"trusted_proxies": 1, "identity": "user=cookie:user:raw, guest=visitor"},
        [
            Request([("Cookie", b"user=ann")], state={"REMOTE_ADDR": peer, "client": (peer, 1)})
            for peer in (b"10.0.0.1", 5, ["x"])
        ],
        (USER,),
    ),
    "headers that are no text": Attack(
        {"identity": "user=cookie:sid:raw, guest=ip:raw"},
        [
            Request(state={key: bad, "headers": headers})
            for key in ("HTTP_USER_AGENT", "HTTP_COOKIE", "PATH_INFO")
            for bad in (b"bytes", 5, None, ["list"])
            for headers in ([("user-agent", "text")], [(b"a",)], None, {b"a": b"x"}, [(b"a", 5, 1)])
        ],
        (GUEST, None),
    ),
}

# ---- Logins. What a server says in the environ is not what a client says in a header.

LOGINS = {
    f"a header that logs in for {source}": Attack(
        {"identity": f"user={source}, guest=ip:raw"},
        [
            Request([(name, value)])
            for value in (b"root", b'{"user_id": "root"}')
            for name in (
                *("Remote-User", "REMOTE-USER", "Remote_User", "HTTP_REMOTE_USER", "User"),
                *("HTTP-REMOTE-USER", "X-Remote-User", "X-Forwarded-User", "X-User", "Auth-User"),
                *("Session", "Beaker.Session", "Presence_Middleware.User", "user_id"),
                "Presence_Middleware.Visit",
            )
        ],
        (GUEST,),
    )
    for source in ("auth", "environ:REMOTE_USER", "scope:user", "session:user_id")
}

# ---- Sessions, tickets and tokens.

GARBAGE = [
    *(b"=a=.b=!c.-_-_", b"." * 300, b"=" * 100, b"a" * 65_536, b"a." * 32_768),
    *(b'"' + b"a" * 65_536 + b'"', bytes(range(128, 256)), b"\xed\xa0\x80.\xed\xb0\x80.a"),
    *("j\xfcrgen.\u0436.\U0001f600".encode(), b"\0.\0.\0", b"%00%ff%0a.%u0000.\\u0000"),
    *(b"9" * 5000 + b".9.9", b"-1.-1.-1", base64.urlsafe_b64encode(b"[" * 5000)),
    base64.urlsafe_b64encode(b'{"alg":' + b"[" * 5000) + b".e30.e30",
    base64.urlsafe_b64encode(b'{"a":' * 1000) + b".e30.e30",
    b"." + base64.urlsafe_b64encode(zlib.compress(b"[" * 6_000_000)) + b".a.b",
]
NO_IDS: list[dict[str, Any]] = [
    *({"who": who} for who in (None, {"id": 1}, ["ann"], "")),
    {"other": "ann"},
]


def valid(scheme: Scheme) -> Iterator[str]:
    for age in {0, max(0, scheme.lasts - 60)}:
        with at(time.time() - age):
            value = scheme.make(KEY)
        yield value


def forged(scheme: Scheme) -> Iterator[str | bytes]:
    value = scheme.make(KEY)
    payload, dot, _ = value.rpartition(".")
    yield scheme.make(OTHER)
    # The last character of base64 has bits of no meaning.
    for place in range(len(value) - 1):
        yield value[:place] + chr(ord(value[place]) ^ 1) + value[place + 1 :]
    for kept in {*range(0, len(value), 7), len(value) - 1}:
        yield from (value[:kept], value[-kept:] if kept else "")
    yield from ("ann", "ann.", ".ann", "ann!", '{"who": "ann"}', "who=ann", "null")
    yield from ("0" * 136 + "ann!", value[128:], value[136:])
    yield base64.urlsafe_b64encode(b'{"who":"ann"}').decode()
    if dot:
        yield from (payload, f"{payload}.", f"{payload}..", f".{value}", f"{value}.", f"{value}.a")
    for garbage in GARBAGE:
        yield from (garbage, b'"' + garbage + b'"', garbage + b"AAAA." + value.encode())
    yield from (other.make(KEY) for other in SCHEMES.values() if other.make is not scheme.make)
    yield from for_another_purpose()
    if scheme.source != "auth-tkt":
        yield from (scheme.make(KEY, session) for session in NO_IDS)
    noise = base64.b64encode(random.Random(1).randbytes(9000)).decode()
    long = scheme.make(KEY, {**ANN, "noise": noise})
    assert len(value) < sessions.MAX_TOKEN_LENGTH < len(long)
    yield long
    for age in (scheme.lasts + 2, scheme.lasts * 9) if scheme.lasts else ():
        with at(time.time() - age):
            old = scheme.make(KEY)
        yield old


def elsewhere(scheme: Scheme) -> Iterator[Request]:
    """Valid values, where other frameworks have theirs."""
    for other in SCHEMES.values():
        if other.cookie != scheme.cookie:
            yield other.request(scheme.make(KEY))


def for_another_purpose() -> Iterator[str]:
    """For example the link in a mail: it has the same key but another salt."""
    stamped = (int(time.time()), int(time.time()), ANN)
    for salt in ("", "itsdangerous", "remember-me", "cookie-session-2"):
        options = {"key_derivation": "hmac"}
        yield str(URLSafeTimedSerializer(KEY, salt=salt, signer_kwargs=options).dumps(ANN))
        text = base64.b64encode(json.dumps(ANN).encode())
        yield TimestampSigner(KEY, salt=salt.encode()).sign(text).decode()
        yield SignedSerializer(KEY, salt, "sha512").dumps(stamped).decode()


def bombs() -> Iterator[str | bytes]:
    """Short while compressed, and unpacked because their signature is valid."""
    serializer = URLSafeTimedSerializer(
        KEY, salt="cookie-session", signer_kwargs={"key_derivation": "hmac"}
    )
    for payload in (b"[" * 6_000_000, b'{"who":' * 800_000, b"1" * 6_000_000, b"\0"):
        packed = b"." + base64.urlsafe_b64encode(zlib.compress(payload, 9)).rstrip(b"=")
        signed: bytes = serializer.make_signer(serializer.salt).sign(packed)
        yield signed


def token_of(header: object, claims: object, key: str | None) -> str:
    """A token that no library would make."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in (header, claims)]
    signed = b".".join(part.rstrip(b"=") for part in parts)
    mac = hmac.new(key.encode(), signed, sha256).digest() if key is not None else b""
    return (signed + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def tokens_that_choose(*keys: str | None) -> Iterator[str]:
    """Tokens that say how they are to be verified."""
    algorithms: list[object] = [*("none", "None", "NONE", "nOnE", "", "HS1")]
    algorithms += [None, 0, [], ["HS256"], {}]
    headers: list[object] = [{"alg": alg} for alg in algorithms]
    headers += [{"alg": alg, "typ": "JWT", "kid": "../x"} for alg in algorithms]
    for header, key in product([*headers, {}, []], keys):
        yield token_of(header, {"who": "ann"}, key)


def with_the_public_key() -> Iterator[str]:
    lines = (PUBLIC, PUBLIC.strip(), f"{PUBLIC}\n", PUBLIC.replace("\n", ""))
    for text, alg in product(lines, ("HS256", "HS384", "HS512")):
        yield token_of({"alg": alg}, {"who": "ann"}, text)


def jwts(*claims: dict[str, Any]) -> list[str]:
    return [jwt_of(KEY, {"who": "ann", "exp": HOUR + 3600, **each}) for each in claims]


def ticket_with_tokens() -> Iterator[str]:
    helper = AuthTktCookieHelper(KEY)
    headers = helper.remember(PyramidRequest.blank("/"), "ann", tokens=("editor", "staff"))
    value: str = headers[0][1].partition("=")[2].partition(";")[0]
    assert "\\054" in value
    yield value


def without_its_time() -> Iterator[str]:
    """An old cookie with a time must not turn into a cookie that never expires."""
    with at(time.time() - 62 * DAY):
        value = str(URLSafeTimedSerializer(KEY).dumps(ANN))
    payload, stamp, signature = value.split(".")
    yield from (value, f"{payload}.{signature}", f"{payload}{stamp}.{signature}")
    yield f".{payload}.{stamp}.{signature}"


def of_itsdangerous(derivations: Iterable[str]) -> Iterator[str]:
    for maker, derivation, digest, long in product(
        (URLSafeSerializer, URLSafeTimedSerializer), derivations, (sha1, sha256, sha512), (0, 1)
    ):
        kwargs = {"key_derivation": derivation, "digest_method": digest}
        serializer: Any = maker(KEY, salt="quart auth salt", signer_kwargs=kwargs)
        yield serializer.dumps({"who": "ann", "more": "a" * 240 * long})  # the long is compressed


def row(
    scheme: Scheme, values: Iterable[str | bytes], who: Who, now: float | None = None, **given: Any
) -> Attack:
    settings = {"identity": f"user={scheme.source}, guest=ip:raw", "session_secret": scheme.secret}
    return Attack({**settings, **given}, map(scheme.request, values), (who,), now=now)


JWTS = ("jwt", "jwt in a cookie", "jwt of a pair")
JWT, IN_COOKIE, OF_A_PAIR = (SCHEMES[name] for name in JWTS)
FLASK, STARLETTE, SHOP, DATASETTE = (
    SCHEMES[name] for name in ("flask", "starlette", "signed", "datasette")
)
SALTED = replace(SHOP, source="signed:who@shop:quart auth salt")
UNSALTED = replace(SHOP, source="signed:who@shop")
SOON = 1795290322.5  # the time of which Datasette writes the next second as Bx4rB7
NO_EXPIRIES = ["Bx4rB6", "z", "A", "E3d1S6E3d1S6", "-E3d1S6", "E3d1S\u0666", 4102444800, ["E3d1S6"]]
TOKEN, HOUR = jwt_of(KEY, {"who": "ann", "exp": 4102444800}), int(time.time()) + 3600
OTHER_TIMES = [{name: HOUR} for name in ("nbf", "iat")]
OTHER_TIMES += [{"exp": end} for end in (HOUR - 7200, 0, -1, 10**400)]
PARTS = "k,key, rest of it, and more"
SIGNED = {
    **{
        f"{how}: {name}": row(scheme, values(scheme), who)
        for name, scheme in SCHEMES.items()
        for how, values, who in (("valid", valid, USER), ("forged", forged, GUEST))
    },
    **{
        f"sent as another: {name}": row(scheme, (), GUEST)._replace(requests=elsewhere(scheme))
        for name, scheme in SCHEMES.items()
    },
    "bombs": row(FLASK, bombs(), GUEST),
    "a ticket with tokens": row(SCHEMES["ticket"], ticket_with_tokens(), USER),
    "a secret with commas": row(STARLETTE, [starlette_cookie(PARTS)], USER, session_secret=PARTS),
    "an old secret": row(FLASK, [flask_cookie(OTHER)], USER, session_secret=[KEY, OTHER]),
    "a part of the secret": row(
        STARLETTE,
        map(starlette_cookie, ("k", "key", "rest of it", " and more", "")),
        GUEST,
        session_secret=PARTS,
    ),
    "the usual options": row(SALTED, of_itsdangerous(["django-concat", "hmac"]), USER),
    "unusual options": row(SALTED, of_itsdangerous(["concat"]), GUEST),
    "without its salt": row(UNSALTED, of_itsdangerous(["hmac"]), GUEST),
    "the default salt": row(
        UNSALTED,
        (maker(KEY).dumps(ANN) for maker in (URLSafeSerializer, URLSafeTimedSerializer)),
        USER,
    ),
    "without its time": row(UNSALTED, without_its_time(), GUEST),
    "an actor until its expiry": row(
        DATASETTE,
        (datasette_cookie(KEY, e=e) for e in ("E3d1S6", "Bx4rB7", "", None)),  # 2100, soon, never
        USER,
        SOON,
    ),
    "an actor after its expiry": row(
        DATASETTE, (datasette_cookie(KEY, e=e) for e in NO_EXPIRIES), GUEST, SOON
    ),
    "a list in place of an actor": row(
        DATASETTE, [str(URLSafeSerializer(KEY, "actor").dumps(["ann"]))], GUEST
    ),
    "an expiry of Datasette elsewhere": row(
        SHOP, [str(URLSafeSerializer(KEY, "of a plugin").dumps({"who": "ann", "e": "z"}))], USER
    ),
    "the word Bearer in a cookie": row(
        IN_COOKIE,
        (
            quote + word + TOKEN + quote
            for word in ("", "Bearer ", "bearer ", "BEARER  ")
            for quote in ("", '"')
        ),
        USER,
    ),
    "other words in a cookie": row(
        IN_COOKIE,
        [f"Basic {TOKEN}", f"{TOKEN} Bearer", f"Bearer{TOKEN}", "Bearer", "Bearer "],
        GUEST,
    ),
    "tokens of no library": row(JWT, [token_of({"alg": "HS256"}, {"who": "ann"}, KEY)], USER),
    **{
        f"an algorithm of one's own: {name}": row(
            SCHEMES[name], tokens_that_choose(None, "", KEY, PUBLIC), GUEST
        )
        for name in JWTS
    },
    "signed with the public key": row(OF_A_PAIR, with_the_public_key(), GUEST),
    **{
        f"signed with the {what} where tokens have a public key: {name}": row(
            scheme, map(scheme.make, keys), who, session_secret=f"{PUBLIC}, {KEY}"
        )
        for name, scheme in SCHEMES.items()
        if scheme.source[:6] != "bearer"  # PyJWT does not sign so
        for what, keys, who in (
            ("public key", (PUBLIC, PUBLIC.strip()), GUEST),
            ("secret", (KEY,), USER),
        )
    },
    "tokens of now": row(JWT, jwts({"exp": HOUR}, {"nbf": 1, "iat": 1}), USER),
    "tokens of other times": row(JWT, jwts(*OTHER_TIMES), GUEST),
}
ATTACKS = ADDRESSES | LOGINS | SIGNED


# What the log may say: that the settings do not fit, or that a server hands over what is no text.
HINTS = re.compile(
    "PROXIES does not|no user among 20 visits|has never matched|could not be read|raised TypeError"
)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No forgery is worth a word of the log, let alone its own words."""
    caplog.set_level(logging.DEBUG, "presence_middleware")
    yield
    said = [r.getMessage() for r in caplog.get_records("call") if "presence" in r.name]
    assert not [text for text in said if not HINTS.search(text)]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ATTACKS)
def test_a_request_is_recorded_as_the_table_says(name: str, variables: dict[str, str]) -> None:
    attack = ATTACKS[name]
    settings = settings_of(variables, **attack.settings)
    found: set[Who] = set()
    with ExitStack() as stack:
        if attack.now is not None:
            stack.enter_context(at(attack.now))
        for request in attack.requests:
            for ask in (ask_wsgi, ask_asgi):
                who = ask(settings, request, attack.inner)
                assert who in attack.who, request
                found.add(who)
    assert found, "the row has requests"
    assert recorder_for(settings).flush()
    presence = Presence(settings)
    online = {(kind, each.id) for kind in settings.kinds for each in presence.online(kind)}
    assert online == found - {None}


def settings_of(variables: dict[str, str], **given: Any) -> Settings:
    given = {"identity": "guest=ip:raw", "bots": "off", "secret": SECRET, **given}
    return Settings.from_env(variables, flush_interval="3m", **given)


# Of latin-1, what a header may have in it; the client's own is what comes first.
SENT = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=60)
TRICKY = st.lists(
    st.sampled_from([*'",;=\\ []:', "for=", 'for="', EVIL, "10.0.0.1", "x=", "fd00::2"]),
    max_size=12,
).map("".join)
FORGED = st.sampled_from(
    [
        *(f"{EVIL}, " * 5, f"{EVIL}, 10.0.0.1, fd00::2, 10.0.0.3"),
        *("::ffff:6.6.6.6", "unknown", f"for={EVIL};for={EVIL}", f'for={EVIL};x="\\'),
        *(f'for="{EVIL}, for="', f'x=";for={EVIL};y="', f'a";for={EVIL};b="', "\xff\xfe"),
    ]
)
of_one_site = hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@of_one_site
@given(
    sent=SENT | TRICKY | FORGED | st.just(f"for={EVIL}, " * 500),
    host=TRICKY | FORGED,
    append=st.sampled_from([*APPENDING_X, *APPENDING_FORWARDED]),
    proxies=st.integers(0, 3),
    is_counted=st.booleans(),
    client=st.sampled_from([CLIENT, CLIENT_6]),
)
def test_a_client_cannot_take_another_address(
    variables: dict[str, str],
    *,
    sent: str,
    host: str,
    append: Append,
    proxies: int,
    is_counted: bool,
    client: str,
) -> None:
    name = "X-Forwarded-For" if append in APPENDING_X else "Forwarded"
    fields = [("Host", host), (name, sent), *((each, EVIL) for each in IGNORED)]
    # Of no visit, but with an address: no thread of a recorder disturbs what is drawn at random.
    trusted = proxies if is_counted else NETWORKS
    settings = settings_of(variables, trusted_proxies=trusted, exclude="*")
    assert ids(settings, through(append, proxies, fields, client)) == client


@of_one_site
@given(
    scheme=st.sampled_from(list(SCHEMES.values())),
    value=st.binary(max_size=200) | st.text("abcAZ09-_.=!%\"'/ ", max_size=200).map(str.encode),
)
def test_any_bytes_log_nobody_in(variables: dict[str, str], scheme: Scheme, value: bytes) -> None:
    settings = settings_of(variables, **row(scheme, (), None).settings, exclude="*")
    assert ids(settings, scheme.request(value)) == GUEST[1]


def test_a_secret_is_used_with_the_algorithms_of_its_kind_alone() -> None:
    assert all(name.startswith("HS") for name in sessions.algorithms_for(KEY))
    of_a_pair = sessions.algorithms_for(PUBLIC)
    assert of_a_pair == sessions.algorithms_for(f"\n {PUBLIC}")
    assert not any(name.startswith("HS") or name == "none" for name in of_a_pair)


def test_a_decompression_bomb_is_not_unpacked_before_its_signature_is_verified(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[bytes] = []
    on_call(monkeypatch, zlib, "decompress", unpacked.append)
    scheme, long = SCHEMES["flask"], {**ANN, "more": "a" * 1000}
    settings = settings_of(variables, **row(scheme, (), None).settings, exclude="*")
    for key, id in ((OTHER, GUEST[1]), (KEY, "ann")):
        assert ids(settings, scheme.request(scheme.make(key, long))) == id
        assert bool(unpacked) is (key == KEY)


# ---- Ids that look like more than an id.

WEIRD = [
    *("{mallory}", "mallory:seen", "mallory:m:1", "x:mallory:seen", "user:seen\r\nmallory"),
    *("mallory\nSET x 1\n", "mallory\0", "\0mallory", "*mallory*", "mallory?[a-z]", "[mallory]"),
    *("\\mallory", "mallory$(id)`id`", "'mallory\"; --", "../../mallory", "%7Bmallory%7D"),
    *("mallory" * 1500, "m\xe4llory\u202e\U0001f600", "mallory\u2028", "*mallory" * 33),
]
WEIRD_BYTES = [b"mallory\xff\xfe", b"\xc3\x28mallory", b"\xed\xa0\x80mallory", b"\x80" * 300]
HASHED = re.compile(r"[0-9a-f]{32}")
OF_A_KEY = (
    r"{prefix}:(meta|settings|visitor-key|upkeep|"
    r"(user|guest):(writers|peak|history:\d+|seen|left|gone|m:\d+|h:\d+))"
)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("form", ["raw", "hashed"])
def test_an_id_never_determines_a_redis_key(
    variables: dict[str, str], valkey: Server, prefix: str, store: str, form: str
) -> None:
    settings = settings_of(variables, identity=f"user=header:X-User:{form}", store=store)
    said = [*(text.encode() for text in WEIRD), *WEIRD_BYTES, *GARBAGE]
    found = [str(ids(settings, Request([("X-User", value)]))) for value in said]
    assert len(set(found)) == len(said)
    for id, value in zip(found, said, strict=True):
        text = value.decode(errors="replace").strip()
        assert HASHED.fullmatch(id) or (form, id) == ("raw", text)
    assert recorder_for(settings).flush()
    presence = Presence(settings)
    if store == "sorted-set":
        presence.leave("*")
        presence.leave("user:seen")
        assert {seen.id for seen in presence.online(limit=None)} == set(found)
    if store != "hyperloglog":
        assert presence.online_among(found) == found
    assert presence.count() == pytest.approx(len(said), abs=1 if store == "hyperloglog" else 0)
    keys = [key.decode() for key in valkey.client.scan_iter(f"{prefix}*")]
    assert not list(valkey.client.scan_iter("*mallory*"))
    assert keys
    for key in keys:
        assert re.fullmatch(OF_A_KEY.format(prefix=prefix), key), key
