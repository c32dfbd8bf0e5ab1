"""Whom a visit counts for, and which logins count: some are refused, checked, or end."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from inspect import getclosurevars
from math import inf
from typing import Any, NamedTuple
from unittest.mock import Mock

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from presence_middleware import Identity, Presence, QueryError, Settings, asgi, wsgi
from presence_middleware.identity.sources import SOURCES
from presence_middleware.recorder import recorder_for
from presence_middleware.recorder.setup_hints import INSPECTED_USERS
from presence_middleware.request import AsgiRequest, WsgiRequest
from tests.support.asking import (
    Inner,
    Request,
    State,
    ask_asgi,
    ask_wsgi,
    names,
    never,
    nothing,
)
from tests.support.beside import in_thread
from tests.support.statuses import Ask, Call, basic, online, over_asgi, over_websocket, over_wsgi
from tests.support.transports import AsgiTransport


@pytest.mark.parametrize(
    ("given", "said", "expected"),
    [
        # What an inner layer says last wins; nobody withdraws it.
        *((None, [said], ("user", said.strip())) for said in ("ann", " ann ")),
        *((None, [said], ("user", str(said))) for said in (42, 0)),
        (None, ["j\xfcrgen".encode()], ("user", "j\xfcrgen")),
        *((None, ["ann", nobody], ("user", "bob")) for nobody in (None, "", "  ", b"")),
        # The default kind is that of `auth`, or else the first.
        ("a=user-agent, b=auth, c=visitor", ["ann"], ("b", "ann")),
        ("a=user-agent, b=visitor", ["ann"], ("a", "ann")),
        ("guest=ip:raw, user=session:id", ["ann"], ("guest", "ann")),
        ("user=identify, invisible=identify, guest=ip:raw", ["ann"], ("user", "ann")),
    ],
)
def test_the_identity_of_an_inner_layer_wins(
    given: str | None, said: list[Any], expected: tuple[str, str], unwritten: Any
) -> None:
    settings: Settings = unwritten(**({"identity": given} if given else {}))
    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request(user="bob"), in_turn(*map(names, said))) == Identity(*expected)
    assert recorder_for(settings).flush()
    presence, (kind, id) = Presence(settings), expected
    assert {kind: n for kind, n in presence.counts().items() if n} == {kind: 1}
    assert presence.is_online(id, kind)


def test_what_a_layer_identifies_is_an_id_and_a_kind_of_the_site(settings: Settings) -> None:
    def layer(state: State) -> None:
        names("ann", "guest")(state)
        with pytest.raises(QueryError, match=r"unknown kind .robot.: .* user, guest"):
            names("ann", "robot")(state)
        for wrong in ({"sub": "bob"}, Mock(id=42), True):
            with pytest.raises(QueryError, match=r"is (a dict|a Mock|True): .* pass the id"):
                names(wrong)(state)

    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request(user="bob"), layer) == Identity("guest", "ann")


HEADER = {"X-User": "ann"}
BASIC = {"Authorization": basic("ann:secret")}
COOKIE = {"Cookie": "sid=1"}
LOGGED_IN = {"REMOTE_USER": "ann", "user": "ann"}
CHAIN = "user=header:X-User, user=auth, guest=visitor"
CHECKED = "user=basic, guest=visitor"
ANN, GUEST, BOT = ("user", "ann"), ("guest", ""), ("bot", "")
CURL = {**BASIC, "User-Agent": "curl/8.5.0"}
ENVIRON = {"HTTP_AUTHORIZATION": BASIC["Authorization"], "REMOTE_ADDR": "192.0.2.7"}
Site = Callable[..., Settings]
both = pytest.mark.parametrize("ask", [over_wsgi, over_asgi])


@pytest.fixture
def site(unwritten: Site) -> Site:
    """Makes the settings of a site that logs out at `/logout`."""
    usual = {"logout": "/logout"}
    return lambda identity=CHAIN, **others: unwritten(identity=identity, **{**usual, **others})


# Who it is.


HERS = basic("ann:secret")
NOBODYS = ["", "ann", " ann:x", "ann\t:x", "ann\xa0:x"]
NOBODYS += ["a\nn:x", "a\0n:x", "a\x7fn:x", "a\x85n:x", "a" * 6200 + ":x"]
AUTHORIZATIONS: dict[str | None, list[str]] = {  # by user
    "ann": [
        *(HERS, basic("ann:"), basic("ann:a:b"), basic("ann:a\0b"), f"{HERS}  "),
        *(HERS.replace("Basic", "bAsIc"), HERS.replace(" ", "   ")),
    ],
    "": [basic(":secret")],
    "jürgen": [basic("jürgen:ü"), basic("jürgen:ü".encode("latin-1"))],
    "ann b": [basic("ann b:x")],
    "a" * 6000: [basic("a" * 6000 + ":x")],
    None: [
        *(*map(basic, NOBODYS), basic(b"a\x85n:x"), "Basic", ""),
        *(HERS[:-1], f"{HERS}=", HERS.replace("Basic", "Bearer"), f"{HERS}, {basic('bob:secret')}"),
        *("Basic YW5uOnNlY3J-dA==", "Basic YW5u\tOnNlY3JldA==", "Basic ann:secret"),
        "Basic \xfc\xfc\xfc\xfc",
    ],
}


@pytest.mark.parametrize("user", AUTHORIZATIONS, ids=lambda user: f"{user}"[:9])
def test_the_user_of_a_header_stands_before_the_first_colon(user: str | None) -> None:
    read = SOURCES["basic"].make("", ())
    for header in AUTHORIZATIONS[user]:
        environ = {"HTTP_AUTHORIZATION": header.encode().decode("latin-1")}
        scope = {"headers": [(b"authorization", header.encode())]}
        assert read(WsgiRequest(environ)) == read(AsgiRequest(scope)) == user, header
    assert read(WsgiRequest({})) is read(AsgiRequest({})) is None


# The status of the response.


def of_header(request: WsgiRequest) -> str | None:
    return request.header("x-user")


def look(state: State) -> None:
    state["presence_middleware.visit"].recorder.flush()


def say_so(state: State) -> None:
    state["presence_middleware.visit"].log_out()


def log_out(state: State) -> None:
    say_so(state)
    state["presence_middleware.visit"].answered(200)


ROWS: dict[str, tuple[str, Call, list[tuple[str, str]]]] = {
    # Many sites redirect, or answer 404, before they look at a password.
    **{
        f"{status}": (CHECKED, Call(BASIC, statuses=(status,)), counted)
        for statuses, counted in (
            ((200, 206, 304), [ANN]),
            ((302, 400, 404, 500), []),
            ((401, 403), [GUEST]),
        )
        for status in statuses
    },
    # Frameworks answer it themselves, before the page that looks at a password.
    "OPTIONS": (CHECKED, Call(BASIC, method="OPTIONS"), []),
    "named by a layer": (
        CHECKED,
        Call(BASIC, before=names("bob"), statuses=(401,)),
        [("user", "bob")],
    ),
    # Any source can be checked.
    **{
        f"{source}: {status}": (
            f"user={source}:checked, guest=visitor",
            Call({"X-User": "ann", "Cookie": "sid=ann"}, statuses=(status,), state=state),
            [counted],
        )
        for status, counted in ((403, GUEST), (200, ANN))
        for source, state in (
            *(("header:X-User", {}), ("header:X-User:raw", {}), ("cookie:sid:raw", {})),
            ("auth", LOGGED_IN),
            (f"{__name__}:of_header", {}),
        )
    },
    # A user whom the site hides is accepted or refused like any other.
    **{
        f"hidden, {source}: {status}": (
            f"user={source}, invisible=identify:tests.support.hiding:is_hidden, guest=visitor",
            Call({"Authorization": basic("42:x"), "X-User": "42"}, statuses=(status,)),
            counted,
        )
        for source in ("basic", "header:X-User:raw:checked")
        for status, counted in ((200, [("invisible", "")]), (401, [GUEST]), (500, []), (302, []))
    },
    # The last status counts.
    "refused late": (CHECKED, Call(BASIC, statuses=(200, 401)), [GUEST]),
    "accepted late": (CHECKED, Call(BASIC, statuses=(403, 200)), [ANN]),
    "an app that raises": (CHECKED, Call(BASIC, failure=ValueError("boom")), [GUEST]),
    # Programs, which many sites take for crawlers, log in with HTTP Basic.
    "a program that is refused": (CHECKED, Call(CURL, statuses=(401,)), [BOT]),
    "a program": (CHECKED, Call(CURL), [ANN]),
    "a program that is refused by another rule": (
        "guest=user-agent, user=basic",
        Call(CURL, statuses=(401,)),
        [BOT],
    ),
    # A logout that fails is a visit, and one that succeeds is none.
    "a logout that fails": (CHAIN, Call(HEADER, "/logout", statuses=(500,)), [ANN]),
    "a logout that fails late": (CHAIN, Call(HEADER, "/logout", statuses=(200, 500)), [ANN]),
    "a logout that raises": (CHAIN, Call(HEADER, "/logout", failure=ValueError("boom")), [ANN]),
    "an excluded one that fails": (
        CHAIN,
        Call(HEADER, "/favicon.ico", statuses=(500,), before=say_so),
        [],
    ),
    "a logout before any visit": (CHAIN, Call(HEADER, "/logout", before=look, after=look), []),
    "a logout of a crawler": (CHAIN, Call({"User-Agent": "Googlebot/2.1"}, "/logout"), [BOT]),
    "a guest whom a layer logs out": (CHAIN, Call(before=log_out), [GUEST]),
}


@both
@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_logins_count_unless_refused(name: str, is_streaming: bool, ask: Ask, site: Site) -> None:
    identity, call, counted = ROWS[name]
    settings = site(identity, store="sorted-set, bot=sorted-set")
    recorder_for(settings).hints.look_at = inf
    for _ in range(2):  # the second is not looked at, like most requests of a busy site
        with pytest.raises(ValueError, match="boom") if call.failure else nullcontext():
            ask(settings, replace(call, is_streaming=is_streaming))
        assert online(settings) == counted
        if not counted:
            assert Presence(settings).last_seen("ann") is None
            assert recorder_for(settings).stats().recorded == 0


@both
def test_a_layer_logs_out_a_user_who_has_seen_many_pages(ask: Ask, site: Site) -> None:
    settings = site(CHAIN)
    for before in (*[nothing] * (INSPECTED_USERS + 2), log_out):
        ask(settings, Call(HEADER, before=before))
    assert online(settings) == []


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
    settings = site(CHECKED)
    wsgi.PresenceMiddleware(app, settings=settings)({**ENVIRON}, start)
    assert written == [b"a"]
    assert online(settings) == [ANN]


@pytest.mark.parametrize("line", ["OK", "", "4O1 No", "²00 OK", b"200 OK", None])
def test_a_status_line_that_is_none_accepts_nobody(line: Any, site: Site) -> None:
    def app(environ: State, start_response: Any) -> list[bytes]:
        start_response(line, [])
        return []

    settings = site(CHECKED)
    wsgi.PresenceMiddleware(app, settings=settings)({**ENVIRON}, lambda *_: print)
    assert online(settings) == [GUEST]


def test_start_response_is_wrapped_only_where_a_status_matters(site: Site) -> None:
    app, start = Mock(return_value=[]), Mock(return_value=print)
    for identity, path, is_own in (
        ("user=auth, guest=visitor", "/", True),
        ("user=auth, guest=visitor", "/logout", False),
        ("user=basic", "/", False),
        ("user=auth:checked", "/", False),
    ):
        wrapped = wsgi.PresenceMiddleware(app, settings=site(identity))
        wrapped({"REMOTE_ADDR": "192.0.2.7", "PATH_INFO": path}, start)
        assert (app.call_args.args[1] is start) is is_own
    inner = wsgi.PresenceMiddleware(app, settings=site(CHECKED))
    wsgi.PresenceMiddleware(inner, settings=site(CHECKED))({**ENVIRON}, start)
    given = getclosurevars(app.call_args.args[1]).nonlocals
    assert given["start_response"] is start, "of two, one wraps"


@pytest.mark.parametrize(
    ("messages", "counted"),
    [
        (["websocket.accept"], ANN),
        (["websocket.accept", "websocket.close"], ANN),
        (["websocket.close"], GUEST),
        (["websocket.http.response.start", "websocket.http.response.body"], GUEST),
        ([], GUEST),
    ],
)
def test_a_socket_counts_once_it_is_accepted(
    messages: list[str], counted: tuple[str, str], site: Site
) -> None:
    def look(state: State) -> None:
        assert state["presence_middleware.visit"].identity is None

    over_websocket(site(CHECKED), Call(BASIC, before=look, messages=messages))
    assert online(site(CHECKED)) == [counted]


# Who asks for a path of PRESENCE_LOGOUT, and is answered without an error, is offline.


def out(status: int = 200, path: str = "/logout", method: str = "GET", **headers: str) -> Call:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Call({**HEADER, **named}, path, method, (status,), is_streaming=method == "GET")


def in_turn(*layers: Inner) -> Inner:
    return lambda state: [layer(state) for layer in layers]


def log_in(state: State) -> None:
    state.update(LOGGED_IN)


def forget(state: State) -> None:
    state.pop("REMOTE_USER", None)
    state.pop("user", None)


class Case(NamedTuple):
    """A visit of ann, and her logout, which takes her offline or does not."""

    logout: Call
    is_online: bool = False
    """Whether she is online afterwards."""
    visit: Call = Call(HEADER)
    given: Mapping[str, Any] = {}


cross = partial(out, Sec_Fetch_Site="cross-site")
OF_AN_API = {"exclude": "/api/*", "logout": "/api/*"}
OF_BASIC = {"identity": "user=basic"}
CASES = {
    **{
        f"{method}: {status}": Case(out(status, method=method), status >= 400)
        for status in (200, 204, 302, 399, 400, 401, 403, 405, 500)
        for method in ("GET", "POST")
    },
    **{
        f"{path} by {logout}": Case(out(path=path), is_online, given={"logout": logout})
        for logout, path, is_online in [
            *[("/logout", "/logout/", False), ("/logout", "/logout/now", True)],
            *[("/logout", "/", True), ("/logout, /accounts/logout", "/accounts/logout", False)],
            *[("/*/logout", "/de/logout", False), ("/*/logout", "/logout", True)],
            *[("", "/logout", True), ("none", "/logout", True), (["/bye"], "/bye", False)],
        ]
    },
    # A path that is no visit can log out.
    "excluded: 200": Case(out(200, "/api/logout"), given=OF_AN_API),
    "excluded: 500": Case(out(500, "/api/logout"), True, given=OF_AN_API),
    # What a browser asks for by itself, and another site that opens the path.
    "a prefetch": Case(out(Sec_Purpose="prefetch"), True),
    "an old prefetch": Case(out(Purpose="prefetch"), True),
    "a passive request": Case(out(Presence="passive"), True),
    "an image": Case(cross(Sec_Fetch_Mode="no-cors"), True),
    "another site": Case(cross(Sec_Fetch_Mode="cors"), True),
    "a page of another site": Case(
        cross(Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document"), True
    ),
    "a preflight": Case(
        out(method="OPTIONS", Origin="https://a", Access_Control_Request_Method="POST"), True
    ),
    **{
        f"a page: {origin}": Case(out(method="POST", Sec_Fetch_Site=origin))
        for origin in ("same-origin", "same-site", "none")
    },
    # Who it is. The app forgets who was logged in at arrival before it answers.
    "at arrival": Case(
        Call(path="/logout", state=LOGGED_IN, before=forget), visit=Call(state=LOGGED_IN)
    ),
    "at arrival, and a layer says so late": Case(
        Call(path="/logout", state=LOGGED_IN, before=in_turn(forget, say_so)),
        visit=Call(state=LOGGED_IN),
    ),
    "by a layer": Case(Call(path="/logout", before=names("ann")), visit=Call(before=names("ann"))),
    "by a layer that forgets": Case(
        Call(path="/logout", before=in_turn(names("ann"), names(None))),
        visit=Call(before=names("ann")),
    ),
    "before the status": Case(Call(path="/logout", before=log_in), visit=Call(before=log_in)),
    "one kind": Case(
        Call(COOKIE, "/logout"), visit=Call(COOKIE), given={"identity": "user=cookie:sid"}
    ),
    "a guest who logs in elsewhere": Case(out(), True, visit=Call()),
    # Whoever only claims to be ann does not log her out. Frameworks answer OPTIONS, and redirect to
    # the path with or without a slash at its end, before a page looks at the password.
    **{
        f"basic, {method}: {status}": Case(
            Call(BASIC, path, method, (status,)), is_online, Call(BASIC), OF_BASIC
        )
        for method, path, status, is_online in (
            *(("GET", "/logout", 200, False), ("GET", "/logout", 302, True)),
            *(("GET", "/logout", 401, True), ("GET", "/logout/", 307, True)),
            ("OPTIONS", "/logout", 200, True),
        )
    },
}


@both
@pytest.mark.parametrize("name", CASES)
def test_an_answer_without_an_error_takes_the_user_offline(name: str, ask: Ask, site: Site) -> None:
    case = CASES[name]
    settings = site(**{"secret": "a" * 32, **case.given})
    recorder_for(settings).hints.look_at = inf  # till then each request is looked at closely
    ask(settings, case.visit)
    before = online(settings)
    assert len(before) == 1
    ask(settings, case.logout)
    assert online(settings) == (before if case.is_online else [])
    if before == [ANN]:
        assert Presence(settings).last_seen("ann") is not None
        ask(settings, case.visit)
        assert online(settings) == [ANN], "who comes back right after"


@both
@pytest.mark.parametrize(
    ("identity", "path", "left"),
    # Redis notes who left, so nobody may make up any number of guests who do.
    [("user=cookie:sid:raw", "/logout", 100), ("guest=cookie:sid:raw:checked, user=auth", "/", 0)],
)
def test_guests_past_their_quota_cannot_leave_or_log_in_either(
    identity: str, path: str, left: int, ask: Ask, site: Site
) -> None:
    settings = site(identity, bots="off")
    for number in range(105):
        ask(settings, Call({"Cookie": f"sid={number}"}, path))
    recorder = recorder_for(settings)
    assert recorder.flush()
    assert recorder.backend.driver.connect().zcard(f"{settings.prefix}:user:left") == left
    assert recorder.stats().dropped == {"quota": 5}


@pytest.mark.parametrize("is_outermost", [True, False])
def test_a_session_that_starlette_loads_shows_who_leaves(is_outermost: bool, site: Site) -> None:
    """Within our wrapper it is loaded late, and cleared before the response starts."""

    async def login(request: Any) -> PlainTextResponse:
        request.session["user"] = "ann"
        return PlainTextResponse("welcome")

    async def logout(request: Any) -> PlainTextResponse:
        request.session.clear()
        return PlainTextResponse("bye")

    settings = site("user=session:user, guest=visitor")
    layers = [
        Middleware(asgi.PresenceMiddleware, settings=settings),
        Middleware(SessionMiddleware, secret_key="a"),
    ]
    routes = [Route("/", login), Route("/logout", logout)]
    app = Starlette(routes=routes, middleware=layers[:: 1 if is_outermost else -1])
    with httpx.Client(transport=AsgiTransport(app, asyncio.run), base_url="http://site") as client:
        for path, there in (("/", [ANN]), ("/logout", [])):
            assert client.get(path).status_code == 200
            assert online(settings) == there


@both
@pytest.mark.parametrize("path", ["/", "/logout"])
def test_a_request_of_before_the_logout_brings_nobody_back(path: str, ask: Ask, site: Site) -> None:
    """As of another tab, whose answer takes longer than the logout; or is there before it."""

    def ask_meanwhile(_: State) -> None:
        other = "/logout" if path == "/" else "/"
        with in_thread(partial(ask, site(), Call(HEADER, other))):
            pass

    ask(site(), Call(HEADER, path, before=ask_meanwhile))
    assert online(site()) == []


def test_a_socket_at_such_a_path_logs_nobody_out(site: Site) -> None:
    over_websocket(site(), Call(HEADER, "/logout"))
    assert online(site()) == [ANN]


@pytest.mark.parametrize("path", ["/", "/logout"])
def test_outer_layers_read_what_inner_layers_have_set(path: str, site: Site) -> None:
    async def app(scope: State, _: Any, __: Any) -> None:
        scope["route"] = "found"
        raise ValueError("boom")

    scope = {"type": "http", "path": path, "headers": []}
    with pytest.raises(ValueError, match="boom"):
        asyncio.run(asgi.PresenceMiddleware(app, settings=site())(scope, never, never))
    assert scope["route"] == "found"


@both
def test_a_site_that_records_nothing_logs_nobody_out(ask: Ask, site: Site) -> None:
    ask(site(), Call(HEADER))
    assert online(site()) == [ANN]
    ask(site(enabled=False), Call(HEADER, "/logout"))
    assert recorder_for(site(enabled=False)).flush()
    assert online(site()) == [ANN]
