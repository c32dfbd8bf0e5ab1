"""Who is remembered for the headers and the address of a request, and for how long."""

import base64
import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from itsdangerous import TimestampSigner

from presence_middleware.identity import resolver
from presence_middleware.identity.addresses import WHOLE, locator, parse_proxies
from presence_middleware.identity.bots import LOOKUPS
from presence_middleware.identity.resolver import IdentityResolver
from presence_middleware.identity.rules import parse_chain
from presence_middleware.request import USER, AsgiRequest, WsgiRequest
from tests.security.signed import ANN, KEY, OTHER, SCHEMES, Scheme, at, flask_cookie
from tests.support.asking import Request as Asked
from tests.support.beside import on_call
from tests.support.memory import traced
from tests.support.statuses import FIREFOX, GOOGLEBOT, basic

NOW = 1_800_000_000.0


def make(chain: str, session_secret: str = KEY, **given: Any) -> IdentityResolver:
    given = {"secret": "a secret of the test's own", "bots": "off", **given}
    return IdentityResolver(parse_chain(chain), session_secrets=(session_secret,), **given)


def request(authorization: str = "", cookie: str = "", agent: str = FIREFOX) -> WsgiRequest:
    environ = {"REMOTE_ADDR": "192.0.2.7", "HTTP_USER_AGENT": agent}
    given = {"HTTP_AUTHORIZATION": authorization, "HTTP_COOKIE": cookie}
    return WsgiRequest(environ | {key: value for key, value in given.items() if value})


def kind(
    found: IdentityResolver, of: WsgiRequest | AsgiRequest, *, is_refused: bool = False
) -> str | None:
    who, _ = found.resolve(of, is_refused=is_refused)
    return who[0] if who else None


def test_made_up_cookies_take_a_bounded_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "REMEMBERED", 100)
    found = make("guest=cookie:sid")
    with traced() as held:
        for number in range(5000):
            assert kind(found, request(cookie=f"sid={number}")) == "guest"
        assert held() < 500_000


@pytest.mark.parametrize("protocol", [0, 1])
@pytest.mark.parametrize("more", ["", ", hidden=identify", ", other=ip"])
def test_a_result_is_remembered_for_a_minute(
    more: str, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, counts, reads = make(f"guest=cookie:sid{more}"), [], list[str]()
    request_class = (WsgiRequest, AsgiRequest)[protocol]
    on_call(monkeypatch, request_class, "header", lambda _, name: reads.append(name))
    for seconds in (0, 1, 59.9, 60.1, 61, 200, -3600, -3599, -3500):
        with at(NOW + seconds):
            assert kind(found, Asked([("Cookie", b"sid=1")]).views()[protocol]) == "guest"
        counts.append(len(reads))
    # A clock that was set back does not make the minute longer.
    assert counts == [1, 1, 1, 2, 2, 3, 4, 4, 5]


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_two_users_with_the_same_address_and_browser_are_two(scheme: Scheme) -> None:
    found = make(f"user={scheme.source}:raw", session_secret=scheme.secret)
    users = {
        name: scheme.request(scheme.make(KEY, {**ANN, "who": name})).views()
        for name in ("ann", "bob")
    }
    for _ in range(2):
        for name, views in users.items():
            assert [found.resolve(view)[0] for view in views] == [("user", name)] * 2


@pytest.mark.parametrize(
    ("name", "source", "user"),
    [
        ("flask", "flask-session:who@mine", "ann"),
        ("starlette", "starlette-session:who@mine", "bob"),
        ("pyramid", "pyramid-session:who@mine", "bob"),
        ("ticket", "auth-tkt:mine", "bob"),
        ("signed", "signed:who@mine:of a plugin", "bob"),
        ("jwt in a cookie", "bearer:who@mine", "bob"),
    ],
)
def test_of_several_cookies_of_its_name_each_source_reads_that_of_its_framework(
    name: str, source: str, user: str
) -> None:
    found = make(f"user={source}")
    first, last = (SCHEMES[name].make(KEY, {"who": who}) for who in ("ann", "bob"))
    cookies = f"session=x; mine={first}; mine={last}; token=x; auth_tkt=x; shop=x"
    assert found.resolve(request(cookie=cookies))[0] == ("user", user)


def test_flask_may_have_stored_a_uuid() -> None:
    id = UUID(int=7)
    session = request(cookie=f"session={flask_cookie(KEY, {'who': id})}")
    assert make("user=flask-session:who").resolve(session)[0] == ("user", str(id))


def test_a_token_may_name_an_audience_and_have_numbers_in_place_of_texts() -> None:
    token = jwt.encode({"sub": 42, "jti": 7, "aud": "shop"}, KEY)
    assert make("user=bearer:sub").resolve(request(f"Bearer {token}"))[0] == ("user", "42")


@pytest.mark.parametrize(
    ("chain", "cookie", "agent", "then"),
    [
        ("user=bearer:sub:raw, guest=visitor", "", FIREFOX, "guest"),
        ("user=bearer:sub:hashed, guest=visitor", "", FIREFOX, "guest"),
        ("guest=cookie:sid, user=bearer:sub", "sid=1", GOOGLEBOT, "bot"),  # logged in until then
    ],
)
def test_a_token_counts_until_it_expires(chain: str, cookie: str, agent: str, then: str) -> None:
    now = time.time()
    header = "Bearer " + jwt.encode({"sub": "ann", "exp": int(now) + 20}, KEY)
    found = make(chain, bots="count")
    first = "guest" if cookie else "user"
    for seconds, expected in ((0, first), (18, first), (21, then), (22, then)):
        with at(now + seconds):
            assert kind(found, request(header, cookie, agent)) == expected, seconds


@pytest.mark.parametrize("source", ["bearer:who", "starlette-session:who", "pyramid-session:who"])
def test_what_expires_while_its_connection_is_open_counts_to_the_end(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, reads = next(each for each in SCHEMES.values() if each.source == source), list[str]()
    found = make(f"user={source}, guest=visitor", session_secret=scheme.secret)
    with at(NOW):
        asked = scheme.request(scheme.make(KEY))
    views = asked.views()
    for view in views:
        on_call(monkeypatch, type(view), "header", lambda _, name: reads.append(name))
    lasts = scheme.lasts or 60  # a token has its `exp`
    for age in (lasts - 2, lasts + 200, 9 * lasts):
        before = len(reads)
        # Each round asks again. What takes long is done once a minute, also after the end.
        for seconds in (0, 1, 30, 59, 61):
            for view in views:
                with at(NOW + age + seconds):
                    view.age = age + seconds - 1
                    assert kind(found, view) == "user", age
        assert len(reads) - before == 4 or age < lasts
        for another in asked.views():
            with at(NOW + age + seconds):
                for another.age in (0.0, seconds + 0.5):  # it may send its login too late
                    is_late = age + seconds - another.age >= lasts
                    assert kind(found, another) == ("guest" if is_late else "user"), age
    forged = scheme.request(scheme.make(OTHER)).views()[0]
    before = len(reads)
    for forged.age in map(float, range(61, 661)):
        with at(NOW + forged.age):
            assert kind(found, forged) == "guest"
    assert len(reads) - before <= 2 * 10, "after its first minute, it is verified once in each"


def test_a_cookie_that_turns_valid_later_counts_from_then_on() -> None:
    with at(NOW + 30):  # a host of the site whose clock is ahead
        session = TimestampSigner(KEY).sign(base64.b64encode(b'{"user": "ann"}')).decode()
    for chain, agent, before in (
        ("user=starlette-session:user, guest=visitor", FIREFOX, "guest"),
        ("guest=user-agent, user=starlette-session:user", GOOGLEBOT, "bot"),
    ):
        found = make(chain, bots="count")
        after = "user" if before == "guest" else "guest"
        for seconds, expected in ((0, before), (28, before), (32, after), (40, after)):
            with at(NOW + seconds):
                asked = request(cookie=f"session={session}", agent=agent)
                # First a connection that is open since the beginning.
                for asked.age in (seconds, 0):
                    assert kind(found, asked) == expected, (chain, seconds)


def test_a_refused_login_is_refused_although_it_is_remembered() -> None:
    login = basic("ann:password")
    for first in (False, True):
        found = make("user=basic, guest=visitor", bots="count")
        for is_refused in (first, not first, first, not first):
            asked = request(login)
            assert kind(found, asked, is_refused=is_refused) == ("guest" if is_refused else "user")
            assert found.resolve(asked, is_refused=is_refused)[1].is_checked is not is_refused


def test_the_earliest_rule_decides_who_logs_out_also_if_one_is_checked() -> None:
    found = make("user=environ:x:checked, member=environ:y, guest=visitor", bots="count")
    assert [matcher.place for matcher in found.search.matchers] == [0, 1, 2, 3]


def test_a_request_that_ended_meanwhile_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread ends it while a source reads it."""
    found, environ = make("user=header:X-User, guest=visitor"), {"HTTP_X_USER": "ann"}
    with monkeypatch.context() as patch:
        on_call(patch, WsgiRequest, "header", lambda view, _: view.release())
        kind(found, WsgiRequest(environ))
    assert kind(found, WsgiRequest(environ)) == "user"


@pytest.mark.parametrize("value", ["X-Forwarded-For: {}", "Forwarded: for={}"])
def test_another_client_behind_a_proxy_is_another_visitor(value: str) -> None:
    found = make("guest=visitor", locate=locator(parse_proxies("1"), WHOLE))
    seen = []
    for client in ("192.0.2.7", "192.0.2.8", "192.0.2.7"):
        name, _, said = value.format(client).partition(": ")
        asked = Asked([("User-Agent", FIREFOX.encode()), (name, said.encode())], peer="10.0.0.1")
        seen += [str(found.resolve(view)) for view in asked.views(found.locate)]
    one, _, other, *_ = seen
    assert one != other
    assert seen == [one, one, other, other, one, one]


@pytest.mark.parametrize(
    ("curve", "algorithm"),
    [
        *((ec.SECP256R1, "ES256"), (ec.SECP384R1, "ES384")),
        *((ec.SECP521R1, "ES512"), (ec.SECP256K1, "ES256K")),
    ],
)
def test_a_token_of_any_curve_counts(curve: type[ec.EllipticCurve], algorithm: str) -> None:
    pair = ec.generate_private_key(curve())
    public = pair.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    found = make("user=bearer:sub", session_secret=public.decode())
    assert kind(found, request(f"Bearer {jwt.encode({'sub': 'ann'}, pair, algorithm)}")) == "user"


def test_ids_change_with_the_shared_key_and_the_known_stay_known() -> None:
    found = make("user=basic, guest=visitor", secret="")
    assert found.shared_kinds == {"guest"}
    people, ids = set(), []
    for number, key in enumerate((b"", b"a key of the site", b"another key")):
        if key:
            found.hasher.learn(key)
        with at(NOW + 61 * number):
            for is_refused in (False, True):
                who, _ = found.resolve(request(), is_refused=is_refused)
                assert who is not None
                people.add(who)
                ids.append(found.resolve_id(who[1]))
    assert (len(people), len(set(ids)), ids[:2]) == (1, 3, [None, None])


def test_a_crawler_past_the_budget_counts_as_a_guest_for_a_second() -> None:
    seconds = 0.0
    found = make("guest=visitor", bots="count", monotonic=lambda: seconds)
    with at(NOW):
        for number in range(LOOKUPS):
            assert kind(found, request(agent=f"{FIREFOX} {number}")) == "guest"
        assert kind(found, request(agent=GOOGLEBOT)) == "guest"
    seconds = 1.1
    with at(NOW + seconds):
        assert kind(found, request(agent=GOOGLEBOT)) == "bot"


def test_a_login_counts_although_a_guest_with_the_same_headers_is_remembered() -> None:
    found, environ = make("user=auth, guest=visitor", bots="count"), {"HTTP_USER_AGENT": FIREFOX}
    scope = {"headers": [(b"user-agent", FIREFOX.encode())]}
    user, loaded = SimpleNamespace(pk=7, is_authenticated=True), {"user_id": "ann"}
    logins: list[tuple[str, Any]] = [("REMOTE_USER", "ann"), ("beaker.session", loaded)]
    for key, value in [*logins, (USER, lambda: user)]:
        assert kind(found, WsgiRequest(environ)) == "guest"
        assert kind(found, WsgiRequest({**environ, key: value})) == "user", key
    for key, value in (("user", user), ("session", loaded), (USER, lambda: user)):
        assert kind(found, AsgiRequest(scope)) == "guest"
        assert kind(found, AsgiRequest({**scope, key: value})) == "user", key
    assert kind(found, WsgiRequest(environ)) == kind(found, AsgiRequest(scope)) == "guest"
