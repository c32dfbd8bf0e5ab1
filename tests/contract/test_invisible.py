"""An invisible person leaves nothing under `user`: a site is compared with one they never visited.

To include a feature, give it to `settings_of`, use it in `visits` or `Page`, and add its reads to
`answers`. Its keys are compared without further ado.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, NamedTuple

import httpx
import pytest
from prometheus_client import CollectorRegistry

from presence_middleware import Presence, QueryError, Settings, asgi, wsgi
from presence_middleware.connections.clients import close_async_clients, sync_client
from presence_middleware.prometheus import PresenceCollector
from presence_middleware.recorder import Recorder, Visit
from tests.support.asking import State
from tests.support.backends import Server, in_turn, matrix
from tests.support.hiding import HIDDEN
from tests.support.statuses import FIREFOX
from tests.support.timed_site import Clock

TOKEN = "the-token-of-the-board"
SECRET = "of-both-sites-alike"
OWN = ":invisible:"
"""A part of the names of all keys that belong to invisible people."""


def hide(state: State) -> None:
    """Make the user of a request invisible, as a handler or a layer does."""
    visit: Visit = state["presence_middleware.visit"]
    if visit.header("x-user") == HIDDEN:
        visit.identify(HIDDEN, kind="invisible")


class Way(NamedTuple):
    """A way in which a site makes a person invisible."""

    identity: str
    in_layer: bool = False
    in_handler: bool = False


CODE = "user=header:x-user, invisible=identify, guest=visitor"
FUNCTION = CODE.replace("identify", "identify:tests.support.hiding:is_hidden")
WAYS = {
    "handler": Way(CODE, in_handler=True),
    "layer": Way(CODE, in_layer=True),
    "function": Way(FUNCTION),
}


@dataclass
class Page:
    """A request of the site, and what the handler does."""

    headers: dict[str, str]
    path: str = "/"
    asks: bool = False
    """True if the handler asks who is online."""
    seconds: float = 0.0
    """How long the handler takes before it names its user. Others are written meanwhile."""
    failure: Exception | None = None
    """Raised in place of a response."""
    type: str = "http"
    method: str = "GET"
    query: str = ""


Send = Callable[["Site", Page], None]


class Site:
    """A site whose clock the test moves, and which writes when the test lets it."""

    def __init__(self, settings: Settings, way: Way, middleware: Any) -> None:
        self.settings, self.way, self.clock = settings, way, Clock()
        app = self._wsgi_app if middleware is wsgi.PresenceMiddleware else self._asgi_app
        self.wrapped = middleware(app, settings=settings, clock=self.clock)
        self.recorder: Recorder = self.wrapped.recorder
        self.recorder.background = False

    def pass_time(self, seconds: float) -> None:
        """Move the clock, and write, sample and clean up every two seconds of it."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += min(2.0, end - self.clock.now)
            self.recorder.run_once()

    def _wsgi_app(self, environ: State, start_response: Any) -> Iterable[bytes]:
        if self.way.in_layer:
            hide(environ)
        lines = self._wsgi_handler(environ, start_response)
        return lines if environ["page"].seconds else list(lines)

    def _wsgi_handler(self, environ: State, start_response: Any) -> Iterator[bytes]:
        page: Page = environ["page"]
        self.pass_time(page.seconds)
        if self.way.in_handler:
            hide(environ)
        if page.asks:
            environ["presence_middleware.presence"].counts()
        if page.failure:
            raise page.failure
        start_response("200 OK", [])
        yield b"a"
        self.pass_time(page.seconds)
        yield b"b"

    async def _asgi_app(self, scope: State, receive: Any, send: Any) -> None:
        if self.way.in_layer:
            hide(scope)
        page: Page = scope["page"]
        self.pass_time(page.seconds)
        if self.way.in_handler:
            hide(scope)
        if page.asks:
            await scope["presence_middleware.presence"].counts()
            await close_async_clients()
        if page.failure:
            raise page.failure
        if page.type == "websocket":
            await send({"type": "websocket.accept"})
            self.pass_time(400)
            await send({"type": "websocket.close"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        self.pass_time(page.seconds)
        await send({"type": "http.response.body", "body": b"b"})


def over_wsgi(site: Site, page: Page) -> None:
    environ: dict[str, Any] = {"REQUEST_METHOD": page.method, "QUERY_STRING": page.query}
    environ |= {"SCRIPT_NAME": "", "PATH_INFO": page.path, "page": page}
    environ["REMOTE_ADDR"] = "192.0.2.7"
    for name, value in page.headers.items():
        environ["HTTP_" + name.upper().replace("-", "_")] = value
    body = site.wrapped(environ, lambda *_: None)
    list(body)
    getattr(body, "close", lambda: None)()


def over_asgi(site: Site, page: Page) -> None:
    async def receive() -> Any:
        return {"type": f"{page.type}.request"}

    async def send(_: Any) -> None: ...

    headers = [(name.lower().encode(), value.encode()) for name, value in page.headers.items()]
    scope: dict[str, Any] = {"type": page.type, "method": page.method, "path": page.path}
    scope |= {"query_string": page.query.encode(), "headers": headers}
    asyncio.run(site.wrapped({**scope, "client": ("192.0.2.7", 1), "page": page}, receive, send))


PROTOCOLS: dict[str, tuple[Send, Any]] = {
    "wsgi": (over_wsgi, wsgi.PresenceMiddleware),
    "asgi": (over_asgi, asgi.PresenceMiddleware),
}


def settings_of(server: Server, prefix: str, identity: str, store: str) -> Settings:
    given: dict[str, Any] = {"redis_url": server.url, "prefix": prefix, "identity": identity}
    given |= {"store": store, "board_path": "/board", "board_token": TOKEN, "secret": SECRET}
    if store == "sorted-set":
        given |= {"rooms": "/t/{topic}", "pulse_path": "/pulse"}
    return Settings.from_env({}, logout="/logout", flush_interval="2s", **given)


def visits(protocol: str) -> Iterator[Page]:
    """Yield each sort of request that the invisible person makes."""
    mine = {"User-Agent": FIREFOX, "X-User": HIDDEN}
    yield Page(mine)
    yield Page(mine, asks=True)
    yield Page(mine, seconds=4)
    yield Page(mine, failure=ValueError("the handler fails"))
    if protocol == "asgi":
        yield Page(mine, type="websocket")
    yield Page(mine, "/t/1")
    yield signal(HIDDEN, "here:/t/1")
    yield signal(HIDDEN, "bye")
    yield Page(mine, "/logout")
    yield Page(mine, "/t/1")


def signal(user: str, said: str) -> Page:
    """Return a pulse or a goodbye of a page."""
    headers = {"User-Agent": FIREFOX, "X-User": user, "Sec-Fetch-Site": "same-origin"}
    return Page(headers, "/pulse", method="POST", query=f"presence={said}")


def others() -> Iterator[Page]:
    """Yield the requests of visible people."""
    yield Page({"User-Agent": FIREFOX, "X-User": "ann"}, "/t/1")
    yield Page({"User-Agent": FIREFOX, "X-User": "bob"}, asks=True)
    yield Page({"User-Agent": FIREFOX})
    yield Page({"User-Agent": "Googlebot/2.1"})
    yield Page({"User-Agent": FIREFOX, "X-User": "bob"}, "/logout")


@contextmanager
def opened(settings: Settings, way: Way, protocol: str) -> Iterator[Site]:
    site = Site(settings, way, PROTOCOLS[protocol][1])
    try:
        yield site
    finally:
        site.recorder.close()


def live(site: Site, protocol: str, *, is_visited: bool) -> None:
    """Serve everybody; the invisible person only if the site `is_visited` by them."""
    send = PROTOCOLS[protocol][0]
    for page in others():
        send(site, page)
        site.pass_time(10)
    for page in visits(protocol):
        began = site.clock.now
        if is_visited:
            try:
                send(site, page)
            except ValueError:
                assert page.failure
        # The page takes as long where nobody asks for it.
        site.pass_time(began + 500 - site.clock.now)
        send(site, next(others()))
        site.pass_time(70)


def contents(site: Site) -> dict[str, object]:
    """Return the content of every key of a site, without the prefix of the site."""
    found: dict[str, object] = {}
    client, prefix = sync_client(site.settings.redis_url), site.settings.prefix
    for raw in client.scan_iter(match=f"{prefix}:*", count=1000):
        name, kind = raw.decode().removeprefix(prefix), client.type(raw)
        if kind == b"zset":
            members = client.zrange(raw, 0, -1, withscores=True)
            # The names of processes are random.
            found[name] = [score for _, score in members] if name.endswith(":writers") else members
        elif kind == b"set":
            found[name] = client.smembers(raw)
        elif name != ":upkeep":  # another random name
            found[name] = client.hgetall(raw) if kind == b"hash" else client.get(raw)
    return found


def visible(found: dict[str, object]) -> dict[str, object]:
    """Return the keys that do not belong to invisible people."""
    return {name: content for name, content in found.items() if OWN not in name}


QUESTIONS: dict[str, Callable[[Presence], object]] = {
    "counts": lambda presence: {**presence.counts(), "invisible": 0},
    **{
        f"{name} {kind}": methodcaller(name, kind)
        for name in ("count", "online", "peak", "history")
        for kind in (None, "user", "guest", "bot")
    },
    "is_online": lambda presence: presence.is_online(HIDDEN),
    "last_seen": lambda presence: presence.last_seen(HIDDEN),
    "online_among": lambda presence: presence.online_among([HIDDEN, "ann"]),
    "last_seen_among": lambda presence: presence.last_seen_among([HIDDEN, "ann"]),
    "room": lambda presence: {**presence.counts(room="/t/1"), "invisible": 0},
    "in room": lambda presence: (presence.count(room="/t/1"), presence.online(room="/t/1")),
    "a day": lambda presence: presence.count(window="1d"),
}
BOARD = [
    *("", "/", "/history", "/peak", "/chart.svg", "/online", "/online?kind=guest"),
    *("/history?kind=user", "/peak?kind=user", "/chart.svg?kind=user", "/online?kind=user"),
    *(f"/last-seen?id={HIDDEN}", f"/last-seen?id={HIDDEN}&id=ann"),
]


def answers(site: Site) -> dict[str, object]:
    """Return what a site shows anybody: its readers, its board and its metrics."""
    presence = Presence(site.settings, clock=site.clock)
    found: dict[str, object] = {}
    for name, ask in QUESTIONS.items():
        try:
            found[name] = ask(presence)
        except QueryError as error:  # the store cannot answer
            found[name] = str(error)
    found |= {f"board{path}": board(site, path) for path in BOARD}
    for path in ("/counts", "/counts?room=/t/1"):
        read: dict[str, Any] = json.loads(str(board(site, path)[1]))
        found[f"board{path}"] = {**read.get("counts", read), "invisible": 0}
    registry = CollectorRegistry()
    registry.register(PresenceCollector(site.recorder))
    for name in ("presence_online", "presence_peak"):
        for kind in ("user", "guest", "bot"):
            found[f"{name} {kind}"] = registry.get_sample_value(name, {"kind": kind})
    return found


def board(site: Site, path: str) -> tuple[int, str]:
    """Return the status and the body of a page of the board."""

    def app(environ: Any, start_response: Any) -> Any:
        raise AssertionError

    wrapped = wsgi.PresenceMiddleware(app, settings=site.settings, clock=site.clock)
    transport = httpx.WSGITransport(wrapped)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(transport=transport, base_url="http://site", headers=headers) as client:
        response = client.get(f"/board{path}")
    wrapped.recorder.close()
    return response.status_code, response.text


@pytest.mark.parametrize("protocol", [*list(PROTOCOLS)[:1], *matrix(*list(PROTOCOLS)[1:])])
@pytest.mark.parametrize(
    ("way", "store"),
    [*((way, "sorted-set") for way in WAYS), *in_turn(list(WAYS), ["minute-sets", "hyperloglog"])],
)
def test_an_invisible_person_leaves_nothing_under_user(
    way: str, protocol: str, store: str, valkey: Server, prefix: str
) -> None:
    found = []
    for is_visited in (True, False):
        name = f"{prefix}-{'with' if is_visited else 'without'}"
        settings = settings_of(valkey, name, WAYS[way].identity, store)
        with opened(settings, WAYS[way], protocol) as site:
            live(site, protocol, is_visited=is_visited)
            online = Presence(settings, clock=site.clock).count("invisible")
            found.append((contents(site), answers(site), online))
    (keys, shown, online), (keys_without, shown_without, online_without) = found
    assert (online, online_without) == (1, 0)
    assert visible(keys) == visible(keys_without)
    assert shown == shown_without
    assert any(name.startswith(":user:") for name in keys)
    rooms = [dict(keys.get(f":{kind}:at", ())) for kind in ("user", "invisible")]  # type: ignore[call-overload]
    assert [HIDDEN.encode() in room for room in rooms] == [False, store == "sorted-set"]
    assert shown["count user"] == shown["count None"] == 1


def ids_under_user(site: Site) -> set[bytes]:
    """Return the members of all sorted sets of the kind `user`."""
    found = contents(site)
    keys = [found.get(f":user:{name}", []) for name in ("seen", "left", "gone")]
    return {member for members in keys if isinstance(members, list) for member, _ in members}


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
def test_forget_erases_the_past_of_a_person_who_becomes_invisible(
    protocol: str, valkey: Server, prefix: str
) -> None:
    send = PROTOCOLS[protocol][0]
    page = Page({"User-Agent": FIREFOX, "X-User": HIDDEN})
    with opened(settings_of(valkey, prefix, CODE, "sorted-set"), Way(CODE), protocol) as site:
        presence = Presence(site.settings, clock=site.clock)
        send(site, page)
        site.pass_time(10)
        assert [seen.id for seen in presence.online()] == [HIDDEN]
        site.way = WAYS["handler"]
        presence.forget(HIDDEN)
        send(site, page)
        site.pass_time(10)
        assert presence.counts() == {"user": 0, "invisible": 1, "guest": 0, "bot": 0}
        assert presence.last_seen(HIDDEN) is None
        assert [seen.id for seen in presence.online("invisible")] == [HIDDEN]
        assert HIDDEN.encode() not in ids_under_user(site)


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
def test_the_board_shows_the_number_of_invisible_people_to_nobody_without_the_token(
    protocol: str, valkey: Server, prefix: str
) -> None:
    send, middleware = PROTOCOLS[protocol]
    settings = settings_of(valkey, prefix, CODE, "sorted-set")
    with opened(settings, WAYS["handler"], protocol) as site:
        send(site, Page({"User-Agent": FIREFOX, "X-User": HIDDEN}, "/t/1"))
        site.pass_time(70)
        nobody = {"user": 0, "guest": 0}
        assert shown(site, "/counts", middleware) == (200, {"counts": {**nobody, "bot": 0}})
        in_room = shown(site, "/counts?room=/t/1", middleware)
        assert in_room == (200, {"room": "/t/1", "counts": nobody})
        for path in ("/history", "/peak", "/chart.svg"):
            for token, status in (("", 401), (TOKEN, 200)):
                assert shown(site, f"{path}?kind=invisible", middleware, token)[0] == status


def shown(site: Site, path: str, middleware: Any, token: str = "") -> tuple[int, Any]:
    """Return the status of a page of the board, and its JSON."""

    async def ask_async() -> httpx.Response:
        transport = httpx.ASGITransport(wrapped)
        async with httpx.AsyncClient(transport=transport, **given) as client:
            response = await client.get(f"/board{path}")
        await close_async_clients()
        return response

    wrapped = middleware(lambda *_: None, settings=site.settings, clock=site.clock)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    given: dict[str, Any] = {"base_url": "http://site", "headers": headers}
    if middleware is wsgi.PresenceMiddleware:
        with httpx.Client(transport=httpx.WSGITransport(wrapped), **given) as client:
            response = client.get(f"/board{path}")
    else:
        response = asyncio.run(ask_async())
    wrapped.recorder.close()
    is_json = response.headers["content-type"] == "application/json"
    return response.status_code, response.json() if is_json else None
