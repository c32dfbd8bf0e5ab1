"""Requests through both wrappers: who is in which room, and what Redis is sent."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from presence_middleware import Presence, QueryError, Settings, asgi, wsgi
from tests.support import timed_site
from tests.support.backends import Server, wait_until

NAVIGATE = {"sec-fetch-mode": "navigate"}


class Site:
    """A wrapped app under one of the protocols; nothing is written until `flush`."""

    def __init__(self, protocol: str, settings: Settings) -> None:
        self.inner: Callable[[Any], object] = lambda _: None
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

    def _wsgi_app(self, environ: Any, start_response: Any) -> list[bytes]:
        self.inner(environ)
        start_response("200 OK", [])
        return []

    async def _asgi_app(self, scope: Any, receive: Any, send: Any) -> None:
        self.inner(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def _ask_wsgi(self, path: str, user: str = "ann", mount: str = "", **more: str) -> None:
        headers = {"x-user": user, **more}
        environ: dict[str, Any] = {"SCRIPT_NAME": mount, "PATH_INFO": path}
        environ |= {f"HTTP_{n.upper().replace('-', '_')}": v for n, v in headers.items()}
        timed_site.get(self.app, **environ)

    def _ask_asgi(self, path: str, user: str = "ann", mount: str = "", **more: str) -> None:
        async def none(*_: Any) -> None:
            """Receive or send nothing."""

        pairs = [(n.encode(), v.encode()) for n, v in {"x-user": user, **more}.items()]
        scope = {"type": "http", "method": "GET", "path": mount + path, "root_path": mount}
        asyncio.run(self.app({**scope, "headers": pairs}, none, none))


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


def test_pages_move_calls_do_not_and_a_page_without_a_room_takes_out(site: Any) -> None:
    here = site()
    here.ask("/t/42/some-title", **NAVIGATE)
    here.ask("/docs/x/y", "bob")
    assert here.room("/t/42") == ["ann"]
    assert here.room("/docs") == ["bob"]
    here.ask("/api/vote", **{"sec-fetch-mode": "cors"})
    here.ask("/logo.png", **{"sec-fetch-mode": "no-cors"})
    here.ask("/api/vote")
    assert here.room("/t/42") == ["ann"]
    here.ask("/docs/z")
    assert here.room("/t/42") == []
    assert here.room("/docs") == ["ann", "bob"]
    here.ask("/", **NAVIGATE)
    assert here.room("/docs") == ["bob"]
    assert here.presence.count() == 2


def test_rules_mean_the_path_below_the_mount_point(site: Any) -> None:
    here = site("/t/{topic}, /shop/{any}")
    here.ask("/t/1", mount="/shop")
    here.ask("/t/1", "bob")
    here.ask("/shop/t", "eve", mount="/shop")
    assert here.room("/t/1") == ["ann", "bob"]
    assert here.room("/shop/t") == ["eve"]


def test_a_passive_request_moves_nobody(site: Any) -> None:
    here = site(exclude="/docs/health")
    here.ask("/t/1")
    here.ask("/t/2", presence="passive")
    here.ask("/docs/health")
    assert here.room("/t/1") == ["ann"]


def test_a_handler_names_a_room_and_its_visit_replaces_that_of_the_path(site: Any) -> None:
    here = site("/t/{topic}/*")
    here.inner = lambda state: state["presence_middleware.visit"].enter("chat:7")
    here.ask("/t/1")
    assert (here.room("chat:7"), here.room("/t/1")) == (["ann"], [])
    here.inner = lambda state: state["presence_middleware.visit"].enter("/t/5/a-title")
    here.ask("/api")
    assert (here.room("chat:7"), here.room("/t/5")) == ([], ["ann"])
    here.inner = lambda state: state["presence_middleware.visit"].enter("")
    here.ask("/t/1")
    assert (here.room("/t/5"), here.room("/t/1")) == ([], [])
    assert here.presence.count() == 1


def test_named_rooms_need_no_rule(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    here = site("named")
    here.inner = lambda state: state["presence_middleware.visit"].enter("chat:7")
    here.ask("/t/1", **NAVIGATE)
    assert here.room("chat:7") == ["ann"]
    here.inner = lambda _: None
    here.ask("/t/1")
    assert here.room("chat:7") == ["ann"]
    here.ask("/t/1", **NAVIGATE)
    assert here.room("chat:7") == []
    assert "enter()" not in caplog.text


def test_a_room_without_the_setting_is_a_warning_once(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    here = site("")
    here.inner = lambda state: state["presence_middleware.visit"].enter("chat:7")
    with caplog.at_level(logging.WARNING, "presence_middleware"):
        here.ask("/t/1")
        here.ask("/t/2", "bob")
    warnings = [line for line in caplog.messages if "visit.enter() does nothing" in line]
    assert len(warnings) == 1
    assert "PRESENCE_ROOMS" in warnings[0]
    here.recorder.flush()
    assert here.presence.count() == 2


def test_a_room_that_is_no_text_is_refused(site: Any) -> None:
    here, refused = site(), []

    def inner(state: Any) -> None:
        with pytest.raises(QueryError, match="room is a int: pass text such as 'chat:7'"):
            state["presence_middleware.visit"].enter(7)
        refused.append(1)

    here.inner = inner
    here.ask("/t/1")
    assert refused


def test_guests_beyond_the_quota_of_their_address_are_in_no_room(site: Any) -> None:
    here = site(identity="guest=cookie:sid:raw")
    for number in range(120):
        here.ask("/t/1", cookie=f"sid=guest{number:03}")
    assert here.room("/t/1") == [f"guest{number:03}" for number in range(100)]


@pytest.mark.slow
def test_an_open_socket_does_not_pull_its_user_back(valkey: Server, prefix: str) -> None:
    settings = timed_site.settings(
        valkey.url, prefix, rooms="named", window="6s", flush_interval="0.1s"
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["presence_middleware.visit"].enter(scope["path"])
        await receive()

    async def run() -> None:
        site = asgi.PresenceMiddleware(app, settings=settings)
        presence, ends = Presence(settings), [asyncio.Event() for _ in range(2)]
        headers = [(b"x-user", b"ann")]

        async def open_at(path: str, end: asyncio.Event) -> None:
            async def receive() -> Any:
                await end.wait()

            scope = {"type": "websocket", "path": path, "headers": headers}
            await site(scope, receive, lambda _: asyncio.sleep(0))

        async def until(room: str) -> None:
            await asyncio.to_thread(wait_until, lambda: presence.count(room=room) == 1)

        first = asyncio.create_task(open_at("chat:1", ends[0]))
        await until("chat:1")
        second = asyncio.create_task(open_at("chat:2", ends[1]))
        await until("chat:2")
        written = site.recorder.stats().flushed
        # Both sockets refresh their user a few times.
        await asyncio.to_thread(
            wait_until, lambda: site.recorder.stats().flushed >= written + 3, 30
        )
        assert presence.count(room="chat:2") == 1
        assert presence.count(room="chat:1") == 0
        for end in ends:
            end.set()
        await asyncio.gather(first, second)
        site.recorder.close()

    asyncio.run(run())


# What Redis is sent


def sent(server: Server, prefix: str, work: Callable[[], None]) -> list[list[str]]:
    """The commands with keys of `prefix` that a server receives while `work` runs.

    Recorders of other tests may write at the same time.
    """
    with redis.Redis.from_url(server.url) as client, client.monitor() as monitor:
        work()
        with redis.Redis.from_url(server.url) as other:
            other.echo("the end")
        commands: list[list[str]] = []
        while True:
            entry = monitor.next_command()
            words = entry["command"].split(" ")
            if "the end" in entry["command"]:
                return commands
            if entry["client_type"] != "lua" and prefix in entry["command"]:
                commands.append(words)


def records(commands: list[list[str]]) -> list[list[str]]:
    """The number of keys, the keys and the arguments of each record script."""
    return [words[2:] for words in commands if words[0] == "EVALSHA"]


def recording(site: Site) -> None:
    site.ask("/t/1", "ann", **NAVIGATE)
    site.ask("/", "bob", **NAVIGATE)
    assert site.recorder.flush()


def test_without_rooms_the_commands_are_those_of_before(
    site: Any, valkey: Server, prefix: str
) -> None:
    here = site("")
    here.recorder.background = False  # its thread would write, and sample the history, in between
    recording(here)
    (record,) = records(sent(valkey, prefix, lambda: recording(here)))
    names = ["seen", "bye", "gone", "left", "writers"]
    assert record[0] == "5"
    assert record[1:6] == [f"{prefix}:user:{name}" for name in names]
    assert len(record) == 6 + 13 + 2 * 2, "a time and an id each"
    here.presence.count()
    commands = [words[0] for words in sent(valkey, prefix, lambda: here.presence.counts() and None)]
    assert commands == ["ZCOUNT", "ZCOUNT"]
    with redis.Redis.from_url(valkey.url) as client:
        keys = {key.decode() for key in client.scan_iter(f"{prefix}:user:*")}
    assert keys <= {f"{prefix}:user:{name}" for name in ("seen", "writers", "peak")} | {
        key for key in keys if ":history:" in key
    }


def test_a_move_is_sent_once_and_a_call_sends_none(site: Any, valkey: Server, prefix: str) -> None:
    here = site()
    here.recorder.background = False

    def calling() -> None:
        here.ask("/api/vote", "ann")
        here.recorder.flush()

    recording(here)
    (moved,) = records(sent(valkey, prefix, lambda: recording(here)))
    (called,) = records(sent(valkey, prefix, calling))
    assert moved[0] == called[0] == "8"
    assert moved[9 + 11] == "2", "people"
    assert len(moved) == 9 + 13 + 2 * 2 + 2 * 3
    assert called[9 + 11] == "1"
    assert len(called) == 9 + 13 + 2
