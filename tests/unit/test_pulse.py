"""The pulse over WSGI and ASGI: which requests it is, whom it records, and what is answered."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from presence_middleware import Settings
from presence_middleware.people import NEVER
from presence_middleware.request import VISIT
from presence_middleware.rooms import MAX_SIGNAL
from presence_middleware.stores import NOWHERE, room_number
from tests.support.pulsing import PROTOCOLS, SAME, App, PulsingSite

HERE, BYE = "presence=here:/", "presence=bye"
CHAIN = "user=header:X-User, guest=ip:raw"
GUEST = ("guest", "192.0.2.7")
ANN = {**SAME, "X-User": "ann"}
CROSS = {"Sec-Fetch-Site": "cross-site"}

Make = Callable[..., PulsingSite]


OVER_WSGI = pytest.mark.parametrize("site", ["wsgi"], indirect=True)


@pytest.fixture(params=PROTOCOLS)
def site(request: pytest.FixtureRequest, prefix: str) -> Make:
    usual = {"redis_url": f"memory://{prefix}", "flush_interval": "30s", "identity": CHAIN}
    usual |= {"pulse_path": "/pulse"}
    return lambda app=None, **given: PulsingSite(
        request.param, Settings.from_env({}, **{**usual, **given}), app
    )


USER, GOOGLEBOT = ("user", "ann"), "Googlebot/2.1 (+http://www.google.com/bot.html)"
LATE = "user=auth, guest=ip:raw"
COOKIES = [("Set-Cookie", "session=new; HttpOnly"), ("Content-Type", "text/html")]
Whose = list[tuple[str, str]]


def logs_in(state: Any) -> None:
    state["REMOTE_USER"] = state["user"] = "ann"


class Row(NamedTuple):
    """A request, and whom the process then takes for present and for gone."""

    method: str = "POST"
    path: str = "/pulse"
    query: str = HERE
    headers: dict[str, str] = SAME
    given: dict[str, Any] = {}  # noqa: RUF012 - settings
    app: App = App(404)
    root: str = ""
    user: str | None = None
    status: int = 204
    seen: Whose = []  # noqa: RUF012
    gone: Whose = []  # noqa: RUF012
    is_app_asked: bool = False


# ---- At the path of the setting, for chains that read headers or await a layer of the app.
SAYS, LEAVES = Row(seen=[GUEST]), Row(query=BYE, gone=[GUEST])
AWAITING = Row(given={"identity": LATE}, is_app_asked=True)
CHECKED = {"identity": "user=header:X-User:raw:checked, guest=ip:raw"}
CHECKING = Row(headers=ANN, given=CHECKED, is_app_asked=True)
FOREIGN = AWAITING._replace(status=403, is_app_asked=False)
HERS = "http://shop.example:8000"
ROWS = [
    *(SAYS, LEAVES, Row(headers=ANN, seen=[USER]), Row(query=BYE, headers=ANN, gone=[USER])),
    *(SAYS._replace(query=said) for said in ("", "presence=away", "%00")),
    *(each._replace(root="/shop") for each in (SAYS, LEAVES)),
    *(
        AWAITING._replace(headers=headers, seen=[GUEST])
        for headers in (SAME, {"Origin": HERS}, {"Origin": "https://SHOP.example:8000"})
    ),
    *(
        FOREIGN._replace(headers=headers, query=query)
        for query in (HERE, BYE)
        for headers in (
            *({"Sec-Fetch-Site": said} for said in ("cross-site", "same-site", "none", "")),
            *({"Sec-Fetch-Site": "same-origin, cross-site"}, {**CROSS, "Origin": HERS}, {}),
            *({"Origin": said} for said in ("http://shop.example", f"{HERS}.evil.example")),
            *({"Origin": said} for said in ("http://evil.example/shop.example:8000", "null")),
            *({"Origin": said} for said in ("http://[::1", "shop.example:8000")),
            {"Origin": "null", "Host": ""},
        )
    ),
    *(Row(method, headers=ANN, status=405) for method in ("GET", "HEAD", "PUT", "OPTIONS")),
    Row("POST", "/pulse.js", headers=ANN, status=405),
    *(each._replace(given={"exclude": "*"}) for each in (SAYS, LEAVES)),
    AWAITING._replace(given={"identity": LATE, "logout": "*"}, user="ann", seen=[USER]),
    *(each._replace(given={"enabled": "0"}, seen=[], gone=[]) for each in (SAYS, LEAVES)),
    *(
        each._replace(
            headers={**SAME, "User-Agent": GOOGLEBOT}, given={"bots": "skip"}, seen=[], gone=[]
        )
        for each in (SAYS, LEAVES)
    ),
    Row(headers={**SAME, "User-Agent": GOOGLEBOT}, seen=[("bot", "Googlebot")]),
    Row(query=BYE, headers={**SAME, "User-Agent": GOOGLEBOT}),
    *(Row(query=BYE, given={"store": store}) for store in ("minute-sets", "hyperloglog")),
    *(
        AWAITING._replace(app=App(status, COOKIES, layer=logs_in), seen=[USER])
        for status in (200, 302, 403, 500)
    ),
    AWAITING._replace(app=App(404, COOKIES, layer=logs_in), query=BYE, gone=[USER]),
    *(
        CHECKING._replace(app=App(status), **said)
        for status, whose in ((200, [USER]), (404, []), (401, [GUEST]), (500, []))
        for said in ({"seen": whose}, {"query": BYE, "gone": whose})
    ),
]
# ---- Elsewhere, where the app answers, and other requests are ordinary visits.
APPS = Row(path="/me", app=App(200), status=200, is_app_asked=True)
ROWS += [
    *(APPS._replace(query=query, headers=CROSS) for query in (HERE, BYE)),
    APPS._replace(query=BYE, gone=[GUEST]),
    # An excluded path of a logout that fails is no visit.
    APPS._replace(
        query="", headers=ANN, given={"exclude": "*", "logout": "*"}, app=App(500), status=500
    ),
    *(
        APPS._replace(method=method, query=query, seen=[GUEST])
        for method, query in (
            *(("GET", BYE), ("GET", HERE), ("PUT", BYE), ("POST", "presence=bye&x=1")),
            *(("POST", ""), ("POST", "nopresence=bye"), ("POST", "presence=%62ye")),
            ("POST", f"x={'x' * MAX_SIGNAL}&{BYE}"),
        )
    ),
    # A form may be sent to the URL of its page, which was a link on another site.
    *(
        APPS._replace(query=query, headers={**SAME, "Content-Type": type}, seen=[GUEST])
        for type in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
        for query in (HERE, BYE)
    ),
    *(
        APPS._replace(path=path, query="", headers=ANN, seen=[USER])
        for path in ("/pulse/", "/pulses", "/pulse.js/", "/a/pulse", "/PULSE", "/")
    ),
    *(
        APPS._replace(path=path, headers=ANN, query="", given={"pulse_path": ""}, seen=[USER])
        for path in ("/pulse", "/pulse.js")
    ),
]


@pytest.mark.parametrize("row", ROWS)
def test_a_request_says_who_is_there_or_goes(site: Make, row: Row) -> None:
    here = site(replace(row.app, calls=[]), **row.given)
    answer = here.ask(row.method, row.path, row.query, row.headers, root=row.root, user=row.user)
    assert (answer.status, here.seen, here.gone) == (row.status, row.seen, row.gone)
    assert bool(here.app.calls) is row.is_app_asked
    assert all(each.left.at == NEVER for each in here.people)
    if row.status == 204:
        cookies = {"set-cookie": "session=new; HttpOnly"} if row.app.headers is COOKIES else {}
        assert (answer.body, answer.headers) == (b"", {"cache-control": "no-store", **cookies})
    elif row.status == 403:
        assert answer.headers["cache-control"] == "no-store"
    elif row.status == 405:
        assert answer.headers["allow"] == ("POST" if row.path == "/pulse" else "GET, HEAD")


def entrances(here: PulsingSite) -> list[int | None]:
    return [each.room.number if each.room else None for each in here.people if each.seen > NEVER]


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
    head = here.ask("HEAD", "/pulse.js", headers={})
    assert (head.status, head.headers, head.body) == (200, answer.headers, b"")
    assert (here.seen, here.app.calls) == ([], [])
    etag = {"If-None-Match": answer.headers["etag"]}
    again = here.ask("GET", "/pulse.js", headers=etag)
    assert (again.status, again.body) == (304, b"")
    assert site(window="30m").ask("GET", "/pulse.js", headers=etag).status == 200


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
    **{"presence=here": None, f"presence=here:/t/{'x' * MAX_SIGNAL}": None},
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


def test_an_error_of_the_app_is_the_servers_and_the_visit_ends(site: Make) -> None:
    def fails(state: Any) -> None:
        logs_in(state)
        raise RuntimeError("a layer failed")

    here = site(App(layer=fails), identity=LATE)
    with pytest.raises(RuntimeError, match="a layer failed"):
        here.pulse()
    assert here.seen == [("user", "ann")]
    assert not here.recorder.open_visits


@OVER_WSGI
def test_a_generator_of_a_wsgi_app_runs_up_to_its_first_line(site: Make) -> None:
    log: list[str] = []
    bodies: list[Iterator[bytes]] = []  # no garbage, which Python would close

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        bodies.append(body(environ, start_response))
        return bodies[0]

    def body(environ: Any, start_response: Any) -> Iterator[bytes]:
        try:
            logs_in(environ)
            start_response(status="404 Not Found", response_headers=[], exc_info=None)(b"written")
            log.append("first")
            yield b"first"
            log.append("second")
        finally:
            log.append("closed")

    here = site(identity=LATE)
    here.wsgi.app = app
    assert (here.pulse().status, here.seen) == (204, [("user", "ann")])
    assert log == ["first", "closed"]


@OVER_WSGI
def test_a_request_that_cannot_be_read_is_refused_or_passed_on(site: Make) -> None:
    here, start = site(App(status=200), identity=LATE), Mock()
    broken: Any = {"REQUEST_METHOD": "POST", "HTTP_SEC_FETCH_SITE": 7, "QUERY_STRING": BYE}
    for path in ("/pulse", "/me"):
        here.wsgi({**broken, "PATH_INFO": path}, start)
    assert [call.args[0] for call in start.call_args_list] == ["403 Forbidden", "200 Said"]
    assert here.gone == []
