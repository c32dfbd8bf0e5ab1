"""However many look at the board, Redis is read once a second; and nobody waits in vain."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable, Settings
from presence_middleware.board import reads
from presence_middleware.board.asgi import AsyncShared
from presence_middleware.board.reads import Read
from presence_middleware.board.cache import MOST, Shared, Slot
from presence_middleware.connections import close_async_clients

from .conftest import Server
from .timed_site import Clock

COUNTS = Read(reads.counts)
READERS = 40


@pytest.fixture
def settings(valkey: Server, prefix: str) -> Settings:
    return Settings.from_env({}, redis_url=valkey.url, prefix=prefix)


@pytest.fixture
def counted(valkey: Server) -> Iterator[Callable[[], int]]:
    """How often the server was asked for the counts so far: each time, one of bots is in it."""
    with redis.Redis.from_url(valkey.url) as client:
        before = _pfcounts(client)
        yield lambda: _pfcounts(client) - before


def _pfcounts(client: "redis.Redis") -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_pfcount", {"calls": 0})["calls"])


@pytest.fixture
def silent() -> Iterator[Settings]:
    """The settings of a site whose Redis takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        port = listener.getsockname()[1]
        yield Settings.from_env({}, redis_url=f"redis://127.0.0.1:{port}")


def at_once(share: Shared, read: Read) -> list[Slot]:
    together = threading.Barrier(READERS)

    def ask() -> Slot:
        together.wait(10)
        return share(read)

    with ThreadPoolExecutor(READERS) as pool:
        return [each.result() for each in [pool.submit(ask) for _ in range(READERS)]]


def test_a_second_of_readers_is_one_read(settings: Settings, counted: Callable[[], int]) -> None:
    presence, clock = Presence(settings), Clock()
    share = Shared(presence, clock)
    for hundredth in range(250):
        clock.now = 1000.0 + hundredth / 100
        assert share(COUNTS).result()["user"] == (0 if hundredth < 100 else 1)
        if not hundredth:
            presence.touch("bob")
    assert counted() == 3


def test_threads_that_ask_at_once_wait_for_one_read(
    settings: Settings, counted: Callable[[], int]
) -> None:
    slots = at_once(Shared(Presence(settings), Clock()), COUNTS)
    assert all(slot.result() == {"user": 0, "guest": 0, "bot": 0} for slot in slots)
    assert counted() == 1


def test_tasks_that_ask_at_once_wait_for_one_read(
    settings: Settings, counted: Callable[[], int]
) -> None:
    async def ask() -> list[Slot]:
        share = AsyncShared(AsyncPresence(settings), Clock())
        slots = await asyncio.gather(*(share(COUNTS) for _ in range(READERS)))
        await close_async_clients()
        return slots

    slots = asyncio.run(ask())
    assert all(slot.result() == {"user": 0, "guest": 0, "bot": 0} for slot in slots)
    assert counted() == 1


def test_every_loop_has_answers_of_its_own(settings: Settings, counted: Callable[[], int]) -> None:
    share = AsyncShared(AsyncPresence(settings), Clock())

    async def ask() -> Any:
        slot = await share(COUNTS)
        await close_async_clients()
        return slot.result()

    assert asyncio.run(ask()) == asyncio.run(ask())
    assert counted() == 2


def test_trio_is_served_too(settings: Settings) -> None:
    import trio

    async def ask() -> Any:
        return (await AsyncShared(AsyncPresence(settings))(COUNTS)).result()

    assert trio.run(ask) == {"user": 0, "guest": 0, "bot": 0}


def test_in_an_outage_all_wait_for_one_timeout_and_the_next_for_none(silent: Settings) -> None:
    share, began = Shared(Presence(silent)), time.monotonic()
    for slot in at_once(share, COUNTS):
        with pytest.raises(PresenceUnavailable):
            slot.result()
    took = time.monotonic() - began
    assert took < 2.5
    began = time.monotonic()
    with pytest.raises(PresenceUnavailable):
        share(COUNTS).result()
    assert time.monotonic() - began < 0.1


def test_in_an_outage_the_loop_goes_on(silent: Settings) -> None:
    async def ask() -> float:
        share = AsyncShared(AsyncPresence(silent))
        waiting = asyncio.gather(*(share(COUNTS) for _ in range(READERS)))
        longest, last = 0.0, time.monotonic()
        while not waiting.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        for slot in await waiting:
            with pytest.raises(PresenceUnavailable):
                slot.result()
        await close_async_clients()
        return longest

    assert asyncio.run(ask()) < 0.25


def test_who_gives_up_leaves_nobody_waiting(silent: Settings) -> None:
    async def ask() -> None:
        share = AsyncShared(AsyncPresence(silent))
        first = asyncio.create_task(share(COUNTS))
        await asyncio.sleep(0)
        second = asyncio.create_task(share(COUNTS))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(PresenceUnavailable):
            (await asyncio.wait_for(second, 0.4)).result()
        await close_async_clients()

    asyncio.run(ask())


def test_what_failed_is_not_tried_again_for_a_second(silent: Settings) -> None:
    clock = Clock()
    share = Shared(Presence(silent), clock)
    failed = share(COUNTS)
    clock.now += 0.99
    assert share(COUNTS) is failed
    clock.now += 0.02
    assert share(COUNTS) is not failed


def test_ids_that_are_looked_for_take_no_more_room_than_there_is(settings: Settings) -> None:
    share = Shared(Presence(settings), Clock())
    for id in range(MOST + 50):
        share(Read(reads.search, ("user", str(id), True)))
    assert len(share._slots._slots) == MOST
