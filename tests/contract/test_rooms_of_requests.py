"""Requests through both wrappers: who is in which room."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from presence_middleware import Presence, QueryError, Settings, asgi, wsgi
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
from tests.support import timed_site
from tests.support.backends import Server
from tests.support.timed_site import Clock

NAVIGATE, CORS = {"sec-fetch-mode": "navigate"}, {"sec-fetch-mode": "cors"}


class View(NamedTuple):
    """A request of a user, whose handler may name a room."""

    path: str
    user: str = "ann"
    mount: str = ""
    headers: dict[str, str] = {}  # noqa: RUF012
    enters: str | None = None


class Site:
    """A wrapped app under one of the protocols; nothing is written until `flush`."""

    def __init__(self, protocol: str, settings: Settings) -> None:
        wrapper: Any = wsgi if protocol == "wsgi" else asgi
        app: Any = self._wsgi_app if protocol == "wsgi" else self._asgi_app
        self.app = wrapper.PresenceMiddleware(app, settings=settings)
        self.ask = self._ask_wsgi if protocol == "wsgi" else self._ask_asgi
        self.recorder = self.app.recorder
        self.presence = Presence(settings)

    def room(self, room: str) -> list[str]:
        assert self.recorder.flush()
        assert self.presence.count(room=room) <= self.presence.count()
        return [who.id for who in self.presence.online(room=room)]

    def _handle(self, state: Any) -> None:
        if (room := state["view"].enters) is not None:
            state["presence_middleware.visit"].enter(room)

    def _wsgi_app(self, environ: Any, start_response: Any) -> list[bytes]:
        self._handle(environ)
        start_response("200 OK", [])
        return []

    async def _asgi_app(self, scope: Any, receive: Any, send: Any) -> None:
        self._handle(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def _ask_wsgi(self, view: View) -> None:
        environ: dict[str, Any] = {"SCRIPT_NAME": view.mount, "PATH_INFO": view.path, "view": view}
        headers = {"x-user": view.user, **view.headers}
        environ |= {f"HTTP_{n.upper().replace('-', '_')}": v for n, v in headers.items()}
        timed_site.get(self.app, **environ)

    def _ask_asgi(self, view: View) -> None:
        async def none(*_: Any) -> None:
            """Receive or send nothing."""

        pairs = {"x-user": view.user, **view.headers}.items()
        scope: Any = {"type": "http", "method": "GET", "path": view.mount + view.path}
        scope |= {"root_path": view.mount, "view": view}
        headers = [(name.encode(), value.encode()) for name, value in pairs]
        asyncio.run(self.app({**scope, "headers": headers}, none, none))


@pytest.fixture(params=["wsgi", "asgi"])
def site(request: pytest.FixtureRequest, valkey: Server, prefix: str) -> Iterator[Any]:
    opened: list[Site] = []

    def open_site(rooms: str = "/t/{topic}/*, /docs/*", **given: Any) -> Site:
        overrides = {"rooms": rooms, "flush_interval": "3m", **given}
        settings = timed_site.settings(valkey.url, prefix, **overrides)
        opened.append(Site(request.param, settings))
        return opened[-1]

    yield open_site
    for each in opened:
        each.recorder.close()


PEOPLE: dict[str, tuple[Any, ...]] = {
    "pages move, calls do not, and a page without a room takes out": (
        "/t/{topic}/*, /docs/*",
        View("/t/42/some-title", headers=NAVIGATE),
        View("/docs/x/y", "bob"),
        {"/t/42": ["ann"], "/docs": ["bob"]},
        View("/api/vote", headers=CORS),
        View("/logo.png", headers={"sec-fetch-mode": "no-cors"}),
        View("/api/vote"),
        {"/t/42": ["ann"]},
        View("/docs/z"),
        {"/t/42": [], "/docs": ["ann", "bob"]},
        View("/", headers=NAVIGATE),
        {"/docs": ["bob"]},
    ),
    "rules mean the path below the mount point": (
        "/t/{topic}, /shop/{any}",
        View("/t/1", mount="/shop"),
        View("/t/1", "bob"),
        View("/shop/t", "eve", mount="/shop"),
        {"/t/1": ["ann", "bob"], "/shop/t": ["eve"]},
    ),
    "a passive request moves nobody": (
        "/t/{topic}, /docs/*",
        View("/t/1"),
        View("/t/2", headers={"presence": "passive"}),
        View("/docs/health"),
        {"/t/1": ["ann"], "/docs": []},
    ),
    "a handler names a room, which replaces that of the path": (
        "/t/{topic}/*",
        View("/t/1", enters="chat:7"),
        {"chat:7": ["ann"], "/t/1": []},
        View("/api", enters="/t/5/a-title"),
        {"chat:7": [], "/t/5": ["ann"]},
        View("/t/1", enters=""),
        {"/t/5": [], "/t/1": []},
    ),
    "named rooms need no rule": (
        "named",
        View("/t/1", headers=NAVIGATE, enters="chat:7"),
        {"chat:7": ["ann"]},
        View("/t/1"),
        {"chat:7": ["ann"]},
        View("/t/1", headers=NAVIGATE),
        {"chat:7": []},
    ),
}
"""The rooms of a site, and requests in turn, with who is in which room after them."""


@pytest.mark.parametrize("name", PEOPLE)
def test_requests_move_people(site: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    rooms, *steps = PEOPLE[name]
    here = site(rooms, exclude="/docs/health")
    for step in steps:
        if isinstance(step, View):
            here.ask(step)
        else:
            assert {room: here.room(room) for room in step} == step
    users = {step.user for step in steps if isinstance(step, View)}
    assert here.presence.count() == len(users)
    assert "enter()" not in caplog.text


def test_a_room_without_the_setting_is_a_warning_once(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    here = site("")
    with caplog.at_level(logging.WARNING, "presence_middleware"):
        here.ask(View("/t/1", enters="chat:7"))
        here.ask(View("/t/2", "bob", enters="chat:7"))
    warnings = [line for line in caplog.messages if "visit.enter() does nothing" in line]
    assert len(warnings) == 1
    assert "PRESENCE_ROOMS" in warnings[0]
    here.recorder.flush()
    assert here.presence.count() == 2


def test_a_room_that_is_no_text_is_refused(site: Any) -> None:
    number: Any = 7
    with pytest.raises(QueryError, match="room is a int: pass text such as 'chat:7'"):
        site().ask(View("/t/1", enters=number))


def test_guests_beyond_the_quota_of_their_address_are_in_no_room(site: Any) -> None:
    here = site(identity="guest=cookie:sid:raw")
    for number in range(120):
        here.ask(View("/t/1", headers={"cookie": f"sid=guest{number:03}"}))
    assert here.room("/t/1") == [f"guest{number:03}" for number in range(100)]


def test_an_open_connection_does_not_pull_its_user_back(valkey: Server, prefix: str) -> None:
    clock, settings = Clock(), timed_site.settings(valkey.url, prefix, rooms="named")
    recorder = Recorder(settings, clock=clock, background=False)
    presence, visits = Presence(settings, clock=clock), list[WsgiVisit]()
    for room in ("chat:1", "chat:2"):
        clock.now += 1
        visits.append(WsgiVisit(recorder, {"HTTP_X_USER": "ann"}))
        visits[-1].enter(room)
    for _ in range(20):
        clock.now += 60
        recorder.run_once()
        assert recorder.flush()
        assert presence.count(room="chat:2") == 1
        assert presence.count(room="chat:1") == 0
    for visit in visits:
        visit.end()
    assert recorder.flush()
    assert presence.count(room="chat:2") == 1
    recorder.close()
