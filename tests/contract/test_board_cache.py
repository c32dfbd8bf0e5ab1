"""The board reads Redis once a second for all its readers, and every reader gets an answer."""

import asyncio
import gc
import json
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
import redis
from anyio.lowlevel import RunVar

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable, Settings, asgi
from presence_middleware.board import reads
from presence_middleware.board.asgi import AsyncSharedReads
from presence_middleware.board.cache import MAX_SLOTS, SharedReads, Slot
from presence_middleware.board.reads import Read
from presence_middleware.connections import close_async_clients
from tests.support.backends import Server, wait_until
from tests.support.proxy import HOST, Proxy
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import Clock

COUNTS = Read(reads.counts)
READERS = 40
TOKEN = "the-token-of-the-board"


@pytest.fixture
def settings(valkey: Server, prefix: str) -> Settings:
    return Settings.from_env({}, redis_url=valkey.url, prefix=prefix)


@pytest.fixture
def counted(valkey: Server) -> Iterator[Callable[[], int]]:
    """Return how often the counts were read: each read contains a PFCOUNT for the bots."""
    with redis.Redis.from_url(valkey.url) as client:
        before = _pfcounts(client)
        yield lambda: _pfcounts(client) - before


def _pfcounts(client: "redis.Redis") -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_pfcount", {"calls": 0})["calls"])


@pytest.fixture
def silent() -> Iterator[Settings]:
    """The settings of a site whose Redis accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        port = listener.getsockname()[1]
        yield Settings.from_env({}, redis_url=f"redis://127.0.0.1:{port}")


def shared_reads(settings: Settings, clock: Callable[[], float] = time.monotonic) -> SharedReads:
    presence = Presence(settings)
    return SharedReads(lambda read: presence.run(read.plan(presence.backend.queries)), clock)


def async_reads(
    settings: Settings, clock: Callable[[], float] = time.monotonic
) -> AsyncSharedReads:
    presence = AsyncPresence(settings)
    return AsyncSharedReads(lambda read: presence.run(read.plan(presence.backend.queries)), clock)


def at_once(share: SharedReads, read: Read) -> list[Slot]:
    together = threading.Barrier(READERS)

    def ask() -> Slot:
        together.wait(10)
        return share(read)

    with ThreadPoolExecutor(READERS) as pool:
        return [each.result() for each in [pool.submit(ask) for _ in range(READERS)]]


def test_a_second_of_readers_is_one_read(settings: Settings, counted: Callable[[], int]) -> None:
    presence, clock = Presence(settings), Clock()
    share = shared_reads(settings, clock)
    for hundredth in range(250):
        clock.now = 1000.0 + hundredth / 100
        assert share(COUNTS).result()["user"] == (0 if hundredth < 100 else 1)
        if not hundredth:
            presence.touch("bob")
    assert counted() == 3


def test_threads_that_ask_at_once_wait_for_one_read(
    settings: Settings, counted: Callable[[], int]
) -> None:
    slots = at_once(shared_reads(settings, Clock()), COUNTS)
    assert all(slot.result() == {"user": 0, "guest": 0, "bot": 0} for slot in slots)
    assert counted() == 1


def test_tasks_that_ask_at_once_wait_for_one_read(
    settings: Settings, counted: Callable[[], int]
) -> None:
    async def ask() -> list[Slot]:
        share = async_reads(settings, Clock())
        slots = await asyncio.gather(*(share(COUNTS) for _ in range(READERS)))
        await close_async_clients()
        return slots

    slots = asyncio.run(ask())
    assert all(slot.result() == {"user": 0, "guest": 0, "bot": 0} for slot in slots)
    assert counted() == 1


def test_every_event_loop_has_its_own_answers(
    settings: Settings, counted: Callable[[], int]
) -> None:
    share = async_reads(settings, Clock())

    async def ask() -> Any:
        slot = await share(COUNTS)
        await close_async_clients()
        return slot.result()

    assert asyncio.run(ask()) == asyncio.run(ask())
    assert counted() == 2


def test_trio_is_served_too(settings: Settings) -> None:
    import trio

    async def ask() -> Any:
        return (await async_reads(settings)(COUNTS)).result()

    assert trio.run(ask) == {"user": 0, "guest": 0, "bot": 0}


def test_in_an_outage_concurrent_readers_share_one_timeout_and_later_readers_do_not_wait(
    silent: Settings,
) -> None:
    share = shared_reads(silent)
    with Stopwatch() as watch:
        for slot in at_once(share, COUNTS):
            with pytest.raises(PresenceUnavailable):
                slot.result()
    assert watch.seconds < 2.5
    with Stopwatch() as watch, pytest.raises(PresenceUnavailable):
        share(COUNTS).result()
    assert watch.seconds < 0.1


def test_in_an_outage_the_loop_goes_on(silent: Settings) -> None:
    async def ask() -> float:
        share = async_reads(silent)
        waiting = asyncio.gather(*(share(COUNTS) for _ in range(READERS)))
        longest = last = 0.0
        with Stopwatch() as watch:
            while not waiting.done():
                await asyncio.sleep(0.005)
                longest, last = max(longest, watch.seconds - last), watch.seconds
        for slot in await waiting:
            with pytest.raises(PresenceUnavailable):
                slot.result()
        await close_async_clients()
        return longest

    assert asyncio.run(ask()) < 0.25


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_if_a_reader_is_cancelled_another_one_reads(backend: str) -> None:
    mine: ContextVar[anyio.CancelScope] = ContextVar("mine")
    reading: list[anyio.CancelScope] = []
    answered: list[str] = []

    async def main() -> None:
        release = anyio.Event()

        async def run(read: Read) -> str:
            reading.append(mine.get())
            await release.wait()
            return "the answer"

        share = AsyncSharedReads(run)

        async def reader() -> None:
            with anyio.CancelScope() as scope:
                mine.set(scope)
                answered.append((await share(COUNTS)).result())

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(reader)
            for cancelled in range(2):  # the first one, then the one who reads instead
                await anyio.wait_all_tasks_blocked()
                assert len(reading) == cancelled + 1
                reading[-1].cancel()
            await anyio.wait_all_tasks_blocked()
            release.set()

    anyio.run(main, backend=backend)
    assert answered == ["the answer"] * 4
    assert len(reading) == 3


class Killed(BaseException):
    """The exception that ends a greenlet."""


def test_if_a_thread_is_killed_another_one_reads() -> None:
    asked = []
    claims = Counter()

    def run(read: Read) -> str:
        asked.append(read)
        if len(asked) == 1:
            wait_until(lambda: claims.count == READERS)
            raise Killed
        return "the answer"

    share = SharedReads(run, claims)

    def ask(_: int) -> str:
        try:
            return str(share(COUNTS).result())
        except Killed:
            return "killed"

    with ThreadPoolExecutor(READERS) as pool:
        answers = sorted(pool.map(ask, range(READERS)))
    assert answers == ["killed"] + ["the answer"] * (READERS - 1)
    assert len(asked) == 2


class Counter:
    """A clock that stands still and counts how often it is read."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            self.count += 1
        return 0.0


def test_a_client_that_disconnects_does_not_fail_others(valkey: Server, prefix: str) -> None:
    proxy = Proxy(valkey.socket)
    proxy.answer = b""  # Redis is silent
    app = asgi_site(f"redis://{HOST}:{proxy.port}", prefix, TOKEN)

    async def ask() -> tuple[int, bytes]:
        first = asyncio.create_task(get(app, "/presence/counts"))
        second = asyncio.create_task(get(app, "/presence/counts"))
        while not proxy.connections:
            await asyncio.sleep(0.005)
        proxy.answer = None
        first.cancel()
        answer = await second
        await close_async_clients()
        return answer

    status, body = asyncio.run(ask())
    proxy.refuse()
    assert (status, json.loads(body)) == (200, {"counts": {"user": 0, "guest": 0, "bot": 0}})


def asgi_site(url: str, prefix: str, token: str) -> asgi.PresenceMiddleware:
    settings = Settings.from_env(
        {}, redis_url=url, prefix=prefix, board_path="/presence", board_token=token
    )
    return asgi.PresenceMiddleware(lambda *_: None, settings=settings)  # type: ignore[arg-type]


async def get(app: Any, path: str, token: str = "") -> tuple[int, bytes]:
    """Return the status and the body that an ASGI app answers."""
    sent: list[Any] = []
    headers = [(b"host", b"site"), (b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b""}

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({**scope, "headers": headers}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


@pytest.fixture
def run_vars_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of one name share a value, as before AnyIO 4.10."""
    monkeypatch.setattr(RunVar, "__eq__", lambda one, other: one._name == other._name)
    monkeypatch.setattr(RunVar, "__hash__", lambda one: hash(one._name))


@pytest.mark.usefixtures("run_vars_by_name")
def test_two_sites_in_one_loop_share_no_names(valkey: Server, prefix: str) -> None:
    sites = {}
    for name in ("ann", "bob"):
        token = f"the-token-of-{name}'s-site"
        sites[name] = asgi_site(valkey.url, f"{prefix}{name}", token), token
        Presence(sites[name][0].recorder.settings).touch(name)

    async def ask() -> dict[str, bytes]:
        answers = {}
        for name, (app, token) in sites.items():
            _, answers[name] = await get(app, "/presence/online", token)
        await close_async_clients()
        return answers

    answers = asyncio.run(ask())
    assert [each["id"] for each in json.loads(answers["ann"])["online"]] == ["ann"]
    assert [each["id"] for each in json.loads(answers["bob"])["online"]] == ["bob"]


def test_the_cache_of_a_closed_loop_is_dropped(settings: Settings) -> None:
    share = async_reads(settings, Clock())

    async def ask() -> "weakref.ref[Any]":
        await asyncio.gather(*(share(COUNTS) for _ in range(READERS)))
        await close_async_clients()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(ask())
    gc.collect()
    assert loop() is None


def test_a_failed_read_is_not_repeated_for_a_second(silent: Settings) -> None:
    clock = Clock()
    share = shared_reads(silent, clock)
    failed = share(COUNTS)
    clock.now += 0.99
    assert share(COUNTS) is failed
    clock.now += 0.02
    assert share(COUNTS) is not failed


def test_cached_look_ups_of_ids_are_bounded(settings: Settings) -> None:
    share = shared_reads(settings, Clock())
    for id in range(MAX_SLOTS + 50):
        share(Read(reads.search, ("user", str(id), True)))
    assert len(share.slots) == MAX_SLOTS


def test_readers_of_ever_new_rooms_push_out_no_other_read(settings: Settings) -> None:
    share = SharedReads(lambda read: read.arguments, Clock())
    share(COUNTS)
    others = [Read(reads.search, ("user", str(id), True)) for id in range(20)]
    kept = [share(other) for other in others]
    for number in range(2 * MAX_SLOTS):
        share(Read(reads.counts_in_room, (f"/t/{number}",)))
    assert len(share.slots) == MAX_SLOTS
    assert [share(other) for other in others] == kept
    for number in range(MAX_SLOTS):
        share(Read(reads.search, ("user", f"new{number}", True)))
    assert len(share.slots) == MAX_SLOTS
    assert share(Read(reads.peak, ("user",))).result() == ("user",), "the oldest of all makes room"
    assert len(share.slots) == MAX_SLOTS
