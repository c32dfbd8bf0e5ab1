"""Mixed traffic and random faults for long: nothing grows, nobody is lost, the counters add up."""

import asyncio
import contextlib
import gc
import math
import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment
from wsgiref.util import setup_testing_defaults

import pytest

from presence_middleware import Presence, PresenceUnavailable, Settings, asgi
from presence_middleware.recorder import Recorder, recorder_for
from presence_middleware.wsgi import PresenceMiddleware
from tests.support.backends import Server, wait_until
from tests.support.faults import (
    OUTAGES,
    SLOW_OUTAGES,
    Fault,
    Place,
    adding_up,
    at_a_place,
    rolled_back,
)
from tests.support.proxy import THREADS

WINDOW = 30.0
SLACK = 2.0  # seconds by which a slow server's clock may be misread
PEOPLE = 200  # of each thread at a time
GUESTS = 150
READERS = 60  # more than connections
READING = 16  # connections of a process for its readers
STREAMS = 20  # of each thread at a time
BOTS = ["Googlebot/2.1", "bingbot/2.0", "AhrefsBot/7.0"]
MOST_GROWTH = 1_000_000  # bytes; ten minutes are some 150,000 requests


@dataclass
class Seen:
    """When somebody was there for certain, and until when it may be."""

    since: float
    until: float = math.inf


@dataclass
class Traffic:
    """The requests of one thread, and the ids it expects online."""

    settings: Settings
    random: random.Random
    name: str
    people: dict[str, Seen] = field(default_factory=dict)
    guests: dict[str, Seen] = field(default_factory=dict)
    left: int = 0
    streams: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app = PresenceMiddleware(site, settings=self.settings)
        self._generation = [0] * PEOPLE

    def go_on(self, over: threading.Event) -> None:
        ways = (self.comes, self.comes, self.says_who, self.comes_as_guest, self.comes_as_bot)
        while not over.wait(0.005):
            self.random.choice((*ways, *ways, self.stays, self.goes, self.leaves, self.asks))()
        while self.streams:
            self.goes()

    def comes(self) -> None:
        self.ask(self.someone(), "/")

    def says_who(self) -> None:
        self.ask(self.someone(), "/identify")

    def asks(self) -> None:
        with contextlib.suppress(PresenceUnavailable):
            self.ask(self.someone(), "/count")

    def stays(self) -> None:
        if len(self.streams) == STREAMS:
            self.goes()
        name = self.someone()
        body = self.request("/stream", HTTP_X_USER=name)
        assert next(iter(body)) == b"first"
        self.people[name] = Seen(time.time())
        self.streams.append((name, body))

    def goes(self) -> None:
        if self.streams:
            name, body = self.streams.pop(self.random.randrange(len(self.streams)))
            body.close()
            self.people[name].until = time.time()

    def leaves(self) -> None:
        slot, name = self.slot()
        if any(name == other for other, _ in self.streams):
            return
        self._generation[slot] += 1  # whether it works or not, he does not come again
        was_there = self.people.pop(name, None)
        try:
            self.app.presence.leave(name)
            self.left += was_there is not None
        except PresenceUnavailable:  # Redis may have heard it even so
            if was_there:
                self.people[name] = Seen(-math.inf, was_there.until)
        self._forget_the_old()

    def _forget_the_old(self) -> None:
        cut = time.time() - 2 * WINDOW
        for name in [name for name, seen in self.people.items() if seen.until < cut]:
            del self.people[name]

    def comes_as_guest(self) -> None:
        browser = f"Browser {self.name} {self.random.randrange(GUESTS)}"
        began = time.time()
        self.request("/", HTTP_USER_AGENT=browser, REMOTE_ADDR=f"192.0.2.{hash(browser) % 9}")
        self.guests[browser] = Seen(began, time.time())

    def comes_as_bot(self) -> None:
        self.request("/", HTTP_USER_AGENT=self.random.choice(BOTS))

    def ask(self, name: str, path: str) -> None:
        began = time.time()
        known = self.people.get(name)
        try:
            said = "HTTP_X_LOGIN" if path == "/identify" else "HTTP_X_USER"
            assert self.request(path, **{said: name})
        finally:
            is_open = known is not None and known.until == math.inf
            self.people[name] = Seen(began, math.inf if is_open else time.time())

    def request(self, path: str, **said: str) -> Any:
        environ: WSGIEnvironment = {"PATH_INFO": path, **said}
        setup_testing_defaults(environ)
        return self.app(environ, lambda *_: list[bytes]().append)

    def someone(self) -> str:
        return self.slot()[1]

    def slot(self) -> tuple[int, str]:
        slot = self.random.randrange(PEOPLE)
        return slot, f"{self.name}-{slot}-{self._generation[slot]}"


def site(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
    start_response("200 OK", [])
    if environ["PATH_INFO"] == "/stream":
        return stream()
    if environ["PATH_INFO"] == "/count":
        return [str(environ["presence_middleware.presence"].count()).encode()]
    environ["presence_middleware.visit"].identify(environ.get("HTTP_X_LOGIN"))
    return [b"hello"]


def stream() -> Iterator[bytes]:
    yield b"first"
    yield b"last"


class Sockets:
    """WebSockets, fifty at a time, each open for a moment or longer."""

    def __init__(self, settings: Settings, chance: random.Random) -> None:
        self.app = asgi.PresenceMiddleware(self._talk, settings=settings)
        self.random = chance
        self.people: dict[str, Seen] = {}

    def go_on(self, over: threading.Event) -> None:
        self._over = over
        asyncio.run(self._go_on())

    async def _go_on(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(self._come_and_go(f"socket-{number}"))
        await self.app.presence.aclose()

    async def _come_and_go(self, name: str) -> None:
        while not self._over.is_set():
            self.people[name] = Seen(time.time())
            headers = [(b"x-user", name.encode())]
            await self.app({"type": "websocket", "path": "/", "headers": headers}, never, never)
            self.people[name].until = time.time()
            await asyncio.sleep(self.random.random())

    async def _talk(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        with contextlib.suppress(PresenceUnavailable):
            if self.random.random() < 0.1:
                await scope["presence_middleware.presence"].is_online("socket-1")
        until = time.monotonic() + self.random.random() * self.random.choice([0.1, 1, 15])
        while time.monotonic() < until and not self._over.is_set():
            await asyncio.sleep(0.05)


async def never(*_: object) -> Any:
    raise AssertionError


@contextlib.contextmanager
def going_on(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Traffic in threads, which must not fail."""
    over, failures = threading.Event(), list[BaseException]()

    def work(go_on: Callable[[threading.Event], None]) -> None:
        try:
            go_on(over)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(each,)) for each in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures


def crowded(presence: Presence) -> Fault:
    """More readers at once than there are connections; all must have their answer."""

    @contextlib.contextmanager
    def fault(_: Place) -> Iterator[None]:
        with ThreadPoolExecutor(READERS) as pool:
            answers = [pool.submit(presence.counts) for _ in range(4 * READERS)]
            yield
        assert all(answer.result() for answer in answers)

    return fault


def breaks(place: Place, presence: Presence, chance: random.Random, longest: float) -> str:
    """A fault at random, for a moment at random; returns when all is well again."""
    others = {"rolled back": rolled_back, "crowded": crowded(presence)}
    name, fault = chance.choice([*(OUTAGES | SLOW_OUTAGES | others).items(), *others.items()])
    lasts = chance.random() * longest
    with fault(place):
        time.sleep(lasts)
    return f"{name} {lasts:.1f}s"


def own_threads() -> int:
    return sum(thread.name != THREADS for thread in threading.enumerate())


def connections(place: Place) -> int:
    return sum(client["user"] == "site" for client in place.admin.client_list())


def memory() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def check_online(found: dict[str, float], listed: dict[str, Seen], now: float) -> None:
    """Exactly the ids of the window are online, with the times of their last requests."""
    surely = {name for name, seen in listed.items() if seen.since > now - WINDOW + SLACK}
    maybe = {name for name, seen in listed.items() if seen.until > now - WINDOW - SLACK}
    assert surely - found.keys() == set()
    assert found.keys() - maybe == set()
    for name, last_seen in found.items():
        assert listed[name].since - SLACK < last_seen < listed[name].until + SLACK, name


def drained(recorder: Recorder) -> bool:
    return recorder.flush() and not recorder.health.is_outage


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(12, marks=pytest.mark.slow),
        pytest.param(600, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_nothing_grows_and_nobody_is_lost(
    seconds: float, valkey: Server, tmp_path: Path, prefix: str
) -> None:
    seed = random.randrange(1 << 32)
    print(f"\nseed {seed}")
    chance = random.Random(seed)
    with at_a_place(valkey.binary, tmp_path, "--appendonly", "yes") as place:
        settings = Settings.from_env(
            {},
            redis_url=place.url,
            prefix=prefix,
            identity="user=header:X-User, guest=visitor",
            window=WINDOW,
            flush_interval="0.2s",
        )
        recorder, presence = recorder_for(settings), Presence(settings)
        traffic = [Traffic(settings, random.Random(chance.random()), f"t{n}") for n in range(2)]
        sockets = Sockets(settings, random.Random(chance.random()))
        began, samples = time.monotonic(), list[tuple[float, int, int, int]]()
        tracemalloc.start()
        with adding_up(recorder, 0.01), going_on(sockets.go_on, *(one.go_on for one in traffic)):
            while (elapsed := time.monotonic() - began) < seconds:
                time.sleep(chance.random())
                what = breaks(place, presence, chance, min(5, seconds / 6))
                wait_until(lambda: drained(recorder))
                samples.append((elapsed, memory(), own_threads(), connections(place)))
                print(what, "then", *samples[-1][1:], flush=True)
        tracemalloc.stop()
        wait_until(lambda: drained(recorder))
        stats, now = recorder.stats(), time.time()
        print(stats)
        people = dict(sockets.people)
        guests: dict[str, Seen] = {}
        for one in traffic:
            people |= one.people
            guests |= one.guests
        found = presence.online(limit=None)
        check_online({s.id: s.last_seen.timestamp() for s in found if s.last_seen}, people, now)
        surely = sum(seen.since > now - WINDOW + SLACK for seen in guests.values())
        maybe = sum(seen.until > now - WINDOW - SLACK for seen in guests.values())
        assert surely <= presence.count("guest") <= maybe
        assert presence.count("bot") == len(BOTS)
        assert stats.dropped.keys() <= {"left"}
        assert sum(one.left for one in traffic) > 0
        check_growth(samples)
        recorder.close()


def check_growth(samples: list[tuple[float, int, int, int]]) -> None:
    """After the first third, in which everybody and every fault is new."""
    warm = [sample for sample in samples if sample[0] >= samples[-1][0] / 3]
    _, sizes, threads, clients = zip(*warm, strict=True)
    assert sizes[-1] - sizes[0] < MOST_GROWTH
    assert max(threads) == min(threads)
    assert max(clients) <= 8 + READING  # as many readers at once as may be
