"""A login that the site checks itself counts once the response does not refuse it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import getclosurevars
from typing import Any

import pytest

from presence_middleware import Identity, Presence, Settings, asgi, wsgi
from presence_middleware.identity.sources import SOURCES
from presence_middleware.recorder import recorder_for
from presence_middleware.request import AsgiRequest, WsgiRequest
from tests.support.asking import State
from tests.support.backends import wait_until
from tests.support.statuses import Ask, Call, basic, online, over_asgi, over_wsgi

ANN = {"Authorization": basic("ann:opensesame")}
BASIC = "user=basic, guest=visitor"
USER, GUEST = ("user", "ann"), ("guest", "")
Site = Callable[..., Settings]
both = pytest.mark.parametrize("ask", [over_wsgi, over_asgi])


@pytest.fixture
def site(unwritten: Site) -> Site:
    """Makes the settings of a site that logs in with HTTP Basic."""
    return lambda identity=BASIC, **others: unwritten(identity=identity, **others)


# ---- The header.


@pytest.mark.parametrize(
    ("header", "user"),
    [
        (basic("ann:secret"), "ann"),
        (basic("ann:"), "ann"),
        (basic("ann:a:b"), "ann"),
        (basic(":secret"), ""),
        (basic("ann"), None),
        (basic(""), None),
        (basic("jürgen:ü"), "jürgen"),
        (basic("jürgen:ü".encode("latin-1")), "jürgen"),
        (basic("ann b:x"), "ann b"),
        (basic(" ann:x"), None),
        (basic("ann\t:x"), None),
        (basic("ann\xa0:x"), None),
        (basic("a\nn:x"), None),
        (basic("a\0n:x"), None),
        (basic("a\x7fn:x"), None),
        (basic("a\x85n:x"), None),
        (basic(b"a\x85n:x"), None),
        (basic("ann:a\0b"), "ann"),
        (basic("a" * 6000 + ":x"), "a" * 6000),
        (basic("a" * 6200 + ":x"), None),
        (basic("ann:secret").replace("Basic", "bAsIc"), "ann"),
        (basic("ann:secret").replace(" ", "   "), "ann"),
        (basic("ann:secret") + "  ", "ann"),
        (basic("ann:secret")[:-1], None),
        (basic("ann:secret") + "=", None),
        (basic("ann:secret").replace("Basic", "Bearer"), None),
        (basic("ann:secret") + ", " + basic("bob:secret"), None),
        ("Basic YW5uOnNlY3J-dA==", None),
        ("Basic YW5u\tOnNlY3JldA==", None),
        ("Basic ann:secret", None),
        ("Basic \xfc\xfc\xfc\xfc", None),
        ("Basic", None),
        ("", None),
    ],
)
def test_the_user_of_a_header_is_what_stands_before_the_first_colon(
    header: str, user: str | None
) -> None:
    read = SOURCES["basic"].make("", ())
    environ = {"HTTP_AUTHORIZATION": header.encode().decode("latin-1")}
    scope = {"headers": [(b"authorization", header.encode())]}
    assert read(WsgiRequest(environ)) == read(AsgiRequest(scope)) == user
    assert read(WsgiRequest({})) is read(AsgiRequest({})) is None


# ---- The status.


def named(state: State) -> None:
    state["presence_middleware.visit"].identify("bob")


def of_header(request: WsgiRequest) -> str | None:
    return request.header("x-user")


ROWS: dict[str, tuple[str, Call, list[tuple[str, str]]]] = {
    **{f"{status}": (BASIC, Call(ANN, statuses=(status,)), [USER]) for status in (200, 206, 304)},
    # Many sites redirect, or answer 404, before they look at a password.
    **{f"{status}": (BASIC, Call(ANN, statuses=(status,)), []) for status in (302, 400, 404, 500)},
    **{f"{status}": (BASIC, Call(ANN, statuses=(status,)), [GUEST]) for status in (401, 403)},
    # Frameworks answer it themselves, before the page that looks at a password.
    "OPTIONS": (BASIC, Call(ANN, method="OPTIONS"), []),
    "named by a layer": (BASIC, Call(ANN, before=named, statuses=(401,)), [("user", "bob")]),
    # Any source can be checked.
    **{
        f"{source}: {status}": (
            f"user={source}:checked, guest=visitor",
            Call({"X-User": "ann", "Cookie": "sid=ann"}, statuses=(status,), state=state),
            [counted],
        )
        for status, counted in ((403, GUEST), (200, USER))
        for source, state in (
            *(("header:X-User", {}), ("header:X-User:raw", {}), ("cookie:sid:raw", {})),
            ("auth", {"REMOTE_USER": "ann", "user": "ann"}),
            (f"{__name__}:of_header", {}),
        )
    },
}


@both
@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_a_login_counts_if_the_response_does_not_refuse_it(
    name: str, is_streaming: bool, ask: Ask, site: Site
) -> None:
    identity, call, counted = ROWS[name]
    ask(site(identity), replace(call, is_streaming=is_streaming))
    assert online(site(identity)) == counted


def test_the_last_status_of_a_wsgi_response_counts(site: Site) -> None:
    over_wsgi(site(), Call(ANN, statuses=(200, 401)))
    assert online(site()) == [GUEST]
    over_wsgi(site(), Call(ANN, statuses=(403, 200), is_streaming=True))
    assert online(site()) == [GUEST, USER]


def test_a_status_that_the_server_refuses_replaces_none(site: Site) -> None:
    """As when headers are sent already: what the app gave as `exc_info` is then raised."""

    def start(status: str, headers: list[Any], exc_info: Any = None) -> Any:
        if exc_info:
            raise exc_info[1]
        return written.append

    def app(environ: State, start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [])
        write(b"a")
        with pytest.raises(ValueError, match="late"):
            start_response("401 No", [], exc_info=(ValueError, ValueError("late"), None))
        return []

    written: list[bytes] = []
    environ = {"HTTP_AUTHORIZATION": ANN["Authorization"], "REMOTE_ADDR": "192.0.2.7"}
    wsgi.PresenceMiddleware(app, settings=site())(environ, start)
    assert written == [b"a"]
    assert online(site()) == [USER]


@both
def test_an_app_that_raises_before_it_answers_has_accepted_nobody(ask: Ask, site: Site) -> None:
    with pytest.raises(ValueError, match="boom"):
        ask(site(), Call(ANN, failure=ValueError("boom")))
    assert online(site()) == [GUEST]


@pytest.mark.parametrize("line", ["OK", "", "4O1 No", "²00 OK", b"200 OK", None])
def test_a_status_line_that_is_none_accepts_nobody(line: Any, site: Site) -> None:
    def app(environ: State, start_response: Any) -> list[bytes]:
        start_response(line, [])
        return []

    environ = {"HTTP_AUTHORIZATION": ANN["Authorization"], "REMOTE_ADDR": "192.0.2.7"}
    wsgi.PresenceMiddleware(app, settings=site())(environ, lambda *_: print)
    assert online(site()) == [GUEST]


@both
def test_a_handler_is_told_nobody_until_the_response_has_a_status(ask: Ask, site: Site) -> None:
    """Neither does it count anybody as it asks: a wrong password would count then, too."""
    found: list[Any] = []

    def look(state: State) -> None:
        visit = state["presence_middleware.visit"]
        visit.flush()
        found.append((visit.identity, online(site())))

    ask(site(), Call(ANN, before=look, after=look))
    assert found == [(None, []), (Identity("user", "ann"), [USER])]
    found.clear()
    ask(site(), Call({}, before=look))
    assert found[0][0].kind == "guest", "nobody's name waits for a check"


@both
def test_an_accepted_login_is_no_crawler_and_a_refused_one_is(ask: Ask, site: Site) -> None:
    """Programs, which many sites take for crawlers, log in with HTTP Basic."""
    for chain in ("user=basic, guest=visitor", "guest=user-agent, user=basic"):
        settings = site(chain, prefix=f"{site().prefix}{len(chain)}{chain[0]}")
        call = Call({**ANN, "User-Agent": "curl/8.5.0"}, statuses=(401,))
        ask(settings, call)
        assert recorder_for(settings).flush()
        assert Presence(settings).counts() == {"user": 0, "guest": 0, "bot": 1}
    settings = site()
    ask(settings, Call({**ANN, "User-Agent": "curl/8.5.0"}))
    assert online(settings) == [USER]


# ---- Wrappers.


def test_start_response_is_wrapped_only_where_a_status_matters(site: Site) -> None:
    def app(environ: State, start_response: Any) -> list[bytes]:
        seen.append(start_response)
        return []

    seen: list[Any] = []
    start: Any = lambda *_: print  # noqa: E731
    for identity, path, is_own in (
        ("user=auth, guest=visitor", "/", True),
        ("user=auth, guest=visitor", "/logout", False),
        ("user=basic", "/", False),
        ("user=auth:checked", "/", False),
    ):
        wrapped = wsgi.PresenceMiddleware(app, settings=site(identity, logout="/logout"))
        wrapped({"REMOTE_ADDR": "192.0.2.7", "PATH_INFO": path}, start)
        assert (seen.pop() is start) is is_own
    inner = wsgi.PresenceMiddleware(app, settings=site())
    wsgi.PresenceMiddleware(inner, settings=site())(wsgi_environ(), start)
    assert getclosurevars(seen.pop()).nonlocals["start_response"] is start, "of two, one wraps"


def wsgi_environ() -> dict[str, Any]:
    return {"HTTP_AUTHORIZATION": ANN["Authorization"], "REMOTE_ADDR": "192.0.2.7"}


# ---- What stays open.


def test_a_long_response_counts_as_soon_as_its_status_is_known(site: Site) -> None:
    settings = site(flush_interval="0.05s")
    presence = Presence(settings)

    def app(_: State, start_response: Any) -> Iterator[bytes]:
        recorder.run_once()
        found.append(presence.counts()["user"])
        start_response("200 OK", [])
        yield b"a"
        yield b"b"

    found: list[int] = []
    wrapped = wsgi.PresenceMiddleware(app, settings=settings)
    recorder = wrapped.recorder
    body = wrapped(wsgi_environ(), lambda *_: print)
    lines = iter(body)
    assert next(lines) == b"a"
    wait_until(lambda: presence.is_online("ann"))
    assert found == [0]
    body.close()
    assert online(settings) == [USER]


@pytest.mark.parametrize(
    ("messages", "counted"),
    [
        (["websocket.accept"], USER),
        (["websocket.accept", "websocket.close"], USER),
        (["websocket.close"], GUEST),
        (["websocket.http.response.start", "websocket.http.response.body"], GUEST),
        ([], GUEST),
    ],
)
def test_a_socket_counts_once_it_is_accepted(
    messages: list[str], counted: tuple[str, str], site: Site
) -> None:
    settings = site()

    async def app(scope: State, _: Any, send: Any) -> None:
        assert scope["presence_middleware.visit"].identity is None
        for kind in messages:
            await send({"type": kind, "status": 200})
            sent.append(kind)

    async def send(message: Any) -> None:
        passed.append(message["type"])

    sent: list[str] = []
    passed: list[str] = []
    headers = [(b"authorization", ANN["Authorization"].encode())]
    scope = {"type": "websocket", "path": "/", "headers": headers, "client": ("192.0.2.7", 1)}
    wrapped = asgi.PresenceMiddleware(app, settings=settings)
    asyncio.run(wrapped(scope, send, send))  # type: ignore[arg-type]
    assert sent == passed == messages
    assert online(settings) == [counted]


@both
def test_a_guest_that_is_checked_has_a_quota_all_the_same(ask: Ask, site: Site) -> None:
    settings = site("guest=cookie:sid:raw:checked, user=auth", bots="off")
    for number in range(105):
        ask(settings, Call({"Cookie": f"sid={number}"}))
    assert recorder_for(settings).stats().dropped == {"quota": 5}
