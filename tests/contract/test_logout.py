"""Who asks for a path of PRESENCE_LOGOUT, and is answered without an error, is offline."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from presence_middleware import Presence, Settings, asgi
from presence_middleware.recorder import recorder_for
from tests.support.asking import State
from tests.support.statuses import Ask, Call, basic, online, over_asgi, over_wsgi
from tests.support.transports import AsgiTransport

GUEST, ANN = ("guest", ""), ("user", "ann")
HEADER = {"X-User": "ann"}
Site = Callable[..., Settings]
both = pytest.mark.parametrize("ask", [over_wsgi, over_asgi])


@pytest.fixture
def site(unwritten: Site) -> Site:
    """Makes the settings of a site that logs out at `/logout`."""

    def settings(
        identity: str = "user=header:X-User, user=auth, guest=visitor", **others: object
    ) -> Settings:
        return unwritten(identity=identity, **{"logout": "/logout", **others})

    return settings


def out(status: int = 200, path: str = "/logout", method: str = "GET", **headers: str) -> Call:
    """Return a request of ann to log out."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Call({**HEADER, **named}, path, method, (status,), is_streaming=method == "GET")


def identify(state: State) -> None:
    state["presence_middleware.visit"].identify("ann")


def identify_and_forget(state: State) -> None:
    identify(state)
    state["presence_middleware.visit"].identify(None)


def forget_and_say_so(state: State) -> None:
    forget(state)
    state["presence_middleware.visit"].log_out()


def log_in(state: State) -> None:
    state.update({"REMOTE_USER": "ann", "user": "ann"})


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


LOGGED_IN = {"REMOTE_USER": "ann", "user": "ann"}
BASIC = {"Authorization": basic("ann:secret")}
COOKIE = {"Cookie": "sid=1"}
cross = partial(out, Sec_Fetch_Site="cross-site")
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
    **{
        f"excluded: {status}": Case(
            out(status, "/api/logout"),
            status > 400,
            given={"exclude": "/api/*", "logout": "/api/*"},
        )
        for status in (200, 500)
    },
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
        Call(path="/logout", state=LOGGED_IN, before=forget_and_say_so),
        visit=Call(state=LOGGED_IN),
    ),
    "by a layer": Case(Call(path="/logout", before=identify), visit=Call(before=identify)),
    "by a layer that forgets": Case(
        Call(path="/logout", before=identify_and_forget), visit=Call(before=identify)
    ),
    "before the status": Case(Call(path="/logout", before=log_in), visit=Call(before=log_in)),
    "one kind": Case(
        Call(COOKIE, "/logout"), visit=Call(COOKIE), given={"identity": "user=cookie:sid"}
    ),
    "a guest who logs in elsewhere": Case(out(), True, visit=Call()),
    **{
        f"basic: {status}": Case(
            Call(BASIC, "/logout", statuses=(status,)),
            status > 400,
            visit=Call(BASIC),
            given={"identity": "user=basic"},
        )
        for status in (200, 302, 401)
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
def test_a_user_who_was_not_online_is_not_recorded_by_a_logout(ask: Ask, site: Site) -> None:
    def look(state: State) -> None:
        state["presence_middleware.visit"].flush()

    ask(site(), Call(HEADER, "/logout", before=look, after=look))
    assert online(site()) == []
    assert Presence(site()).last_seen("ann") is None
    assert recorder_for(site()).stats().recorded == 0


@both
@pytest.mark.parametrize("statuses", [(500,), (200, 500)])
def test_a_logout_that_fails_is_a_visit(statuses: tuple[int, ...], ask: Ask, site: Site) -> None:
    ask(site(), Call(HEADER, "/logout", statuses=statuses))
    assert online(site()) == [ANN]


@both
def test_an_app_that_raises_logs_nobody_out(ask: Ask, site: Site) -> None:
    with pytest.raises(ValueError, match="boom"):
        ask(site(), Call(HEADER, "/logout", failure=ValueError("boom")))
    assert online(site()) == [ANN]


@both
@pytest.mark.parametrize(
    "identity", ["user=header:X-User, guest=visitor", "user=cookie:sid, guest=ip"]
)
def test_a_guest_is_not_logged_out(identity: str, ask: Ask, site: Site) -> None:
    """As at a path that the session cookie does not reach: the request shows only a guest."""
    settings = site(identity, secret="a" * 32)
    ask(settings, Call({**HEADER, "Cookie": "sid=1"}))
    ask(settings, Call())
    before = online(settings)
    assert GUEST in before
    ask(settings, Call(path="/logout"))
    assert online(settings) == before
    ask(settings, Call({**HEADER, "Cookie": "sid=1"}, path="/logout"))
    assert online(settings) == [GUEST]


@both
def test_a_crawler_that_asks_for_it_is_counted(ask: Ask, site: Site) -> None:
    settings = site(store="sorted-set, bot=sorted-set")
    ask(settings, Call({"User-Agent": "Googlebot/2.1"}, "/logout"))
    assert recorder_for(settings).flush()
    assert Presence(settings).counts() == {"user": 0, "guest": 0, "bot": 1}


@both
def test_guests_past_their_quota_cannot_leave_either(ask: Ask, site: Site) -> None:
    """Redis notes who left, so nobody may make up any number of guests who do."""
    settings = site("user=cookie:sid:raw", bots="off")
    for number in range(105):
        ask(settings, Call({"Cookie": f"sid={number}"}, "/logout"))
    recorder = recorder_for(settings)
    assert recorder.flush()
    assert recorder.backend.driver.connect().zcard(f"{settings.prefix}:user:left") == 100
    assert recorder.stats().dropped == {"quota": 5}


@both
def test_a_kind_that_nobody_can_leave_is_left_alone(ask: Ask, site: Site) -> None:
    settings = site(store="hyperloglog")
    ask(settings, Call(HEADER))
    ask(settings, Call(HEADER, "/logout"))
    assert recorder_for(settings).flush()
    assert Presence(settings).counts()["user"] == 1


@pytest.mark.parametrize("is_outermost", [True, False])
def test_a_session_that_starlette_loads_shows_who_leaves(is_outermost: bool, site: Site) -> None:
    """Within our wrapper it is loaded late, and cleared before the response starts."""

    async def login(request: Request) -> PlainTextResponse:
        request.session["user"] = "ann"
        return PlainTextResponse("welcome")

    async def logout(request: Request) -> PlainTextResponse:
        request.session.clear()
        return PlainTextResponse("bye")

    settings = site("user=session:user, guest=visitor")
    layers = [
        Middleware(asgi.PresenceMiddleware, settings=settings),
        Middleware(SessionMiddleware, secret_key="a"),
    ]
    routes = [Route("/", login), Route("/logout", logout)]
    app = Starlette(routes=routes, middleware=layers[:: 1 if is_outermost else -1])
    transport = AsgiTransport(app, asyncio.run)
    with httpx.Client(transport=transport, base_url="http://site") as client:
        for path, there in (("/", [ANN]), ("/logout", [])):
            assert client.get(path).status_code == 200
            assert online(settings) == there


@both
@pytest.mark.parametrize("path", ["/", "/logout"])
def test_a_request_from_before_the_logout_brings_nobody_back(
    path: str, ask: Ask, site: Site
) -> None:
    """As of another tab, whose answer takes longer than the logout; or is there before it."""

    def ask_meanwhile(_: State) -> None:
        other = "/logout" if path == "/" else "/"
        thread = threading.Thread(target=ask, args=(site(), Call(HEADER, other)))
        thread.start()
        thread.join()

    ask(site(), Call(HEADER, path, before=ask_meanwhile))
    assert online(site()) == []


def test_a_socket_at_such_a_path_logs_nobody_out(site: Site) -> None:
    async def app(_: State, __: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    async def send(_: Any) -> None: ...

    headers = [(b"x-user", b"ann")]
    scope = {"type": "websocket", "path": "/logout", "headers": headers}
    wrapped = asgi.PresenceMiddleware(app, settings=site())
    asyncio.run(wrapped(scope, send, send))  # type: ignore[arg-type]
    assert online(site()) == [ANN]


@pytest.mark.parametrize("path", ["/", "/logout"])
def test_outer_layers_read_what_inner_layers_have_set(path: str, site: Site) -> None:
    async def app(scope: State, _: Any, __: Any) -> None:
        scope["route"] = "found"
        raise ValueError("boom")

    async def never(*_: object) -> Any:
        raise AssertionError

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
