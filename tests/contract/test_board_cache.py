"""The board reads Redis once a second for all its readers, and every reader gets an answer."""

import asyncio
import gc
import itertools
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
from presence_middleware.board.cache import MAX_RESULTS, Cache, SharedRead
from presence_middleware.board.messages import Request, Response
from presence_middleware.board.routes import Board
from presence_middleware.connections.clients import close_async_clients
from presence_middleware.stores import Plan
from tests.support.backends import Server, wait_until
from tests.support.proxy import HOST, Proxy
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import Clock

NOBODY = {"counts": {"user": 0, "guest": 0, "bot": 0}}
OUTAGE = {"error": "Redis does not answer"}
ANSWER = Response(200, (), b"the answer")
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


def nothing() -> Plan[Any]:
    """Return a plan that is not run."""
    yield from ()


class Readers:
    """Readers of the counts in a process."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.cache = Cache(clock)
        self.presence, self.async_presence = Presence(settings), AsyncPresence(settings)
        self._board = Board(settings, self.presence.backend.queries)

    def ask(self) -> tuple[int, Any]:
        return shown(self.cache.get(self._counts(), self.presence.run))

    async def ask_async(self) -> tuple[int, Any]:
        return shown(await self.cache.get_async(self._counts(), self.async_presence.run))

    def _counts(self) -> SharedRead:
        read = self._board.answer(Request("GET", "/counts", "", lambda _: None))
        assert isinstance(read, SharedRead)
        return read


def shown(response: Response) -> tuple[int, Any]:
    """Return the status and the JSON of a response."""
    return response.status, json.loads(response.body)


def at_once(readers: Readers) -> list[tuple[int, Any]]:
    together = threading.Barrier(READERS)

    def ask() -> tuple[int, Any]:
        together.wait(10)
        return readers.ask()

    with ThreadPoolExecutor(READERS) as pool:
        return [each.result() for each in [pool.submit(ask) for _ in range(READERS)]]


def test_a_second_of_readers_is_one_read(settings: Settings, counted: Callable[[], int]) -> None:
    presence, clock = Presence(settings), Clock()
    readers = Readers(settings, clock)
    for hundredth in range(250):
        clock.now = 1000.0 + hundredth / 100
        _, found = readers.ask()
        assert found["counts"]["user"] == (0 if hundredth < 100 else 1)
        if not hundredth:
            presence.touch("bob")
    assert counted() == 3


def test_threads_that_ask_at_once_wait_for_one_read(
    settings: Settings, counted: Callable[[], int]
) -> None:
    assert at_once(Readers(settings, Clock())) == [(200, NOBODY)] * READERS
    assert counted() == 1


def test_tasks_that_ask_at_once_wait_for_one_read(
    settings: Settings, counted: Callable[[], int]
) -> None:
    async def ask() -> list[tuple[int, Any]]:
        readers = Readers(settings, Clock())
        answers = await asyncio.gather(*(readers.ask_async() for _ in range(READERS)))
        await close_async_clients()
        return answers

    assert asyncio.run(ask()) == [(200, NOBODY)] * READERS
    assert counted() == 1


def test_event_loops_and_threads_share_a_read(
    settings: Settings, counted: Callable[[], int]
) -> None:
    readers = Readers(settings, Clock())

    async def ask() -> tuple[int, Any]:
        answer = await readers.ask_async()
        await close_async_clients()
        return answer

    assert asyncio.run(ask()) == asyncio.run(ask()) == readers.ask()
    assert counted() == 1


def test_a_loop_that_ends_amid_a_read_leaves_it_to_others(settings: Settings) -> None:
    readers = Readers(settings, Clock())

    async def begin() -> None:
        reading = asyncio.Event()

        async def run(plan: Plan[Any]) -> None:
            reading.set()
            await asyncio.Event().wait()

        read = SharedRead("counts", (None,), nothing())
        task = asyncio.create_task(readers.cache.get_async(read, run))
        await reading.wait()
        assert not task.done()

    asyncio.run(begin())
    with Stopwatch() as watch:
        assert readers.ask() == (200, NOBODY)
    assert watch.seconds < 2.5


def test_trio_is_served_too(valkey: Server, prefix: str, counted: Callable[[], int]) -> None:
    app = asgi_site(valkey.url, prefix, TOKEN)
    answers: list[tuple[int, bytes]] = []

    async def ask() -> None:
        answers.append(await get(app, "/presence/counts"))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(READERS):
                group.start_soon(ask)
            async with anyio.create_task_group() as cancelled:
                cancelled.start_soon(ask)
                cancelled.cancel_scope.cancel()

    anyio.run(main, backend="trio")
    assert len(answers) >= READERS
    assert all((status, json.loads(body)) == (200, NOBODY) for status, body in answers)
    assert counted() == 1


def test_in_an_outage_concurrent_readers_share_one_timeout_and_later_readers_do_not_wait(
    silent: Settings,
) -> None:
    readers = Readers(silent)
    with Stopwatch() as watch:
        assert at_once(readers) == [(503, OUTAGE)] * READERS
    assert watch.seconds < 2.5
    with Stopwatch() as watch:
        assert readers.ask() == (503, OUTAGE)
    assert watch.seconds < 0.1


def test_in_an_outage_the_loop_goes_on(silent: Settings) -> None:
    async def ask() -> float:
        readers = Readers(silent)
        waiting = asyncio.gather(*(readers.ask_async() for _ in range(READERS)))
        longest = last = 0.0
        with Stopwatch() as watch:
            while not waiting.done():
                await asyncio.sleep(0.005)
                longest, last = max(longest, watch.seconds - last), watch.seconds
        assert await waiting == [(503, OUTAGE)] * READERS
        await close_async_clients()
        return longest

    assert asyncio.run(ask()) < 0.25


def test_if_a_reader_is_cancelled_another_one_reads() -> None:
    mine: ContextVar[anyio.CancelScope] = ContextVar("mine")
    reading: list[anyio.CancelScope] = []
    answered: list[Response] = []

    async def main() -> None:
        release = anyio.Event()
        cache = Cache()

        async def run(plan: Plan[Any]) -> Response:
            reading.append(mine.get())
            await release.wait()
            return ANSWER

        async def reader() -> None:
            with anyio.CancelScope() as scope:
                mine.set(scope)
                answered.append(await cache.get_async(SharedRead("", (), nothing()), run))

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(reader)
            for cancelled in range(3):  # the first one, then the one who reads instead
                with anyio.fail_after(5):
                    while len(reading) <= cancelled:
                        await anyio.sleep(0.001)
                if cancelled < 2:
                    reading[-1].cancel()
            release.set()

    anyio.run(main)
    assert answered == [ANSWER] * 4
    assert len(reading) == 3


def test_a_waiting_reader_who_is_cancelled_leaves_the_others_alone() -> None:
    async def main() -> None:
        release, cache, reads = asyncio.Event(), Cache(), []

        async def run(plan: Plan[Any]) -> Response:
            reads.append(plan)
            await release.wait()
            return ANSWER

        tasks = [
            asyncio.create_task(cache.get_async(SharedRead("", (), nothing()), run))
            for _ in range(3)
        ]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        await asyncio.sleep(0.01)
        release.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [answers[0], answers[2]] == [ANSWER, ANSWER]
        assert isinstance(answers[1], asyncio.CancelledError)
        assert len(reads) == 1

    asyncio.run(main())


def test_an_unexpected_error_reaches_its_reader_alone() -> None:
    cache = Cache(Clock())

    def fail(plan: Plan[Any]) -> Response:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.get(SharedRead("", (), nothing()), fail)
    assert cache.get(SharedRead("", (), nothing()), lambda _: ANSWER) == ANSWER


class Killed(BaseException):
    """The exception that ends a greenlet."""


def test_if_a_thread_is_killed_another_one_reads() -> None:
    asked = []
    claims = Counter()
    cache = Cache(claims)

    def run(plan: Plan[Any]) -> Response:
        asked.append(plan)
        if len(asked) == 1:
            wait_until(lambda: claims.count == READERS)
            raise Killed
        return ANSWER

    def ask(_: int) -> Response | None:
        try:
            return cache.get(SharedRead("", (), nothing()), run)
        except Killed:
            return None

    with ThreadPoolExecutor(READERS) as pool:
        answers = list(pool.map(ask, range(READERS)))
    assert (answers.count(None), answers.count(ANSWER)) == (1, READERS - 1)
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
    assert (status, json.loads(body)) == (200, NOBODY)


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


def test_the_cache_keeps_no_closed_loop(settings: Settings) -> None:
    readers = Readers(settings, Clock())

    async def ask() -> "weakref.ref[Any]":
        await asyncio.gather(*(readers.ask_async() for _ in range(READERS)))
        await close_async_clients()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(ask())
    gc.collect()
    assert loop() is None


def test_a_failed_read_is_not_repeated_for_a_second() -> None:
    clock = Clock()
    cache = Cache(clock)
    failures: list[float] = []

    def fail(plan: Plan[Any]) -> Response:
        failures.append(clock.now)
        raise PresenceUnavailable("down")

    for seconds in (0, 0.99, 0.02):
        clock.now += seconds
        assert shown(cache.get(SharedRead("", (), nothing()), fail)) == (503, OUTAGE)
    assert failures == [clock.now - 1.01, clock.now]


class Found:
    """The result of a read."""


def test_results_that_are_kept_are_bounded() -> None:
    cache, results = Cache(Clock()), list[weakref.ref[Found]]()

    def run(plan: Plan[Any]) -> Found:
        found = Found()
        results.append(weakref.ref(found))
        return found

    for id in range(MAX_RESULTS + 50):
        cache.get(SharedRead("last-seen", (id,), nothing(), 1.0, lambda _: ANSWER), run)
    gc.collect()
    assert len([each for each in results if each() is not None]) == MAX_RESULTS


def test_an_id_that_is_asked_for_again_is_not_pushed_out() -> None:
    cache, asked = Cache(Clock()), list[int]()

    def ask(id: int) -> None:
        def run(plan: Plan[Any]) -> Response:
            asked.append(id)
            return ANSWER

        cache.get(SharedRead("last-seen", (id,), nothing()), run)

    for id in range(1, 2 * MAX_RESULTS):
        ask(0)
        ask(id)
    assert asked.count(0) == 1


def test_readers_of_ever_new_rooms_cause_a_bounded_number_of_reads(settings: Settings) -> None:
    clock, rooms = Clock(), itertools.count(1)
    readers, runs = Readers(settings, clock), list[Plan[Any]]()
    site = Settings.from_env({}, redis_url=str(settings.redis_url), rooms="/t/{x}")
    board = Board(site, readers.presence.backend.queries)

    def run(plan: Plan[Any]) -> Response:
        runs.append(plan)
        return ANSWER

    def ask(room: int) -> int:
        read = board.answer(Request("GET", "/counts", f"room=/t/{room}", lambda _: None))
        assert isinstance(read, SharedRead)
        return readers.cache.get(read, run).status

    for second in range(1, 4):
        clock.now += 1.5
        assert ask(0) == 200
        statuses = [ask(next(rooms)) for _ in range(2 * MAX_RESULTS)]
        assert statuses == [200] * (MAX_RESULTS - 1) + [503] * (MAX_RESULTS + 1)
        assert ask(0) == 200
        assert len(runs) == second * MAX_RESULTS


def test_readers_of_ever_new_rooms_or_ids_push_out_no_other_read(
    settings: Settings, counted: Callable[[], int]
) -> None:
    readers, given = Readers(settings, Clock()), dict[str, Any](rooms="/t/{x}")
    site = Settings.from_env({}, redis_url=str(settings.redis_url), board_token=TOKEN, **given)
    board = Board(site, readers.presence.backend.queries)
    runs: list[Plan[Any]] = []

    def run(plan: Plan[Any]) -> Response:
        runs.append(plan)
        return ANSWER

    def ask(path: str, query: str = "") -> None:
        headers = {"authorization": f"Bearer {TOKEN}"}
        read = board.answer(Request("GET", path, query, headers.get))
        assert isinstance(read, SharedRead)
        readers.cache.get(read._replace(finish=lambda _: ANSWER), run)

    def ask_all() -> None:
        for path in ("/counts", "/history", "/chart.svg", "/peak", "/online"):
            ask(path)

    ask_all()
    before = len(runs)
    assert before == 5
    for number in range(2 * MAX_RESULTS):
        ask("/counts", f"room=/t/{number}")
        ask("/last-seen", f"id={number}")
    assert len(runs) == before + 3 * MAX_RESULTS
    ask_all()
    assert len(runs) == before + 3 * MAX_RESULTS
