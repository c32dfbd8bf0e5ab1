"""The hub of events: its thread, its reads, and iterators that end in unusual ways."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import redis

from presence_middleware import Presence, Settings
from presence_middleware.asgi import PresenceMiddleware
from presence_middleware.backend import Backend
from presence_middleware.connections.clients import close_async_clients
from presence_middleware.events import Event, Events
from tests.support.backends import Server, wait_until


@pytest.fixture
def site(variables: dict[str, str]) -> Settings:
    return Settings.from_env({**variables, "PRESENCE_EVENTS": "user"})


@pytest.fixture
def presence(site: Settings) -> Iterator[Presence]:
    presence = Presence(backend=Backend(site))
    yield presence
    presence.backend.close_events()


def first_event(events: Events, seconds: float = 10.0) -> Event | None:
    """Return the next event, or None if there is none for some seconds."""
    found: list[Event] = []
    thread = threading.Thread(target=lambda: found.extend(islice(events, 1)), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def test_an_iterator_begins_although_the_first_thread_could_not_start(
    presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            presence.events()
    with presence.events() as events:
        presence.touch("ann")
        assert first_event(events) is not None


@pytest.mark.parametrize("announces", [False, True])
def test_a_reader_warns_once_if_the_processes_that_record_announce_nobody(
    presence: Presence,
    variables: dict[str, str],
    announces: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("presence_middleware.events.feed.CHECK_EVERY", 0.0)
    monkeypatch.setattr("presence_middleware.events.feed.READ_EVERY", 0.05)
    events = {"PRESENCE_EVENTS": "user, guest"} if announces else {}
    recording = Backend(Settings.from_env({**variables, **events}))
    driver, feed = recording.driver, presence.backend.feed("user")
    driver.run(recording.shared_settings.publish(driver.run(recording.clock.now())))
    asked: list[bool] = []
    is_announced = feed._is_announced

    def ask() -> bool:
        asked.append(is_announced())
        return asked[-1]

    monkeypatch.setattr(feed, "_is_announced", ask)
    with caplog.at_level(logging.WARNING), presence.events() as iterator:
        wait_until(lambda: len(asked) == 3 or caplog.messages)
        for id in "abc":  # the feed goes on
            presence.touch(id)
            assert first_event(iterator) is not None
    expected = (
        "a process that records does not announce the events of user, so iterators miss them; "
        "set PRESENCE_EVENTS to the same kinds in all processes"
    )
    assert caplog.messages == ([] if announces else [expected])


def test_iterators_that_come_and_go_cost_no_further_reads(
    presence: Presence, valkey: Server
) -> None:
    with redis.Redis.from_url(valkey.url) as client, presence.events():

        def reads() -> int:
            return int(client.info("commandstats")["cmdstat_hget"]["calls"])

        wait_until(lambda: "cmdstat_hget" in client.info("commandstats"))
        before, began = reads(), time.monotonic()
        for _ in range(100):
            presence.events().close()
            client.ping()
            time.sleep(0.01)
        seconds = time.monotonic() - began
        assert reads() - before <= seconds + 2


def test_all_who_wait_are_woken_although_some_wait_again_meanwhile(presence: Presence) -> None:
    feed = presence.backend.feed("user")
    woken: list[object] = []

    class Waiting:
        def __init__(self, *, again: bool) -> None:
            self._again = again

        def wake(self) -> None:
            woken.append(self)
            if self._again:
                feed.waiters.add(Waiting(again=False))

    first = {Waiting(again=True) for _ in range(50)}
    feed.waiters |= first
    feed.close()
    assert set(woken) == first


COLLECT = """
import gc, sys, threading
from presence_middleware import Presence, Settings

presence = Presence(Settings.from_env())

def names(own):
    with presence.events() as events:
        yield "ready"
        yield from events

def drop():
    own = []
    own.append(names(own))
    next(own[0])

def collect():
    with presence.backend.feed("user")._lock:  # a collection may begin in any thread, at any time
        gc.collect()

gc.disable()
drop()
thread = threading.Thread(target=collect, daemon=True)
thread.start()
thread.join(5)
sys.stdout.write("blocked" if thread.is_alive() else "free")
"""

FORK = """
import os, sys, threading
from presence_middleware import Presence, QueryError, Settings

presence = Presence(Settings.from_env())
events = presence.events()
if not os.fork():
    try:
        next(events)
    except QueryError as error:
        print(error)
    events.close()
    with presence.events() as own:
        presence.touch("ann")
        print(next(own).id)
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""

FORK_WITH_NAME = """
import os, sys, time
import redis
from presence_middleware import Presence, Settings

settings = Settings.from_env()
presence = Presence(settings)
events = presence.events(name="mailer")
client = redis.Redis.from_url(os.environ["PRESENCE_REDIS_URL"])
key = settings.prefix + ":user:reader:mailer"
while not (holder := client.hget(key, "who")):
    time.sleep(0.01)
if not os.fork():
    events.close()
    os._exit(0)
os.wait()
until = client.hget(key, "until")
while client.hget(key, "until") == until:
    time.sleep(0.01)
print(client.hget(key, "who") == holder)
"""


def printed(program: str, variables: dict[str, str]) -> str:
    """Return what a program prints."""
    environ = {**os.environ, **variables, "PRESENCE_EVENTS": "user"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_generator_that_is_collected_amid_the_work_of_the_feed_blocks_nobody(
    variables: dict[str, str],
) -> None:
    assert printed(COLLECT, variables) == "free"


def test_an_iterator_from_before_a_fork_is_refused_and_a_new_one_works(
    variables: dict[str, str],
) -> None:
    error, id = printed(FORK, variables).splitlines()
    assert error == "this iterator was opened before a fork: open it in each process"
    assert id == "ann"


def test_a_forked_child_does_not_give_up_the_lease_of_its_parent(
    variables: dict[str, str],
) -> None:
    assert printed(FORK_WITH_NAME, variables) == "True\n"


def test_a_stream_ends_with_the_server_although_its_reader_reads_nothing(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presence_middleware.board.asgi.SEND_SECONDS", 0.2)
    token = "sixteen-letters-and-more"
    site = Settings.from_env(
        {
            **variables,
            "PRESENCE_EVENTS": "user",
            "PRESENCE_BOARD_PATH": "/presence",
            "PRESENCE_BOARD_TOKEN": token,
        }
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    async def test() -> None:
        wrapped = PresenceMiddleware(app, settings=site)
        is_full, gone = asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                is_full.set()
                await gone.wait()  # as a server waits while the buffer of the connection is full

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/presence/events",
            "root_path": "",
            "query_string": b"kind=user",
            "headers": [(b"authorization", f"Bearer {token}".encode())],
        }
        task = asyncio.create_task(wrapped(scope, receive, send))
        await asyncio.wait_for(is_full.wait(), 10)
        wrapped.recorder.backend.close_events()
        try:
            await asyncio.wait_for(asyncio.shield(task), 5)
        finally:
            gone.set()
            await task
            await close_async_clients()

    asyncio.run(test())
