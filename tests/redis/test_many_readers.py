"""More readers at once than a process has connections: they wait, and it is no outage."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable, Settings
from presence_middleware.connections import limits
from presence_middleware.errors import ConnectionsBusy
from presence_middleware.recorder import Recorder
from tests.support.backends import REDIS_PY, Server, client_of, wait_until
from tests.support.clusters import Cluster
from tests.support.faults import Place, hung
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import by_header


def ask_at_once(presence: Presence, readers: int) -> list[object]:
    """Return the answer or error of each thread; all threads start together."""
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


@pytest.fixture(params=["valkey", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    server: Server | Cluster = request.getfixturevalue(request.param)
    return server.url


def test_hundreds_of_readers_at_once_are_all_answered(url: str, prefix: str, ask_many: Any) -> None:
    settings = by_header(url, prefix)
    Presence(settings).touch("ann")
    assert ask_many(settings, 300) == {1}


def test_max_connections_in_the_url_limits_the_readers(
    own: Server, client: Any, prefix: str, ask_many: Any
) -> None:
    assert ask_many(by_header(f"{own.url}?max_connections=3", prefix), 50) == {0}
    came = client.info("stats")["total_connections_received"]
    assert came <= 3 + 4  # the test's own, of which there are up to four


@contextmanager
def all_taken(presence: Presence) -> Iterator[None]:
    """All slots of the client of this process are in use."""
    client = presence.backend.driver.connect()
    with ExitStack() as stack:
        for _ in range(limits.CONNECTIONS):
            stack.enter_context(limits.free_slots(client, None))
        yield


def test_busy_connections_are_no_outage_and_do_not_delay_the_writer(
    valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = by_header(valkey.url, prefix)
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
        recorder.record(("user", "bob"), recorder.stamp())
        assert recorder.flush()
    assert presence.count() == 2
    assert presence.backend.health.generation == generation
    assert not recorder.health.is_outage
    recorder.close()
    assert caplog.messages == []


def test_readers_leave_connections_for_the_writer(valkey: Server, prefix: str) -> None:
    recorder = Recorder(by_header(valkey.url, prefix), background=False)
    client = client_of(recorder.settings.redis_url)
    with ExitStack() as stack:
        for _ in range(limits.CONNECTIONS):  # as many as readers may use
            stack.callback(client.client().close)
        recorder.record(("user", "bob"), recorder.stamp())
        assert recorder.flush()
    recorder.close()


def test_busy_async_connections_are_no_outage(place: Place, prefix: str) -> None:
    async def ask() -> None:
        presence = AsyncPresence(by_header(f"{place.url}?max_connections=1", prefix))
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
        await presence.aclose()

    asyncio.run(ask())


@pytest.mark.parametrize("kind", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_a_full_pool_of_a_passed_client_is_no_outage(
    valkey: Server, prefix: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"timeout": 0.1} if kind is redis.BlockingConnectionPool else {}
    pool = kind.from_url(valkey.url, max_connections=2, **options)
    settings = by_header(valkey.url, prefix)
    client = redis.Redis(connection_pool=pool)
    presence, recorder = Presence(settings, client=client), Recorder(settings, client=client)
    taken = [redis.Redis(connection_pool=pool, single_connection_client=True) for _ in range(2)]
    with pytest.raises(ConnectionsBusy):
        presence.count()
    recorder.background = False
    recorder.record(("user", "bob"), recorder.stamp())
    assert not recorder.flush()
    recorder.run_once()
    for each in taken:
        each.close()
    wait_until(recorder.flush)
    assert presence.count() == 1
    recorder.close()
    pool.disconnect()
    assert not [message for message in caplog.messages if "cannot record" in message]


@pytest.mark.skipif(
    (5, 3) <= REDIS_PY < (7, 2), reason="a lock of its pools stays with the loop that waited for it"
)
def test_an_async_client_may_serve_one_loop_after_another(valkey: Server, prefix: str) -> None:
    client = redis.asyncio.Redis.from_url(valkey.url)

    async def ask() -> set[object]:
        presence = AsyncPresence(by_header(valkey.url, prefix), client=client)
        answers = await ask_in_tasks(presence, 50)
        await client.aclose()
        return set(answers)

    assert [asyncio.run(ask()) for _ in range(2)] == [{0}, {0}]


def test_a_child_reads_though_its_parent_used_all_connections(valkey: Server, prefix: str) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        presence = Presence(by_header(valkey.url, prefix), client=client)
        with all_taken(presence):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = presence.count()
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
