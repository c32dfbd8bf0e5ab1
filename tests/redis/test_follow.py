"""Events: who comes and goes is announced once, and what an iterator receives and costs."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from presence_middleware import AsyncPresence, Event, Presence, Settings
from presence_middleware.backend import Backend
from presence_middleware.connections import health
from presence_middleware.errors import EventsLost, PresenceUnavailable, QueryError, UnsupportedQuery
from presence_middleware.events import feed as feed_module
from presence_middleware.events import streams as streams_module
from presence_middleware.events.iterators import AsyncEvents
from presence_middleware.events.streams import events_of
from presence_middleware.sse import RETRY, server_sent_events
from presence_middleware.stores import Act, Batch, Plan, Position, keys, moment_of
from tests.support.asking import in_loop
from tests.support.backends import Server, by_trips, send, wait_until
from tests.support.beside import in_thread
from tests.support.commands import run_program
from tests.support.followed_site import LAG, FollowedSite, Follower
from tests.support.memory import traced
from tests.support.timed_site import NOON, WINDOW, settings

GONE = WINDOW + LAG + 1  # seconds after which a leave is announced by the next sweep
Open = Callable[..., FollowedSite]


TICK = 0.05  # seconds between two reads, instead of one second
Follow = Callable[[FollowedSite], Follower]


@pytest.fixture(autouse=True)
def feeds_read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "READ_EVERY", TICK)


@pytest.fixture
def opened(request: pytest.FixtureRequest, valkey: Server, prefix: str, stack: ExitStack) -> Open:
    """Opens sites, which end with the test, on the server of its own if the test has one."""
    server: Server = request.getfixturevalue("own") if "own" in request.fixturenames else valkey

    def open_site(**given: Any) -> FollowedSite:
        site = FollowedSite(server.url, prefix, **given)
        stack.callback(site.presence.backend.close_events)
        return site

    return open_site


@pytest.fixture(params=[1, 16])
def opens(opened: Open, request: pytest.FixtureRequest) -> Open:
    return lambda **given: opened(**{"shards": request.param, **given})


@pytest.fixture
def site(opened: Open) -> FollowedSite:
    return opened()


@pytest.fixture
def sharded(opens: Open) -> FollowedSite:
    return opens()


# What is announced.


def after(site: FollowedSite, seconds: float) -> list[tuple[str, float]]:
    """Return what is announced after some seconds and a sweep."""
    site.clock.now += seconds
    site.sweep()
    return site.announced()


@pytest.mark.parametrize("rooms", ["", "/t/{topic}"])
def test_events_that_are_turned_on_announce_nobody_who_is_there(opens: Open, rooms: str) -> None:
    opens(events=(), rooms=rooms).saw("ann", "gone", ago=10)
    site = opens(rooms=rooms)
    site.sweep()
    site.saw("ann", "bob")
    assert site.announced() == [("+bob", 0)]
    assert sorted(after(site, GONE)) == [("-ann", 0), ("-bob", 0), ("-gone", -10)]


def test_processes_with_different_windows_lose_no_events(opens: Open) -> None:
    """A deploy that changes `PRESENCE_WINDOW` replaces one process after the other."""
    before, after_deploy = opens(), opens(window=2 * WINDOW)
    before.saw("ann")
    before.sweep()
    before.announced()
    for _ in range(3):
        before.clock.now += GONE / 2
        after_deploy.clock.now = before.clock.now
        after_deploy.sweep()
        before.sweep()
        before.saw("bob")
    assert before.announced() == [("+bob", GONE / 2), ("-ann", 0)]
    after_deploy.saw("ann")
    assert before.announced() == [("+ann", 3 * GONE / 2)]


def test_a_lower_limit_removes_a_bounded_number_in_each_write(opens: Open) -> None:
    crowd = [f"user{number}" for number in range(3000)]
    opens(shards=1).saw(*crowd)
    site = opens(shards=1, max_members=10)
    site.clock.now += WINDOW + 1
    sizes = [3000]
    while sizes[-1] > 10:
        site.saw("ann")
        sizes.append(len(site.run(site.store.all[0].online(site.clock.now, 1e6, None, None))))
    assert all(1 <= a - b <= 1000 for a, b in pairwise(sizes)), sizes
    site.saw("ann")
    announced = site.announced()
    assert len(announced) == len(dict(announced)), "once"


def test_a_crowd_of_one_moment_leaves_in_several_entries(opens: Open) -> None:
    site = opens(shards=1)
    crowd = [f"user{number}" for number in range(5000)]  # open connections of a process
    site.saw(*crowd)
    assert len(site.announced()) == 5000
    announced = after(site, GONE)
    assert len(announced) == 5000
    assert {name for name, _ in announced} == {f"-{id}" for id in crowd}
    entries = site.run(site.streams[0].read(Position("0", 0))).announcements
    assert max(len(each.changes) for each in entries) <= 250


def test_whoever_logs_out_after_they_have_gone_goes_once(sharded: FollowedSite) -> None:
    sharded.saw("ann")
    assert after(sharded, WINDOW + LAG) == [("+ann", 0), ("-ann", 0)]
    sharded.presence.leave("ann")
    assert sharded.announced() == []


def test_who_was_erased_is_in_the_stream_for_five_minutes_at_most(sharded: FollowedSite) -> None:
    sharded.saw("ann")
    sharded.saw("ann", act=Act.GOODBYE)
    assert sharded.keys_with("ann") == {"seen", "changes", "bye"}
    sharded.presence.forget("ann")
    assert sharded.keys_with("ann") == {"changes"}
    assert 0 < sharded.lifetime("ann", "changes") <= 300


def test_who_is_erased_before_they_were_written_is_never_announced(sharded: FollowedSite) -> None:
    sharded.recorder.record(("user", "ann"), sharded.clock.now)
    sharded.recorder.depart(("user", "ann"), Act.ERASED)
    assert sharded.recorder.flush()
    assert sharded.keys_with("ann") == set()
    assert sharded.announced() == []


def test_cleaning_removes_nobody_who_was_not_announced(opens: Open) -> None:
    site = opens(kind="guest")  # kept no longer than the window
    site.saw("cy")
    site.announced()
    site.clock.now += WINDOW + LAG - 1
    site.clean_up()
    assert site.announced() == []
    site.clock.now += 2
    site.clean_up()
    assert site.announced() == [("-cy", 0)]
    assert site.keys_with("cy") == {"changes"}
    site.saw("dee")
    assert site.announced() == [("+dee", WINDOW + LAG + 1)], "an empty set is no lost data"


def test_last_seen_times_outlive_a_leave_that_is_announced_late(opens: Open) -> None:
    site = opens(kind="guest", flush_interval=150)
    site.saw("cy")
    site.announced()
    late = WINDOW + (site.settings.lag_seconds("guest") or 0)
    assert site.lifetime("cy", "seen") > late
    site.clock.now += late - 1
    site.clean_up()
    assert site.announced() == []
    assert after(site, 2) == [("-cy", 0)]


def test_nobody_is_told_of_a_loss_when_all_guests_have_gone(opens: Open) -> None:
    """Their last-seen times expire long before the next sweep, and soon after the last leave."""
    site = opens(kind="guest")
    site.saw("cy")
    site.announced()
    seen = f"{site.store.shard_for('cy').name}:seen"
    site.run(send("EXPIRE", seen, 30))
    assert after(site, GONE) == [("-cy", 0)]
    assert 0 < site.lifetime("cy", "seen") <= 30
    assert site.lifetime("cy", "progress") > WINDOW
    site.run(send("DEL", seen))
    assert site.announced() == []


def test_nothing_counts_on_a_site_that_slept_until_its_keys_expired(sharded: FollowedSite) -> None:
    """A process that outlives the last visitor sweeps, and makes no key live longer."""
    sharded.saw("ann")
    sharded.run(send("EXPIRE", f"{sharded.store.shard_for('ann').name}:seen", 400))
    sharded.sweep()
    assert 0 < sharded.lifetime("ann", "progress") <= 400


def test_after_a_clock_was_set_back_rooms_are_empty_and_people_come_again(opens: Open) -> None:
    site, other = (opens(rooms="/t/{topic}") for _ in range(2))

    def enters(id: str, process: FollowedSite = site) -> None:
        process.clock.now = site.clock.now
        process.saw(id, room="/t/1")

    site.sweep()
    enters("ann")
    site.clock.now += WINDOW + 5
    site.sweep()
    enters("cid")
    site.clock.now -= WINDOW + 3600
    site.sweep()
    assert site.presence.count(room="/t/1") == 0
    with pytest.raises(EventsLost):
        site.announced()
    site.positions = [site.run(stream.position()) for stream in site.streams]
    enters("bob")
    enters("cid", other)
    assert [each.id for each in site.presence.online(room="/t/1")] == ["bob", "cid"]
    assert site.announced() == [("+bob", -3595.0)]


def test_after_a_clock_was_set_back_by_more_than_a_short_window_people_come(opens: Open) -> None:
    site = opens(window=60)
    site.sweep()
    site.clock.now -= 100
    site.sweep()
    site.positions = [site.run(stream.position()) for stream in site.streams]
    site.saw("ann")
    assert site.announced() == [("+ann", -100.0)]


def test_an_event_in_the_millisecond_in_which_a_reader_begins_is_not_missed(opens: Open) -> None:
    site = opens(shards=1)
    site.sweep()
    site.saw("ann")
    (stream,) = site.streams
    *_, (entry, _) = site.run(send("XRANGE", f"{site.store.all[0].name}:changes", "-", "+"))
    milliseconds = int(entry.partition(b"-")[0])

    def at_its_end(batch: Batch) -> Plan[Any]:
        if batch.commands[0][0] == "EVAL":  # it asks for the time
            return [[milliseconds // 1000, milliseconds % 1000 * 1000 + 999]]
        return (yield batch)

    site.positions = [site.run(by_trips(stream.position(time.monotonic()), at_its_end))]
    assert site.announced() == [("+ann", 0)]


@pytest.mark.parametrize("events", ["", "user"])
def test_only_the_kinds_of_the_setting_have_streams(prefix: str, events: str) -> None:
    """Also if goodbyes and rooms need a sweep: others send no command about events."""
    given = {"events": events, "rooms": "/t/{topic}", "pulse_path": "/pulse", "bots": "count"}
    presence, announced = Presence(settings(f"memory://{prefix}", prefix, **given)), []
    for kind, shards in presence.backend.stores.items():
        with suppress(UnsupportedQuery):
            shards.all[0].event_stream()
            announced.append(kind)
    assert announced == [kind for kind in ["user"] if events]
    other = "guest" if events else "user"
    with pytest.raises(UnsupportedQuery, match=f"EVENTS={', '.join([*announced, other])} in all"):
        presence.events(other)
    with pytest.raises(UnsupportedQuery, match="bot, and bot=sorted-set in PRESENCE_STORE, in all"):
        presence.events("bot")


def test_a_goodbye_is_announced_with_its_moment(sharded: FollowedSite) -> None:
    sharded.saw("ann")
    sharded.clock.now += 10
    sharded.saw("ann", act=Act.GOODBYE)
    assert sharded.lifetime("ann", "bye") > 0
    assert sharded.announced() == [("+ann", 0)]
    assert after(sharded, sharded.settings.grace_seconds + LAG + 1) == [("-ann", 10)]
    sharded.saw("bob")
    came = sharded.clock.now - NOON
    sharded.clock.now += 100
    sharded.sweep()
    sharded.saw("bob", act=Act.GOODBYE, ago=90)  # so late that bob has gone by now
    assert sharded.announced() == [("+bob", came), ("-bob", came + 10)]


@pytest.fixture
def followed(stack: ExitStack) -> Follow:
    def follow(site: FollowedSite) -> Follower:
        follower = Follower(site.presence)
        stack.callback(follower.close)
        until_read(site.presence)
        return follower

    return follow


def until_read(presence: Presence | AsyncPresence) -> None:
    wait_until(lambda: presence.backend.feed("user").page.end.positions)


def is_nobody_reading() -> bool:
    return "presence-events" not in [thread.name for thread in threading.enumerate()]


# What is received.


def test_a_thread_receives_who_comes_and_goes(sharded: FollowedSite, followed: Follow) -> None:
    site, follower = sharded, followed(sharded)
    site.saw("ann")
    wait_until(lambda: follower.names() == ["+ann"])
    site.clock.now += WINDOW + LAG + 1
    wait_until(lambda: follower.names() == ["+ann", "-ann"])  # this process sweeps
    came, went = follower.received
    assert (came.kind, came.id, came.online, came.at) == ("user", "ann", True, moment_of(NOON))
    assert (went.online, went.at) == (False, moment_of(NOON))
    assert follower.lost == 0


@in_loop
async def test_coroutines_receive_who_comes_and_goes(site: FollowedSite) -> None:
    received = []
    presence = AsyncPresence(site.settings, clock=site.clock)
    async with presence.events(among=["ann", "bob"]) as events:
        site.saw("ann", "bob", "cy")
        async for event in events:
            received.append(("-+"[event.online]) + event.id)
            if len(received) == 2:
                site.presence.leave("ann")
            elif not event.online:
                break
    assert [event async for event in events] == []
    *came, went = received
    assert (set(came), went) == ({"+ann", "+bob"}, "-ann")


@in_loop
async def test_who_closes_an_iterator_gets_none_of_the_events_it_took(site: FollowedSite) -> None:
    site.saw("ann", "bob")
    with site.presence.events(after="0.0") as events:
        assert next(events).id == "ann"
    assert list(events) == []
    presence = AsyncPresence(site.settings, clock=site.clock)
    async with presence.events(after="0.0") as awaited:
        assert (await anext(awaited)).id == "ann"
    assert [event async for event in awaited] == []
    async with presence.events() as awaited, presence.events() as other:
        until_read(presence)
        site.saw("cid")
        await anext(other)  # both can take it now
        taking = asyncio.create_task(awaited.__anext__())
        await asyncio.sleep(0)
        await awaited.aclose()
        with pytest.raises(StopAsyncIteration):
            await taking
    await presence.aclose()


def test_a_coroutine_that_waits_can_be_cancelled(site: FollowedSite) -> None:
    presence = AsyncPresence(site.settings, clock=site.clock)

    async def wait() -> None:
        async with presence.events() as events:
            await anext(events)

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(wait(), 0.2))
    wait_until(is_nobody_reading)


# With `--preload`, gunicorn patches queues after the app was made.
FOLLOWS = """
from presence_middleware import Presence
from gevent import monkey, spawn

monkey.patch_all()
presence = Presence.from_env()
with presence.events() as events:
    first = spawn(next, events)
    spawn(presence.touch, "ann")
    print(first.get().id)
"""
FOLLOWED = """
from threading import Thread
from presence_middleware import Presence
from gevent import monkey

presence = Presence.from_env()
with presence.events() as events:
    presence.touch("bob")
    next(events)
    reader = Thread(target=lambda: print(next(events).id), daemon=True)
    reader.start()
    while not presence.backend.feed("user").waiters:
        pass
    monkey.patch_all()
    presence.touch("ann")
    reader.join(10)
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
while not (holder := client.get(key)):
    time.sleep(0.01)
if not os.fork():
    began = time.monotonic()
    events.close()
    os._exit(time.monotonic() - began > 1)  # there is no thread that would give a lease up
_, has_waited = os.wait()
is_held = client.persist(key)  # until the parent renews it
while client.pttl(key) < 0:
    time.sleep(0.01)
print(is_held and client.get(key) == holder and not has_waited)
"""
FORKED = "this iterator was opened before a fork: open it in each process\nann\n"
PROGRAMS = {
    "events hold no other greenlet when gevent patches late": (FOLLOWS, "ann\n"),
    "events go on when gevent patches later still": (FOLLOWED, "ann\n"),
    "an iterator belongs to the process that opened it": (FORK, FORKED),
    "a name belongs to the process that opened its iterator": (FORK_WITH_NAME, "True\n"),
}


@pytest.mark.parametrize(("program", "output"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_forks_or_is_patched_receives_events(
    variables: dict[str, str], program: str, output: str
) -> None:
    done = run_program(program, **variables, PRESENCE_EVENTS="user")
    assert done.stdout == output
    assert done.stderr == "" or "gevent" in program  # which warns of what it patches late


def test_iterators_that_wait_for_their_turn_hold_no_event_loop(site: FollowedSite) -> None:
    presence = AsyncPresence(site.settings, clock=site.clock)

    async def follow() -> "weakref.ref[Any]":
        iterators = [presence.events() for _ in range(10)]
        await asyncio.gather(*(each.wait_for_batch(0) for each in iterators))
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(follow())
    gc.collect()
    assert loop() is None


CURSORS = ["", "0", "x", "1-0", "1-0.1.2", "1-0.1,", "-1-0.1", "1-0.1 ", "1-1.x", "\u0661.1", 7]
CURSORS += ["99999999999999999999-0.1", "1.1,1.1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"after": after}, "pass the cursor of an event") for after in CURSORS),
        ({"among": map(str, range(1001))}, "1000"),
        *(({"name": name}, "name is ") for name in ("", "a b", "é", "x" * 65, 5, b"mailer", "a\n")),
        ({"name": "mailer", "after": "1-1.1"}, "name or after"),
    ],
)
def test_what_is_no_cursor_or_name_and_too_many_ids_are_refused(
    prefix: str, given: dict[str, Any], message: str
) -> None:
    presence = Presence(settings(f"memory://{prefix}", prefix, events="user"))
    with pytest.raises(QueryError, match=message):
        presence.events(**given)
    for name in ("a", "Az_09.:-", "x" * 64):
        presence.events(name=name).close()


def test_whoever_resumes_within_an_entry_gets_all_of_it_again(site: FollowedSite) -> None:
    with site.presence.events() as events:
        until_read(site.presence)
        moment = int(NOON * 1e6)
        site.run(site.store.all[0].write([(id, moment, moment, None) for id in ("ann", "bob")], ()))
        cursors = [next(events).cursor for _ in range(2)]
        with site.presence.events(after=cursors[0]) as again:
            assert [next(again).id for _ in range(2)] == ["ann", "bob"]
        site.saw("cy")
        with site.presence.events(after=cursors[1]) as again:
            assert next(again).id == "cy"


def test_a_cursor_outlives_its_entry_and_the_beginning_does_not(site: FollowedSite) -> None:
    site.saw("ann")
    with site.presence.events(after="0.0") as events:
        cursor = next(events).cursor
    site.redis.xtrim(site.key.changes, maxlen=0)  # as five minutes later
    presence = Presence(backend=Backend(site.settings))
    with presence.events():
        until_read(presence)
        feed = presence.backend.feed("user")
        after = feed.streams.parse_cursor(cursor)
        assert not feed.streams.read(after, feed.page.end.positions).chunks, "nothing is lost"
    site.saw("dan")
    with presence.events(after="0.0") as events, pytest.raises(EventsLost):
        next(events)


def test_more_joins_than_a_page_arrive(site: FollowedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "PAGE_BYTES", streams_module.PAGE_BYTES // 40)
    with site.presence.events() as slow, site.presence.events() as events:
        until_read(site.presence)
        crowd = [f"user{number}" for number in range(5000)]
        site.saw(*crowd)
        assert {next(events).id for _ in crowd} == set(crowd)
        assert {next(slow).id for _ in crowd} == set(crowd), "also from behind the page"
        end = site.presence.backend.feed("user").page.end
        site.saw("late")
        assert next(events).id == "late"
        assert not site.presence.backend.feed("user").page.is_behind(end), (
            "what is new is in the page again"
        )


@pytest.mark.parametrize("among", [None, ["user7"]])
@in_loop
async def test_streams_keep_no_events(own: Server, prefix: str, among: list[str] | None) -> None:
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

    gc.collect()
    events_of.cache_clear()
    presence = AsyncPresence(site.settings, clock=site.clock)
    sending = [asyncio.create_task(send(presence.events(among=among))) for _ in range(10)]
    page = presence.backend.feed("user").page
    await asyncio.to_thread(wait_until, lambda: page.end.positions)
    await asyncio.to_thread(site.saw, *crowd)
    await asyncio.gather(*sending)
    assert sum(type(each) is Event for each in gc.get_objects()) < 100


@in_loop
async def test_a_crowd_of_streams_takes_turns_and_gets_one_text(site: FollowedSite) -> None:
    """Or else no page is answered until each stream has encoded, and sent, all that came."""
    presence = AsyncPresence(site.settings, clock=site.clock)
    streams = [server_sent_events(presence.events()) for _ in range(50)]
    assert {await anext(stream) for stream in streams} == {RETRY}
    tasks = [asyncio.create_task(anext(stream)) for stream in streams]
    waiters = presence.backend.feed("user").waiters
    await asyncio.to_thread(wait_until, lambda: len(waiters) == len(streams))
    site.saw("ann", "bob")
    done = [0]
    while done[-1] < len(streams):
        await asyncio.sleep(0)
        done.append(sum(task.done() for task in tasks))
    assert max(now - before for before, now in pairwise(done)) <= 4
    assert len({id(task.result()) for task in tasks}) == 1
    for stream in streams:
        await stream.aclose()


def test_a_reader_holds_few_events(site: FollowedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the events of a large site, and of all bounds."""
    for name in ("CHUNK_BYTES", "PAGE_BYTES"):
        monkeypatch.setattr(streams_module, name, getattr(streams_module, name) // 10)
    with site.presence.events() as events:
        until_read(site.presence)
        site.saw("first")
        start = next(events).cursor
    for part in range(320):
        site.saw(*(f"user{25 * part + number}" for number in range(25)))

    async def read_messages() -> None:
        presence = AsyncPresence(site.settings, clock=site.clock)
        events = presence.events(after=start)
        async with aclosing(server_sent_events(events)) as messages:
            async for message in messages:
                if "user7999" in message:
                    return

    with traced() as held:
        asyncio.run(read_messages())
        assert held() < 700_000
    for among in (None, ["user7999"]):
        with traced() as held, site.presence.events(after=start, among=among) as events:
            next(event for event in events if event.id == "user7999")
            assert held() < 700_000


@pytest.mark.parametrize("had_events", [False, True])
def test_nothing_before_the_answer_is_missed(sharded: FollowedSite, *, had_events: bool) -> None:
    site = sharded
    if had_events:
        site.saw("ann", "bob")
        site.presence.leave("ann")
        site.presence.leave("bob")
        for shard in site.store.all:
            site.redis.xtrim(f"{shard.name}:changes", maxlen=0)  # as five minutes later
        site.clock.now += 1

    class Slow(redis.ConnectionPool):
        """A pool whose first connection takes a while, in which somebody comes."""

        has_waited = False

        def get_connection(self, *given: Any, **more: Any) -> Any:
            if not self.has_waited:
                self.has_waited = True
                site.saw("ann")
                time.sleep(0.05)
            return super().get_connection(*given, **more)

    with redis.Redis(connection_pool=Slow.from_url(site.url)) as slow:
        presence = Presence(site.settings, client=slow, clock=site.clock)
        with presence.events() as events:
            until_read(presence)
            site.saw("bob")
            assert {next(events).id for _ in range(2)} == {"ann", "bob"}
        presence.backend.close_events()


# What is missed.


def test_a_reader_that_is_more_than_five_minutes_behind_gets_an_error(
    sharded: FollowedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "PAGE_BYTES", 0)
    site = sharded
    with site.presence.events() as slow, site.presence.events() as fast:
        until_read(site.presence)
        for number in range(4):
            site.saw(f"user{number}")
            assert next(fast).id == f"user{number}"
        for shard in site.store.all:
            site.redis.xtrim(f"{shard.name}:changes", maxlen=0, approximate=False)
        with pytest.raises(EventsLost):
            list(slow)
        site.saw("ann")
        assert next(slow).id == next(fast).id == "ann"


def test_entries_from_before_a_loss_of_their_numbers_stop_no_write(site: FollowedSite) -> None:
    site.saw("ann")
    site.redis.delete(site.key.progress, site.key.changes)
    site.redis.xadd(site.key.changes, {"1700000000000000": '["+ann",1]'})
    site.positions = [site.run(stream.position()) for stream in site.streams]
    site.saw("bob")
    assert site.announced() == [("+bob", 0)]


def test_whoever_goes_on_after_an_event_that_a_server_lost_is_told(site: FollowedSite) -> None:
    """Also if others came meanwhile, whose entry has the number of the lost one."""
    with site.presence.events() as events:
        until_read(site.presence)
        site.presence.touch("zoe")
        assert next(events).id == "zoe"
        keys = site.redis.keys(f"{site.settings.prefix}:*")
        saved = {key: site.redis.dump(key) for key in keys}
        site.presence.touch("ann")
        cursor = next(events).cursor
    for key, value in saved.items():
        site.redis.restore(key, 0, value, replace=True)
    presence = Presence(backend=Backend(site.settings))
    presence.touch("bob")
    with presence.events(after=cursor) as events:
        until_read(presence)
        presence.touch("cid")
        with pytest.raises(EventsLost):
            next(events)


def test_a_server_that_evicts_the_numbers_of_events_is_no_endless_loss(site: FollowedSite) -> None:
    site.saw("ann")
    site.announced()
    site.redis.delete(site.key.progress)
    with pytest.raises(EventsLost):
        site.announced()
    site.positions = [site.run(stream.position()) for stream in site.streams]
    assert site.announced() == []
    site.saw("bob")
    assert site.announced() == [("+bob", 0)]


def test_events_of_five_minutes_ago_are_removed_even_if_nobody_comes(site: FollowedSite) -> None:
    key, client = site.key.changes, site.redis

    def make_older(seconds: int) -> None:
        """Let all entries of the stream be older than they are."""
        entries = client.xrange(key)
        client.delete(key)
        for id, fields in entries:
            milliseconds, _, number = id.decode().partition("-")
            client.xadd(key, fields, id=f"{int(milliseconds) - 1000 * seconds}-{number}")
        client.expire(key, 300)

    site.saw("ann")
    make_older(301)
    site.saw("bob")
    stored = repr(client.xrange(key))
    assert ("ann" in stored, "bob" in stored) == (False, True)
    make_older(299)
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


def test_a_full_stream_is_shortened(site: FollowedSite, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(250):
        site.saw(f"user{number}")
    entries = site.redis.xlen(site.key.changes)
    # As if the entries were larger: the difference of their numbers is their size.
    site.redis.hincrby(site.key.progress, "n", 64 * 1024 * 1024)
    assert "the oldest are dropped" not in caplog.text
    site.saw("ann")
    assert site.redis.xlen(site.key.changes) == entries + 1 - 100
    site.redis.hincrby(site.key.progress, "n", 64 * 1024 * 1024)
    site.saw("bob")
    assert caplog.text.count("the oldest are dropped") == 1, "it is said once a minute"


@pytest.mark.parametrize("is_first", [False, True])
def test_an_outage_is_reported_and_the_iterator_goes_on(
    site: FollowedSite, own: Server, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """Also if the iterator begins in the outage."""
    monkeypatch.setattr(health, "OUTAGE_SECONDS", 0.2)
    if is_first:
        own.stop()
    with site.presence.events() as events:
        if not is_first:
            site.saw("ann")
            assert next(events).id == "ann"
            own.stop()
        with pytest.raises(PresenceUnavailable, match="no events can be read"):
            next(events)
        own.start()
        feed = site.presence.backend.feed("user")
        wait_until(lambda: feed.outage.since is None)  # so that the next one is reported in time
        if not is_first:
            wait_until(lambda: _is_lost(events))  # it restarted empty
            return
        until_read(site.presence)
        site.saw("ann")
        event = None
        while event is None:
            with suppress(PresenceUnavailable):
                event = next(events)
        assert event.id == "ann"


def test_an_outage_is_reported_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, outage = list(range(35)), health.Outage()
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=iter(seconds).__next__))
    reported = [second for second in seconds if outage.note(PresenceUnavailable("away"))]
    assert reported == [10, 20, 30]


def test_a_key_of_another_program_is_an_outage_of_its_shard(
    opened: Open, followed: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = opened(shards=4)
    follower = followed(site)
    ids = [f"user{number}" for number in range(20)]
    wrong = site.store.shard_for(ids[0])
    site.redis.set(f"{wrong.name}:progress", "text")
    there = [id for id in ids if site.store.shard_for(id) is not wrong]
    site.saw(*there)
    wait_until(lambda: follower.online == set(there))
    site.clock.now += WINDOW + LAG + 1
    wait_until(lambda: not follower.online)
    monkeypatch.setattr(health, "OUTAGE_SECONDS", 0.0)
    for shard in site.store.all:
        site.redis.set(f"{shard.name}:progress", "text")
    with site.presence.events() as events, pytest.raises(PresenceUnavailable):
        next(events)


def _is_lost(events: Iterator[Event]) -> bool:
    try:
        next(events)
    except PresenceUnavailable:
        return False
    except EventsLost:
        return True
    raise AssertionError("an event of an empty server")


# Threads, forks and the end.


def test_a_second_thread_on_an_iterator_is_refused(site: FollowedSite) -> None:
    received: list[str] = []
    events = site.presence.events()
    with in_thread(lambda: received.extend(each.id for each in events)), events:
        wait_until(lambda: site.presence.backend.feed("user").waiters)
        with pytest.raises(QueryError, match=r"in use by another.*events\(\)"):
            next(events)
        site.saw("ann")
        wait_until(lambda: received == ["ann"])


def test_the_streams_are_read_only_while_somebody_follows(site: FollowedSite) -> None:
    events = site.presence.events()
    assert not is_nobody_reading()
    del events  # nobody refers to it any more
    wait_until(is_nobody_reading)
    with site.presence.events() as events:
        site.saw("ann")
        assert next(events).id == "ann"


def test_a_reader_that_ends_gives_the_upkeep_up(site: FollowedSite) -> None:
    def holder() -> Any:
        return site.run(send("GET", keys.upkeep(site.settings.prefix)))

    events = site.presence.events()
    wait_until(holder)
    site.presence.backend.close_events()
    wait_until(lambda: holder() is None, 3)
    assert list(events) == []


def test_an_iterator_begins_although_the_first_thread_could_not_start(
    site: FollowedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start")))
        with pytest.raises(RuntimeError):
            site.presence.events()
    with site.presence.events() as events:
        site.saw("ann")
        assert next(events).id == "ann"


def test_all_who_wait_are_woken_although_some_wait_again_meanwhile(site: FollowedSite) -> None:
    feed = site.presence.backend.feed("user")
    woken: list[int] = []

    def wait_again(number: int) -> None:
        woken.append(number)
        feed.waiters.add(lambda: woken.append(-1))

    feed.waiters |= {partial(wait_again, number) for number in range(300)}
    feed.close()
    assert set(woken) == {*range(300)}


def test_an_iterator_that_begins_while_all_are_ended_ends_none_that_begins_later(
    site: FollowedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = site.presence.backend.feed("user")
    closing = threading.Thread(target=feed.close)

    def refer(era: object) -> Any:
        monkeypatch.undo()
        closing.start()
        closing.join(0.2)  # until it waits, or is over
        return weakref.ref(era)

    with site.presence.events() as before:
        monkeypatch.setattr(feed_module, "ref", refer)
        meanwhile = site.presence.events()
        closing.join()
        assert before.is_ended
        assert meanwhile.is_ended
        with site.presence.events() as later:
            assert not later.is_ended


# What it costs.


def test_a_listener_sends_a_command_in_each_read(site: FollowedSite, client: Any) -> None:
    def sent() -> dict[str, int]:
        found = {name: each["calls"] for name, each in client.info("commandstats").items()}
        return {name: calls for name, calls in found.items() if "info" not in name}

    with site.presence.events():
        until_read(site.presence)
        began = time.monotonic()
        client.config_resetstat()
        wait_until(lambda: sent().get("cmdstat_hget", 0) >= 10)
        found = sent()
        assert found.pop("cmdstat_hget") <= (time.monotonic() - began) / TICK + 1
        found.pop("cmdstat_config|resetstat")
        assert sum(found.values()) <= 5, found
        began, before = time.monotonic(), sent()["cmdstat_hget"]
        for _ in range(100):  # iterators that come and go cost no further reads
            site.presence.events().close()
            client.ping()
        assert sent()["cmdstat_hget"] - before <= (time.monotonic() - began) / TICK + 2


@pytest.mark.parametrize("announces", [False, True])
def test_a_reader_warns_once_if_the_processes_that_record_announce_nobody(
    variables: dict[str, str],
    announces: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "CHECK_EVERY", 0.0)
    events = {"PRESENCE_EVENTS": "user, guest"} if announces else {}
    recording = Backend(Settings.from_env({**variables, **events}))
    driver = recording.driver
    driver.run(recording.shared_settings.publish(driver.run(recording.clock.now())))
    presence = Presence(Settings.from_env({**variables, "PRESENCE_EVENTS": "user"}))
    with presence.events() as iterator:
        if not announces:
            wait_until(lambda: caplog.messages)
        for id in "abc":  # the feed goes on, and looks before each read
            presence.touch(id)
            assert next(iterator).id == id
    expected = (
        "a process that records does not announce the events of user, so iterators miss them; "
        "set PRESENCE_EVENTS to the same kinds in all processes"
    )
    assert caplog.messages == ([] if announces else [expected])
