"""A read ends after about two seconds, whatever makes it slow, and however many read at once."""

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable, Settings
from presence_middleware.asgi import AsgiVisit
from presence_middleware.board.routes import Board
from presence_middleware.connections import drivers, limits, redis_py
from presence_middleware.connections.loops import in_thread
from presence_middleware.errors import ConnectionsBusy
from presence_middleware.lookup import TemplatePresence
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
from tests.redis.test_connecting import TlsServer, server  # noqa: F401 - a fixture
from tests.support.asking import in_loop
from tests.support.backends import REDIS_PY, Server, wait_until
from tests.support.beside import in_child, on_call
from tests.support.commands import run_program
from tests.support.faults import PASSWORD, Place, hung
from tests.support.proxy import Proxy
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import awaited, by_header, opened, visit

TOO_LONG = 2.2  # seconds, if a read may take one: a timeout may begin just before the end
SOON = 1.3  # seconds: two timeouts, and some noise
DRIP = 0.4  # seconds between two bytes: less than the client's timeout
HOST = "redis.example"


@pytest.fixture
def settings(valkey: Server, prefix: str) -> Settings:
    return by_header(valkey.url, prefix)


def readers(settings: Settings) -> dict[str, Callable[[], object]]:
    """Readers of each sort; for each of them a user is online."""

    def asked() -> object:
        visit = WsgiVisit(Recorder(settings, background=False), {"HTTP_X_USER": "bob"})
        try:
            return visit.online()
        finally:
            visit.end()

    presence = Presence(settings)
    presence.touch("ann")
    online = partial(awaited, settings, AsyncPresence.online)
    return {"sync": presence.online, "async": online, "handler": asked}


def seconds_in_vain(ask: Callable[[], object]) -> float:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drivers, "READ_SECONDS", drivers.READ_SECONDS / 2)
        with Stopwatch() as watch, pytest.raises(PresenceUnavailable):
            ask()
    return watch.seconds


@pytest.mark.parametrize(
    ("mode", "is_open"),
    [("sync", True), ("sync", False), ("async", True), ("async", False), ("handler", True)],
)
def test_a_server_that_sends_a_byte_now_and_then_holds_no_reader(
    place: Place, prefix: str, mode: str, is_open: bool
) -> None:
    listed = readers(by_header(place.url, prefix))[mode]
    if not is_open:
        place.proxy.cut()
    place.proxy.drip = DRIP
    # A handler writes first, and may take a second more for that.
    assert seconds_in_vain(listed) < TOO_LONG + (mode == "handler")
    place.proxy.drip = None
    place.proxy.cut()
    assert listed()


@pytest.mark.parametrize(
    ("protocol", "path"), [("wsgi", "/"), ("asgi", "/excluded"), ("template", "/excluded")]
)
def test_a_handler_that_asks_often_waits_for_an_outage_once(
    protocol: str, path: str, place: Place, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presence_middleware.connections.limits.OUTAGE_PAUSE", 0.7)
    recorder = Recorder(by_header(place.url, prefix, exclude="/excluded"), background=False)
    visit: WsgiVisit | AsgiVisit
    if protocol == "asgi":
        visit = AsgiVisit(recorder, {"path": path, "headers": [(b"x-user", b"ann")]})
    else:
        visit = WsgiVisit(recorder, {"PATH_INFO": path, "HTTP_X_USER": "ann"})

    async def count() -> int:
        if isinstance(visit, WsgiVisit):
            return visit.count()
        try:
            return await visit.count()
        finally:
            await visit.aclose()

    async def ask_often() -> None:
        for _ in range(10):
            with pytest.raises(PresenceUnavailable):
                await count()

    with hung(place), Stopwatch() as watch:
        asyncio.run(ask_often())
        if protocol == "template":
            assert TemplatePresence(visit).count() is None
    assert watch.seconds < SOON, "it waited for an outage twice"
    with pytest.raises(PresenceUnavailable):
        asyncio.run(count())

    def answers() -> bool:
        with suppress(PresenceUnavailable):
            return asyncio.run(count()) == (path == "/")
        return False

    wait_until(recorder.flush)
    wait_until(answers)
    visit.end()


def test_a_tls_server_that_sends_slowly_holds_no_reader(
    prefix: str,
    server: TlsServer,  # noqa: F811
) -> None:
    """The handshake is the first that takes too long."""
    front = Proxy(("127.0.0.1", server.port))
    url = server.tls_url().replace(f":{server.port}/", f":{front.port}/")
    listed = readers(by_header(url, prefix))["sync"]
    assert listed()
    front.drip = DRIP
    for _ in ("open", "new"):
        assert seconds_in_vain(listed) < TOO_LONG
    front.refuse()


class NameService:
    """A name service with a single host, which answers when the test allows it."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked = 0
        self._usual = socket.getaddrinfo

    def __call__(self, host: Any, *others: Any, **more: Any) -> Any:
        if host not in (HOST, HOST.encode()):
            return self._usual(host, *others, **more)
        self.asked += 1
        assert self.may_answer.wait(30)
        return self._usual("127.0.0.1", *others, **more)


@pytest.fixture
def name_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameService]:
    service = NameService()
    monkeypatch.setattr(socket, "getaddrinfo", service)
    yield service
    service.may_answer.set()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_name_service_that_is_slow_holds_no_reader(
    place: Place, prefix: str, name_service: NameService, mode: str
) -> None:
    site = by_header(f"redis://site:{PASSWORD}@{HOST}:{place.proxy.port}", prefix)
    with opened(site, mode) as here:
        assert seconds_in_vain(here.presence.count) < TOO_LONG
        name_service.may_answer.set()
        assert here.presence.count() == 0


def test_a_read_that_is_cut_off_leaves_no_half_reply_to_the_next(place: Place, prefix: str) -> None:
    async def ask(presence: AsyncPresence) -> list[int]:
        await presence.touch("ann")
        answers = []
        for _ in range(5):
            with hung(place):
                task = asyncio.create_task(presence.is_online("nobody"))
                await asyncio.sleep(0.01)  # it has sent its question by then
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            answers.append(await presence.count())
        return answers

    assert awaited(by_header(f"{place.url}?max_connections=1", prefix), ask) == [1] * 5


def test_a_long_list_may_take_longer(valkey: Server, prefix: str) -> None:
    """Only round trips that are slow are counted: of a list of a million there are a thousand."""

    async def listed(presence: AsyncPresence) -> int:
        return len(await presence.online(limit=None))

    settings = by_header(f"{valkey.url}?socket_timeout=9", prefix)  # the machine may be busy
    presence, client = Presence(settings), valkey.client
    presence.touch("ann")
    now = presence.run(presence.backend.queries.clock.now())
    client.zadd(f"{prefix}:user:seen", {f"user{n}": round(now - n / 1e6, 6) for n in range(30_000)})
    # A clock that is asked three times a round trip: each is prompt, but not all are.
    looks = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        passing = Mock(monotonic=lambda: time.monotonic() + next(looks) * 0.07)
        patch.setattr(drivers, "time", passing)
        assert len(presence.online(limit=None)) == 30_001
        assert asyncio.run(listed(AsyncPresence(settings, client=client))) == 30_001
    assert next(looks) * 0.07 > 2 * drivers.READ_SECONDS


def test_an_exit_that_can_start_no_thread_looks_up_no_known_host(
    name_service: NameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the exit handlers of Python 3.12, which run after the end of the main thread."""
    name_service.may_answer.set()
    known = redis_py.addresses_of(HOST, 1, 0)
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError))
    asked = [name_service.asked]
    for port, is_exit in ((1, False), (1, True), (2, True)):
        monkeypatch.setattr(threading.main_thread(), "is_alive", lambda ends=is_exit: not ends)
        assert redis_py.addresses_of(HOST, port, 0) == known
        asked.append(name_service.asked - asked[0])
    assert asked[1:] == [1, 1, 2]


def test_a_timeout_that_is_set_is_not_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """To set a timeout is a system call, and each packet would need one."""
    timeouts, (one, other) = list[float](), socket.socketpair()
    on_call(monkeypatch, socket.socket, "settimeout", lambda _, value: timeouts.append(value))
    with one, other:
        connected = limits.TimedSocket(one)
        connected.settimeout(0.5)
        for _ in range(2):
            connected.sendall(b"PING")
            other.sendall(other.recv(4))
            assert connected.recv(4) == b"PING"
    assert timeouts == [0.5]


# More readers at once than a process has connections: they wait, and it is no outage.


def ask_at_once(presence: Presence, readers: int) -> list[object]:
    together = threading.Barrier(readers)

    def ask(_: int) -> object:
        together.wait()
        try:
            return presence.count()
        except PresenceUnavailable as error:
            return str(error)

    with ThreadPoolExecutor(readers) as pool:
        return list(pool.map(ask, range(readers)))


async def ask_in_tasks(presence: AsyncPresence, readers: int) -> list[object]:
    answers = await asyncio.gather(
        *(presence.count() for _ in range(readers)), return_exceptions=True
    )
    await presence.aclose()
    return [answer if isinstance(answer, int) else str(answer) for answer in answers]


@pytest.fixture(params=["threads", "tasks"])
def ask_many(request: pytest.FixtureRequest) -> Callable[[Settings, int], set[object]]:
    """Has so many threads or tasks ask at once; returns their different answers."""
    if request.param == "threads":
        return lambda site, readers: {*ask_at_once(Presence(site), readers)}
    return lambda site, readers: {*asyncio.run(ask_in_tasks(AsyncPresence(site), readers))}


@pytest.mark.parametrize("backend_url", ["valkey", "cluster"], indirect=True)
def test_hundreds_of_readers_at_once_are_all_answered(
    backend_url: str, prefix: str, ask_many: Any
) -> None:
    settings = by_header(backend_url, prefix)
    Presence(settings).touch("ann")
    assert ask_many(settings, 300) == {1}


# The last of two counts, as for other options.
@pytest.mark.parametrize("query", ["max_connections=3", "max_connections=9&max%5Fconnections=3#a"])
def test_max_connections_in_the_url_limits_the_readers(
    own: Server, client: Any, prefix: str, ask_many: Any, query: str
) -> None:
    assert ask_many(by_header(f"{own.url}?{query}", prefix), 50) == {0}
    came = client.info("stats")["total_connections_received"]
    assert came <= 3 + 4  # the test's own, of which there are up to four


@pytest.mark.parametrize("sort", ["handler", "reader in threads"])
def test_many_coroutines_learn_of_an_outage_in_time(sort: str, place: Place, prefix: str) -> None:
    """Whoever waits for a thread waits for Redis."""
    settings = by_header(place.url, prefix)
    recorder = Recorder(settings, background=False)
    client = redis.Redis.from_url(place.url, socket_timeout=0.5, retry=Retry(NoBackoff(), 0))
    threads = AsyncPresence(settings, client=client)

    async def seconds_of(reader: AsyncPresence) -> float:
        with Stopwatch() as watch, pytest.raises(PresenceUnavailable):
            await reader.count()
        return watch.seconds

    async def ask_in_vain(_: AsyncPresence) -> float:
        scopes = [{"headers": [(b"x-user", b"%d" % number)]} for number in range(200)]
        visits = [AsgiVisit(recorder, scope) for scope in scopes]
        readers = visits if sort == "handler" else [threads] * 200
        assert {await reader.count() for reader in readers} <= {*range(201)}
        recorder.record(("user", "bob"), recorder.stamp())
        with hung(place):
            seconds = await asyncio.gather(*map(seconds_of, readers))
        for each in visits:
            each.end()
        return max(seconds)

    # A handler writes first, which may take a second. One after the other would take far longer.
    assert awaited(settings, ask_in_vain) < 2 * drivers.READ_SECONDS
    wait_until(recorder.flush)
    client.close()


def test_a_reader_does_not_wait_for_the_threads_of_the_app(settings: Settings) -> None:
    recorder, is_done = Recorder(settings, background=False), threading.Event()

    async def ask(_: AsyncPresence) -> int:
        visit = AsgiVisit(recorder, {"headers": [(b"x-user", b"ann")]})
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.create_task(asyncio.to_thread(is_done.wait))
        await asyncio.sleep(0.01)
        try:
            return await asyncio.wait_for(visit.count(), drivers.READ_SECONDS)
        finally:
            is_done.set()
            await busy
            visit.end()

    assert awaited(settings, ask) == 1


def test_a_handler_that_is_cancelled_takes_offline_all_the_same(settings: Settings) -> None:
    recorder, is_done = Recorder(settings, background=False), threading.Event()

    async def leave(presence: AsyncPresence) -> int:
        visit = AsgiVisit(recorder, {"headers": [(b"x-user", b"ann")]})
        visit.end()
        assert recorder.flush()
        busy = [asyncio.create_task(in_thread(is_done.wait)) for _ in range(limits.CONNECTIONS)]
        leaving = asyncio.create_task(visit.leave("ann"))
        await asyncio.sleep(0)
        leaving.cancel()  # it waits for a thread
        await asyncio.wait([leaving])
        is_done.set()
        await asyncio.gather(*busy)
        assert recorder.flush()
        return await presence.count()

    assert awaited(settings, leave) == 0


def test_as_many_coroutines_read_at_once_as_the_url_permits(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = limits.CONNECTIONS + 4
    settings = replace(settings, redis_url=f"{settings.redis_url}?max_connections={most}")
    all_read = threading.Barrier(most)
    monkeypatch.setattr(drivers.Driver, "run", lambda *_, **__: all_read.wait(10))

    async def ask(presence: AsyncPresence) -> set[int]:
        return set(await asyncio.gather(*(presence.count() for _ in range(most))))

    assert awaited(settings, ask) == set(range(most))


def test_readers_of_a_board_who_wait_delay_no_handler(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_done = threading.Event()
    monkeypatch.setattr(Board, "respond", lambda *_: is_done.wait())

    async def ask(presence: AsyncPresence) -> int:
        board, reader = Board(presence.backend), Mock()
        busy = [
            asyncio.create_task(board.respond_beside_loop(reader))
            for _ in range(limits.CONNECTIONS + 1)
        ]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(10):
                return await presence.count()
        finally:
            is_done.set()
            await asyncio.gather(*busy)

    assert awaited(replace(settings, board_path="/presence"), ask) == 0


@in_loop
async def test_who_waited_for_a_thread_waits_no_longer_for_redis_than_others(
    settings: Settings,
) -> None:
    driver, run, is_done = Presence(settings).backend.driver, Mock(), threading.Event()
    with pytest.raises(ConnectionsBusy):
        driver.run(Mock(), waited=drivers.READ_SECONDS)
    busy = [asyncio.create_task(in_thread(is_done.wait)) for _ in range(limits.CONNECTIONS)]
    asking = asyncio.create_task(drivers.run_in_thread(driver, Mock(), run))
    with Stopwatch() as watch:
        await asyncio.sleep(0.05)
    is_done.set()
    await asyncio.gather(asking, *busy)
    assert run.call_args.kwargs["waited"] > watch.seconds / 2


@contextmanager
def all_taken(presence: Presence) -> Iterator[None]:
    """All connections that readers of this process may have are in use, and their slots."""
    client = presence.backend.driver.connect()
    with ExitStack() as stack:
        for _ in range(limits.CONNECTIONS):
            stack.callback(client.client().close)
            stack.enter_context(limits.free_slots(client, None))
        yield


def test_busy_connections_are_no_outage_and_do_not_delay_the_writer(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    presence, recorder = Presence(settings), Recorder(settings)
    presence.touch("ann")
    generation = presence.backend.health.generation
    with all_taken(presence):
        began = time.monotonic()
        busy = pytest.raises(ConnectionsBusy, match="max_connections in PRESENCE_REDIS_URL")
        with Stopwatch() as watch, busy:
            presence.count()
        assert time.monotonic() - began > 0.5
        assert watch.seconds < 2.0
        visit(recorder, "bob")
        assert recorder.flush()
    assert presence.count() == 2
    assert presence.backend.health.generation == generation
    assert not recorder.health.is_outage
    recorder.close()
    assert caplog.messages == []


ENDED = """
import asyncio, os, threading
import redis
from presence_middleware import AsyncPresence

presence = AsyncPresence(client=redis.Redis.from_url(os.environ["PRESENCE_REDIS_URL"]))

async def ask():
    threading.main_thread().join()
    print(await presence.count())

threading.Thread(target=lambda: asyncio.run(ask())).start()
"""


def test_a_server_reads_after_the_main_thread_has_ended(variables: dict[str, str]) -> None:
    """Python then refuses the work of all executors."""
    assert run_program(ENDED, **variables).stdout == "0\n"


def test_a_read_for_which_no_thread_can_start_is_not_run_in_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pool runs it later: it would be run twice, and perhaps at the same time."""
    failing, ran = Mock(side_effect=RuntimeError("can't start new thread")), list[object]()
    monkeypatch.setattr(ThreadPoolExecutor, "_adjust_thread_count", failing)
    with pytest.raises(RuntimeError, match="new thread"):
        asyncio.run(in_thread(lambda: ran.append(threading.current_thread())))
    assert threading.current_thread() not in ran


GEVENT = """
from gevent import get_hub, monkey, sleep, spawn

monkey.patch_all()
from presence_middleware import Presence
from tests.support.backends import send

driver = Presence.from_env().backend.driver
driver.connect()
"""
KILLED = """
driver.execute = lambda *_: sleep() or ["PONG"]
for turns in [*range(9)] * 20:
    readers = [spawn(driver.run, send("PING")) for _ in range(2)]
    for _ in range(turns):
        sleep()
    readers[1].kill()
    readers[0].join()

def execute(*_):
    driver.execute = lambda *_: ["PONG"]
    return [driver.run(send("PING"))]

driver.execute = execute
print(driver.run(send("PING")))
"""


def test_a_reader_that_is_killed_keeps_no_slot() -> None:
    """As a `Timeout` of gevent does in a handler, wherever the reader waits."""
    assert run_program(GEVENT + KILLED).stdout == "PONG\n"


NATIVE = """
driver.execute = lambda *_: sleep(0.001) or ["PONG"]
starts = (spawn, get_hub().threadpool.spawn) * 4
readers = [start(driver.run, send("PING")) for start in starts]
print({each.get() for each in readers})
"""


def test_native_threads_and_greenlets_wait_for_the_same_slot() -> None:
    given = {"PRESENCE_REDIS_URL": "redis://localhost?max_connections=1"}
    assert run_program(GEVENT + NATIVE, **given).stdout == "{'PONG'}\n"


def test_busy_async_connections_are_no_outage(place: Place, prefix: str) -> None:
    async def ask(presence: AsyncPresence) -> None:
        assert await presence.count() == 0
        with hung(place):
            first, second = (asyncio.create_task(presence.count()) for _ in range(2))
            first.cancel()
            with pytest.raises(PresenceUnavailable):
                await second
        assert await presence.count() == 0
        place.proxy.delay = 0.2
        answers = await asyncio.gather(
            *(presence.count() for _ in range(20)), return_exceptions=True
        )
        generation = presence.backend.health.generation
        assert {type(answer) for answer in answers} == {int, ConnectionsBusy}
        place.proxy.delay = 0
        assert await presence.count() == 0
        assert presence.backend.health.generation == generation

    awaited(by_header(f"{place.url}?max_connections=1", prefix), ask)


@pytest.mark.parametrize("kind", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_a_full_pool_of_a_passed_client_is_no_outage(
    valkey: Server, settings: Settings, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"timeout": 0.1} if kind is redis.BlockingConnectionPool else {}
    pool = kind.from_url(valkey.url, max_connections=2, **options)
    client = redis.Redis(connection_pool=pool)
    presence = Presence(settings, client=client)
    recorder = Recorder(settings, client=client, background=False)
    taken = [redis.Redis(connection_pool=pool, single_connection_client=True) for _ in range(2)]
    with pytest.raises(ConnectionsBusy):
        presence.count()
    visit(recorder, "bob")
    assert not recorder.flush()
    recorder.run_once()
    for each in taken:
        each.close()
    wait_until(recorder.flush)
    assert presence.count() == 1
    pool.disconnect()
    assert not [message for message in caplog.messages if "cannot record" in message]


@pytest.mark.skipif(
    (5, 3) <= REDIS_PY < (7, 2), reason="a lock of its pools stays with the loop that waited for it"
)
def test_an_async_client_may_serve_one_loop_after_another(
    valkey: Server, settings: Settings
) -> None:
    client = redis.asyncio.Redis.from_url(valkey.url)

    async def ask() -> set[object]:
        answers = await ask_in_tasks(AsyncPresence(settings, client=client), 50)
        await client.aclose()
        return set(answers)

    assert [asyncio.run(ask()) for _ in range(2)] == [{0}, {0}]


def test_a_child_reads_though_its_parent_used_all_connections(
    valkey: Server, settings: Settings
) -> None:
    presence = Presence(settings, client=valkey.client)

    def child() -> None:
        assert presence.count() == 0

    with all_taken(presence):
        in_child(child)
