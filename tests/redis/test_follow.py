"""`events()`: what an iterator receives, what it misses, and what it costs."""

import asyncio
import gc
import re
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import (
    AsyncPresence,
    Event,
    EventsLost,
    Presence,
    PresenceUnavailable,
    QueryError,
)
from presence_middleware.embedded import find_server
from presence_middleware.events import AsyncEvents
from presence_middleware.events import feed as feed_module
from presence_middleware.events import outage as outage_module
from presence_middleware.events import page as page_module
from presence_middleware.events.streams import events_of
from presence_middleware.recorder import Recorder
from presence_middleware.sse import server_sent_events
from presence_middleware.stores import keys, moment_of
from tests.support.acts import record
from tests.support.backends import Server, wait_until
from tests.support.clusters import Cluster, Node
from tests.support.followed_site import LAG, FollowedSite
from tests.support.follower import Follower
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import NOON, WINDOW, settings

TICK = 0.05  # seconds between two reads, instead of one second
Open = Callable[..., FollowedSite]


@pytest.fixture(autouse=True)
def feeds_read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "READ_EVERY", TICK)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may stop."""
    server = Server(str(find_server()), tmp_path)
    yield server
    server.stop()


@pytest.fixture(params=[1, 16])
def shards(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def site(own: Server, prefix: str, shards: int) -> Iterator[FollowedSite]:
    site = FollowedSite(own.url, prefix, shards=shards)
    yield site
    site.close()


@pytest.fixture
def followers() -> Iterator[Callable[..., Follower]]:
    """Starts followers, which end with the test."""
    with ExitStack() as stack:

        def follow(presence: Presence, **given: Any) -> Follower:
            follower = Follower(presence, **given)
            stack.callback(follower.close)
            wait_until(lambda: presence.backend.feed("user").page.end.positions)
            return follower

        yield follow


def test_a_thread_receives_who_comes_and_goes(
    site: FollowedSite, followers: Callable[..., Follower]
) -> None:
    follower = followers(site.presence)
    site.saw("ann")
    wait_until(lambda: follower.names() == ["+ann"])
    site.clock.now += WINDOW + LAG + 1
    wait_until(lambda: follower.names() == ["+ann", "-ann"])  # this process sweeps
    came, went = follower.received
    assert (came.kind, came.id, came.online, came.at) == ("user", "ann", True, moment_of(NOON))
    assert (went.online, went.at) == (False, moment_of(NOON))
    assert follower.lost == 0


def test_a_leave_arrives_within_a_tick(
    own: Server, prefix: str, followers: Callable[..., Follower]
) -> None:
    site = FollowedSite(own.url, prefix, flush_interval="3m")
    follower = followers(site.presence)
    site.saw("ann")
    wait_until(lambda: follower.online == {"ann"})
    with Stopwatch() as watch:
        site.presence.leave("ann")
        wait_until(lambda: follower.online == set())
    assert watch.seconds < TICK + 0.2
    site.close()


def test_coroutines_receive_who_comes_and_goes(site: FollowedSite) -> None:
    async def follow() -> list[str]:
        received = []
        presence = AsyncPresence(site.settings, clock=site.clock)
        async with presence.events(among=["ann", "bob"]) as events:
            site.saw("ann", "cy")
            async for event in events:
                received.append(("-+"[event.online]) + event.id)
                if event.online:
                    site.presence.leave(event.id)
                else:
                    break
        assert [event async for event in events] == []
        await presence.aclose()
        return received

    assert asyncio.run(follow()) == ["+ann", "-ann"]


def test_a_coroutine_that_waits_can_be_cancelled(site: FollowedSite) -> None:
    presence = AsyncPresence(site.settings, clock=site.clock)

    async def wait() -> None:
        async with presence.events() as events:
            await anext(events)

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(wait(), 0.2))
    wait_until(is_nobody_reading)


def test_among_filters_and_errors_pass(site: FollowedSite) -> None:
    with site.presence.events(among=["ann", 7]) as events:
        site.saw("bob", "ann", "7")
        assert {next(events).id, next(events).id} == {"ann", "7"}
        site.delete("progress", "changes", "seen")
        site.sweep()
        with pytest.raises(EventsLost):
            next(events)
    assert list(events) == []


@pytest.mark.parametrize("after", ["", "x", "1-0", "1-0.1.2", "1-0.1,", "-1-0.1", "1-0.1 ", 7])
def test_anything_but_a_cursor_is_refused(site: FollowedSite, after: Any) -> None:
    with pytest.raises(QueryError, match="cursor"):
        site.presence.events(after=after)


def test_too_many_ids_are_refused(site: FollowedSite) -> None:
    with pytest.raises(QueryError, match="1000"):
        site.presence.events(among=map(str, range(1001)))


def test_after_a_cursor_nothing_is_missing_or_repeated(site: FollowedSite) -> None:
    ids = [f"user{number}" for number in range(30)]
    received: list[str] = []
    with site.presence.events() as first:
        wait_until(lambda: site.presence.backend.feed("user").page.end.positions)
        site.saw(ids[0])
        event = next(first)
        for step in range(1, 30, 4):  # the hub goes on between two iterators
            for id in ids[step : step + 4]:
                site.saw(id)
            received.append(event.id)
            with site.presence.events(after=event.cursor) as events:
                for _ in range(2):
                    event = next(events)
                    received.append(event.id)
            received.pop()
        with site.presence.events(after=event.cursor) as events:
            received += [event.id] + [next(events).id for _ in range(30 - len(received) - 1)]
    assert sorted(received) == sorted(ids)


def test_whoever_resumes_within_an_entry_gets_all_of_it_again(own: Server, prefix: str) -> None:
    site = FollowedSite(own.url, prefix)
    with site.presence.events() as events:
        wait_until(lambda: site.presence.backend.feed("user").page.end.positions)
        moment = int(NOON * 1e6)
        site.run(record(site.store.all[0], [(id, moment, moment) for id in ("ann", "bob")]))
        cursors = [next(events).cursor for _ in range(2)]
        with site.presence.events(after=cursors[0]) as again:
            assert [next(again).id for _ in range(2)] == ["ann", "bob"]
        site.saw("cy")
        with site.presence.events(after=cursors[1]) as again:
            assert next(again).id == "cy"
    site.close()


def test_a_cursor_of_what_was_trimmed_is_lost(site: FollowedSite) -> None:
    with site.presence.events() as events:
        site.saw("ann")
        cursor = next(events).cursor
        site.saw("bob")
        next(events)
    shard = site.store.shard_for("bob").name
    with redis.Redis.from_url(site.url) as client:
        client.xtrim(f"{shard}:changes", maxlen=0, approximate=False)
    with site.presence.events(after=cursor) as events:
        with pytest.raises(EventsLost):
            next(events)
        site.saw("cy")
        assert next(events).id == "cy"


def test_a_hole_in_the_stream_is_lost(
    own: Server, prefix: str, followers: Callable[..., Follower]
) -> None:
    site = FollowedSite(own.url, prefix)
    follower = followers(site.presence)
    site.saw("ann")
    wait_until(lambda: follower.online == {"ann"})
    with redis.Redis.from_url(own.url) as client, client.pipeline() as pipeline:
        client.hincrby(f"{prefix}:user:progress", "n", 1)  # as after an entry that nobody has
    site.saw("bob")
    wait_until(lambda: follower.lost)
    site.saw("cy")
    wait_until(lambda: follower.online == {"ann", "bob", "cy"})
    assert pipeline is not None
    site.close()


def test_lost_data_is_reported_and_a_follower_ends_right(
    site: FollowedSite, own: Server, followers: Callable[..., Follower]
) -> None:
    follower = followers(site.presence)
    site.saw(*"abcdef")
    wait_until(lambda: follower.online == set("abcdef"))
    with redis.Redis.from_url(own.url) as client:
        client.flushall()
    wait_until(lambda: follower.lost and follower.online == set())
    site.clock.now += 11
    site.recorder.run_once()  # notices that its sightings are lost
    assert site.recorder.flush()
    wait_until(lambda: follower.online == set("abcdef"))


def test_a_server_that_went_back_in_time_is_noticed(
    own: Server, prefix: str, followers: Callable[..., Follower]
) -> None:
    site = FollowedSite(own.url, prefix)
    follower = followers(site.presence)
    site.saw("ann")
    wait_until(lambda: follower.online == {"ann"})
    with redis.Redis.from_url(own.url) as client:
        names = client.keys(f"{prefix}:*")
        older = {name: client.dump(name) for name in names}
        site.clock.now += 1
        site.saw("bob")
        wait_until(lambda: follower.online == {"ann", "bob"})
        with client.pipeline() as pipeline:  # as after a failover to a replica that lagged
            for name, value in older.items():
                pipeline.restore(name, 600_000, value, replace=True)
            pipeline.execute()
    wait_until(lambda: follower.lost and follower.online == {"ann"})
    site.recorder.backend.health.lost_connection()
    for _ in range(2):  # notices that its sightings are lost, and writes them again
        site.recorder.run_once()
    wait_until(lambda: follower.online == {"ann", "bob"})
    site.close()


def test_a_loop_receives_more_joins_than_a_page_has(
    own: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "PAGE_BYTES", page_module.PAGE_BYTES // 5)
    site = FollowedSite(own.url, prefix)
    with site.presence.events() as slow, site.presence.events() as events:
        wait_until(lambda: site.presence.backend.feed("user").page.end.positions)
        crowd = [f"user{number}" for number in range(20_000)]
        site.saw(*crowd)
        assert {next(events).id for _ in crowd} == set(crowd)
        assert {next(slow).id for _ in crowd} == set(crowd), "also from behind the page"
    site.close()


def test_a_reader_that_is_more_than_five_minutes_behind_gets_an_error(
    site: FollowedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "PAGE_BYTES", 0)
    with site.presence.events() as slow, site.presence.events() as fast:
        wait_until(lambda: site.presence.backend.feed("user").page.end.positions)
        for number in range(10):
            site.saw(f"user{number}")
            assert next(fast).id == f"user{number}"
        with redis.Redis.from_url(site.url) as client:
            for shard in site.store.all:
                client.xtrim(f"{shard.name}:changes", maxlen=0, approximate=False)
        with pytest.raises(EventsLost):
            list(slow)
        site.saw("ann")
        assert next(slow).id == next(fast).id == "ann"


def test_events_of_five_minutes_ago_are_removed_while_others_come(own: Server, prefix: str) -> None:
    site = FollowedSite(own.url, prefix)
    key = f"{prefix}:user:changes"
    site.saw("ann")
    with redis.Redis.from_url(own.url) as client:
        _make_older(client, key, 301)
        site.saw("bob")
        stored = repr(client.xrange(key))
        assert "ann" not in stored
        assert "bob" in stored
    site.close()


def test_events_of_five_minutes_ago_are_removed_although_nobody_comes(
    own: Server, prefix: str
) -> None:
    site = FollowedSite(own.url, prefix)
    key = f"{prefix}:user:changes"
    site.saw("ann")
    with redis.Redis.from_url(own.url) as client:
        _make_older(client, key, 298)
        site.recorder.run_once()
        for _ in range(3):
            site.clock.now += 60  # the longest pause of the process that does the upkeep
            site.recorder.run_once()
        assert client.exists(key)

        def is_empty() -> bool:
            site.clock.now += 0.01
            site.recorder.run_once()
            return not client.xlen(key)

        wait_until(is_empty)
    site.close()


def _make_older(client: "redis.Redis", key: str, seconds: int) -> None:
    """Let all entries of a stream be older than they are."""
    entries: Any = client.xrange(key)
    client.delete(key)
    for id, fields in entries:
        milliseconds, _, number = id.decode().partition("-")
        client.xadd(key, fields, id=f"{int(milliseconds) - 1000 * seconds}-{number}")
    client.expire(key, 300)


def test_what_comes_before_the_first_answer_of_the_server_is_received(
    site: FollowedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = site.presence.backend.driver

    class Slow:
        """A driver whose first command waits for a connection, while somebody comes."""

        node_of = driver.node_of
        waits = True

        def run(self, plan: Any) -> Any:
            return driver.run(self._waiting(plan))

        def _waiting(self, plan: Any) -> Any:
            replies: Any = None
            while True:
                try:
                    batch = plan.send(replies)
                except StopIteration as end:
                    return end.value
                if self.waits:
                    self.waits = False
                    site.saw("ann")
                    time.sleep(0.05)
                replies = yield batch

    slow = Slow()
    feed = site.presence.backend.feed("user")
    monkeypatch.setattr(feed, "_upkeep", lambda: None)
    monkeypatch.setattr(feed, "_is_announced", lambda: True)
    monkeypatch.setattr(feed.streams, "_get_driver", lambda: slow)
    with site.presence.events() as events:
        wait_until(lambda: feed.page.end.positions)
        site.saw("bob")
        assert {next(events).id for _ in range(2)} == {"ann", "bob"}


def test_a_loop_receives_all_joins_beside_hundreds_of_others(own: Server, prefix: str) -> None:
    site = FollowedSite(own.url, prefix)
    crowd = [f"user{number}" for number in range(5000)]

    async def count(events: AsyncEvents) -> int:
        number = 0
        async with events:
            async for _ in events:
                number += 1
                if number == len(crowd):
                    break
        return number

    async def test() -> list[int]:
        presence = AsyncPresence(site.settings, clock=site.clock)
        counting = [asyncio.create_task(count(presence.events())) for _ in range(500)]
        page = presence.backend.feed("user").page
        await asyncio.to_thread(wait_until, lambda: page.end.positions)
        await asyncio.to_thread(site.saw, *crowd)
        return await asyncio.gather(*counting)

    assert asyncio.run(test()) == [len(crowd)] * 500
    site.close()


@pytest.mark.parametrize("among", [None, ["user7"]])
def test_streams_keep_no_events(own: Server, prefix: str, among: list[str] | None) -> None:
    """Or else the garbage collector soon looks at all objects of the process, in its event loop."""
    site = FollowedSite(own.url, prefix)
    crowd = [f"user{number}" for number in range(5000)]

    async def send(events: AsyncEvents) -> None:
        received = ""
        async with aclosing(server_sent_events(events)) as messages:
            async for message in messages:
                received += message
                if '"id":"user7"' in received and (among or received.count("data:") == 5000):
                    return

    async def test() -> None:
        presence = AsyncPresence(site.settings, clock=site.clock)
        sending = [asyncio.create_task(send(presence.events(among=among))) for _ in range(10)]
        page = presence.backend.feed("user").page
        await asyncio.to_thread(wait_until, lambda: page.end.positions)
        await asyncio.to_thread(site.saw, *crowd)
        await asyncio.gather(*sending)
        assert sum(type(each) is Event for each in gc.get_objects()) < 100

    gc.collect()
    events_of.cache_clear()
    asyncio.run(test())
    site.close()


def test_a_stream_that_is_too_large_is_shortened_with_a_warning(
    own: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = FollowedSite(own.url, prefix)
    key = f"{prefix}:user:changes"
    for number in range(150):
        site.saw(f"user{number}")
    with redis.Redis.from_url(own.url) as client:
        entries = client.xlen(key)
        # As if the entries were larger: the difference of their numbers is their size.
        client.hincrby(f"{prefix}:user:progress", "n", 64 * 1024 * 1024)
        assert "the oldest are dropped" not in caplog.text
        site.saw("ann")
        assert client.xlen(key) == entries + 1 - 100
    assert "the oldest are dropped" in caplog.text
    site.close()


def test_a_second_thread_on_an_iterator_is_refused(site: FollowedSite) -> None:
    received: list[str] = []
    with site.presence.events() as events:
        thread = threading.Thread(target=lambda: received.extend(each.id for each in events))
        thread.start()
        wait_until(lambda: site.presence.backend.feed("user").waiters)
        with pytest.raises(QueryError, match=r"in use by another.*events\(\)"):
            next(events)
        site.saw("ann")
        wait_until(lambda: received == ["ann"])
    thread.join(10)
    assert not thread.is_alive()


def test_an_iterator_that_waits_for_nothing_is_small(site: FollowedSite) -> None:
    with ExitStack() as stack:
        stack.enter_context(site.presence.events())
        wait_until(lambda: site.presence.backend.feed("user").page.end.positions)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        iterators = [site.presence.events() for _ in range(1000)]
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        for iterator in iterators:
            stack.enter_context(iterator)
        assert taken / len(iterators) < 300


def test_a_listener_sends_a_command_a_second(own: Server, prefix: str) -> None:
    site = FollowedSite(own.url, prefix)
    with site.presence.events(), redis.Redis.from_url(own.url) as client:
        wait_until(lambda: site.presence.backend.feed("user").page.end.positions)
        client.config_resetstat()
        began = time.monotonic()

        def is_counted() -> bool:
            sent = client.info("commandstats")
            return "cmdstat_hget" in sent and sent["cmdstat_hget"]["calls"] >= 20

        wait_until(is_counted)
        sent = client.info("commandstats")
        seconds = time.monotonic() - began
        sent = {
            name: each["calls"]
            for name, each in sent.items()
            if name not in {"cmdstat_info", "cmdstat_config|resetstat"}
        }
        assert sent.pop("cmdstat_hget") <= seconds / TICK + 1
        assert sum(sent.values()) <= 5, sent
    site.close()


def test_an_outage_is_reported_and_nothing_is_missing_after_it(
    own: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_module, "OUTAGE_SECONDS", 0.2)
    site = FollowedSite(own.url, prefix)
    with site.presence.events() as events:
        site.saw("ann")
        assert next(events).id == "ann"
        own.stop()
        with pytest.raises(PresenceUnavailable, match="no events can be read"):
            next(events)
        own.start()
        wait_until(lambda: _is_lost(events))  # it restarted empty
    site.close()


def test_a_follower_that_starts_in_an_outage_gets_an_error_and_goes_on(
    own: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_module, "OUTAGE_SECONDS", 0.2)
    site = FollowedSite(own.url, prefix)
    own.stop()
    with site.presence.events() as events:
        with pytest.raises(PresenceUnavailable):
            next(events)
        own.start()
        wait_until(lambda: site.presence.backend.feed("user").page.end.positions)
        site.saw("ann")
        event = None
        while event is None:
            with suppress(PresenceUnavailable):
                event = next(events)
        assert event.id == "ann"
    site.close()


def test_a_key_of_another_program_is_an_outage_of_its_shard_only(
    own: Server, prefix: str, followers: Callable[..., Follower]
) -> None:
    site = FollowedSite(own.url, prefix, shards=4)
    follower = followers(site.presence)
    ids = [f"user{number}" for number in range(20)]
    wrong = site.store.shard_for(ids[0])
    with redis.Redis.from_url(own.url) as client:
        client.set(f"{wrong.name}:progress", "text")
    there = [id for id in ids if site.store.shard_for(id) is not wrong]
    site.saw(*there)
    wait_until(lambda: follower.online == set(there))
    site.clock.now += WINDOW + LAG + 1
    wait_until(lambda: not follower.online)
    site.close()


def test_a_thousand_iterators_read_each_stream_once_a_second(
    own: Server, prefix: str, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "READ_EVERY", 0.4)
    site = FollowedSite(own.url, prefix, shards=shards)
    with redis.Redis.from_url(own.url) as client, ExitStack() as stack:
        every = [stack.enter_context(site.presence.events()) for _ in range(1000)]
        wait_until(lambda: site.presence.backend.feed("user").page.end.positions)
        client.config_resetstat()
        with Stopwatch() as watch:
            site.saw("ann")
            assert {next(events).id for events in every} == {"ann"}
            wait_until(lambda: watch.seconds > 1.3)
            reads = client.info("commandstats")["cmdstat_xrange"]["calls"]
        assert 0 < reads <= shards * (watch.seconds / 0.4 + 1)
    site.close()


def is_nobody_reading() -> bool:
    return "presence-events" not in [thread.name for thread in threading.enumerate()]


def test_the_streams_are_read_only_while_somebody_follows(own: Server, prefix: str) -> None:
    site = FollowedSite(own.url, prefix)
    events = site.presence.events()
    assert not is_nobody_reading()
    del events  # nobody refers to it any more
    wait_until(is_nobody_reading)
    with site.presence.events() as events:
        site.saw("ann")
        assert next(events).id == "ann"
    site.close()


def commands_of(own: Server, prefix: str, **given: Any) -> list[str]:
    """Return every command that a process sends for users that come, stay, leave and are asked."""
    site = FollowedSite(own.url, prefix, kind="user", **{"events": (), **given})
    sent: list[str] = []
    with redis.Redis.from_url(own.url) as marking, redis.Redis.from_url(own.url) as watching:
        marking.script_flush()
        with watching.monitor() as monitor:
            for _ in range(3):
                site.saw("ann", "bob")
                site.recorder.run_once()
                site.presence.leave("ann")
                site.presence.touch("bob")
                site.presence.count()
                site.presence.online()
                site.clock.now += 31
            marking.echo("end")
            while (command := monitor.next_command())["command"] != "ECHO end":
                if command["client_type"] != "lua":
                    sent.append(command["command"])
        marking.flushall()
        marking.script_flush()
    site.close()
    process = site.recorder._writer._lost._process
    sent = [re.sub(r"(:upkeep) \w{16}", r"\1 HOLDER", each) for each in sent]
    return [each.replace(process, "PROCESS") for each in sent if prefix in each]


def test_without_events_the_commands_are_those_of_a_site_that_never_heard_of_them(
    own: Server, prefix: str
) -> None:
    off = commands_of(own, prefix)
    assert off == commands_of(own, prefix, events=())
    # Every process publishes its settings, also that it has no events.
    text = "\n".join(off).replace(" PRESENCE_EVENTS= ", " ")
    for word in (":progress", ":changes", ":swept", "XADD", "PRESENCE_EVENTS"):
        assert word not in text, word
    names = Counter(command.split()[0] for command in off)
    assert set(names) <= {
        "EVAL",
        "EVALSHA",
        "ZADD",
        "EXPIRE",
        "ZRANGE",
        "SET",
        "GET",
        "ZCARD",
        "ZCOUNT",
        "ZREM",
        "ZREMRANGEBYSCORE",
        "HSET",
        "HMGET",
        "HGET",
        "ZSCORE",
        "ZMSCORE",
        "EXISTS",
        "HSETNX",
        "GETEX",
        "PTTL",
    }, names


def test_events_of_another_kind_change_no_command_for_this_one(own: Server, prefix: str) -> None:
    def of_users(commands: list[str]) -> list[str]:
        return [each for each in commands if ":user:" in each and "PRESENCE" not in each]

    off = of_users(commands_of(own, prefix))
    on = of_users(commands_of(own, prefix, events="guest"))
    assert [each for each in on if ":guest:" not in each] == [
        each for each in off if ":guest:" not in each
    ]


def test_a_process_with_other_events_is_warned_of(
    own: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = FollowedSite(own.url, prefix)
    other = Recorder(settings(own.url, prefix, flush_interval=1), clock=one.clock, background=False)
    one.saw("ann")
    other.record(("user", "bob"), one.clock.now)
    assert other.flush()
    assert "PRESENCE_EVENTS is 'user' in another process of this site" in caplog.text
    caplog.clear()
    one.clock.now += 20  # the agreement is checked again now and then
    one.saw("ann")
    assert "PRESENCE_EVENTS is '' in another process of this site" in caplog.text
    assert "PRESENCE_STORE" not in caplog.text
    one.close()
    other.close()


@pytest.mark.slow
def test_a_node_that_is_away_stops_only_its_own_events(
    tmp_path: Path, prefix: str, followers: Callable[..., Follower]
) -> None:
    cluster = Cluster(tmp_path)
    site = FollowedSite(cluster.url, prefix, shards=6)
    ids = [f"user{number}" for number in range(30)]

    def node_of(id: str) -> Node:
        return cluster.owner_of(site.store.shard_for(id).name)

    try:
        follower = followers(site.presence)
        site.saw(*ids)
        wait_until(lambda: follower.online == set(ids))
        lost = cluster.owner_of(keys.upkeep(prefix))  # also the node of the lease
        there = [id for id in ids if node_of(id) is not lost]
        away = [id for id in ids if node_of(id) is lost]
        lost.process.send_signal(19)
        for id in there:
            site.presence.leave(id)
        wait_until(lambda: not follower.online & set(there))
        for id in there:
            wait_until(partial(_touches, site.presence, id))
        wait_until(lambda: follower.online == set(ids))
        site.clock.now += WINDOW + LAG + 1
        wait_until(lambda: follower.online == set(away))  # the others are swept
        lost.process.send_signal(18)
        wait_until(lambda: follower.online == set())
        assert follower.lost == 0
        follower.close()
        wait_until(is_nobody_reading)
    finally:
        site.close()
        cluster.close()


def _is_lost(events: Iterator[Event]) -> bool:
    try:
        next(events)
    except PresenceUnavailable:
        return False
    except EventsLost:
        return True
    raise AssertionError("an event of an empty server")


def _touches(presence: Presence, id: str) -> bool:
    try:
        presence.touch(id)
    except PresenceUnavailable:
        return False
    return True
