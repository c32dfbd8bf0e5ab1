"""A site in a test: settings, a clock that the test moves, processes that record, readers."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any, cast
from wsgiref.types import WSGIApplication

import httpx

from presence_middleware import AsyncPresence, Presence, Settings, wsgi
from presence_middleware.asgi import AsgiVisit
from presence_middleware.recorder import Recorder, Visit
from presence_middleware.recorder.writer import LOOK_EVERY
from presence_middleware.rooms import Room
from presence_middleware.stores import Act, Plan, room_number
from presence_middleware.stores.shards import Shards
from presence_middleware.wsgi import WsgiVisit
from tests.support.asking import exchange_wsgi, plain_environ
from tests.support.backends import client_of
from tests.support.faults import adds_up

NOON = 1_767_614_430.0  # 2026-01-05 12:00:30 UTC: in the middle of a minute
WINDOW = 600.0
IDENTITY = "user=header:x-user, guest=visitor"


class Clock:
    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Blocking:
    """An `AsyncPresence` that is asked without `await`, so that each test is written once."""

    def __init__(self, settings: Settings, client: Any, clock: Clock) -> None:
        self._presence = AsyncPresence(settings, client=client, clock=clock)
        self._client, self._runner = client, asyncio.Runner()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._presence, name)
        return lambda *args, **kwargs: self._runner.run(method(*args, **kwargs))

    def close(self) -> None:
        if self._client is not None:
            self._runner.run(self._client.aclose())
        self._runner.run(self._presence.aclose())
        self._runner.close()


def awaited(settings: Settings, ask: Callable[[AsyncPresence], Awaitable[Any]]) -> Any:
    """What a coroutine learns from an `AsyncPresence`, in a loop of its own."""

    async def asking() -> Any:
        presence = AsyncPresence(settings)
        try:
            return await ask(presence)
        finally:
            await presence.aclose()

    return asyncio.run(asking())


class Process:
    """A process of a site, and a reader elsewhere. Their clock is that of the test.

    Unless it has a thread in the background, it writes only when the test says so. `presence` is a
    `Presence`, or an `AsyncPresence` with the same interface.
    """

    kind = "user"

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        mode: str = "sync",
        *,
        client: Any = None,
        writer: Any = None,
        background: bool = False,
    ) -> None:
        """`client` is used by the reader, the synchronous `writer` by the recorder."""
        self.settings, self.clock = settings, Clock() if clock is None else clock
        self._writer = writer
        self._blocking = Blocking(settings, client, self.clock) if mode == "async" else None
        self.presence = (
            cast(Presence, self._blocking)
            if self._blocking
            else Presence(settings, client=client, clock=self.clock)
        )
        self.recorder = Recorder(settings, client=writer, clock=self.clock, background=background)

    @property
    def run(self) -> Callable[[Plan[Any]], Any]:
        return self.presence.backend.driver.run

    @property
    def store(self) -> Shards:
        return self.presence.backend.stores[self.kind]

    @cached_property
    def redis(self) -> Any:
        return client_of(self.settings.redis_url) if self._writer is None else self._writer

    def close(self) -> None:
        self.recorder.close()
        if self._blocking:
            self._blocking.close()

    def sweep(self) -> None:
        """Announce everybody who has gone, and take them out of their rooms."""
        for shard in self.store.all:
            while self.run(shard.sweep(self.clock.now)):
                pass

    def clean_up(self) -> None:
        for shard in self.store.all:
            while self.run(shard.clean_up(self.clock.now)):
                pass

    def opens(self, user: str | None = None, **state: object) -> Visit:
        """Return a connection of a user, or of a guest, which stays open."""
        headers = [(b"x-guest", b"guest")]
        if user is not None:
            headers.append((b"x-user", user.encode()))
        return AsgiVisit(self.recorder, {"type": "websocket", "headers": headers, **state})

    def did(
        self,
        *users: str,
        act: Act = Act.SEEN,
        kind: str = "",
        ago: float = 0.0,
        room: str | None = None,
    ) -> None:
        """Note what users did, or a page of a room that they opened; it waits to be written."""
        moment = self.clock.now - ago
        entered = Room(room_number(room), moment) if room else None
        for user in users:
            self.recorder.record((kind or self.kind, user), moment, act=act, room=entered)

    def saw(self, *users: str, **given: Any) -> None:
        """As `did`, but written when this returns."""
        self.did(*users, **given)
        self.writes()

    def writes(self) -> None:
        assert self.recorder.flush(), self.recorder.stats()

    def looks(self) -> None:
        """Look whether its data is still there, as the thread does now and then."""
        self.clock.now += LOOK_EVERY + 1
        self.recorder.run_once()

    def passes(self, seconds: float, step: float = 1.0) -> None:
        """Let time go by, with a round of the thread in every step."""
        for _ in range(math.ceil(seconds / step)):
            self.clock.now += step
            self.recorder.run_once()
        assert self.recorder.health.is_outage or not self.recorder.stats().pending

    def online(self, kind: str = "user") -> list[str]:
        return sorted(who.id for who in self.presence.online(kind, limit=None))

    @property
    def dropped(self) -> dict[Any, int]:
        assert adds_up(self.recorder)
        return self.recorder.stats().dropped

    def held(self) -> dict[str, list[str]]:
        """Every key of the site with the members it holds; a HyperLogLog or a string has none."""
        found = {}
        for raw in self.redis.scan_iter(match=f"{self.settings.prefix}:*", count=1000):
            kind = self.redis.type(raw).decode()
            members: Any = ()
            if kind == "zset":
                members = self.redis.zrange(raw, 0, -1)
            elif kind == "set":
                members = self.redis.smembers(raw)
            found[raw.decode()] = [member.decode(errors="replace") for member in members]
        return found


Start = Callable[..., Process]
"""Starts a process of a site at a URL."""
Recording = Callable[..., Recorder]
"""Opens a recorder of a site, without its thread."""


def settings(redis_url: str, prefix: str, **overrides: Any) -> Settings:
    """The settings of a site in a test, with nothing of this machine's environment."""
    given = {"redis_url": redis_url, "prefix": prefix, "identity": IDENTITY, "window": WINDOW}
    return Settings.from_env({}, **{**given, "bots": "off", "exclude": (), **overrides})


def by_header(redis_url: str, prefix: str, **overrides: Any) -> Settings:
    given = {"identity": "user=header:X-User", "flush_interval": "0.05s", **overrides}
    return settings(redis_url, prefix, **given)


def visit(recorder: Recorder, name: str) -> None:
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()


@contextmanager
def opened(
    settings: Settings, mode: str = "sync", client: Any = None, writer: Any = None
) -> Iterator[Process]:
    """A site whose thread writes."""
    given = {"client": client, "writer": writer, "background": True}
    with closing(Process(settings, mode=mode, **given)) as site:
        yield site


def get(app: WSGIApplication, **environ: str) -> str:
    return exchange_wsgi(app, plain_environ(**environ)).body.decode()


def ask_board(settings: Settings, clock: Clock, path: str, token: str = "") -> httpx.Response:
    """The answer of the board of a new process."""
    app = wsgi.PresenceMiddleware(lambda *_: [], settings=settings, clock=clock)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.WSGITransport(app)
    with httpx.Client(transport=transport, base_url="http://site", headers=headers) as client:
        return client.get(f"{settings.board_path}{path}")
