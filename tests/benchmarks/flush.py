"""What writing takes: of the server, beside a plain pipelined ZADD of the same, and of the wire.

Everything comes from requests to a wrapper, whose recorder writes only when it is asked to.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from presence_middleware import Settings, wsgi
from tests.support.asking import Request

from .machine import AGENT, Gauge, Row, server

FLUSH = 5000
CHUNK = 250  # ids a plain ZADD
LOGOUTS = 20  # a flush
READERS = 1000  # who navigate in a flush
BROWSER = Request([("User-Agent", AGENT.encode())], mount="", query=b"").environ()
EVERYTHING = {"rooms": "/t/{topic}/*", "events": "user", "pulse_path": "/pulse", "logout": "/out"}


class Site:
    """A wrapped site and its requests. It writes only in `flush`."""

    def __init__(self, url: str, **given: Any) -> None:
        """`given` are settings."""
        self.settings = Settings.from_env(
            {}, redis_url=url, **{"identity": "user=header:X-User:raw", "logout": "/out", **given}
        )
        self._wrapper = wsgi.PresenceMiddleware(_app, settings=self.settings)
        self.recorder, self.presence = self._wrapper.recorder, self._wrapper.presence
        self.recorder.background = False

    def visit(self, user: str, path: str = "/", **more: str) -> None:
        environ = {**BROWSER, "PATH_INFO": path, "HTTP_X_USER": user, **more}
        for _ in self._wrapper(environ, _start):
            pass

    def log_out(self, user: str) -> None:
        self.visit(user, "/out")

    def pulse(self, user: str, says: str) -> None:
        """Send `here` or `bye` as the script of a page does."""
        own = {"QUERY_STRING": f"presence={says}", "HTTP_SEC_FETCH_SITE": "same-origin"}
        self.visit(user, "/pulse", REQUEST_METHOD="POST", **own)

    def say_goodbye(self, user: str) -> None:
        self.pulse(user, "bye")

    def fill(self, users: Iterable[str]) -> None:
        """Record users, and write them in portions."""
        for number, user in enumerate(users, 1):
            self.visit(user)
            if not number % 20_000:
                self.flush()
        self.flush()

    def flush(self) -> None:
        """Write everything. A flush may be unfinished on a busy machine: then it goes on."""
        deadline = time.monotonic() + 30
        while not self.recorder.flush():
            assert time.monotonic() < deadline, "the server does not answer"


def _app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


def _start(*_: Any) -> Callable[[bytes], object]:
    return lambda _: None


def names(people: int) -> list[str]:
    """Return ids of 22 bytes."""
    return [f"user-{number:017d}" for number in range(people)]


def rows_of_server(people: int, rounds: int) -> Iterator[Row]:
    """Return the server's time for a sighting, in times of a plain ZADD; then amid logouts.

    The logouts come from another recorder, which writes them before the sightings are written. As
    memory is what takes time here, and other work disturbs it, the median of the ratios counts.
    """
    with server() as url, Gauge(url) as gauge:
        given = {"window": "10h", "max_members": 10**8}
        users, site = names(people), Site(url, **given, flush_interval="3h")
        another = Site(url, **given, flush_interval="2h")
        site.fill(users)
        _write_plainly(gauge.client, users)
        taken: dict[int, list[tuple[float, float]]] = {0: [], LOGOUTS: []}
        for _ in range(rounds):
            for logouts, pairs in taken.items():
                seen = random.sample(users, FLUSH)
                for number, user in enumerate(seen, 1):
                    site.visit(user)
                    if logouts and not number % (FLUSH // logouts):
                        another.log_out(random.choice(users))
                another.flush()
                ours = gauge.seconds_of(site.flush) / FLUSH * 1e6
                plain = gauge.seconds_of(partial(_write_plainly, gauge.client, seen))
                pairs.append((ours, plain / FLUSH * 1e6))
        for logouts, goal in ((0, 1.8), (LOGOUTS, 2.0)):
            ours, plain = (min(column) for column in zip(*taken[logouts], strict=True))
            yield Row(
                f"server, a sighting among {people:,}" + (f", {logouts} logouts" * bool(logouts)),
                statistics.median(ours / plain for ours, plain in taken[logouts]),
                goal,
                "times a plain ZADD",
                f"{ours:.2f} µs against {plain:.2f} at least; flushes of {FLUSH:,}",
            )


def _write_plainly(client: Any, users: list[str]) -> None:
    pipeline, now = client.pipeline(transaction=False), time.time()
    members = [(id, now + number * 1e-6) for number, id in enumerate(users)]
    for start in range(0, len(users), CHUNK):
        pipeline.zadd("plain", dict(members[start : start + CHUNK]), gt=True)
    pipeline.execute()


def rows_of_navigation(rounds: int) -> Iterator[Row]:
    """Return what page, goodbye and pulse of the same user in a flush take, beside a page."""
    with server() as url, Gauge(url) as gauge:
        site, users = Site(url, pulse_path="/pulse"), names(READERS)

        def page(user: str) -> None:
            site.visit(user, "/a/page")

        def navigation(user: str) -> None:
            site.visit(user, "/a/page")
            site.say_goodbye(user)
            site.pulse(user, "here:/a/page")

        taken: dict[Callable[[str], None], list[tuple[float, float]]] = {page: [], navigation: []}
        site.fill(users)
        for _ in range(rounds):
            for go, found in taken.items():
                received: list[int] = []
                for user in users:
                    go(user)
                seconds = gauge.seconds_of(lambda: received.append(gauge.bytes_of(site.flush)))  # noqa: B023
                found.append((received[0] / READERS, seconds / READERS))
        alone, whole = (
            [min(column) for column in zip(*each, strict=True)] for each in taken.values()
        )
        for number, what, unit, scale in ((0, "bytes", "B", 1), (1, "server", "µs", 1e6)):
            yield Row(
                f"navigation with pulse, {what}",
                whole[number] / alone[number],
                2.2,
                "times a page",
                f"{whole[number] * scale:.1f} {unit} against {alone[number] * scale:.1f}",
            )


def rows_of_one() -> Iterator[Row]:
    """Return the bytes that a flush of one person sends."""
    for name, given in (("", {}), (", everything on", EVERYTHING)):
        with server() as url, Gauge(url) as gauge:
            site = Site(url, **given)
            site.fill(["ann"])

            def flush(site: Site = site) -> None:
                site.visit("ann", "/t/7/a")
                site.flush()

            sent = [gauge.bytes_of(flush) for _ in range(10)]
            yield Row(f"flush of one person{name}", min(sent), 500, "B", f"{max(sent)} at most")


def rows_of_shards(people: int, rounds: int) -> Iterator[Row]:
    """Return what `online(limit=50)` over 64 shards takes of the reader's processor."""
    with server() as url:
        sites = {shards: Site(url, shards=shards, prefix=f"s{shards}") for shards in (1, 64)}
        taken: dict[int, list[float]] = {1: [], 64: []}
        for site in sites.values():
            site.fill(names(people))
        for _ in range(rounds):
            for shards, site in sites.items():
                began = time.thread_time()
                assert len(site.presence.online(limit=50)) == 50
                taken[shards].append(time.thread_time() - began)
    one, many = min(taken[1]) * 1e3, min(taken[64]) * 1e3
    yield Row("online(limit=50) over 64 shards", many, 1.5, "ms", f"{one:.2f} over 1")
