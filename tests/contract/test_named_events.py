"""`events(name=)`: of all that use a name, one at a time handles events, and none is missed."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
import trio

from presence_middleware import (
    AsyncPresence,
    Event,
    EventsLost,
    Presence,
    PresenceUnavailable,
    QueryError,
    Settings,
)
from presence_middleware.backend import Backend
from presence_middleware.connections import in_thread
from presence_middleware.embedded import find_server
from presence_middleware.events import (
    Events,
    Hub,
    NamedSubscription,
    Streams,
    Subscription,
)
from presence_middleware.events import (
    hub as hub_module,
)
from presence_middleware.events import (
    named as named_module,
)
from presence_middleware.events import (
    subscription as subscription_module,
)
from presence_middleware.events.iterators import Sleep
from presence_middleware.stores import Batch, Plan, Position, Shards
from presence_middleware.stores import events as stores_events
from presence_middleware.stores.lease import Lease
from tests.support.backends import Backend as Place
from tests.support.backends import Server, wait_until
from tests.support.stopwatch import Stopwatch


def run(presence: Presence, *command: Any) -> Any:
    """Run a command and return its reply."""

    def plan() -> Plan[Any]:
        (reply,) = yield Batch((command,))
        return reply

    return presence.run(plan())


class Site:
    """A site and its processes: each has connections and a hub of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.presence = self.process()
        self._opened: list[Events] = []

    def process(self) -> Presence:
        return Presence(backend=Backend(self.settings))

    def named(self, **arguments: Any) -> Events:
        iterator = self.process().events(**{"name": "mailer", **arguments})
        self._opened.append(iterator)
        return iterator

    def holder(self) -> Any:
        return run(self.presence, "HGET", self.lease_key, "who")

    @property
    def lease_key(self) -> str:
        return f"{self.presence.backend.stores['user'].all[0].name}:reader:mailer"

    def begun(self, iterator: Any) -> Any:
        """Wait until an iterator holds the lease."""
        subscription = iterator._subscription
        assert isinstance(subscription, NamedSubscription)
        wait_until(lambda: subscription.positions is not None)
        return iterator

    def come(self, *ids: str) -> None:
        for id in ids:
            self.presence.touch(id)

    def close(self) -> None:
        for iterator in self._opened:
            iterator.close()


def ids(iterator: Iterator[Event], number: int) -> list[str]:
    return [next(iterator).id for _ in range(number)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "READ_EVERY", 0.05)


@pytest.fixture(params=[1, 16])
def site(request: pytest.FixtureRequest, backend: Place, prefix: str) -> Iterator[Site]:
    site = Site(settings(backend.url, prefix, request.param))
    yield site
    site.close()


@pytest.fixture
def plain(valkey: Server, prefix: str) -> Iterator[Site]:
    """A site with four shards on a Valkey server."""
    site = Site(settings(valkey.url, prefix, 4))
    yield site
    site.close()


def settings(url: str, prefix: str, shards: int) -> Settings:
    return Settings.from_env(
        {},
        redis_url=url,
        prefix=prefix,
        identity="user=header:x-user, guest=visitor",
        events="user, guest",
        shards=shards,
    )


def test_one_process_at_a_time_handles_events_and_another_goes_on(site: Site) -> None:
    first = site.begun(site.named())
    second = site.named()
    site.come("ann", "bob", "cid")
    seen = ids(first, 2)
    subscription = second._subscription
    assert isinstance(subscription, NamedSubscription)
    assert subscription.positions is None
    first.close()
    seen += ids(second, 2)
    # The one that was handled is handled once; the one in hand is handled again.
    assert seen[0] not in seen[1:]
    assert sorted(set(seen)) == ["ann", "bob", "cid"]
    assert run(site.presence, "TTL", site.lease_key) > 3000
    second.close()
    wait_until(lambda: site.holder() is None)
    third = site.named()
    assert next(third).id == seen[3]  # it was in hand


def test_another_process_goes_on_if_the_holder_vanishes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_module, "LEASE_SECONDS", 0.3)
    vanishing = site.begun(site.process().events(name="mailer"))
    site.come("ann", "bob")
    seen = ids(vanishing, 1)
    second = site.named()
    del vanishing
    gc.collect()
    again = ids(second, 2)
    assert seen[0] in again
    assert sorted(again) == ["ann", "bob"]


async def hand_over(site: Site) -> list[str]:
    """Let two coroutines use a name, one after the other, as they do under any event loop."""
    seen = []
    async with AsyncPresence(backend=Backend(site.settings)).events(name="mailer") as first:
        await in_thread(site.begun, first)
        site.come("ann", "bob")
        seen.append((await anext(first)).id)
    assert site.holder() is None
    async with AsyncPresence(backend=Backend(site.settings)).events(name="mailer") as second:
        seen += [(await anext(second)).id for _ in range(2)]
    return seen


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_coroutines_use_a_name_in_turn(plain: Site, loop: str) -> None:
    seen = trio.run(hand_over, plain) if loop == "trio" else asyncio.run(hand_over(plain))
    assert seen[0] in seen[1:]
    assert sorted(seen[1:]) == ["ann", "bob"]


def test_events_of_other_ids_are_handled_too(plain: Site) -> None:
    first = plain.begun(plain.named(among=["ann"]))
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.extend(event.id for event in first))
    thread.start()
    before = run(plain.presence, "HGET", plain.lease_key, "at")
    plain.come("bob")
    wait_until(lambda: run(plain.presence, "HGET", plain.lease_key, "at") != before)
    plain.come("ann")
    wait_until(lambda: got == ["ann"])
    first.close()
    thread.join()
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
            run(site.presence, "DEL", f"{shard.name}:events")
    else:
        run(site.presence, "HSET", site.lease_key, "at", "1-1.1," * 31 + "1-1.1")
    second = site.named()
    with pytest.raises(EventsLost):
        next(second)
    site.come("ann")
    assert next(second).id == "ann"
    wait_until(lambda: run(site.presence, "HGET", site.lease_key, "at").count(b"-1.1") < 32)


def test_lost_data_is_reported_and_the_name_goes_on(plain: Site) -> None:
    first = plain.begun(plain.named())
    plain.come("ann", "bob", "cid", "dan", "eve")
    ids(first, 5)
    for key in run(plain.presence, "KEYS", f"{plain.settings.prefix}:*"):
        run(plain.presence, "DEL", key)
    plain.come("ann", "bob", "cid", "dan", "eve", "fay")
    with pytest.raises(EventsLost):
        ids(first, 7)
    plain.come("gus")
    while next(first).id != "gus":
        pass


def test_a_slow_process_leaves_events_in_the_stream(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_module, "ENOUGH_QUEUED", 5)
    first = plain.begun(plain.named())
    subscription = first._subscription
    assert isinstance(subscription, NamedSubscription)
    expected = [f"id{n}" for n in range(30)]
    plain.come(*expected[:10])
    wait_until(lambda: not subscription.has_room)
    queued = len(subscription._queue)
    plain.come(*expected[10:])
    renewed_at = subscription._held_until
    wait_until(lambda: subscription._held_until > renewed_at)
    assert len(subscription._queue) == queued
    assert sorted(ids(first, 30)) == sorted(expected)


def queued(site: Site) -> tuple[Events, NamedSubscription, list[str]]:
    """Return an iterator in whose queue four events wait, and their cursors."""
    first = site.begun(site.named())
    subscription = first._subscription
    site.come("ann", "bob", "cid", "dan")
    wait_until(lambda: len(subscription._queue) == 4)
    return first, subscription, [event.cursor for event in subscription._queue]


def test_a_holder_that_lost_the_lease_goes_on_where_the_next_one_ended(plain: Site) -> None:
    first, subscription, cursors = queued(plain)
    lease = Lease(plain.lease_key.partition(":user:")[0], "user", "mailer")
    # The lease ran out while the process stood still, and another took it.
    until = time.time() + named_module.LEASE_SECONDS - 1
    run(plain.presence, "HSET", plain.lease_key, "until", until, "who", "other")
    wait_until(lambda: subscription.positions is None)
    assert subscription.take(Sleep()) is None
    plain.presence.run(lease.give_up("other", cursors[1]))
    assert len(set(ids(first, 2)) & {"ann", "bob", "cid", "dan"}) == 2
    assert subscription.handled == cursors[2]


def test_a_lease_that_was_away_for_a_moment_is_noticed(plain: Site) -> None:
    first, subscription, cursors = queued(plain)
    change = "redis.call('HSET', KEYS[1], 'at', ARGV[1]) redis.call('HDEL', KEYS[1], 'who')"
    run(plain.presence, "EVAL", change, 1, plain.lease_key, cursors[2])
    wait_until(lambda: len(subscription._queue) == 1)
    next(first)
    assert subscription.take(Sleep()) is None
    assert subscription.handled == cursors[3]


def test_an_outage_is_reported_and_the_name_goes_on(
    tmp_path: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "OUTAGE_SECONDS", 0.2)
    server = Server(str(find_server()), tmp_path, "--appendonly", "yes")
    site = Site(settings(server.url, prefix, 1))
    try:
        first = site.begun(site.named())
        site.come("ann")
        assert next(first).id == "ann"
        server.stop()
        with pytest.raises(PresenceUnavailable, match="no events can be read"):
            next(first)
        server.start()
        seen: list[str] = []

        def has_come() -> bool:
            try:
                site.come("bob")
                seen.append(next(first).id)
            except (PresenceUnavailable, EventsLost):
                return False
            return True

        wait_until(has_come)
        assert seen == ["bob"]
        server.stop()
        began = time.monotonic()
        first.close()  # without Redis, it does not take long
        assert time.monotonic() - began < 5
    finally:
        site.close()
        server.stop()


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, 5, b"mailer", "a\n"])
def test_invalid_names_are_refused(plain: Site, name: Any) -> None:
    with pytest.raises(QueryError, match="name is "):
        plain.presence.events(name=name)


def test_a_name_excludes_a_cursor(plain: Site) -> None:
    with pytest.raises(QueryError, match="name or after"):
        plain.presence.events(name="mailer", after="1-1.1")
    for name in ("a", "Az_09.:-", "x" * 64):
        plain.presence.events(name=name).close()


def test_names_and_kinds_do_not_share_a_lease(plain: Site) -> None:
    iterators = [
        plain.begun(plain.named(name=name, kind=kind))
        for name in ("a", "b")
        for kind in ("user", "guest")
    ]
    plain.come("ann")
    plain.presence.touch("x", "guest")
    assert [next(iterator).id for iterator in iterators] == ["ann", "x", "ann", "x"]


class Reader:
    """A reader of a lease."""

    def __init__(self, site: Site, who: str) -> None:
        self._lease = Lease(site.settings.prefix, "user", "mailer")
        self._run: Callable[[Plan[Any]], Any] = site.presence.run
        self._who = who

    def take(self, handled: str = "", seconds: float = 10.0, start: str = "start") -> Any:
        held = self._run(self._lease.take(self._who, seconds, handled, start))
        return held and tuple(held)

    def give_up(self, handled: str) -> None:
        self._run(self._lease.give_up(self._who, handled))


@pytest.fixture(params=["valkey", "memory"])
def one_shard(request: pytest.FixtureRequest, prefix: str) -> Site:
    url = f"memory://{prefix}"
    if request.param == "valkey":
        url = request.getfixturevalue("valkey").url
    return Site(settings(url, prefix, 1))


def test_a_lease_has_one_holder_and_stores_what_is_handled(one_shard: Site) -> None:
    ann, bob = Reader(one_shard, "ann"), Reader(one_shard, "bob")
    assert ann.take() == (False, "start")
    # The reply may have been lost. Where a new reader would begin must not be stored then.
    assert ann.take(start="later") == (True, "start")
    assert ann.take("1") == (True, "1")
    assert bob.take() is None
    bob.give_up("9")
    assert bob.take("9") is None
    ann.give_up("2")
    assert bob.take() == (False, "2")
    ann.give_up("7")
    assert ann.take("7") is None
    assert bob.take("3") == (True, "3")


def test_a_lease_ends(one_shard: Site) -> None:
    ann, bob = Reader(one_shard, "ann"), Reader(one_shard, "bob")
    ann.take(seconds=0.05)
    wait_until(bob.take)
    assert ann.take("9") is None
    # A clock that was set back makes a lease seem long.
    until = float(run(one_shard.presence, "HGET", one_shard.lease_key, "until"))
    run(one_shard.presence, "HSET", one_shard.lease_key, "until", until + 3600)
    assert ann.take() == (False, "start")


def test_an_iterator_that_cannot_renew_its_lease_hands_out_nothing() -> None:
    subscription = NamedSubscription("mailer")
    event = Event("user", "ann", True, datetime.now(UTC), "1-1.1")
    subscription.begin([Position("0", 0)])
    subscription.renew(time.monotonic() + 60)
    subscription.put([event, event], [Position("1-1", 1)])
    assert subscription.take(Sleep()) == event
    subscription.renew(time.monotonic() - 1)
    sleep = Sleep()
    assert subscription.take(sleep) is None
    assert subscription.handled == "1-1.1"
    subscription.renew(time.monotonic() + 60)
    assert not sleep._woken.empty()
    assert subscription.take(Sleep()) == event
    subscription.lose()
    assert subscription.take(Sleep()) is None
    assert subscription.handled == ""


# after=


class PartlyAway:
    """A driver of a Cluster, each shard on a node of its own; some nodes are away."""

    def __init__(self, site: Site) -> None:
        self._driver = site.presence.backend.driver
        self.away: set[str] = set()
        self.refused = ""
        """A command that no node answers."""

    def node_of(self, shard: str) -> str:
        return shard

    def run(self, plan: Plan[Any]) -> Any:
        return self._driver.run(self._guarded(plan))

    def _guarded(self, plan: Plan[Any]) -> Plan[Any]:
        replies: Any = None
        while True:
            try:
                batch = plan.send(replies)
            except StopIteration as end:
                return end.value
            names = {str(argument) for command in batch.commands for argument in command}
            away = any(name.startswith(shard) for name in names for shard in self.away)
            if away or self.refused in names:
                raise PresenceUnavailable("this node is away")
            replies = yield batch


def sweep_nothing() -> None:
    """Announce nobody."""


def partly_away(site: Site) -> tuple[Shards, PartlyAway, Hub]:
    """Return the shards of a site, a driver that can lose them, and a hub that reads with it."""
    shards, driver = site.presence.backend.stores["user"], PartlyAway(site)
    streams = Streams("user", shards, lambda: driver)  # type: ignore[arg-type,return-value]
    return shards, driver, Hub(streams, sweep_nothing)


def drained(subscription: Subscription) -> list[str]:
    found = []
    while (event := subscription.take(Sleep())) is not None:
        found.append(event.id)
    return found


def test_who_goes_on_misses_nothing_of_a_shard_that_is_away(plain: Site) -> None:
    shards, driver, hub = partly_away(plain)
    positions = hub.streams.positions(0.0)
    plain.come(*(f"id{n}" for n in range(20)))
    subscription = Subscription(after=positions)
    other = Subscription()
    hub.deliver([other])
    driver.away = {shards.all[1].name}
    hub.deliver([other, subscription])
    found = drained(subscription)
    assert 0 < len(found) < 20
    driver.away = set()
    hub.deliver([other, subscription])
    assert sorted(found + drained(subscription)) == sorted(f"id{n}" for n in range(20))


def test_who_goes_on_may_have_read_further_than_this_process(plain: Site) -> None:
    hub = plain.presence.backend.hub("user")
    others = Subscription()
    hub.deliver([others])
    plain.come("ann")
    subscription = Subscription(after=hub.streams.positions(0.0))
    plain.come("bob")
    hub.deliver([others, subscription])
    assert drained(subscription) == ["bob"]
    assert sorted(drained(others)) == ["ann", "bob"]


def test_a_failure_in_between_moves_no_position(plain: Site) -> None:
    shards, _, hub = partly_away(plain)
    subscription = Subscription()
    hub.deliver([subscription])
    plain.come(*(f"id{n}" for n in range(20)))
    last = shards.all[-1].name
    with redis.Redis.from_url(str(plain.settings.redis_url)) as client:
        stream = client.dump(f"{last}:events")
        client.set(f"{last}:events", "of another program")
        hub.deliver([subscription])
        found = drained(subscription)
        assert 0 < len(found) < 20
        client.restore(f"{last}:events", 300_000, stream, replace=True)
    hub.deliver([subscription])
    assert sorted(found + drained(subscription)) == sorted(f"id{n}" for n in range(20))


def test_lost_events_of_a_shard_that_is_away_are_reported_once_it_is_back(plain: Site) -> None:
    shards, driver, hub = partly_away(plain)
    subscription = Subscription()
    hub.deliver([subscription])
    plain.come(*(f"id{n}" for n in range(20)))
    run(plain.presence, "HINCRBY", f"{shards.all[1].name}:progress", "n", 1)
    driver.refused = "XREVRANGE"  # the shard goes away right after it was read
    hub.deliver([subscription])
    found = drained(subscription)
    assert 0 < len(found) < 20
    driver.refused = ""
    hub.deliver([subscription])
    with pytest.raises(EventsLost):
        subscription.take(Sleep())


def test_a_process_that_ends_gives_its_names_up_before_it_ends(plain: Site) -> None:
    plain.begun(plain.named())
    (hub,) = {iterator._hub for iterator in plain._opened}
    hub.close(10)
    assert plain.holder() is None


def test_a_reader_that_fell_behind_catches_up_without_waiting(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_events, "ENTRIES_A_READ", 2)
    monkeypatch.setattr(hub_module, "READ_EVERY", 2.0)
    with plain.presence.events() as events, Stopwatch() as watch:
        plain.come(*(f"id{n}" for n in range(60)))
        assert len({next(events).id for _ in range(60)}) == 60
        assert watch.seconds < 8, "less than by a read every two seconds"
