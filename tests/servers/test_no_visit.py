"""Requests that are not visits, and passive requests that do not keep their user online."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import AsyncMock
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from presence_middleware import Identity, Presence, Settings, Visit, asgi, wsgi
from presence_middleware.recorder import recorder_for
from tests.support.asking import Inner, State, nothing
from tests.support.statuses import Ask, Call, over_asgi, over_websocket, over_wsgi

Header = tuple[str, str]
ANN, BOB = ("X-User", "ann"), ("X-User", "bob")
PREFETCH, PASSIVE = ("Sec-Purpose", "prefetch"), ("Presence", "passive")
ORIGIN, ASKING = ("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT")


class Request(NamedTuple):
    """A request in no protocol yet, and whether it is a visit."""

    is_visit: bool
    headers: tuple[Header, ...] = ()
    path: str = "/"
    method: str = "GET"


def sent(send: Ask, settings: Settings, request: Request, inner: Inner = nothing) -> Visit:
    call = Call(dict(request.headers), quote(request.path), request.method, before=inner)
    visit: Visit = send(settings, call).state["presence_middleware.visit"]
    return visit


EVERYWHERE = pytest.mark.parametrize("send", [over_wsgi, over_asgi, over_websocket])


@pytest.fixture
def site(unwritten: Callable[..., Settings]) -> Callable[..., Settings]:
    """Makes the settings of sites that find their users in a header."""
    return partial(unwritten, **{"identity": "user=header:X-User"})


def become_usual(settings: Settings) -> None:
    """Have the process take the short way, in which the filter sees only unusual requests.

    It takes that over all protocols alike, and a request over WSGI takes a test least time.
    """
    recorder = recorder_for(settings)
    for _ in range(80):  # more than are inspected at a start
        sent(over_wsgi, settings, Request(True, (BOB,)))
    inspects_all = recorder.stats().recorded == 0 or not "".join(settings.exclude).isascii()
    assert inspects_all or recorder.usual_until > recorder.stamp()


def fetched(site: str, mode: str, dest: str) -> tuple[Header, ...]:
    return ("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", mode), ("Sec-Fetch-Dest", dest)


DEFAULT = [
    *("/favicon.ico", "/robots.txt", "/health", "/healthz", "/livez", "/readyz", "/ping"),
    *("/metrics", "/__heartbeat__", "/__lbheartbeat__"),
]
AHEAD = [
    *(("Sec-Purpose", "prefetch"), ("sec-purpose", "PreFetch"), ("Purpose", "prefetch")),
    *(("Sec-Purpose", "prefetch;anonymous-client-ip"), ("SEC-PURPOSE", "Prefetch; Prerender")),
    *(("Purpose", "preview"), ("X-MOZ", "Prefetch")),
]
OTHER = [
    *(("Sec-Purpose", ""), ("Sec-Fetch-Purpose", "prefetch"), ("Purpose", "navigate")),
    *(("X-Moz", "livebookmarks"), ("Sec-Fetch-Mode", "navigate"), ("Presence", "active")),
]
HEADERS = [
    *(Request(False, (header,)) for header in [*AHEAD, PASSIVE, ("PRESENCE", "Passive")]),
    *(Request(True, (header,)) for header in OTHER),
    Request(False, fetched("cross-site", "no-cors", "image")),
    Request(False, fetched("cross-site", "websocket", "websocket")),
    Request(False, fetched("cross-site", "navigate", "iframe")),
    Request(False, (("Sec-Fetch-Site", "cross-site"),)),
    Request(True, fetched("cross-site", "navigate", "document")),
    Request(True, fetched("same-site", "no-cors", "image")),
    Request(True, fetched("same-origin", "cors", "empty")),
    Request(False, (ORIGIN, ASKING), method="OPTIONS"),
    Request(True, (ORIGIN,), method="OPTIONS"),
    Request(True, (ASKING,), method="OPTIONS"),
    Request(True, (ORIGIN, ASKING)),
]


def paths(excluded: list[str], others: list[str]) -> list[Request]:
    return [
        *(Request(False, path=path) for path in excluded),
        *(Request(True, path=path) for path in others),
    ]


SITES: dict[str, list[Request]] = {
    "": HEADERS,
    "+": [
        *paths([*DEFAULT, *(f"{path}/" for path in DEFAULT)], []),
        Request(False, path="/healthz", method="HEAD"),
        *paths([], ["//healthz", "/a/healthz", "/healthz2", "/HEALTHZ", "/ping;a=b", "/Ping"]),
    ],
    "none": paths([], DEFAULT),
    # In place of the default paths, not besides.
    "/static/*": paths(
        ["/static/a.css", "/static/a/b/c.css", "/static/"], ["/static", "/a/static/b", "/healthz"]
    ),
    "*.css": paths(["/static/a.css"], ["/static/a.css.map", "/xcss"]),
    "/a*/z": paths(["/a/b/c/z"], ["/a/b/c/z/y"]),
    "/*/a/*/b": paths(["/1/a/2/b"], []),
    "*": paths(["/any"], []),
    "/a?b": paths(["/a?b"], ["/axb"]),
    "/a.b*": paths(["/a.bc"], ["/axbc"]),
    "/[a]*": paths(["/[a]b"], ["/ab"]),
    "/x*": paths(["/x\ny"], []),
    # PEP 3333 decodes the bytes of a path as latin-1; an ASGI server decodes them as UTF-8.
    "/caf\xe9*": paths(["/caf\xe9/menu"], ["/tea"]),
    "/caf\xe9/menu": paths(["/caf\xe9/menu"], ["/caf\xe9"]),
    "/tea*": paths([], ["/caf\xe9/menu"]),
    "/y, /z*, *.css": paths(["/y", "/zz", "/a.css"], ["/a"]),
    "*, !/app/*": paths(["/app", "/"], ["/app/"]),
    "*, ! /app/*": paths([], ["/app/a/b"]),
    "*, !/app": paths(["/app2"], ["/app/"]),
    "*, !/app/*, /app/poll": paths(["/app/poll/"], ["/app/pollen"]),
    "/a*, !/a*c": paths(["/abd"], ["/abc"]),
    "+/poll*, !/ping, !/poll/now": paths(["/health", "/poll/then"], ["/ping", "/poll/now"]),
}
"""Requests to a site by what it excludes, each time fewer than are inspected at a start."""


@EVERYWHERE
@pytest.mark.parametrize("is_usual", [False, True])
@pytest.mark.parametrize("exclude", SITES)
def test_only_visits_show_who_is_online(
    exclude: str, is_usual: bool, send: Ask, site: Callable[..., Settings]
) -> None:
    settings = site(**({"exclude": exclude} if exclude.strip("+") else {}))
    if is_usual:
        become_usual(settings)
    of_socket = send is over_websocket
    asked = {
        f"{number}": request
        for number, request in enumerate(SITES[exclude])
        if not (of_socket and request.method != "GET")
    }
    for name, request in asked.items():
        given = request._replace(headers=(("X-User", name), *request.headers))
        assert sent(send, settings, given).identity == Identity("user", name)
    recorder = recorder_for(settings)
    assert recorder.flush()
    online = {who.id for who in Presence(settings).online(limit=None)} - {"bob"}
    assert [
        request for name, request in asked.items() if (name in online) != request.is_visit
    ] == []
    if not is_usual:
        assert recorder.stats().recorded == len(online)


@pytest.mark.parametrize("wrapped", ["outside", "mounted"])
def test_a_path_includes_the_mount_point(wrapped: str, site: Callable[..., Settings]) -> None:
    """This holds around the whole site and around the mounted app, over WSGI and ASGI."""
    settings = site(exclude="/healthz, /api/ping")
    visits = {"/healthz": 0, "/api/healthz": 1, "/api/ping": 0, "/ping": 1}

    def wrap(wrapper: Any, app: Any, where: str) -> Any:
        return wrapper(app, settings=settings) if wrapped == where else app

    inner = wrap(wsgi.PresenceMiddleware, lambda *_: [], "mounted")
    site_wsgi = DispatcherMiddleware(inner, {"/api": inner})
    site_wsgi = wrap(wsgi.PresenceMiddleware, site_wsgi, "outside")
    inner = wrap(asgi.PresenceMiddleware, AsyncMock(), "mounted")
    site_asgi = Starlette(routes=[Mount("/api", app=inner), Mount("", app=inner)])
    site_asgi = wrap(asgi.PresenceMiddleware, site_asgi, "outside")
    for path, count in visits.items():
        before = recorder_for(settings).stats().recorded
        of_ann = Call({"X-User": "ann"}, path).request
        site_wsgi(of_ann.environ(), print)
        asyncio.run(site_asgi(of_ann.scope(), None, None))
        assert recorder_for(settings).stats().recorded - before == 2 * count, path


# What keeps nobody online, but is there for the handler all the same.

PASSIVES = {
    "a path": Request(False, path="/poll"),
    "a header": Request(False, (PASSIVE,)),
    "a prefetch": Request(False, (PREFETCH,)),
}


@pytest.fixture
def polled(site: Callable[..., Settings]) -> Settings:
    return site(identity="user=auth, user=header:X-User, guest=visitor", exclude="+/poll, +/live/*")


@EVERYWHERE
@pytest.mark.parametrize("request_", PASSIVES.values(), ids=PASSIVES)
def test_a_passive_request_is_not_recorded(request_: Request, send: Ask, polled: Settings) -> None:
    """A login during a prefetch counts from the next request of that user."""
    answers: list[object] = []
    recorder, presence = recorder_for(polled), Presence(polled)
    of_ann = request_._replace(headers=(ANN, *request_.headers))

    def ask(state: State) -> Any:
        reader = state["presence_middleware.presence"]
        if send is over_wsgi:
            return answers.append(reader.count())

        async def counts() -> None:
            answers.append(await reader.count())

        return counts()

    def identify(state: State) -> None:
        visit = state["presence_middleware.visit"]
        assert visit.identity == Identity("user", "ann")
        visit.identify("bob")
        visit.note()
        visit.identify("eve", kind="guest")
        assert visit.identity == Identity("guest", "eve")

    sent(send, polled, of_ann, identify)
    passive = sent(send, polled, request_)
    sent(send, polled, of_ann, ask)
    assert recorder.flush()
    assert recorder.stats().recorded == 0
    assert presence.last_seen("ann") is None
    guest = sent(send, polled, Request(True))
    sent(send, polled, Request(True, (BOB,)))
    sent(send, polled, of_ann, ask)
    assert answers == [0, 1], "who asks does not count himself, Bob does"
    assert passive.identity == guest.identity, "the same in passive requests and visits"
    sent(send, polled, Request(True, (ANN,)))
    assert recorder.flush()
    assert presence.is_online("ann"), "the same without it is a visit"
