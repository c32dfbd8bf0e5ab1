"""The pulse over WSGI and ASGI: which requests it is, whom it records, and what is answered."""

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from presence_middleware import Settings, SettingsError, asgi, wsgi
from presence_middleware.people import NEVER
from presence_middleware.request import VISIT
from presence_middleware.signals import MAX_QUERY
from presence_middleware.stores import NOWHERE, Act, room_number
from tests.support.pulsing import FIREFOX, PROTOCOLS, SAME, App, PulsingSite

HERE, BYE = "presence=here:/", "presence=bye"
CHAIN = "user=header:X-User, guest=ip:raw"
GUEST = ("guest", "192.0.2.7")
ANN = {**SAME, "X-User": "ann"}
CROSS = {"Sec-Fetch-Site": "cross-site"}

Make = Callable[..., PulsingSite]


@pytest.fixture(params=PROTOCOLS)
def site(request: pytest.FixtureRequest, prefix: str) -> Make:
    """Make a site; its arguments are settings, and the app."""

    def make(app: App | None = None, **given: Any) -> PulsingSite:
        named = {"redis_url": f"memory://{prefix}", "flush_interval": "30s", "identity": CHAIN}
        settings = Settings.from_env({}, **{"pulse_path": "/pulse", **named, **given})
        return PulsingSite(request.param, settings, app)

    return make


QUIET = {"cache-control": "no-store"}


def test_a_pulse_is_a_visit_a_goodbye_is_none_and_both_responses_are_empty(site: Make) -> None:
    for query, seen, gone in ((HERE, [("user", "ann")], []), (BYE, [], [("user", "ann")])):
        here = site()
        answer = here.pulse(query, headers=ANN)
        assert (answer.status, answer.body, answer.headers) == (204, b"", QUIET)
        assert (here.seen, here.gone, here.app.calls) == (seen, gone, [])
        here.recorder.reset()


def test_any_other_post_to_the_path_is_a_pulse_from_an_unknown_page(site: Make) -> None:
    here = site(rooms="/{any}")
    for query in ("", "presence", "presence=", "presence=away", "x=1", "%00"):
        here.recorder.reset()
        assert here.pulse(query).status == 204
        assert (here.seen, here.gone) == ([GUEST], [])
        assert entrances(here) == [None]


def entrances(here: PulsingSite) -> list[int | None]:
    return [each.room.number if each.room else None for each in here.people if each.seen > NEVER]


ORIGINS = {  # of its headers: whether a page of this site sent a request
    **{"same-origin": True, "cross-site": False, "same-site": False, "none": False, "": False},
    **{"same-origin, cross-site": False, "http://shop.example:8000": True},
    **{"https://SHOP.example:8000": True, "http://shop.example": False, "null": False},
    **{"http://evil.example": False, "http://shop.example:8000.evil.example": False},
    **{"http://evil.example/shop.example:8000": False, "http://[::1": False},
    "shop.example:8000": False,
}


@pytest.mark.parametrize("said", ORIGINS)
def test_only_a_page_of_this_site_may_send_it(site: Make, said: str) -> None:
    name = "Origin" if ":" in said or said == "null" else "Sec-Fetch-Site"
    check_origin(site, {name: said}, is_same=ORIGINS[said])


def test_a_request_that_tells_no_origin_or_a_foreign_site_is_refused(site: Make) -> None:
    same = "http://shop.example:8000"
    for headers in ({}, {"Origin": "null", "Host": ""}, {**CROSS, "Origin": same}):
        check_origin(site, headers, is_same=False)


def check_origin(site: Make, headers: dict[str, str], *, is_same: bool) -> None:
    for query in (HERE, BYE):
        here = site(identity="user=auth, guest=ip:raw")
        here.recorder.reset()
        answer = here.pulse(query, headers=headers)
        assert answer.status == (204 if is_same else 403)
        assert answer.headers["cache-control"] == "no-store"
        assert bool(here.seen or here.gone) == bool(here.app.calls) == is_same


def test_it_is_below_the_mount_point_of_the_app_and_other_paths_are_the_apps(site: Make) -> None:
    here = site(App(status=200))
    for root in ("", "/shop"):
        assert here.pulse(root=root).status == 204
        assert here.ask("GET", "/pulse.js", root=root).status == 200
    assert here.app.calls == []
    others = ("/pulse/", "/pulses", "/pulse.jsx", "/pulse.js/", "/a/pulse", "/PULSE", "/")
    assert [here.ask("POST", path).status for path in others] == [200] * len(others)
    assert len(here.app.calls) == len(others)


def test_other_methods_are_refused_and_are_no_visit(site: Make) -> None:
    here = site()
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"):
        answer = here.ask(method, "/pulse", HERE)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert here.ask("POST", "/pulse.js").headers["allow"] == "GET, HEAD"
    assert (here.seen, here.app.calls) == ([], [])


def test_the_script_is_served_with_the_times_of_the_site(site: Make) -> None:
    here = site(window="2m")
    answer = here.ask("GET", "/pulse.js", headers={})
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=3600"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-length"] == str(len(answer.body))
    script = answer.body.decode()
    assert "setInterval(pulse, 40000)" in script
    assert script.count("> 120000") == 2
    assert "$" not in script.replace("?$/", "")
    assert 'const own = "/pulse.js"' in script
    assert len(script) < 1600
    assert (here.seen, here.app.calls) == ([], [])
    head = here.ask("HEAD", "/pulse.js", headers={})
    assert (head.status, head.body) == (200, b"")
    assert head.headers == answer.headers
    etag = {"If-None-Match": answer.headers["etag"]}
    again = here.ask("GET", "/pulse.js", headers=etag)
    assert (again.status, again.body) == (304, b"")
    assert site(window="30m").ask("GET", "/pulse.js", headers=etag).status == 200


def test_without_the_setting_the_app_gets_every_request(site: Make) -> None:
    here = site(App(status=200), pulse_path="")
    for path in ("/pulse", "/pulse.js"):
        assert here.ask("POST", path, BYE, headers=ANN).status == 200
    assert (here.seen, here.gone) == ([("user", "ann")], [])


@pytest.mark.parametrize("exclude", ["/pulse", "*", "/p*"])
def test_an_excluded_path_does_not_swallow_it(site: Make, exclude: str) -> None:
    here = site(exclude=exclude)
    here.pulse()
    assert here.seen == [GUEST]
    here.pulse(BYE)
    assert here.gone == [GUEST]


def test_a_path_that_logs_out_does_not_swallow_it_and_a_disabled_site_does(site: Make) -> None:
    here = site(logout="*", identity="user=auth, guest=ip:raw")
    here.pulse(user="ann")
    assert here.seen == [("user", "ann")]
    assert not any(each.left or each.goodbye for each in here.people)
    here = site(enabled="0")
    assert here.pulse().status == here.pulse(BYE).status == 204
    assert (here.seen, here.gone) == ([], [])


@pytest.mark.parametrize("mode", ["count", "skip"])
def test_crawlers_are_crawlers(site: Make, mode: str) -> None:
    here = site(bots=mode)
    crawler = {**SAME, "User-Agent": "Googlebot/2.1 (+http://www.google.com/bot.html)"}
    here.pulse(headers=crawler)
    here.pulse(BYE, headers=crawler)
    assert [kind for kind, _ in here.seen] == (["bot"] if mode == "count" else [])
    assert here.gone == []


def test_guests_have_a_quota(site: Make) -> None:
    here = site(identity="guest=visitor")
    for number in range(150):
        browser = {**SAME, "User-Agent": f"{FIREFOX} {number}"}
        here.pulse(headers=browser)
        here.pulse(BYE, headers=browser)
    assert (len(here.seen), len(here.gone)) == (100, 100)
    for number in range(150, 300):
        here.pulse(BYE, headers={**SAME, "User-Agent": f"{FIREFOX} {number}"})
    assert len(here.gone) == 100
    assert here.recorder.stats().dropped == {"quota": 250}


@pytest.mark.parametrize("store", ["minute-sets", "hyperloglog"])
def test_a_goodbye_to_a_store_that_takes_none_is_answered_and_ignored(
    site: Make, store: str
) -> None:
    here = site(store=store)
    assert here.pulse(BYE).status == 204
    assert (here.seen, here.gone) == ([], [])


# Rooms.


ROOM_OF = {  # by query; NOWHERE is a page in no room, and None an unknown page
    **{"presence=here:/t/42": "/t/42", "presence=here:/t/42/page/3": "/t/42"},
    **{"presence=here:/shop/t/42": NOWHERE, "presence=here:/t/%C3%A9": "/t/é"},
    **{"presence=here:/t/a&b=c": "/t/a&b=c", "presence=here:/t/a+b%2Bc": "/t/a+b+c"},
    "presence=here:/t/x&presence=bye": "/t/x&presence=bye",
    **{"a=1&presence=here:/t/42": "/t/42", "presence=here:/about": NOWHERE},
    **{"presence=here:": NOWHERE, "presence=here:no path": NOWHERE},
    f"presence=here:/t/{'x' * 300}": NOWHERE,
    "presence=here:/t/%00%0A%1B%5B2J": "/t/\0\n\x1b[2J",
    **{"presence=here:/t/%FF": "/t/\udcff", "presence=here:/t/%": "/t/%"},
    **{"presence=here": None, f"presence=here:/t/{'x' * MAX_QUERY}": None},
}


def test_a_pulse_enters_the_room_of_its_page_and_a_goodbye_none(site: Make) -> None:
    here = site(rooms="/t/{topic}/*, /pulse")
    for query, room in ROOM_OF.items():
        here.recorder.reset()
        assert here.pulse(query, headers={**SAME, "Sec-Fetch-Mode": "cors"}).status == 204
        assert entrances(here) == [room_number(room) if isinstance(room, str) else room], query
    here.recorder.reset()
    here.pulse(BYE)
    here.pulse("presence=here:/t/42")
    assert entrances(here) == [room_number("/t/42")]


@pytest.mark.parametrize("root", ["", "/shop"])
@pytest.mark.parametrize("path", ["/t/7", "/t/", "/pulse", "/", ""])
def test_a_page_and_its_pulse_are_in_the_same_room(site: Make, root: str, path: str) -> None:
    """pulse.js names the path below the mount point: tests/browser/test_mounts_browser.py."""
    rooms = "/t/{topic}, /pulse, /"
    page = site(App(status=200), rooms=rooms)
    page.ask(
        "GET", path if root else path or "/", root=root, headers={"Sec-Fetch-Mode": "navigate"}
    )
    pulse = site(rooms=rooms)
    pulse.pulse(f"presence=here:{path}", root=root)
    assert entrances(page) == entrances(pulse) != [None]


# URLs of the site's own.


def test_a_post_with_the_parameter_is_a_signal_and_the_app_answers_it(site: Make) -> None:
    app = App(status=201, body=b"mine", layer=lambda state: state[VISIT].identify("ann"))
    here = site(app, exclude="/me/pulse", rooms="/t/{topic}, /me/{page}")
    answer = here.ask("POST", "/me/pulse", "x=1&presence=here:/t/1")
    assert (answer.status, answer.body) == (201, b"mine")
    assert here.seen == [("user", "ann")]
    assert entrances(here) == [room_number("/t/1")]
    answer = here.ask("POST", "/me/pulse", BYE)
    assert (answer.status, answer.body) == (201, b"mine")
    assert here.gone == [("user", "ann")]


def test_there_another_site_says_nothing(site: Make) -> None:
    here = site(App(status=200))
    for query in (HERE, BYE):
        answer = here.ask("POST", "/me", query, headers=CROSS)
        assert answer.status == 200
    assert (here.seen, here.gone, len(here.app.calls)) == ([], [], 2)


ORDINARY = [
    *("presence=bye&x=1", "presence=byebye", "nopresence=bye", "presence=%62ye", ""),
    f"x={'x' * MAX_QUERY}&{BYE}",
]


def test_other_requests_are_ordinary_visits(site: Make) -> None:
    here = site(App(status=200))
    posts = [("POST", query) for query in ORDINARY]
    for method, query in [("GET", BYE), ("GET", HERE), ("PUT", BYE), *posts]:
        here.recorder.reset()
        assert here.ask(method, "/me", query).status == 200
        assert (here.seen, here.gone) == ([GUEST], []), query


def test_a_visit_that_says_goodbye_is_not_recorded_meanwhile(site: Make) -> None:
    """Neither by a reader in its handler nor while its response goes on."""

    def look(state: Any) -> None:
        visit = state[VISIT]
        visit.note()
        visit.refresh(visit.arrival + 100, 1.0)
        visit.enter("chat:7")

    here = site(App(status=200, layer=look))
    here.ask("POST", "/me", BYE)
    assert (here.seen, here.gone) == ([], [GUEST])


# Chains that layers of the app fill in.

LATE = "user=auth, guest=ip:raw"


@pytest.fixture
def late(prefix: str) -> Settings:
    return Settings.from_env({}, redis_url=f"memory://{prefix}", identity=LATE, pulse_path="/pulse")


def logs_in(state: Any) -> None:
    state["REMOTE_USER"] = state["user"] = "ann"


def test_a_user_whom_a_layer_logs_in_is_no_guest(site: Make) -> None:
    cookies = [("Set-Cookie", "session=new; HttpOnly"), ("Content-Type", "text/html")]
    here = site(App(layer=logs_in, headers=cookies), identity=LATE)
    answer = here.pulse()
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers == {"cache-control": "no-store", "set-cookie": "session=new; HttpOnly"}
    assert here.pulse(BYE).status == 204
    assert (here.seen, here.gone) == ([("user", "ann")], [("user", "ann")])
    assert here.app.calls == ["POST /pulse"] * 2


def test_whatever_the_app_answers_the_pulse_counts(site: Make) -> None:
    for status in (200, 302, 403, 405, 500):
        here = site(App(status=status, layer=logs_in), identity=LATE)
        here.recorder.reset()
        assert (here.pulse().status, here.seen) == (204, [("user", "ann")]), status


def test_a_checked_login_needs_a_status_that_accepts_it(site: Make) -> None:
    for status, seen in ((200, [("user", "ann")]), (404, []), (401, [GUEST]), (500, [])):
        here = site(App(status=status), identity="user=header:X-User:raw:checked, guest=ip:raw")
        here.recorder.reset()
        assert (here.pulse(headers=ANN).status, here.seen) == (204, seen), status


def test_an_error_of_the_app_is_the_servers_and_the_visit_ends(site: Make) -> None:
    def fails(state: Any) -> None:
        logs_in(state)
        raise RuntimeError("a layer failed")

    here = site(App(layer=fails), identity=LATE)
    with pytest.raises(RuntimeError, match="a layer failed"):
        here.pulse()
    assert here.seen == [("user", "ann")]
    assert not here.recorder.open_visits


def test_an_app_in_two_wrappers_counts_a_pulse_once(late: Settings) -> None:
    app = App(layer=logs_in)
    here = PulsingSite("wsgi", late, app)
    here.wsgi.app = wsgi.PresenceMiddleware(app.wsgi, settings=late)
    assert here.pulse(BYE).status == 204
    assert (here.gone, here.app.calls) == ([("user", "ann")], ["POST /pulse"])


def test_a_generator_of_a_wsgi_app_runs_up_to_its_first_line(late: Settings) -> None:
    log: list[str] = []

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        try:
            logs_in(environ)
            start_response(status="404 Not Found", response_headers=[], exc_info=None)(b"written")
            log.append("first")
            yield b"first"
            log.append("second")
        finally:
            log.append("closed")

    here = PulsingSite("wsgi", late)
    here.wsgi.app = app
    assert (here.pulse().status, here.seen) == (204, [("user", "ann")])
    assert log == ["first", "closed"]


def test_an_asgi_app_that_answers_nothing_is_answered_for(late: Settings) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        logs_in(scope)

    here = PulsingSite("asgi", late)
    here.asgi.app = app
    assert (here.pulse().status, here.seen) == (204, [("user", "ann")])


def test_a_websocket_at_the_path_is_the_apps(late: Settings) -> None:
    calls = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["type"])

    scope: Any = {"type": "websocket", "path": "/pulse", "headers": [], "query_string": b""}
    wrapped: Any = asgi.PresenceMiddleware(app, settings=late)
    asyncio.run(wrapped({**scope, "query_string": BYE.encode()}, None, None))
    assert calls == ["websocket"]


def test_a_request_that_cannot_be_read_is_refused_or_passed_on(late: Settings) -> None:
    app = App(status=200)
    here = PulsingSite("wsgi", late, app)
    statuses = []

    def start(status: str, *_: Any) -> Any:
        statuses.append(status)

    broken: Any = {"REQUEST_METHOD": "POST", "HTTP_SEC_FETCH_SITE": 7, "QUERY_STRING": BYE}
    for path in ("/pulse", "/me"):
        here.wsgi({**broken, "PATH_INFO": path}, start)
    assert statuses == ["403 Forbidden", "200 Said"]
    assert here.gone == []


# Frameworks.


def test_logins_of_starlette_and_flask_reach_the_pulse(late: Settings) -> None:
    for protocol, app in (("asgi", starlette_app()), ("wsgi", flask_app())):
        here = PulsingSite(protocol, late)
        wrapper: Any = here.wsgi if protocol == "wsgi" else here.asgi
        wrapper.app = app
        here.recorder.reset()
        here.pulse(headers=ANN)
        here.pulse(BYE, headers=ANN)
        assert (here.seen, here.gone) == ([("user", "ann")], [("user", "ann")]), protocol
        here.recorder.reset()
        here.pulse()
        assert here.seen == [GUEST]
        here.recorder.reset()


def starlette_app() -> Any:
    from starlette.applications import Starlette
    from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
    from starlette.middleware import Middleware
    from starlette.middleware.authentication import AuthenticationMiddleware

    class Backend(AuthenticationBackend):
        async def authenticate(self, conn: Any) -> Any:
            name = conn.headers.get("x-user")
            return (AuthCredentials([]), SimpleUser(name)) if name else None

    return Starlette(middleware=[Middleware(AuthenticationMiddleware, backend=Backend())])


def flask_app() -> Any:
    from flask import Flask, request

    app = Flask(__name__)

    @app.before_request
    def log_in() -> None:
        request.environ[VISIT].identify(request.headers.get("X-User"))

    return app


# Settings.


def test_the_path_of_the_board_is_refused() -> None:
    with pytest.raises(SettingsError, match=re.escape("PRESENCE_PULSE_PATH=/here: that is the pa")):
        Settings.from_env({}, pulse_path="/here", board_path="/here")
    Settings.from_env({}, pulse_path="/here/pulse", board_path="/here")


def test_a_goodbye_shortens_the_window_to_one_and_a_quarter_pulses() -> None:
    assert Settings.from_env({}).grace_seconds == 75
    assert Settings.from_env({}, window="1m").grace_seconds == 25
    assert Act.SEEN < Act.GOODBYE < Act.LEFT < Act.ERASED
