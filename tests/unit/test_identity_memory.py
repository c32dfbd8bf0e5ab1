"""Who is remembered for the headers and the address of a request, and for how long."""

import base64
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import jwt
import pytest
from itsdangerous import TimestampSigner

from presence_middleware import Presence, Settings, wsgi
from presence_middleware.identity import resolver
from presence_middleware.identity.addresses import WHOLE, locator, parse_proxies
from presence_middleware.identity.bots import LOOKUPS
from presence_middleware.identity.resolver import IdentityResolver
from presence_middleware.identity.rules import parse_chain
from presence_middleware.request import USER, AsgiRequest, WsgiRequest

KEY = "the key of the test's own site and long enough"
SECRET = "a secret of the test's own"
NOW = 1_800_000_000.0
GOOGLEBOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
Make = Callable[..., IdentityResolver]


@contextmanager
def at(moment: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: moment)
        yield


def maker(module: ModuleType = resolver) -> Make:
    def make(chain: str, *, secret: str = SECRET, bots: str = "off", **more: Any) -> Any:
        return module.IdentityResolver(
            parse_chain(chain), secret=secret, session_secrets=(KEY,), bots=bots, **more
        )

    return make


def request(authorization: str = "", cookie: str = "", agent: str = FIREFOX) -> WsgiRequest:
    environ = {"REMOTE_ADDR": "192.0.2.7", "HTTP_USER_AGENT": agent}
    given = {"HTTP_AUTHORIZATION": authorization, "HTTP_COOKIE": cookie}
    return WsgiRequest(environ | {key: value for key, value in given.items() if value})


def kind(
    found: IdentityResolver, of: WsgiRequest | AsgiRequest, *, is_refused: bool = False
) -> str | None:
    result = found.resolve(of, is_refused=is_refused)
    return result[0][0] if result and result[0] else None


class Counted(WsgiRequest):
    """Counts how often a source reads its headers."""

    reads = 0

    def header(self, name: str) -> str | None:
        Counted.reads += 1
        return super().header(name)


def check_a_result_is_remembered_for_a_minute(make: Make) -> None:
    found, counts = make("guest=cookie:sid"), []
    Counted.reads = 0
    for seconds in (0, 1, 59.9, 60.1, 61, 200, -3600, -3599, -3500):
        with at(NOW + seconds):
            assert kind(found, Counted({"HTTP_COOKIE": "sid=1"})) == "guest"
        counts.append(Counted.reads)
    # A clock that was set back does not make the minute longer.
    assert counts == [1, 1, 1, 2, 2, 3, 4, 4, 5]


def token(**claims: object) -> str:
    return "Bearer " + jwt.encode({"sub": "ann", **claims}, KEY)


def check_a_token_counts_until_it_expires(make: Make) -> None:
    now = time.time()
    header = token(exp=int(now) + 20)
    for form in ("raw", "hashed"):
        found = make(f"user=bearer:sub:{form}, guest=visitor")
        for seconds, expected in ((0, "user"), (18, "user"), (21, "guest"), (22, "guest")):
            with at(now + seconds):
                assert kind(found, request(header)) == expected, (form, seconds)


def check_a_crawler_counts_as_logged_in_until_its_token_expires(make: Make) -> None:
    now = time.time()
    header = token(exp=int(now) + 20)
    found = make("guest=cookie:sid, user=bearer:sub", bots="count")
    for seconds, expected in ((0, "guest"), (18, "guest"), (21, "bot"), (22, "bot")):
        with at(now + seconds):
            assert kind(found, request(header, "sid=1", GOOGLEBOT)) == expected, seconds


def check_a_cookie_that_turns_valid_later_counts_from_then_on(make: Make) -> None:
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
                assert kind(found, asked) == expected, (chain, seconds)


def check_a_refused_login_is_refused_although_it_is_remembered(make: Make) -> None:
    login = f"Basic {base64.b64encode(b'ann:password').decode()}"
    for first in (False, True):
        found = make("user=basic, guest=visitor", bots="count")
        for is_refused in (first, not first, first, not first):
            asked = request(login)
            expected = "guest" if is_refused else "user"
            assert kind(found, asked, is_refused=is_refused) == expected
            result = found.resolve(asked, is_refused=is_refused)
            assert result is not None
            assert result[1].is_checked is not is_refused


class Released(WsgiRequest):
    """A request that another thread ends while a source reads it."""

    def header(self, name: str) -> str | None:
        self.release()
        return super().header(name)


def check_a_request_that_ended_meanwhile_is_not_remembered(make: Make) -> None:
    found, environ = make("user=header:X-User, guest=visitor"), {"HTTP_X_USER": "ann"}
    kind(found, Released(environ))
    assert kind(found, WsgiRequest(environ)) == "user"


def check_another_address_or_header_is_another_visitor(make: Make) -> None:
    found = make("guest=visitor")
    environ = {"REMOTE_ADDR": "192.0.2.7", "HTTP_USER_AGENT": FIREFOX}
    others = [environ, environ | {"REMOTE_ADDR": "192.0.2.8"}, environ | {"HTTP_USER_AGENT": "x"}]
    for _ in range(2):
        assert len({str(found.resolve(WsgiRequest(other))) for other in others}) == 3


def check_another_client_behind_a_proxy_is_another_visitor(make: Make) -> None:
    found = make("guest=visitor", locate=locator(parse_proxies("1"), WHOLE))
    environ = {"REMOTE_ADDR": "10.0.0.1", "HTTP_USER_AGENT": FIREFOX}
    seen = []
    for header in ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED"):
        for client in ("192.0.2.7", "192.0.2.8", "192.0.2.7"):
            value = f"for={client}" if header == "HTTP_FORWARDED" else client
            asked = WsgiRequest({**environ, header: value})
            asked.locate = found.locate
            asked.arrive(asked.state)
            seen.append(str(found.resolve(asked)))
    one, other, _ = seen[:3]
    assert one != other
    assert seen == [one, other, one] * 2


def check_ids_change_with_the_shared_key(make: Make) -> None:
    found = make("user=basic, guest=visitor", secret="")
    assert found.shared_key is not None
    seen = []
    for key in (b"", b"a key of the site", b"another key"):
        if key:
            found.shared_key.learn(key)
        seen.append([str(found.resolve(request(), is_refused=it)) for it in (False, True)])
    assert len({first for first, _ in seen}) == len({second for _, second in seen}) == 3


def check_a_crawler_past_the_budget_counts_as_a_guest_for_a_second(make: Make) -> None:
    seconds = 0.0
    found = make("guest=visitor", bots="count", monotonic=lambda: seconds)
    with at(NOW):
        for number in range(LOOKUPS):
            assert kind(found, request(agent=f"{FIREFOX} {number}")) == "guest"
        assert kind(found, request(agent=GOOGLEBOT)) == "guest"
    seconds = 1.1
    with at(NOW + seconds):
        assert kind(found, request(agent=GOOGLEBOT)) == "bot"


def check_a_login_counts_although_a_guest_with_the_same_headers_is_remembered(make: Make) -> None:
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


def check_no_request_raises(make: Make) -> None:
    found = make("user=starlette-session:user, member=bearer:sub, guest=visitor", bots="count")
    for key in ("HTTP_COOKIE", "HTTP_AUTHORIZATION", "HTTP_USER_AGENT"):
        for bad in (5, b"bytes", ["list"]):
            found.resolve(WsgiRequest({key: bad}))
    for headers in ([("cookie", "text")], [(b"cookie", 5)], None, 5):
        found.resolve(AsgiRequest({"headers": headers}))


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_memory(check: Callable[[Make], None]) -> None:
    check(maker())


def test_a_response_that_refuses_a_remembered_login_records_no_user(prefix: str) -> None:
    settings = Settings.from_env(
        {}, redis_url=f"memory://{prefix}", identity="user=basic, guest=visitor", secret=SECRET
    )
    environ = {
        "REQUEST_METHOD": "GET",
        "REMOTE_ADDR": "192.0.2.7",
        "HTTP_AUTHORIZATION": f"Basic {base64.b64encode(b'ann:wrong').decode()}",
    }

    def app(_: object, start_response: Any) -> list[bytes]:
        start_response(status, [])
        return [b""]

    middleware, presence = wsgi.PresenceMiddleware(app, settings=settings), Presence(settings)
    for status in ("200 OK", "401 Unauthorized", "403 Forbidden", "200 OK"):
        body: Any = middleware(dict(environ), lambda *_: list[bytes]().append)
        list(body)
        if hasattr(body, "close"):
            body.close()
        middleware.recorder.flush()
        assert presence.is_online("ann") is (status == "200 OK"), status
        presence.forget("ann")


# The checks can fail. Each copy of the module has one mistake, which a check must detect.

MINUTE = "until - time.time() <= REMEMBERED_SECONDS"
HOLDS = "request.holds_until - time.time()"
MISTAKES = [
    (f"0 < {MINUTE}", "until > time.time()", "a_result_is_remembered_for_a_minute"),
    (f"0 < {MINUTE}", MINUTE, "a_result_is_remembered_for_a_minute"),
    (f"0 < {MINUTE}", f"False and {MINUTE}", "a_result_is_remembered_for_a_minute"),
    ("min(seconds, REMEMBERED_SECONDS)", "60.0", "a_token_counts_until_it_expires"),
    (
        "min(seconds, REMEMBERED_SECONDS)",
        "60.0",
        "a_cookie_that_turns_valid_later_counts_from_then_on",
    ),
    (HOLDS, "60.0", "a_crawler_counts_as_logged_in_until_its_token_expires"),
    (HOLDS, "60.0", "a_cookie_that_turns_valid_later_counts_from_then_on"),
    (HOLDS, "60.0", "a_crawler_past_the_budget_counts_as_a_guest_for_a_second"),
    (
        "self._unchecked if is_refused else self._search",
        "self._search",
        "a_refused_login_is_refused_although_it_is_remembered",
    ),
    (
        "request.fingerprint(self._names) == place",
        "place",
        "a_request_that_ended_meanwhile_is_not_remembered",
    ),
    (
        "not (self._asks_user and request.is_anonymous)",
        "not self._asks_user",
        "a_login_counts_although_a_guest_with_the_same_headers_is_remembered",
    ),
    ("self._unchecked.forget()", "pass", "ids_change_with_the_shared_key"),
    ("self._search.forget()", "pass", "ids_change_with_the_shared_key"),
    ("for each in self._last for name in each.headers or ()", "for name in ()", "another_address"),
    (
        "except Exception as error:  # the site",
        "except KeyError as error:  # the site",
        "no_request",
    ),
]


@pytest.mark.parametrize(("right", "wrong", "name"), MISTAKES)
def test_a_mistake_in_the_memory_is_detected(right: str, wrong: str, name: str) -> None:
    source = inspect.getsource(resolver)
    assert source.count(right) == 1
    broken = ModuleType(resolver.__name__)
    broken.__package__ = resolver.__package__
    exec(compile(source.replace(right, wrong), resolver.__name__, "exec"), vars(broken))
    (check,) = (check for key, check in CHECKS.items() if key.startswith(name))
    with pytest.raises((AssertionError, AttributeError)):
        check(maker(broken))
