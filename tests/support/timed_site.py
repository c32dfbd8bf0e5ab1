"""A site in a test: settings, a clock that the test moves, workers that record, a reader to ask."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from wsgiref.types import WSGIApplication

import httpx

from presence_middleware import AsyncPresence, Presence, Settings, wsgi
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
from tests.support.asking import exchange_wsgi, plain_environ
from tests.support.backends import client_of

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


class Site:
    """A site; `presence` is a `Presence`, or an `AsyncPresence` with the same interface."""

    def __init__(
        self, settings: Settings, mode: str = "sync", client: Any = None, writer: Any = None
    ) -> None:
        """`client` is used by the reader, the synchronous `writer` by the recorders."""
        self.settings, self.clock = settings, Clock()
        self.redis = client_of(settings.redis_url) if writer is None else writer
        self._blocking = Blocking(settings, client, self.clock) if mode == "async" else None
        self.presence = (
            cast(Presence, self._blocking)
            if self._blocking
            else Presence(settings, client=client, clock=self.clock)
        )
        self.recorder = Recorder(settings, client=writer, clock=self.clock)

    def saw(self, *ids: str, ago: float = 0.0, kind: str = "user") -> None:
        """Ids were seen `ago` seconds before the clock's now; written when this returns."""
        seen = self.clock.now - ago
        for id in ids:
            self.recorder.record((kind, id), seen)
        assert self.recorder.flush(), self.recorder.stats()

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

    def close(self) -> None:
        self.recorder.close()
        if self._blocking:
            self._blocking.close()


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
) -> Iterator[Site]:
    site = Site(settings, mode, client, writer)
    try:
        yield site
    finally:
        site.close()


def get(app: WSGIApplication, **environ: str) -> str:
    return exchange_wsgi(app, plain_environ(**environ)).body.decode()


def ask_board(settings: Settings, clock: Clock, path: str, token: str = "") -> httpx.Response:
    """The answer of the board of a new process."""
    app = wsgi.PresenceMiddleware(lambda *_: [], settings=settings, clock=clock)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.WSGITransport(app)
    with httpx.Client(transport=transport, base_url="http://site", headers=headers) as client:
        return client.get(f"{settings.board_path}{path}")
