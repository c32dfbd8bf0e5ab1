"""What the middleware adds to a request, in floors.

A floor is what the least wrapper of this kind adds: it takes a header, and then holds a lock while
it writes a dictionary. All wrappers take turns, round by round, over an app that does nothing.
Counted is the processor time of the thread, the least of all rounds, less that of a wrapper that
only passes on.
"""

import logging
import math
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from threading import Lock
from typing import Any

from presence_middleware import Settings, asgi, wsgi
from tests.support.asking import Request

from .machine import AGENT, Row, server

PEOPLE = 500
BROWSERS = 50  # different User-Agents
REQUESTS = 500  # a round
WARM_UP = 4  # rounds
SITES: dict[str, dict[str, Any]] = {
    "header, raw": {"identity": "user=header:X-User:raw"},
    "cookie, hashed": {"identity": "user=cookie:sid"},
    "visitor, hashed": {"identity": "guest=visitor"},
    "visitor behind a proxy": {"identity": "guest=visitor", "trusted_proxies": "1"},
}
GOALS = {"WSGI": (3.5, 4.0), "ASGI": (6.0, 7.0)}
"""Floors, by protocol: of raw ids, and of hashed ones."""
START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"hello"}
BLOCK = 1000
"""Requests, more than a process looks at closely for mistakes in its set-up."""


def requests() -> list[Request]:
    """Requests of some people, in no protocol yet."""
    return [
        Request(
            [
                ("Host", b"www.example.com"),
                ("X-Forwarded-For", f"198.51.{i // 250}.{i % 250}".encode()),
                ("X-User", f"user{i}".encode()),
                ("User-Agent", f"{AGENT}/{i % BROWSERS}".encode()),
                ("Cookie", f"theme=dark; sid=0123456789abcdef{i}; csrf=fedcba9876543210".encode()),
            ],
            peer=f"10.0.{i // 250}.{i % 250}",
            path="/",
            mount="",
        )
        for i in range(PEOPLE)
    ]


class PassThrough:
    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        return self.app(environ, start_response)


class Floor(PassThrough):
    """The least that a wrapper does which remembers when each user was last seen."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.lock, self.seen = Lock(), dict[tuple[str, str], float]()

    def __call__(self, environ: Any, start_response: Any) -> Any:
        try:
            return self.app(environ, start_response)
        finally:
            user = environ.get("HTTP_X_USER")
            if user:
                self.record(("user", user), time.monotonic())

    def record(self, who: tuple[str, str], at: float) -> None:
        with self.lock:
            if self.seen.get(who, 0.0) < at:
                self.seen[who] = at


class AsyncPassThrough(PassThrough):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:  # type: ignore[override]
        await self.app(scope, receive, send)


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    return [b"hello"]


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    await send(START)
    await send(BODY)


async def send(message: Any) -> None:
    """A server that takes a message and does nothing with it."""


def time_wsgi(app: Any, requests: list[dict[str, Any]], number: int = REQUESTS) -> float:
    """Seconds a request."""
    people = len(requests)
    began = time.thread_time()
    for i in range(number):
        app(requests[i % people].copy(), None)
    return (time.thread_time() - began) / number


def time_asgi(app: Any, requests: list[dict[str, Any]]) -> float:
    """Seconds a request. No loop runs, for nothing has to wait."""
    began = time.thread_time()
    for i in range(REQUESTS):
        try:
            app(requests[i % PEOPLE].copy(), None, send).send(None)
        except StopIteration:
            continue
        raise AssertionError("the wrapper waits")
    return (time.thread_time() - began) / REQUESTS


def settings(url: str, **site: Any) -> Settings:
    return Settings.from_env({}, redis_url=url, secret="a secret of a benchmark", **site)


def rows(rounds: int) -> Iterator[Row]:
    """Return what a request of each site and protocol takes."""
    with server() as url:
        taken: dict[tuple[str, str], list[float]] = {}
        subjects: dict[tuple[str, str], Any] = {
            ("WSGI", "nothing"): PassThrough(wsgi_app),
            ("WSGI", "floor"): Floor(wsgi_app),
            ("ASGI", "nothing"): AsyncPassThrough(asgi_app),
        }
        for name, site in SITES.items():
            given = settings(url, **site)
            subjects["WSGI", name] = wsgi.PresenceMiddleware(wsgi_app, settings=given)
            subjects["ASGI", name] = asgi.PresenceMiddleware(asgi_app, settings=given)
        sent = {"WSGI": [each.environ() for each in requests()]}
        sent["ASGI"] = [dict(each.scope()) for each in requests()]
        for _ in range(rounds + WARM_UP):
            for (protocol, name), app in subjects.items():
                time_it = time_wsgi if protocol == "WSGI" else time_asgi
                taken.setdefault((protocol, name), []).append(time_it(app, sent[protocol]))
        for name in SITES:
            subjects["WSGI", name].recorder.close()
    least = {key: min(times[WARM_UP:]) for key, times in taken.items()}
    floor = least["WSGI", "floor"] - least["WSGI", "nothing"]
    for protocol, (raw, hashed) in GOALS.items():
        for name in SITES:
            added = least[protocol, name] - least[protocol, "nothing"]
            yield Row(
                f"request, {protocol}: {name}",
                added / floor,
                raw if name.endswith("raw") else hashed,
                "floors",
                f"{added * 1e6:.2f} µs; a floor is {floor * 1e6:.2f}",
            )


def rows_of_start(processes: int) -> Iterator[Row]:
    """Return what the first requests of a process take, each time of a fresh process."""
    found = []
    with server() as url:
        for _ in range(processes):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found.append(pool.submit(time_start, url).result())
    first, later = (min(column) for column in zip(*found, strict=True))
    yield Row(
        "first 1,000 requests of a process",
        first / later,
        1.15,
        "times later ones",
        f"{first * 1e6:.2f} µs against {later * 1e6:.2f}",
    )


def time_start(url: str) -> tuple[float, float]:
    """Return the seconds a request of this process: of its first thousand, and of later ones."""
    logging.disable()
    app = wsgi.PresenceMiddleware(
        wsgi_app, settings=settings(url, identity="user=header:X-Member, guest=visitor")
    )
    sent = [each.environ() for each in requests()[:BROWSERS]]
    time_wsgi(app, sent, BROWSERS)  # imports, threads, browsers that are looked up once
    app.recorder.hints.look_at = app.recorder.usual_until = -math.inf  # nothing was looked for yet
    first = time_wsgi(app, sent, BLOCK)
    later = min(time_wsgi(app, sent, BLOCK) for _ in range(10))
    app.recorder.close()
    return first, later
