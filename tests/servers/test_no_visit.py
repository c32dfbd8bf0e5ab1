"""Requests that are not visits, and passive requests that do not keep their user online."""

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from presence_middleware import AsyncPresence, Identity, Presence, Settings, asgi, wsgi
from presence_middleware.asgi import AsgiVisit
from presence_middleware.recorder import Recorder, Visit, recorder_for
from presence_middleware.wsgi import WsgiVisit
from tests.support.asking import Inner, State, nothing
from tests.support.backends import Server, wait_until
from tests.support.servers import Command, WebServer, gunicorn, uvicorn
from tests.support.timed_site import Clock

Header = tuple[str, str]
ANN = ("X-User", "ann")
PREFETCH = ("Sec-Purpose", "prefetch")
PASSIVE = ("Presence", "passive")
ORIGIN, ASKING = ("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT")
WSGI_REQUEST: State = {"SCRIPT_NAME": "", "REMOTE_ADDR": "192.0.2.7"}
ASGI_REQUEST: State = {"client": ("192.0.2.7", 1), "root_path": "", "query_string": b""}


class Send(Protocol):
    """Sends one request through a wrapper, and returns what the app inside found."""

    def __call__(
        self,
        settings: Settings,
        *headers: Header,
        method: str = "GET",
        path: str = "/",
        inner: Inner = nothing,
    ) -> State: ...


def over_wsgi(
    settings: Settings,
    *headers: Header,
    method: str = "GET",
    path: str = "/",
    inner: Inner = nothing,
) -> State:
    def app(environ: State, _: object) -> list[bytes]:
        inner(environ)
        return []

    environ: dict[str, Any] = {**WSGI_REQUEST, "REQUEST_METHOD": method, "PATH_INFO": path}
    environ |= {"HTTP_" + name.upper().replace("-", "_"): value for name, value in headers}
    wsgi.PresenceMiddleware(app, settings=settings)(environ, lambda *_: list[bytes]().append)
    return environ


def over_asgi(
    settings: Settings,
    *headers: Header,
    method: str = "GET",
    path: str = "/",
    inner: Inner = nothing,
    type: str = "http",
) -> State:
    async def app(scope: State, *_: object) -> None:
        inner(scope)

    async def never(*_: object) -> Any:
        raise AssertionError

    sent = [(name.encode(), value.encode()) for name, value in headers]  # in the case as given
    scope: State = {**ASGI_REQUEST, "type": type, "method": method, "path": path, "headers": sent}
    asyncio.run(asgi.PresenceMiddleware(app, settings=settings)(scope, never, never))
    return scope


def over_websocket(settings: Settings, *headers: Header, **others: Any) -> State:
    return over_asgi(settings, *headers, **others, type="websocket")


BOTH: list[Any] = [over_wsgi, over_asgi]
EVERYWHERE = pytest.mark.parametrize("send", [*BOTH, over_websocket])
OVER_HTTP = pytest.mark.parametrize("send", BOTH)


@pytest.fixture
def site(valkey: Server, prefix: str) -> Iterator[Callable[..., Settings]]:
    """The settings of a site whose front end says who is logged in."""

    def settings(**others: object) -> Settings:
        given = {"redis_url": valkey.url, "prefix": prefix, "flush_interval": "3m", **others}
        made.append(Settings.from_env({}, **{"identity": "user=header:X-User", **given}))
        return made[-1]

    made: list[Settings] = []
    yield settings
    for one in made:
        recorder_for(one).close()


def become_usual(settings: Settings, send: Send) -> None:
    """Have the process take the short way, in which the filter sees only unusual requests."""
    recorder_for(settings).hints.look_at = math.inf
    send(settings, PREFETCH)
    send(settings)


def is_seen(settings: Settings, send: Send, *headers: Header, **request: Any) -> bool:
    """Whether a request of Ann's shows her to be there."""
    found = send(settings, ANN, *headers, **request)
    assert found["presence_middleware.visit"].identity == Identity("user", "ann")
    recorder = recorder_for(settings)
    assert recorder.flush()
    count = Presence(settings).count()
    assert count == bool(recorder.stats().recorded)
    return bool(count)


@OVER_HTTP
@pytest.mark.parametrize(
    "header",
    [
        PREFETCH,
        ("Purpose", "prefetch"),
        ("X-Moz", "prefetch"),
        PASSIVE,
        ("Sec-Fetch-Site", "cross-site"),
    ],
)
def test_after_its_first_requests_a_process_still_looks_at_each_header(
    site: Callable[..., Settings], send: Send, header: Header
) -> None:
    settings = site()
    recorder = recorder_for(settings)
    while recorder.usual_until < recorder.stamp():
        send(settings, ("X-User", "bob"))
    send(settings, ANN, header)
    assert recorder.flush()
    assert [seen.id for seen in Presence(settings).online()] == ["bob"]


@EVERYWHERE
@pytest.mark.parametrize(
    "header",
    [
        ("Sec-Purpose", "prefetch"),
        ("Sec-Purpose", "prefetch;prerender"),
        ("Sec-Purpose", "prefetch;anonymous-client-ip"),
        ("sec-purpose", "PreFetch"),
        ("SEC-PURPOSE", "Prefetch; Prerender"),
        ("Purpose", "prefetch"),
        ("purpose", "PREFETCH"),
        ("Purpose", "preview"),
        ("X-Moz", "prefetch"),
        ("X-MOZ", "Prefetch"),
        ("x-moz", "prefetch"),
    ],
)
def test_a_prefetched_page_is_not_a_visit(
    header: Header, send: Send, site: Callable[..., Settings]
) -> None:
    assert not is_seen(site(), send, header)


def fetched(site: str, mode: str, dest: str) -> list[Header]:
    """The headers with which a browser marks a request."""
    return [("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", mode), ("Sec-Fetch-Dest", dest)]


@EVERYWHERE
@pytest.mark.parametrize("is_usual", [True, False])
@pytest.mark.parametrize(
    ("headers", "is_visit"),
    [
        (fetched("cross-site", "no-cors", "image"), False),
        (fetched("cross-site", "cors", "empty"), False),
        (fetched("cross-site", "websocket", "websocket"), False),
        (fetched("cross-site", "navigate", "iframe"), False),
        ([("Sec-Fetch-Site", "cross-site")], False),
        (fetched("cross-site", "navigate", "document"), True),
        (fetched("same-site", "no-cors", "image"), True),
        (fetched("same-origin", "cors", "empty"), True),
        (fetched("none", "navigate", "document"), True),
    ],
)
def test_of_another_site_only_a_link_that_opens_a_page_is_a_visit(
    headers: list[Header],
    is_visit: bool,
    is_usual: bool,
    send: Send,
    site: Callable[..., Settings],
) -> None:
    settings = site()
    if is_usual:
        become_usual(settings, send)
    assert is_seen(settings, send, *headers) is is_visit


@EVERYWHERE
@pytest.mark.parametrize(
    "header",
    [
        ("Sec-Purpose", ""),
        ("Sec-Fetch-Purpose", "prefetch"),
        ("Purpose", "navigate"),
        ("X-Moz", "livebookmarks"),
        ("X-Mozilla", "prefetch"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Presence", "active"),
        ("Presence", ""),
        ("X-Presence", "passive"),
    ],
)
def test_other_page_requests_are_visits(
    header: Header, send: Send, site: Callable[..., Settings]
) -> None:
    assert is_seen(site(), send, header)


@OVER_HTTP
@pytest.mark.parametrize(
    ("method", "headers", "seen"),
    [
        ("OPTIONS", [ORIGIN, ASKING], False),
        ("OPTIONS", [], True),
        ("OPTIONS", [ORIGIN], True),
        ("OPTIONS", [ASKING], True),
        ("GET", [ORIGIN, ASKING], True),
        ("PUT", [ORIGIN], True),
    ],
)
def test_a_cors_preflight_is_not_a_visit_and_other_requests_are(
    method: str, headers: list[Header], *, seen: bool, send: Send, site: Callable[..., Settings]
) -> None:
    assert is_seen(site(), send, *headers, method=method) == seen


DEFAULT = [
    *("/favicon.ico", "/robots.txt", "/health", "/healthz", "/livez", "/readyz", "/ping"),
    *("/metrics", "/__heartbeat__", "/__lbheartbeat__"),
]


@EVERYWHERE
@pytest.mark.parametrize("path", DEFAULT)
def test_health_check_paths_are_not_visits_by_default(
    path: str, send: Send, site: Callable[..., Settings]
) -> None:
    settings = site()
    assert not is_seen(settings, send, path=path)
    assert not is_seen(settings, send, path=path, method="HEAD")
    assert is_seen(site(exclude="none"), send, path=path)


@EVERYWHERE
@pytest.mark.parametrize("path", DEFAULT)
def test_only_the_exact_path_is_excluded(
    path: str, send: Send, site: Callable[..., Settings]
) -> None:
    settings = site()
    assert not is_seen(settings, send, path=f"{path}/"), "with a slash behind it is the same"
    for other in (f"/{path}", f"/a{path}", f"{path}2", path.upper(), f"{path};a=b"):
        assert is_seen(settings, send, path=other), other


@EVERYWHERE
@pytest.mark.parametrize(
    ("exclude", "path", "seen"),
    [
        ("/static/*", "/static/a.css", False),
        ("/static/*", "/static/a/b/c.css", False),
        ("/static/*", "/static/", False),
        ("/static/*", "/static", True),
        ("/static/*", "/a/static/b", True),
        ("/static/*", "/healthz", True),  # instead of the default ones, not besides
        ("*.css", "/static/a.css", False),
        ("*.css", "/static/a.css.map", True),
        ("*.css", "/xcss", True),
        ("/a*/z", "/a/b/c/z", False),
        ("/a*/z", "/a/b/c/z/y", True),
        ("/*/a/*/b", "/1/a/2/b", False),
        ("*", "/any", False),
        ("/a?b", "/axb", True),
        ("/a.b*", "/a.bc", False),
        ("/a.b*", "/axbc", True),
        ("/[a]*", "/[a]b", False),
        ("/[a]*", "/ab", True),
        ("/x*", "/x\ny", False),
        ("/y, /z*, *.css", "/y", False),
        ("/y, /z*, *.css", "/zz", False),
        ("/y, /z*, *.css", "/a.css", False),
        ("/y, /z*, *.css", "/a", True),
        ("*, !/app/*", "/app/", True),
        ("*, ! /app/*", "/app/a/b", True),
        ("*, !/app/*", "/app", False),
        ("*, !/app/*", "/", False),
        ("*, !/app", "/app/", True),
        ("*, !/app", "/app2", False),
        ("*, !/app/*, /app/poll", "/app/poll/", False),
        ("*, !/app/*, /app/poll", "/app/pollen", True),
        ("/a*, !/a*c", "/abd", False),
        ("/a*, !/a*c", "/abc", True),
        ("+/poll*, !/ping, !/poll/now", "/ping", True),
        ("+/poll*, !/ping, !/poll/now", "/health", False),
        ("+/poll*, !/ping, !/poll/now", "/poll/now", True),
        ("+/poll*, !/ping, !/poll/now", "/poll/then", False),
    ],
)
def test_a_star_in_a_path_matches_any_text(
    exclude: str, path: str, *, seen: bool, send: Send, site: Callable[..., Settings], prefix: str
) -> None:
    assert is_seen(site(exclude=exclude), send, path=path) == seen
    usual = site(exclude=exclude, prefix=f"{prefix}-usual")
    become_usual(usual, send)
    assert is_seen(usual, send, path=path) == seen


@OVER_HTTP
def test_non_ascii_paths_can_be_excluded(
    send: Send, site: Callable[..., Settings], prefix: str
) -> None:
    """PEP 3333 decodes the bytes of a path as latin-1; an ASGI server decodes them as UTF-8."""
    path = "/caf\xe9/menu"
    if send is over_wsgi:
        path = path.encode().decode("latin-1")
    assert not is_seen(site(exclude="/caf\xe9*"), send, path=path)
    for number, exclude in enumerate(("/caf\xe9*", "/caf\xe9/menu")):
        usual = site(exclude=exclude, prefix=f"{prefix}-{number}")
        become_usual(usual, send)
        assert not is_seen(usual, send, path=path)
    assert is_seen(site(exclude="/tea*"), send, path=path)


@pytest.mark.parametrize(
    ("exclude", "path", "seen"),
    [
        ("/healthz", "/healthz", False),
        ("/healthz", "/api/healthz", True),
        ("/api/healthz", "/api/healthz", False),
        ("/api/*", "/api/any", False),
        ("/api/*", "/any", True),
    ],
)
@pytest.mark.parametrize("wrapped", ["outside", "mounted"])
def test_the_path_of_a_mounted_app_includes_its_mount_point(
    exclude: str, path: str, *, seen: bool, wrapped: str, site: Callable[..., Settings]
) -> None:
    """This holds around the whole site and around the mounted app, over WSGI and ASGI."""
    settings = site(exclude=exclude)
    recorder = recorder_for(settings)
    mount = "/api" if path.startswith("/api") else ""

    def answer(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        inside.append(environ["SCRIPT_NAME"] + environ["PATH_INFO"])
        return [b""]

    async def reply(scope: Any, receive: Any, send: Any) -> None:
        inside.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def never(*_: object) -> Any:
        raise AssertionError

    async def take(message: Any) -> None:
        assert message.get("status", 200) == 200

    inside: list[str] = []
    wrap, awrap = wsgi.PresenceMiddleware, asgi.PresenceMiddleware
    app: Any = wrap(answer, settings=settings) if wrapped == "mounted" else answer
    app = DispatcherMiddleware(app, {"/api": app})
    app = wrap(app, settings=settings) if wrapped == "outside" else app
    environ = {**WSGI_REQUEST, "REQUEST_METHOD": "GET", "PATH_INFO": path, "HTTP_X_USER": "ann"}
    app(environ, lambda *_: list[bytes]().append)
    assert recorder.stats().recorded == seen

    inner: Any = awrap(reply, settings=settings) if wrapped == "mounted" else reply
    inner = Starlette(routes=[Mount(mount, app=inner)])
    inner = awrap(inner, settings=settings) if wrapped == "outside" else inner
    scope = {**ASGI_REQUEST, "type": "http", "method": "GET", "path": path}
    asyncio.run(inner({**scope, "headers": [(b"x-user", b"ann")]}, never, take))
    assert recorder.stats().recorded == 2 * seen
    assert inside == [path, path]


REAL_APP = """
def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


async def asgi(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
"""


def rooted(root: str) -> Command:
    """uvicorn behind a proxy that takes `root` off the paths that it passes on."""
    return lambda port: [
        *uvicorn("presence_middleware.asgi_app:application")(port),
        "--root-path",
        root,
    ]


@pytest.mark.parametrize(
    ("command", "app", "exclude", "targets"),
    [
        (gunicorn("presence_middleware.wsgi_app:application"), "inside:wsgi", "", {}),
        (uvicorn("presence_middleware.asgi_app:application"), "inside:asgi", "", {}),
        (
            rooted("/api"),
            "inside:asgi",
            "/api/healthz, /static/*",
            {"/static/a": True, "/static/a%2Fb": True, "/static%2Fa": True},
        ),
    ],
    ids=["gunicorn", "uvicorn", "uvicorn with a root path"],
)
def test_request_targets_are_normalized_by_real_servers_before_matching(
    *,
    command: Command,
    app: str,
    exclude: str,
    targets: dict[str, bool],
    tmp_path: Path,
    variables: dict[str, str],
    presence: Presence,
) -> None:
    """Escapes are resolved and the query is no part of a path; a slash more is another path."""
    seen = {
        **{"/healthz": False, "/%68ealthz": False, "/healthz?a=/b": False, "/healthz?": False},
        **{"/healthz/": False, "/healthz%2F": False, "/a/../healthz": True, "/HEALTHZ": True},
        **{"/static/a": False, "/static/a%2Fb": False, "/static%2Fa": False, "/static": True},
        **targets,
    }
    (tmp_path / "inside.py").write_text(REAL_APP)
    more = {"PRESENCE_APP": app, "PRESENCE_IDENTITY": "user=header:X-User"}
    more["PRESENCE_EXCLUDE"] = exclude or "/healthz, /static/*"
    with WebServer(command, tmp_path, tmp_path / "log", **variables, **more) as server:
        for target in seen:
            request = f"GET {target} HTTP/1.1\r\nHost: a\r\nX-User: {target}\r\n"
            assert b"200 OK" in raw(server.port, request + "Connection: close\r\n\r\n")
        headers = {"X-User": "the last"}
        httpx.get(f"http://{server.address}/", headers=headers, trust_env=False, verify=False)
        wait_until(lambda: presence.is_online("the last"))
    assert sorted(presence.online_among(seen)) == sorted(path for path, is_ in seen.items() if is_)


def raw(port: int, request: str) -> bytes:
    """What a server answers to a request that no client has put in order."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


# What keeps nobody online, but is there for the handler all the same.

PASSIVES: list[tuple[str, dict[str, Any], list[Header]]] = [
    ("a path", {"path": "/poll"}, []),
    ("a path with a star", {"path": "/live/42"}, []),
    ("a header", {}, [PASSIVE]),
    ("a header in capitals", {}, [("PRESENCE", "passive")]),
    ("a prefetch", {}, [PREFETCH]),
    ("an excluded path", {"path": "/ping"}, []),
]
UNSEEN = pytest.mark.parametrize(
    ("request_", "headers"), [case[1:] for case in PASSIVES], ids=[case[0] for case in PASSIVES]
)


@pytest.fixture
def polled(site: Callable[..., Settings]) -> Settings:
    """A site with pages that poll."""
    return site(identity="user=auth, user=header:X-User, guest=visitor", exclude="+/poll, +/live/*")


@EVERYWHERE
@UNSEEN
def test_a_passive_request_is_identified_but_not_recorded(
    request_: dict[str, Any], headers: list[Header], send: Send, polled: Settings
) -> None:
    found = send(polled, ANN, *headers, **request_)
    visit = found["presence_middleware.visit"]
    assert isinstance(visit, Visit)
    assert visit.identity == Identity("user", "ann")
    recorder = recorder_for(polled)
    assert recorder.flush()
    assert recorder.stats().recorded == 0
    assert Presence(polled).counts() == {"user": 0, "guest": 0, "bot": 0}
    assert Presence(polled).last_seen("ann") is None
    send(polled, ANN)
    assert recorder.flush()
    assert Presence(polled).is_online("ann"), "the same without it is a visit"


@UNSEEN
def test_a_passive_request_is_answered(
    request_: dict[str, Any], headers: list[Header], polled: Settings
) -> None:
    def ask(environ: State) -> None:
        reader = environ["presence_middleware.presence"]
        counts.append((reader.count(), reader.is_online("ann")))

    counts: list[object] = []
    over_wsgi(polled, ANN, *headers, **request_, inner=ask)
    over_wsgi(polled, ("X-User", "bob"))
    over_wsgi(polled, ANN, *headers, **request_, inner=ask)
    assert counts == [(0, False), (1, False)], "who asks does not count himself, Bob does"


@UNSEEN
@pytest.mark.parametrize("type", ["http", "websocket"])
def test_a_passive_request_is_answered_over_asgi(
    request_: dict[str, Any], headers: list[Header], type: str, polled: Settings
) -> None:
    async def app(scope: State, *_: object) -> None:
        assert isinstance(scope["presence_middleware.presence"], AsyncPresence)
        counts.append(await scope["presence_middleware.presence"].count())
        await scope["presence_middleware.presence"].aclose()

    counts: list[int] = []
    sent = [(name.lower().encode(), value.encode()) for name, value in (ANN, *headers)]
    scope: State = {**ASGI_REQUEST, "type": type, "method": "GET", "path": "/", "headers": sent}
    wrapped: Any = asgi.PresenceMiddleware(app, settings=polled)
    asyncio.run(wrapped({**scope, **request_}, None, None))
    assert counts == [0]


@EVERYWHERE
@UNSEEN
def test_a_user_identified_during_a_passive_request_is_not_recorded(
    request_: dict[str, Any], headers: list[Header], send: Send, polled: Settings
) -> None:
    """A login during a prefetch counts from the next request of that user."""

    def identify(state: State) -> None:
        visit = state["presence_middleware.visit"]
        visit.identify("bob")
        assert visit.identity == Identity("user", "bob")
        visit.flush()
        visit.identify("eve", kind="guest")
        assert visit.identity == Identity("guest", "eve")

    send(polled, ANN, *headers, **request_, inner=identify)
    assert recorder_for(polled).flush()
    assert recorder_for(polled).stats().recorded == 0
    assert Presence(polled).counts() == {"user": 0, "guest": 0, "bot": 0}


@EVERYWHERE
@UNSEEN
def test_a_guest_has_the_same_id_in_passive_requests_and_visits(
    request_: dict[str, Any], headers: list[Header], send: Send, polled: Settings
) -> None:
    visit = send(polled)["presence_middleware.visit"]
    assert recorder_for(polled).flush()
    passive = send(polled, *headers, **request_)["presence_middleware.visit"]
    assert passive.identity == visit.identity
    assert passive.identity.kind == "guest"


def test_a_polling_page_does_not_keep_its_user_online(polled: Settings) -> None:
    clock = Clock()
    recorder, presence = Recorder(polled, clock=clock), Presence(polled, clock=clock)
    began = clock.now
    WsgiVisit(recorder, {"HTTP_X_USER": "ann"}).end()
    for seconds in range(0, 1200, 30):
        clock.now = began + seconds
        WsgiVisit(recorder, {"HTTP_X_USER": "ann", "PATH_INFO": "/poll"}).end()
        headers = [(b"x-user", b"ann"), (b"presence", b"passive")]
        AsgiVisit(recorder, {"type": "websocket", "path": "/", "headers": headers}).end()
        assert recorder.flush()
        assert presence.is_online("ann") == (seconds < 600), seconds
    seen = presence.last_seen("ann")
    assert seen is not None
    assert seen.timestamp() == began
    recorder.close()


OPEN = {"type": "websocket", "path": "/", "client": ("192.0.2.7", 1)}


@pytest.mark.parametrize(
    ("headers", "path", "counts"),
    [([], "/", True), ([(b"presence", b"passive")], "/", False), ([], "/live/42", False)],
)
def test_a_long_open_connection_keeps_its_user_online_unless_it_is_passive(
    headers: list[tuple[bytes, bytes]], path: str, *, counts: bool, polled: Settings
) -> None:
    clock = Clock()
    recorder, presence = Recorder(polled, clock=clock), Presence(polled, clock=clock)
    scope = {**OPEN, "path": path, "headers": [(b"x-user", b"ann"), *headers]}
    visit = AsgiVisit(recorder, scope)
    for _ in range(30):
        clock.now += 61
        recorder.run_once()
        assert recorder.flush()
        assert presence.is_online("ann") == counts
        assert visit.identity == Identity("user", "ann")
    assert len(recorder.open_visits) == counts
    visit.end()
    assert recorder.flush()
    assert presence.is_online("ann") == counts
    assert bool(recorder.stats().recorded) == counts
    recorder.close()


def test_a_long_passive_response_ends_without_a_log_message(polled: Settings) -> None:
    """The body is streamed, and the server closes it or drops it."""

    def app(environ: State, _: object) -> Iterator[bytes]:
        yield b"a"

    for close in (True, False):
        wrapped = wsgi.PresenceMiddleware(app, settings=polled)
        environ = {**WSGI_REQUEST, "PATH_INFO": "/poll", "HTTP_X_USER": "ann"}
        body = wrapped(environ, lambda *_: list[bytes]().append)
        assert list(body) == [b"a"]
        assert wrapped.recorder.open_visits == {}
        if close:
            body.close()
        del body, environ
        assert wrapped.recorder.flush()
        assert wrapped.recorder.stats().recorded == 0


def test_requests_that_are_not_visits_do_not_count_towards_the_guests_of_an_address(
    polled: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise polling pages and health checks would use up the guests of an address."""
    for number in range(150):
        agent = ("User-Agent", f"Firefox {number}")
        for send in BOTH:
            send(polled, agent, PASSIVE)
            send(polled, agent, path="/healthz")
    recorder = recorder_for(polled)
    assert recorder.flush()
    assert recorder.stats().recorded == 0
    assert recorder.stats().dropped == {}
    over_wsgi(polled, ("User-Agent", "somebody who looks at a page"))
    assert recorder.flush()
    assert Presence(polled).count("guest") == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_invalid_path_is_reported_at_start_up() -> None:
    with pytest.raises(ValueError, match=r"PRESENCE_EXCLUDE.* expected paths such as"):
        Settings.from_env({}, exclude="healthz")


def test_paths_with_a_plus_are_added_to_the_default_paths() -> None:
    added = Settings.from_env({}, exclude="+/poll, + /live/*, +/ping").exclude
    assert added == (*Settings.from_env({}).exclude, "/poll", "/live/*")
    assert Settings.from_env({}, exclude=["+/poll", "+/live/*"]).exclude == added
