"""Forged requests never give another user's id, an error or a log line.

Each forgery is asked of both wrappers.
"""

import base64
import dataclasses
import hmac
import json
import logging
import random
import re
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1, sha256, sha512
from ipaddress import ip_address
from typing import Any

import jwt
import pytest
import redis
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from flask import Flask
from flask.sessions import SecureCookieSessionInterface
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from itsdangerous import TimestampSigner, URLSafeSerializer, URLSafeTimedSerializer

from presence_middleware import Presence, Settings
from presence_middleware.identity import sessions
from presence_middleware.recorder import recorder_for
from presence_middleware.recorder.recorder import shared_recorder
from presence_middleware.stores import STORES
from tests.support.asking import Request, ask_asgi, ask_wsgi, ids
from tests.support.backends import Server

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the `cgi` that WebOb imports
    from pyramid.authentication import AuthTicket, AuthTktCookieHelper
    from pyramid.request import Request as PyramidRequest
    from webob.cookies import SignedSerializer

Site = Callable[..., Settings]
HASHED = re.compile(r"[0-9a-f]{32}")
SECRET = "a secret of the test's own, long enough"


@pytest.fixture
def site(valkey: Server, prefix: str) -> Iterator[Site]:
    """Makes settings; their recorders are closed in the end."""
    made = []

    def make(**given: object) -> Settings:
        given = {"identity": "guest=ip:raw", "bots": "off", "secret": SECRET, **given}
        settings = Settings.from_env(
            {}, redis_url=valkey.url, prefix=prefix, flush_interval="3m", **given
        )
        made.append(settings)
        return settings

    yield make
    for settings in made:
        recorder_for(settings).close()


# ---- Addresses. A chain of real proxies, each of which appends who is at its other end.

CLIENT, CLIENT_6 = "198.51.100.7", "2001:db8::7"
EVIL = "6.6.6.6"
NETWORKS = "10.0.0.0/8, fd00::/8"
Fields = list[tuple[str, str]]
Append = Callable[[Fields, str], Fields]
"""What a proxy passes on of the fields that came, from a peer."""


def node(address: str, port: str = "") -> str:
    """An address in the form of RFC 7239 6."""
    six = ip_address(address).version == 6
    text = f"[{address}]{port}" if six else f"{address}{port}"
    return f'"{text}"' if six or port else text


def joined(name: str, fields: Fields, value: str) -> Fields:
    """The fields with those of one name made one, and a value appended: what nginx does."""
    values = [said for key, said in fields if key.lower() == name.lower()]
    others = [(key, said) for key, said in fields if key.lower() != name.lower()]
    return [*others, (name, ", ".join([*values, value]))]


def x_forwarded_for(fields: Fields, peer: str) -> Fields:
    return joined("X-Forwarded-For", fields, peer)


def x_forwarded_for_anew(fields: Fields, peer: str) -> Fields:
    """A field of its own, as HAProxy appends it."""
    return [*fields, ("X-Forwarded-For", peer)]


def x_forwarded_for_with_port(fields: Fields, peer: str) -> Fields:
    """As some load balancers do."""
    return joined("X-Forwarded-For", fields, node(peer, ":4711").strip('"'))


def forwarded(fields: Fields, peer: str) -> Fields:
    return joined("Forwarded", fields, f"for={node(peer)};proto=https")


def forwarded_anew(fields: Fields, peer: str) -> Fields:
    return [*fields, ("forwarded", f"by=_proxy;For={node(peer, ':4711')}")]


def both(fields: Fields, peer: str) -> Fields:
    return forwarded(x_forwarded_for(fields, peer), peer)


def forwarded_with_host(fields: Fields, peer: str) -> Fields:
    """Tells, in quotes, also the Host that the client sent."""
    host = dict(fields).get("Host", "site.example").replace("\\", "\\\\").replace('"', '\\"')
    return joined("Forwarded", fields, f'for={node(peer)};host="{host}"')


def through(append: Append, proxies: int, fields: Fields, client: str) -> Request:
    """A request as the site gets it, `proxies` of its own in front."""
    peer = client
    for number in range(proxies):
        fields = append(fields, peer)
        peer = f"10.0.0.{number + 1}" if number % 2 == 0 else f"fd00::{number + 1}"
    return Request([(name, value.encode("latin-1")) for name, value in fields], peer=peer)


APPENDING_X: list[Append] = [x_forwarded_for, x_forwarded_for_anew, x_forwarded_for_with_port]
APPENDING_FORWARDED: list[Append] = [forwarded, forwarded_anew, forwarded_with_host]
FORGED_X = [
    EVIL,
    f"{EVIL}, {EVIL}, {EVIL}, {EVIL}",
    f"{EVIL}, 10.0.0.1",
    f"{EVIL}, 10.0.0.1, fd00::2, 10.0.0.3",
    f"{EVIL}:80, [{EVIL}]:80",
    "::ffff:6.6.6.6",
    "127.0.0.1",
    ", ,,",
    "unknown",
    "[]",
    f'"{EVIL}',
    f"{EVIL}\\",
    f"for={EVIL}",
    "\xff\xfe",
    f"{EVIL}, " * 500,
]
FORGED_FORWARDED = [
    f"for={EVIL}",
    f"for={EVIL}, for={EVIL}, for={EVIL}, for={EVIL}",
    f'for={EVIL}, for=10.0.0.1, for="[fd00::2]", for=10.0.0.3',
    f"for={EVIL};for={EVIL};for={EVIL}",
    f"For={EVIL};proto=https;by=10.0.0.1",
    'for="[::ffff:6.6.6.6]:80"',
    "for=unknown",
    'for="[]"',
    f'for="{EVIL}',
    f'for="{EVIL}, for="',
    f'for={EVIL};x="',
    f'x=";for={EVIL};y="',
    f'for={EVIL};x="\\',
    f"for={EVIL}\\",
    ';,=,;"',
    "\xff\xfe",
    f"for={EVIL}, " * 500,
]
HOSTS = [
    "site.example",
    f"a;for={EVIL}",
    f"a,for={EVIL}",
    f'a";for={EVIL};b="',
    f'",for={EVIL},for={EVIL},x="',
    f"a;for={EVIL};b=\\",
    "\\",
]


def forgeries(name: str, values: list[str]) -> list[Fields]:
    once = [[(name, value)] for value in values]
    twice = [[(name, value), (name.lower(), value)] for value in values[:3]]
    return once + twice


@pytest.mark.parametrize("client", [CLIENT, CLIENT_6])
@pytest.mark.parametrize("proxies", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", ["count", "networks"])
@pytest.mark.parametrize(
    ("appends", "name", "forged"),
    [
        (APPENDING_X, "X-Forwarded-For", FORGED_X),
        (APPENDING_FORWARDED, "Forwarded", FORGED_FORWARDED),
        ([both], "X-Forwarded-For", [""]),
    ],
)
def test_forged_headers_never_change_the_address_of_a_client(
    site: Site,
    appends: list[Append],
    name: str,
    *,
    forged: list[str],
    mode: str,
    proxies: int,
    client: str,
) -> None:
    settings = site(trusted_proxies=proxies if mode == "count" else NETWORKS)
    for append in appends:
        for fields in [[], *forgeries(name, forged)]:
            request = through(append, proxies, fields, client)
            assert ids(settings, request) == client, (append, fields)


@pytest.mark.parametrize("proxies", [1, 2, 3])
@pytest.mark.parametrize("mode", ["count", "networks"])
@pytest.mark.parametrize("host", HOSTS)
def test_a_host_name_is_not_an_address(site: Site, host: str, mode: str, proxies: int) -> None:
    settings = site(trusted_proxies=proxies if mode == "count" else NETWORKS)
    for forged in ["", *FORGED_FORWARDED]:
        fields = [("Host", host), *([("Forwarded", forged)] if forged else [])]
        request = through(forwarded_with_host, proxies, fields, CLIENT)
        assert ids(settings, request) == CLIENT, fields


@pytest.mark.parametrize("proxies", [1, 2, 3])
@pytest.mark.parametrize("mode", ["count", "networks"])
@pytest.mark.parametrize(
    ("appends", "name", "forged"),
    [
        (APPENDING_X, "Forwarded", FORGED_FORWARDED),
        (APPENDING_FORWARDED, "X-Forwarded-For", FORGED_X),
    ],
)
def test_a_header_that_the_proxies_pass_through_is_ignored(
    site: Site, appends: list[Append], name: str, *, forged: list[str], mode: str, proxies: int
) -> None:
    """If two headers disagree, it is unclear which of them the proxies wrote."""
    settings = site(trusted_proxies=proxies if mode == "count" else NETWORKS)
    for append in appends:
        for fields in forgeries(name, forged):
            request = through(append, proxies, fields, CLIENT)
            assert ids(settings, request) in {CLIENT, request.peer}, (append, fields)
        agreed = through(append, proxies, append([], CLIENT)[-1:], CLIENT)
        assert ids(settings, agreed) == CLIENT


@pytest.mark.parametrize("mode", ["count", "networks"])
def test_proxies_that_write_both_headers_are_trusted(site: Site, mode: str) -> None:
    for proxies in (1, 2, 3):
        settings = site(trusted_proxies=proxies if mode == "count" else NETWORKS)
        for name, forged in (("X-Forwarded-For", FORGED_X), ("Forwarded", FORGED_FORWARDED)):
            for fields in forgeries(name, forged):
                assert ids(settings, through(both, proxies, fields, CLIENT)) == CLIENT, fields


@pytest.mark.parametrize("peer", [CLIENT, CLIENT_6, "10.0.0.1", "127.0.0.1", "::ffff:10.0.0.1"])
def test_without_trusted_proxies_headers_are_ignored(site: Site, peer: str) -> None:
    for trusted in ("", "0"):
        settings = site(trusted_proxies=trusted)
        forged = forgeries("X-Forwarded-For", FORGED_X) + forgeries("Forwarded", FORGED_FORWARDED)
        for fields in [*forged, [("X-Real-IP", EVIL)], [("Client-IP", EVIL)], [("Via", EVIL)]]:
            found = ids(settings, through(both, 0, fields, peer))
            assert found == peer.removeprefix("::ffff:"), "IPv4 within IPv6 is IPv4"


@pytest.mark.parametrize("trusted", ["1", NETWORKS])
@pytest.mark.parametrize(
    "name", ["X-Real-IP", "X-Client-IP", "Client-IP", "True-Client-IP", "CF-Connecting-IP", "Via"]
)
def test_other_headers_are_ignored(site: Site, name: str, trusted: str) -> None:
    request = through(x_forwarded_for, 1, [(name, EVIL)], CLIENT)
    assert ids(site(trusted_proxies=trusted), request) == CLIENT
    assert (
        ids(site(trusted_proxies=trusted), through(x_forwarded_for, 0, [(name, EVIL)], CLIENT))
        == CLIENT
    )


# Of latin-1, what a header may have in it; the client's own is what comes first.
SENT = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=60)
TRICKY = st.lists(
    st.sampled_from([*'",;=\\ []:', "for=", 'for="', EVIL, "10.0.0.1", "x=", "fd00::2"]),
    max_size=12,
).map("".join)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sent=SENT | TRICKY,
    host=TRICKY,
    append=st.sampled_from([*APPENDING_X, *APPENDING_FORWARDED]),
    proxies=st.integers(1, 3),
    counted=st.booleans(),
    client=st.sampled_from([CLIENT, CLIENT_6]),
)
def test_a_client_cannot_take_another_identity(
    site: Site, *, sent: str, host: str, append: Append, proxies: int, counted: bool, client: str
) -> None:
    name = "X-Forwarded-For" if append in APPENDING_X else "Forwarded"
    request = through(append, proxies, [("Host", host), (name, sent)], client)
    # Of no visit, but with an address: no thread of a recorder disturbs what is drawn at random.
    settings = site(trusted_proxies=proxies if counted else NETWORKS, exclude="*")
    assert ids(settings, request) == client


# ---- Logins. What a server says in the environ is not what a client says in a header.


@pytest.mark.parametrize("source", ["auth", "environ:REMOTE_USER", "scope:user", "session:user_id"])
@pytest.mark.parametrize(
    "name",
    [
        *("Remote-User", "REMOTE-USER", "Remote_User", "HTTP_REMOTE_USER", "HTTP-REMOTE-USER"),
        *("X-Remote-User", "X-Forwarded-User", "X-User", "Auth-User", "User", "Session"),
        *("Beaker.Session", "Presence_Middleware.User", "Presence_Middleware.Visit", "user_id"),
    ],
)
def test_no_header_logs_anybody_in(site: Site, source: str, name: str) -> None:
    settings = site(identity=f"user={source}, guest=ip:raw")
    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request([(name, b"root")])) == ("guest", "192.0.2.7")
        assert ask(settings, Request([(name, b'{"user_id": "root"}')])) == ("guest", "192.0.2.7")


# ---- Sessions, tickets and tokens.

KEY = "the key of the test's own site and long enough"
OTHER = "the key of quite another site and long enough"
PAIR = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_PAIR = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC = (
    PAIR.public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)


def flask_cookie(key: str, session: object = None) -> str:
    app = Flask("a_site")
    app.secret_key = key
    serializer = SecureCookieSessionInterface().get_signing_serializer(app)
    assert serializer is not None
    return str(serializer.dumps(session or {"who": "ann", "csrf": "of-the-session"}))


def starlette_cookie(key: str, session: object = None) -> str:
    data = base64.b64encode(json.dumps(session or {"who": "ann"}).encode())
    return TimestampSigner(key).sign(data).decode()


def pyramid_cookie(key: str, session: object = None) -> str:
    now = int(time.time())
    value = (now, now, session or {"who": "ann"})
    return str(SignedSerializer(key, "pyramid.session.", "sha512").dumps(value).decode())


def ticket(key: str, userid: object = None) -> str:
    headers = AuthTktCookieHelper(key).remember(PyramidRequest.blank("/"), userid or "ann")
    return str(headers[0][1].partition("=")[2].partition(";")[0])


def signed_plainly(key: str, session: object = None) -> str:
    data = session or {"who": "ann"}
    return str(URLSafeSerializer(key, salt="of a plugin").dumps(data))


def signed_with_time(key: str, session: object = None) -> str:
    kwargs = {"key_derivation": "hmac", "digest_method": sha512}
    serializer = URLSafeTimedSerializer(key, salt="another: salt", signer_kwargs=kwargs)
    return str(serializer.dumps(session or {"who": "ann"}))


def datasette_cookie(key: str, actor: object = None, **more: object) -> str:
    """The cookie `ds_actor`, as Datasette signs it."""
    return str(URLSafeSerializer(key, "actor").dumps({"a": actor or {"who": "ann"}, **more}))


def jwt_of(key: str, claims: object = None) -> str:
    expires = {"exp": int(time.time()) + 60}
    return jwt.encode({"who": "ann", **expires} if claims is None else claims, key, "HS256")  # type: ignore[arg-type]


def jwt_of_pair(key: str, claims: object = None) -> str:
    pair = PAIR if key == KEY else OTHER_PAIR  # as text, each token would parse it again
    expires = {"exp": int(time.time()) + 60}
    return jwt.encode({"who": "ann", **expires} if claims is None else claims, pair, "RS256")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Scheme:
    """How a framework signs who somebody is, and the source that reads it."""

    source: str
    make: Callable[..., str]
    cookie: str | None = None
    secret: str = KEY
    lasts: float | None = None
    """Seconds that the framework believes it; None where the token says so itself, or never."""

    def request(self, value: str | bytes) -> Request:
        raw = value.encode("latin-1") if isinstance(value, str) else value
        if self.cookie is None:
            return Request([("Authorization", b"Bearer " + raw)])
        return Request([("Cookie", self.cookie.encode() + b"=" + raw)])

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_env(
            {},
            identity=f"user={self.source}",
            session_secret=self.secret,
            bots="off",
            enabled=False,
        )

    def asked(self, value: str | bytes) -> str | None:
        return ids(self.settings, self.request(value))


SCHEMES = {
    "flask": Scheme("flask-session:who", flask_cookie, "session", lasts=sessions.FLASK_SECONDS),
    "starlette": Scheme(
        "starlette-session:who", starlette_cookie, "session", lasts=sessions.STARLETTE_SECONDS
    ),
    "pyramid": Scheme(
        "pyramid-session:who", pyramid_cookie, "session", lasts=sessions.PYRAMID_SECONDS
    ),
    "ticket": Scheme("auth-tkt", ticket, "auth_tkt"),
    "signed": Scheme("signed:who@shop:of a plugin", signed_plainly, "shop"),
    "signed, with time": Scheme(
        "signed:who@shop:another: salt", signed_with_time, "shop", lasts=sessions.SIGNED_SECONDS
    ),
    "datasette": Scheme("signed:a.who@ds_actor:actor", datasette_cookie, "ds_actor"),
    "jwt": Scheme("bearer:who", jwt_of),
    "jwt in a cookie": Scheme("bearer:who@token", jwt_of, "token"),
    "jwt of a pair": Scheme("bearer:who", jwt_of_pair, secret=PUBLIC),
}
TIMED = [name for name, scheme in SCHEMES.items() if scheme.lasts]
every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No forgery is worth a word of the log, let alone its own words; an unnamed proxy is."""
    caplog.set_level(logging.DEBUG, "presence_middleware")
    yield
    for when in ("setup", "call"):
        said = [r.getMessage() for r in caplog.get_records(when) if "presence" in r.name]
        assert not [text for text in said if "that PRESENCE_TRUSTED_PROXIES does not" not in text]


@pytest.fixture(autouse=True)
def nothing_is_remembered_from_another_test() -> Iterator[None]:
    yield
    shared_recorder.cache_clear()


@contextmanager
def at(monkeypatch: pytest.MonkeyPatch, moment: float) -> Iterator[None]:
    """This process's clock stands, for libraries and package."""
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: moment)
        yield


@every_scheme
def test_a_value_signed_by_the_site_identifies_a_user(scheme: Scheme) -> None:
    assert scheme.asked(scheme.make(KEY)) == "ann"


@every_scheme
def test_a_value_signed_with_another_key_is_rejected(scheme: Scheme) -> None:
    assert scheme.asked(scheme.make(OTHER)) is None


@pytest.mark.parametrize("piece", ["k", "key", "rest of it", " and more", ""])
def test_a_value_signed_with_part_of_the_secret_is_rejected(piece: str) -> None:
    """A secret may contain commas, and the parts between them could be guessed."""
    secret = "k,key, rest of it, and more"
    scheme = dataclasses.replace(SCHEMES["starlette"], secret=secret)
    assert scheme.asked(starlette_cookie(secret)) == "ann"
    assert scheme.asked(starlette_cookie(piece)) is None


@every_scheme
def test_a_truncated_value_is_rejected(scheme: Scheme) -> None:
    value = scheme.make(KEY)
    for kept in {*range(0, len(value), 7), len(value) - 1}:
        assert scheme.asked(value[:kept]) is None, kept
        assert scheme.asked(value[-kept:] if kept else "") is None, kept


@every_scheme
def test_a_value_with_a_flipped_bit_is_rejected(scheme: Scheme) -> None:
    value = scheme.make(KEY)
    for place in range(len(value) - 1):  # the last character of base64 has bits of no meaning
        for bit in (1, 2):
            flipped = chr(ord(value[place]) ^ bit)
            forged = value[:place] + flipped + value[place + 1 :]
            assert scheme.asked(forged) is None, (place, bit)


@every_scheme
def test_an_unsigned_value_is_rejected(scheme: Scheme) -> None:
    value = scheme.make(KEY)
    payload, dot, _ = value.rpartition(".")
    unsigned = [
        "ann",
        "ann.",
        ".ann",
        "ann!",
        '{"who": "ann"}',
        "who=ann",
        "null",
        "0" * 136 + "ann!",
    ]
    unsigned += [base64.urlsafe_b64encode(b'{"who":"ann"}').decode(), value[128:], value[136:]]
    if dot:
        unsigned += [payload, f"{payload}.", f"{payload}..", f".{value}", f"{value}.", f"{value}.a"]
    for forged in unsigned:
        assert scheme.asked(forged) is None, forged


@every_scheme
def test_a_value_signed_by_another_framework_with_the_same_key_is_rejected(scheme: Scheme) -> None:
    for other in SCHEMES.values():
        if other.make is not scheme.make:
            assert scheme.asked(other.make(KEY)) is None, other.source


@pytest.mark.parametrize("salt", ["", "itsdangerous", "remember-me", "cookie-session-2"])
def test_a_value_signed_for_another_purpose_is_rejected(salt: str) -> None:
    """For example the link in a mail: it has the same key but another salt."""
    data = {"who": "ann"}
    options = {"key_derivation": "hmac"}
    signed = URLSafeTimedSerializer(KEY, salt=salt, signer_kwargs=options).dumps(data)
    text = base64.b64encode(json.dumps(data).encode())
    other = TimestampSigner(KEY, salt=salt.encode()).sign(text).decode()
    stamped = (int(time.time()), int(time.time()), data)
    for scheme in SCHEMES.values():
        assert scheme.asked(str(signed)) is None
        assert scheme.asked(other) is None
        assert scheme.asked(SignedSerializer(KEY, salt, "sha512").dumps(stamped)) is None


@pytest.mark.parametrize("digest", [sha1, sha256, sha512], ids=lambda digest: digest.__name__)
@pytest.mark.parametrize("derivation", ["django-concat", "hmac"])
@pytest.mark.parametrize("maker", [URLSafeSerializer, URLSafeTimedSerializer])
@pytest.mark.parametrize("payload", ["ann", "ann" * 80], ids=["short", "compressed"])
def test_a_cookie_of_itsdangerous_is_read_with_any_of_its_usual_options(
    digest: object, derivation: str, maker: Any, payload: str
) -> None:
    kwargs = {"key_derivation": derivation, "digest_method": digest}
    value = maker(KEY, salt="quart auth salt", signer_kwargs=kwargs).dumps(payload)
    scheme = Scheme("signed:@QUART_AUTH:quart auth salt", signed_plainly, "QUART_AUTH")
    assert scheme.asked(value) == payload
    assert dataclasses.replace(scheme, source="signed:@QUART_AUTH").asked(value) is None
    other = maker(KEY, salt="quart auth salt", signer_kwargs={**kwargs, "key_derivation": "concat"})
    assert scheme.asked(other.dumps(payload)) is None


def test_the_salt_of_a_signed_cookie_is_that_of_itsdangerous_by_default() -> None:
    scheme = Scheme("signed:who@shop", signed_plainly, "shop")
    assert scheme.asked(URLSafeSerializer(KEY).dumps({"who": "ann"})) == "ann"
    assert scheme.asked(URLSafeTimedSerializer(KEY).dumps({"who": "ann"})) == "ann"


def test_a_time_is_not_cut_off_a_signed_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old cookie with a time must not turn into a cookie that never expires."""
    with at(monkeypatch, time.time() - 2 * sessions.SIGNED_SECONDS):
        value = URLSafeTimedSerializer(KEY).dumps({"who": "ann"})
    payload, stamp, signature = value.split(".")
    scheme = Scheme("signed:who@shop", signed_plainly, "shop")
    for forged in (
        value,
        f"{payload}.{signature}",
        f"{payload}{stamp}.{signature}",
        f".{payload}.{stamp}.{signature}",
    ):
        assert scheme.asked(forged) is None


@pytest.mark.parametrize(
    ("expiry", "who"),
    [
        ("E3d1S6", "ann"),  # 4102444800, as Datasette writes it
        ("Bx4rB7", "ann"),  # 1795290323
        ("Bx4rB6", None),
        ("z", None),
        ("A", None),
        ("", "ann"),  # Datasette takes it for no expiry
        (None, "ann"),
        ("E3d1S6E3d1S6", None),
        ("-E3d1S6", None),
        ("E3d1S\u0666", None),
        (4102444800, None),
        (["E3d1S6"], None),
    ],
)
def test_a_datasette_actor_expires_at_its_expiry_time(
    expiry: object, who: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at(monkeypatch, 1795290322.5):
        value = datasette_cookie(KEY, {"id": "ann"}, e=expiry)
        scheme = dataclasses.replace(SCHEMES["datasette"], source="signed:a.id@ds_actor:actor")
        assert scheme.asked(value) == who
    with at(monkeypatch, 1795290324):
        assert scheme.asked(value) == (None if expiry == "Bx4rB7" else who)


def test_the_field_e_is_an_expiry_only_in_datasette_cookies() -> None:
    value = URLSafeSerializer(KEY, "of a plugin").dumps({"who": "ann", "e": "z"})
    assert SCHEMES["signed"].asked(value) == "ann"
    listed = URLSafeSerializer(KEY, "actor").dumps(["ann"])
    assert SCHEMES["datasette"].asked(listed) is None


@pytest.mark.parametrize("prefix", ["", "Bearer ", "bearer ", "BEARER  "])
def test_a_token_in_a_cookie_may_follow_the_word_bearer(prefix: str) -> None:
    scheme, token = SCHEMES["jwt in a cookie"], jwt_of(KEY)
    assert scheme.asked(prefix + token) == "ann"
    assert scheme.asked(f'"{prefix}{token}"') == "ann"
    for forged in (f"Basic {token}", f"{token} Bearer", f"Bearer{token}", "Bearer", "Bearer "):
        assert scheme.asked(forged) is None


def test_a_token_is_read_only_from_the_configured_place() -> None:
    in_cookie, in_header, token = SCHEMES["jwt in a cookie"], SCHEMES["jwt"], jwt_of(KEY).encode()
    assert ids(in_cookie.settings, in_header.request(token)) is None
    assert ids(in_header.settings, in_cookie.request(token)) is None


GARBAGE = {
    "garbage base64": b"=a=.b=!c.-_-_",
    "dots": b"." * 300,
    "padding": b"=" * 100,
    "64 kB": b"a" * 65_536,
    "64 kB of dots": b"a." * 32_768,
    "64 kB in quotes": b'"' + b"a" * 65_536 + b'"',
    "bytes": bytes(range(128, 256)),
    "no ASCII": "j\xfcrgen.\u0436.\U0001f600".encode(),
    "half a character": b"\xed\xa0\x80.\xed\xb0\x80.a",
    "NUL": b"\0.\0.\0",
    "escapes": b"%00%ff%0a.%u0000.\\u0000",
    "a huge number": b"9" * 5000 + b".9.9",
    "a sign": b"-1.-1.-1",
    "nested arrays": base64.urlsafe_b64encode(b"[" * 5000),
    "nested arrays as a token": base64.urlsafe_b64encode(b'{"alg":' + b"[" * 5000) + b".e30.e30",
    "nested objects as a token": base64.urlsafe_b64encode(b'{"a":' * 1000) + b".e30.e30",
    "a compressed session": b"."
    + base64.urlsafe_b64encode(zlib.compress(b"[" * 6_000_000))
    + b".a.b",
}


@every_scheme
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_garbage_is_rejected(scheme: Scheme, garbage: bytes) -> None:
    assert scheme.asked(garbage) is None
    assert scheme.asked(b'"' + garbage + b'"') is None
    assert scheme.asked(garbage + b"AAAA." + scheme.make(KEY).encode()) is None


@every_scheme
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(value=st.binary(max_size=200) | st.text("abcAZ09-_.=!%\"'/ ", max_size=200).map(str.encode))
def test_arbitrary_bytes_are_rejected(scheme: Scheme, value: bytes) -> None:
    assert scheme.asked(value) is None


@pytest.mark.parametrize("source", ["cookie:sid", "django-session:sid"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_an_opaque_cookie_identifies_only_its_own_hash(source: str, garbage: bytes) -> None:
    settings = Settings.from_env(
        {}, identity=f"user={source}", secret=SECRET, enabled=False, bots="off"
    )
    found = ids(settings, Request([("Cookie", b"sid=" + garbage)]))
    assert found is not None
    assert HASHED.fullmatch(found)
    assert found != ids(settings, Request([("Cookie", b"sid=ann")]))
    assert found == ids(settings, Request([("Cookie", b"a=1; sid=" + garbage + b"; b=2")]))


def token_of(header: object, claims: object, key: str | None = None) -> str:
    """A token that no library would make."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in (header, claims)]
    signed = b".".join(part.rstrip(b"=") for part in parts)
    mac = hmac.new(key.encode(), signed, sha256).digest() if key is not None else b""
    return (signed + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def test_the_tokens_of_these_tests_are_valid() -> None:
    assert SCHEMES["jwt"].asked(token_of({"alg": "HS256"}, {"who": "ann"}, KEY)) == "ann"


@pytest.mark.parametrize(
    "scheme",
    [SCHEMES["jwt"], SCHEMES["jwt in a cookie"], SCHEMES["jwt of a pair"]],
    ids=["hmac", "cookie", "rsa"],
)
@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "nOnE", "", None, 0, [], ["HS256"], {}, "HS1"]
)
def test_a_token_cannot_choose_its_verification_algorithm(scheme: Scheme, alg: object) -> None:
    headers: list[object] = [{"alg": alg}, {"alg": alg, "typ": "JWT", "kid": "../x"}, {}, []]
    for key in (None, "", KEY, PUBLIC):
        for header in headers:
            assert scheme.asked(token_of(header, {"who": "ann"}, key)) is None


@pytest.mark.parametrize("lines", [PUBLIC, PUBLIC.strip(), f"{PUBLIC}\n", PUBLIC.replace("\n", "")])
def test_a_token_signed_with_the_public_key_is_rejected(lines: str) -> None:
    """The token uses HS256 with the text of the RSA key as its secret."""
    scheme = SCHEMES["jwt of a pair"]
    for alg in ("HS256", "HS384", "HS512"):
        assert scheme.asked(token_of({"alg": alg}, {"who": "ann"}, lines)) is None
    assert sessions.algorithms_for(PUBLIC) == sessions.algorithms_for(f"\n {PUBLIC}")
    assert not [alg for alg in sessions.algorithms_for(PUBLIC) if alg.startswith("HS")]
    assert all(alg.startswith("HS") for alg in sessions.algorithms_for(KEY))


@pytest.mark.parametrize(
    "claim", [{"who": None}, {"who": {"id": 1}}, {"who": ["ann"]}, {"who": ""}]
)
@every_scheme
def test_a_signed_value_that_is_not_an_id_is_rejected(
    scheme: Scheme, claim: dict[str, object]
) -> None:
    if scheme.source != "auth-tkt":
        assert scheme.asked(scheme.make(KEY, claim)) is None
        assert scheme.asked(scheme.make(KEY, {"other": "ann"})) is None


@pytest.mark.parametrize(
    "payload", [b"[" * 6_000_000, b'{"who":' * 800_000, b"1" * 6_000_000, b"\0"]
)
def test_a_signed_decompression_bomb_is_rejected(payload: bytes) -> None:
    """It is short while compressed, and unpacked because its signature is valid."""
    options = {"key_derivation": "hmac"}
    serializer = URLSafeTimedSerializer(KEY, salt="cookie-session", signer_kwargs=options)
    packed = b"." + base64.urlsafe_b64encode(zlib.compress(payload, 9)).rstrip(b"=")
    value = serializer.make_signer(serializer.salt).sign(packed)
    assert SCHEMES["flask"].asked(value) is None
    text = base64.b64encode(b"[" * 5000)
    assert SCHEMES["starlette"].asked(TimestampSigner(KEY).sign(text)) is None


def test_a_decompression_bomb_is_not_unpacked_before_its_signature_is_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unpacked: list[int] = []
    unpack = zlib.decompress

    def watched(data: bytes) -> bytes:
        unpacked.append(len(data))
        return unpack(data)

    monkeypatch.setattr(zlib, "decompress", watched)
    long = {"who": "ann", "more": "a" * 1000}
    assert SCHEMES["flask"].asked(flask_cookie(OTHER, long)) is None
    assert not unpacked
    assert SCHEMES["flask"].asked(flask_cookie(KEY, long)) == "ann"
    assert unpacked


@every_scheme
def test_a_value_that_is_too_long_is_rejected(scheme: Scheme) -> None:
    """No browser sends such a value, so no time is spent on it."""
    noise = base64.b64encode(random.Random(1).randbytes(9000)).decode()
    if scheme.source == "auth-tkt":
        values = [
            AuthTicket(KEY, "ann", "0.0.0.0", user_data=data, hashalg="sha512").cookie_value()
            for data in ("", noise)
        ]
    else:
        values = [scheme.make(KEY, {"who": "ann", "noise": data}) for data in ("", noise)]
    assert len(values[0]) < sessions.MAX_TOKEN_LENGTH < len(values[1])
    assert list(map(scheme.asked, values)) == ["ann", None]


# ---- Time.


@pytest.mark.parametrize("name", TIMED)
def test_an_expired_value_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, now = SCHEMES[name], int(time.time())
    assert scheme.lasts is not None
    for age, who in ((scheme.lasts - 2, "ann"), (scheme.lasts + 2, None), (scheme.lasts * 9, None)):
        with at(monkeypatch, now - age):
            value = scheme.make(KEY)
        with at(monkeypatch, now):
            assert scheme.asked(value) == who, age


@pytest.mark.parametrize("name", ["jwt", "jwt in a cookie", "jwt of a pair"])
def test_an_expired_token_is_rejected(name: str) -> None:
    scheme, now = SCHEMES[name], int(time.time())
    for claims, who in [
        ({"exp": now + 60}, "ann"),
        ({"exp": now - 1}, None),
        ({"exp": 0}, None),
        ({"exp": -1}, None),
        ({"nbf": now + 60}, None),
        ({"iat": now + 60}, None),
        ({}, "ann"),
    ]:
        assert scheme.asked(scheme.make(KEY, {"who": "ann", **claims})) == who, claims


@pytest.mark.parametrize("name", [*TIMED, "jwt", "jwt of a pair"])
def test_a_cached_value_expires_on_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verified values are cached for a minute."""
    scheme, now = SCHEMES[name], int(time.time())
    if scheme.lasts:
        with at(monkeypatch, now - scheme.lasts + 20):
            value = scheme.make(KEY)
    else:
        value = scheme.make(KEY, {"who": "ann", "exp": now + 20})
    for seconds, who in ((0, "ann"), (18, "ann"), (22, None), (50, None), (500, None)):
        with at(monkeypatch, now + seconds):
            assert scheme.asked(value) == who, seconds


@every_scheme
def test_a_rejected_value_stays_rejected(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    value, now = scheme.make(OTHER), time.time()
    for seconds in (0, 1, 59, 61, 3600):
        with at(monkeypatch, now + seconds):
            assert scheme.asked(value) is None


# ---- Ids that look like more than an id.

WEIRD = [
    "{mallory}",
    "mallory:seen",
    "mallory:m:1",
    "x:mallory:seen",
    "user:seen\r\nmallory",
    "mallory\nSET x 1\n",
    "mallory\0",
    "\0mallory",
    "*mallory*",
    "mallory?[a-z]",
    "[mallory]",
    "\\mallory",
    "mallory$(id)`id`",
    "'mallory\"; --",
    "../../mallory",
    "%7Bmallory%7D",
    "mallory" * 1500,
    "m\xe4llory\u202e\U0001f600",
    "mallory\u2028",
    "*mallory" * 33,
]
WEIRD_BYTES = [b"mallory\xff\xfe", b"\xc3\x28mallory", b"\xed\xa0\x80mallory", b"\x80" * 300]
OF_A_KEY = (
    r"{prefix}:(meta|settings|visitor-key|upkeep|"
    r"(user|guest):(writers|peak|history:\d+|seen|left|gone|m:\d+|h:\d+))"
)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("form", ["raw", "hashed"])
def test_an_id_never_determines_a_redis_key(
    site: Site, valkey: Server, prefix: str, store: str, form: str
) -> None:
    settings = site(identity=f"user=header:X-User:{form}, guest=ip", store=store)
    said = [*(text.encode() for text in WEIRD), *WEIRD_BYTES]
    found = [ids(settings, Request([("X-User", value)])) for value in said]
    assert len(set(found)) == len(said)
    for id, value in zip(found, said, strict=True):
        assert id is not None
        text = value.decode(errors="replace").strip()
        assert HASHED.fullmatch(id) if form == "hashed" else id == text or HASHED.fullmatch(id)
    assert recorder_for(settings).flush()
    presence = Presence(settings)
    if store == "sorted-set":
        presence.leave("*")
        presence.leave("user:seen")
        assert {seen.id for seen in presence.online(limit=None)} == set(found)
    if store != "hyperloglog":
        assert presence.online_among([id for id in found if id]) == found
    assert presence.count() == pytest.approx(len(said), abs=1 if store == "hyperloglog" else 0)
    with redis.Redis.from_url(valkey.url) as client:
        keys = [key.decode() for key in client.scan_iter(f"{prefix}*")]
        assert not list(client.scan_iter("*mallory*"))
    assert keys
    for key in keys:
        assert re.fullmatch(OF_A_KEY.format(prefix=prefix), key), key


@pytest.mark.parametrize("id", [text.strip() for text in WEIRD if len(text) < 250])
def test_odd_ids_are_returned_unchanged(site: Site, valkey: Server, id: str, prefix: str) -> None:
    settings = site(identity="user=auth, guest=ip")
    other = "somebody else"
    said = Request()
    for name in (id, other):
        assert ids(settings, said, lambda state, name=name: state[VISIT].identify(name)) == name  # type: ignore[misc]
    presence = Presence(settings)
    assert recorder_for(settings).flush()
    assert presence.is_online(id)
    assert presence.online_among([id, f"{id}x", "*", "?"]) == [id]
    presence.leave(id)
    assert [seen.id for seen in presence.online()] == [other]
    presence.forget(id)
    presence.touch(id)
    assert {seen.id for seen in presence.online()} == {id, other}


VISIT = "presence_middleware.visit"
