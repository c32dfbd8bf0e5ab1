"""`events(name=)`: of all that use a name, one at a time handles events, and none is missed."""

import asyncio
import gc
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest

from presence_middleware import (
    AsyncPresence,
    Event,
    EventsLost,
    Presence,
    PresenceUnavailable,
    Settings,
)
from presence_middleware.backend import Backend
from presence_middleware.connections.loops import in_thread as to_thread
from presence_middleware.events import feed as feed_module
from presence_middleware.events import streams as pages
from presence_middleware.events.iterators import RELEASE_SECONDS, Events
from presence_middleware.events.streams import cursor_of
from presence_middleware.stores import Batch, Command, Plan, Position, keys
from presence_middleware.stores import events as stores_events
from tests.support.asking import in_loop
from tests.support.backends import Backend as Place
from tests.support.backends import Server, by_trips, send, wait_until
from tests.support.beside import in_thread, on_call
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import settings

GIVEN: dict[str, Any] = {"events": "user, guest"}


class Site:
    """A site and its processes: each has connections and a hub of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.presence = self.process()
        self.opened: list[Events] = []

    def run(self, *command: Any) -> Any:
        return self.presence.run(send(*command))

    def process(self) -> Presence:
        return Presence(backend=Backend(self.settings))

    def named(self, **arguments: Any) -> Events:
        iterator = self.process().events(**{"name": "mailer", **arguments})
        self.opened.append(iterator)
        return iterator

    def holder(self, name: str = "mailer", kind: str = "user") -> Any:
        return self.run("GET", self.lease_key(name, kind))

    def lease_key(self, name: str = "mailer", kind: str = "user") -> str:
        return f"{self.presence.backend.stores[kind].all[0].name}:reader:{name}"

    @property
    def handled_key(self) -> str:
        return keys.handled(self.lease_key())

    def begun(self, iterator: Any, **of: str) -> Any:
        """Wait until an iterator holds the lease, which nobody held."""
        wait_until(lambda: self.holder(**of))
        return iterator

    def come(self, *ids: str) -> None:
        for id in ids:
            self.presence.touch(id)

    def close(self) -> None:
        for iterator in self.opened:
            iterator.close()


def ids(iterator: Iterator[Event], number: int) -> list[str]:
    return [next(iterator).id for _ in range(number)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "READ_EVERY", 0.05)


@pytest.fixture
def site(backend: Place, prefix: str, stack: ExitStack) -> Site:
    given = {**GIVEN, "shards": 1 if "memory" in backend.url else 16}
    return stack.enter_context(closing(Site(settings(backend.url, prefix, **given))))


@pytest.fixture
def plain(valkey: Server, prefix: str, stack: ExitStack) -> Site:
    """A site with four shards on a Valkey server."""
    return stack.enter_context(closing(Site(settings(valkey.url, prefix, **GIVEN, shards=4))))


def test_one_process_at_a_time_handles_events_and_another_goes_on(site: Site) -> None:
    first = site.begun(site.named())
    holder, second = site.holder(), site.named()
    site.come("ann", "bob", "cid")
    seen = ids(first, 2)
    assert site.holder() == holder
    with Stopwatch() as watch:
        first.close()
    assert watch.seconds < RELEASE_SECONDS / 2
    seen += ids(second, 2)
    # The one that was handled is handled once; the one in hand is handled again.
    assert seen[0] not in seen[1:]
    assert sorted(set(seen)) == ["ann", "bob", "cid"]
    assert site.run("TTL", site.handled_key) > 3000
    second.close()
    wait_until(lambda: site.holder() is None)
    assert next(site.named()).id == seen[3]  # it was in hand


def test_another_goes_on_if_a_holder_vanishes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "LEASE_SECONDS", 0.3)
    vanishing = site.begun(site.process().events(name="mailer"))
    site.come("ann", "bob")
    seen = ids(vanishing, 1)
    second = site.named()
    del vanishing
    gc.collect()
    again = ids(second, 2)
    assert seen[0] in again
    assert sorted(again) == ["ann", "bob"]


def test_events_of_other_ids_are_handled_too(plain: Site) -> None:
    first = plain.begun(plain.named(among=["ann"]))
    got: list[str] = []
    with in_thread(lambda: got.extend(event.id for event in first)):
        before = plain.run("GET", plain.handled_key)
        plain.come("bob")
        wait_until(lambda: plain.run("GET", plain.handled_key) != before)
        plain.come("ann")
        wait_until(lambda: got == ["ann"])
        first.close()
    second = plain.named()
    plain.come("cid")
    assert next(second).id == "cid"


@pytest.mark.parametrize("at", ["of old", "of other shards"])
def test_a_place_that_is_gone_loses_events_once(site: Site, at: str) -> None:
    first = site.begun(site.named())
    site.come(*(f"id{n}" for n in range(40)))
    ids(first, 3)
    first.close()
    if at == "of old":
        for shard in site.presence.backend.stores["user"].all:
            site.run("DEL", f"{shard.name}:changes")
    else:
        site.run("SET", site.handled_key, "1-1.1," * 31 + "1-1.1")
    second = site.named()
    with pytest.raises(EventsLost):
        next(second)
    site.come("ann")
    assert next(second).id == "ann"
    wait_until(lambda: site.run("GET", site.handled_key).count(b"-1.1") < 32)


def test_a_slow_holder_misses_nothing(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "LEASE_SECONDS", 0.5)
    first = plain.begun(plain.named())
    expected = [f"id{n}" for n in range(30)]
    plain.come(*expected[:10])
    seen = ids(first, 5)
    began = time.monotonic()
    holder, _second = plain.holder(), plain.named()
    plain.come(*expected[10:])
    wait_until(lambda: time.monotonic() > began + 1.5)  # the work takes longer than a lease
    assert plain.holder() == holder
    assert sorted(seen + ids(first, 25)) == sorted(expected)


def test_whoever_waits_for_a_name_reads_nothing(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, reads = plain.begun(plain.named()), plain.named(), list[object]()
    on_call(monkeypatch, pages.Page, "catch_up", lambda *_: reads.append(second))
    with in_thread(lambda: list(second)):
        for name in ("ann", "bob", "cid"):
            plain.come(name)
            assert next(first).id == name
        second.close()
    assert len(reads) < 5


def cursors(site: Site) -> list[str]:
    """Return the cursors of the next four events, which come now."""
    with site.process().events() as watching:
        site.come("ann", "bob", "cid", "dan")
        return [next(watching).cursor for _ in range(4)]


def test_a_holder_that_lost_the_lease_goes_on_where_the_next_one_ended(plain: Site) -> None:
    first = plain.begun(plain.named())
    after = cursors(plain)
    # The lease ran out while the process stood still, and another took it.
    milliseconds = int(1000 * feed_module.LEASE_SECONDS) - 1000
    plain.run("SET", plain.lease_key(), "other", "PX", milliseconds)
    wait_until(lambda: not first._lease.is_held)
    received: list[str] = []
    with in_thread(lambda: received.extend(event.id for event in first)):
        plain.run("SET", plain.handled_key, after[1])
        plain.run("DEL", plain.lease_key())
        wait_until(lambda: len(received) == 2)
        assert len(set(received) & {"ann", "bob", "cid", "dan"}) == 2
        wait_until(lambda: plain.run("GET", plain.handled_key) == after[3].encode())
        first.close()
    assert len(received) == 2


def test_names_and_kinds_do_not_share_a_lease(plain: Site) -> None:
    iterators = [
        plain.begun(plain.named(name=name, kind=kind), name=name, kind=kind)
        for name in ("a", "b")
        for kind in ("user", "guest")
    ]
    plain.come("ann")
    plain.presence.touch("x", "guest")
    assert [next(iterator).id for iterator in iterators] == ["ann", "x", "ann", "x"]


@pytest.mark.parametrize("backend", ["memory", "valkey"], indirect=True)
def test_a_lease_has_one_holder_and_stores_what_is_handled(
    backend: Place, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(settings(backend.url, prefix, **GIVEN))

    streams = site.presence.backend.feed("user").streams
    ann, bob = (feed_module.NameLease(streams, "mailer") for _ in range(2))
    first, second, third = ((Position(f"{number}-0", number),) for number in (1, 2, 3))
    trips = ann.take(10.0)
    next(trips)
    # The reply may get lost.
    site.run(*trips.send([-2]).commands[0])
    assert not bob.hold()
    assert ann.hold()
    assert cursor_of(ann.begin() or ()) == ann.start
    ann.hand_out(iter(()), first)
    assert not ann.hold()
    assert not bob.hold()
    bob.end()
    assert site.run("GET", site.handled_key).decode() == cursor_of(first)
    ann.hand_out(iter(()), second)
    ann.end()
    assert bob.hold()
    assert bob.begin() == second
    ann.end()
    assert not ann.hold()
    bob.hand_out(iter(()), third)
    assert not bob.hold()
    # It runs out before the reply comes: whoever asks for an event meanwhile waits.
    with monkeypatch.context() as patch:
        asks = partial(bob.hand_out, iter(()), third)
        on_call(patch, streams, "run", lambda *_: wait_until(lambda: asks() is None))
        bob.ends_at = time.monotonic() + 0.01
        assert bob.hold()
    assert not bob.hold()
    # A clock that was set back makes a lease seem long.
    site.run("EXPIRE", site.lease_key(), 3600)
    assert ann.hold()
    assert ann.begin() == third
    assert not bob.hold()
    assert bob.hand_out(iter(()), second) is None


@in_loop
async def test_a_coroutine_whose_lease_is_held_again_receives_what_waited(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LEASE_SECONDS", 0.3)
    names = [f"id{number}" for number in range(6)]
    async with AsyncPresence(backend=Backend(plain.settings)).events(name="mailer") as events:
        await to_thread(plain.begun, events)
        plain.come(*names)
        received = {(await anext(events)).id}
        text = plain.run("DUMP", plain.lease_key())
        plain.run("DEL", plain.lease_key())
        plain.run("SADD", plain.lease_key(), "of another program")
        await to_thread(wait_until, lambda: not (lease := events._lease) or not lease.is_held)

        async def receive_all() -> None:
            while len(received) < len(names):
                received.add((await anext(events)).id)

        rest = asyncio.create_task(receive_all())
        await to_thread(wait_until, lambda: events._waiter is not None)
        plain.run("RESTORE", plain.lease_key(), 60_000, text, "REPLACE")
        await asyncio.wait_for(rest, 10)


def test_a_lease_held_again_drops_nothing(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, names = count(), [f"id{number}" for number in range(12)]

    def sometimes(lease: feed_module.NameLease, *_: Any) -> None:
        if next(turns) % 2:
            lease.ends_at = 0.0  # it has just run out

    on_call(monkeypatch, feed_module.NameLease, "hand_out", sometimes)
    monkeypatch.setattr(pages, "CHUNK_BYTES", 0)
    events = plain.begun(plain.named())
    plain.come(*names)
    assert sorted(ids(events, len(names))) == sorted(names)


# after=


class PartlyAway:
    """A driver of a Cluster, each shard on a node of its own; some nodes are away."""

    def __init__(self, site: Site) -> None:
        self._driver = site.presence.backend.driver
        self.away = ""

    def run(self, plan: Plan[Any]) -> Any:
        return self._driver.run(by_trips(plan, self._ask_who_is_there))

    def _ask_who_is_there(self, batch: Batch) -> Plan[Any]:
        error = PresenceUnavailable("this node is away")
        away = list(map(self._is_away, batch.commands))
        if any(away) and not batch.is_tolerant:
            raise error
        there = [each for each, is_away in zip(batch.commands, away, strict=True) if not is_away]
        answers = iter((yield batch._replace(commands=tuple(there))))
        return [error if is_away else next(answers) for is_away in away]

    def _is_away(self, command: Command) -> bool:
        return bool(self.away) and any(str(each).startswith(self.away) for each in command)


def test_nothing_of_an_absent_shard_is_missed(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, backend = PartlyAway(plain), plain.presence.backend
    monkeypatch.setattr(backend, "driver", nodes)
    positions = backend.feed("user").streams.positions()
    expected, shards = [f"id{n}" for n in range(20)], backend.stores["user"]
    other = Site(plain.settings)
    other.come(*expected)
    second = nodes.away = shards.all[1].name
    there = [id for id in expected if shards.shard_for(id).name != second]
    received: list[str] = []
    came = time.monotonic()
    wait_until(lambda: time.monotonic() > came + 0.1)  # by any estimate, `now` begins after them
    with plain.presence.events() as now:
        nodes.away = ""
        wait_until(lambda: backend.feed("user").page.end.positions)
        nodes.away = second
        with (
            plain.presence.events(after=cursor_of(positions)) as events,
            in_thread(lambda: received.extend(each.id for each in events)),
        ):
            wait_until(lambda: sorted(received) == sorted(there))
            nodes.away = ""
            wait_until(lambda: sorted(received) == sorted(expected))
            other.come("new")
            wait_until(lambda: received[-1] == "new")
            assert len(received) == 21
            events.close()
        assert next(now).id == "new"


def test_who_goes_on_may_have_read_further(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with plain.presence.events() as others:
        wait_until(lambda: plain.presence.backend.feed("user").page.end.positions)
        monkeypatch.setattr(feed_module, "READ_EVERY", 0.5)
        plain.come("ann")
        positions = plain.presence.backend.feed("user").streams.positions()
        with plain.presence.events(after=cursor_of(positions)) as events:
            plain.come("bob")
            assert next(events).id == "bob"
            plain.come("cid")
            assert next(events).id == "cid"
            assert sorted(ids(others, 3)) == ["ann", "bob", "cid"]


def test_a_process_that_ends_gives_its_names_up_before_it_ends(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, names = plain.process(), ("mailer", "counter")
    events = [plain.begun(process.events(name=name), name=name) for name in names]
    plain.come("ann")
    assert [next(each).id for each in events] == ["ann", "ann"]  # the replies are received as well
    feed = process.backend.feed("user")

    def give_up() -> None:
        """Do what the thread may have begun by then."""
        for each in events:
            each._lease.ends_at = -math.inf

    on_call(monkeypatch, feed, "_wake", give_up)
    feed.close(5)  # a lease that is not given up lasts for longer
    assert [plain.holder(name) for name in names] == [None, None]


def test_a_name_that_was_given_up_stays_free_while_its_process_follows_others(plain: Site) -> None:
    process = plain.process()
    others = process.events()
    plain.begun(process.events(name="mailer")).close()
    for id in ("ann", "bob"):  # a lease is renewed after each read
        plain.come(id)
        assert next(others).id == id
    assert plain.holder() is None


def test_a_lease_that_was_away_for_a_moment_is_noticed(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plain.begun(plain.named())
    after = cursors(plain)
    ids(first, 1)

    asked = list[None]()

    def move_on(*_: object) -> None:
        """Another has held the lease and given it up, between two renewals."""
        if not asked:
            change = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('DEL', KEYS[2])"
            plain.run("EVAL", change, 2, plain.handled_key, plain.lease_key(), after[2])
        asked.append(None)

    on_call(monkeypatch, feed_module.NameLease, "hold", move_on)
    wait_until(lambda: len(asked) > 1)
    assert next(first).cursor == after[3]


def test_a_page_behind_is_read_to_its_end(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores_events, "ENTRIES_A_READ", 2)
    monkeypatch.setattr(pages, "CHUNK_BYTES", 1)
    streams = plain.presence.backend.feed("user").streams
    page = pages.Page(streams)
    assert page.read_on() == (False, False)
    place, received = page.end, list[str]()
    plain.come(*(f"id{number}" for number in range(60)))
    while page.read_on()[1]:
        pass
    while place.next:
        chunk, place = place.next
        received += [event.id for event in chunk]
        *_, last = chunk
        assert place.positions == streams.parse_cursor(last.cursor)
    assert len(set(received)) == len(received) == 60


def test_who_is_behind_an_absent_shard_waits(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, backend = PartlyAway(plain), plain.presence.backend
    monkeypatch.setattr(backend, "driver", nodes)
    page, shards = pages.Page(backend.feed("user").streams), backend.stores["user"]
    page.read_on()
    behind = pages.Place(page.end.positions)
    Site(plain.settings).come("ann")
    page.read_on()
    nodes.away = shards.shard_for("ann").name
    assert page.catch_up(behind) is None
    nodes.away = ""
    assert page.catch_up(behind)


def test_of_many_behind_few_wait_in_an_outage(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait in the threads that all readers of the process share."""
    streams = plain.presence.backend.feed("user").streams
    page, read = pages.Page(streams), streams.read
    page.read_on()
    behind = pages.Place(page.end.positions)
    plain.come("ann")
    page.read_on()
    failing = Mock(side_effect=PresenceUnavailable("away"))
    monkeypatch.setattr(streams, "read", failing)
    assert [page.catch_up(behind) for _ in range(3)] == [None] * 3
    assert failing.call_count == 1
    monkeypatch.setattr(streams, "read", read)
    assert page.read_on() == (True, False)
    assert page.catch_up(behind)


# An entry whose number does not follow from the one before it, as after a failover.
HOLE = """
local n = redis.call('HINCRBY', KEYS[1], 'n', 1)
redis.call('XADD', KEYS[2], '*', n, '["+missing",1]')
"""


def test_a_loss_that_one_process_was_told_of_is_told_to_no_other(plain: Site) -> None:
    first = plain.begun(plain.named())
    names = [f"id{number}" for number in range(40)]
    plain.come(*names)
    assert sorted(ids(first, 40)) == sorted(names)
    key = plain.presence.backend.stores["user"].all[1].key
    plain.run("EVAL", HOLE, 2, key.progress, key.changes)
    with pytest.raises(EventsLost):
        next(first)
    first.close()
    second = plain.named()
    plain.come("ann")
    assert next(second).id == "ann"


def test_whoever_goes_on_after_a_loss_is_told_of_it_once(plain: Site) -> None:
    backend = plain.presence.backend
    page, shards = pages.Page(backend.feed("user").streams), backend.stores["user"]
    plain.come(*(f"id{number}" for number in range(40)))
    page.read_on()
    place, lost = page.end, shards.all[1]
    plain.run("EVAL", HOLE, 2, lost.key.progress, lost.key.changes)
    plain.come(next(id for id in "abcdefgh" if shards.shard_for(id) is not lost))
    page.read_on()
    assert place.next
    chunk, place = place.next
    assert chunk.is_lost
    assert place.next
    (event,) = place.next[0]
    with plain.process().events(after=event.cursor) as events:
        plain.come("new")
        assert next(events).id == "new"
