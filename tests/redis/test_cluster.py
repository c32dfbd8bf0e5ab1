"""Shards and a real Cluster: the owners of keys, and recording while nodes are away."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from presence_middleware import Presence, PresenceUnavailable, Settings, SettingsError
from presence_middleware.backend import Backend
from presence_middleware.connections import limits, server
from presence_middleware.connections.clients import TIMEOUT
from presence_middleware.connections.drivers import send
from presence_middleware.connections.health import MAX_PAUSE_SECONDS
from presence_middleware.doctor import examine
from presence_middleware.errors import RedisRefused
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Batch, Plan, keys, moment_of
from tests.support import timed_site
from tests.support.backends import client_of, wait_until
from tests.support.beside import on_call
from tests.support.clusters import Cluster, Node
from tests.support.faults import adds_up
from tests.support.proxy import Proxy
from tests.support.servers import ROOT
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import Clock, Start, visit


def test_another_number_of_shards_is_refused_until_the_key_is_deleted(
    start: Start, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = start(shards=4), start()
    old.saw("ann")
    new.did("bob")
    assert not new.recorder.flush()
    refusal = f"PRESENCE_SHARDS=1, but keys are spread over 4: .* delete the key {prefix}:meta"
    assert f"{prefix}:meta" in caplog.text
    for ask in ("count", "online"):
        with pytest.raises(PresenceUnavailable, match=refusal):
            getattr(Presence(new.settings, clock=new.clock), ask)()
    for ask in ("touch", "leave", "forget", "last_seen"):
        with pytest.raises(PresenceUnavailable, match=refusal):
            getattr(Presence(new.settings, clock=new.clock), ask)("bob")
    new.redis.delete(f"{prefix}:meta")
    new.writes()
    assert new.presence.is_online("bob")
    with pytest.raises(PresenceUnavailable, match="PRESENCE_SHARDS=4, but keys are spread over 1"):
        old.presence.count()


def test_a_worker_with_the_old_number_stops_recording(start: Start, prefix: str) -> None:
    worker = start()
    worker.saw("ann")
    assert worker.presence.count() == 1
    worker.redis.set(f"{prefix}:meta", 8, ex=600)
    worker.clock.now += 11  # it looks every ten seconds
    with pytest.raises(AssertionError, match="spread over 8"):
        worker.saw("bob")
    with pytest.raises(PresenceUnavailable, match="spread over 8"):
        worker.presence.count()
    assert worker.redis.zscore(f"{prefix}:user:seen", "bob") is None


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
@pytest.mark.parametrize("limit", [1, 20, 60])
def test_the_first_ids_are_listed_even_if_one_shard_has_them_all(
    start: Start, store: str, limit: int
) -> None:
    site = start(store=store, shards=4)
    ids = [f"id{n:03}" for n in range(200)]
    first = [id for id in ids if site.store.shard_for(id) is site.store.all[0]]
    others = [id for id in ids if id not in first]
    if store == "minute-sets":  # which lists by id
        others = [f"later{id}" for id in others]
    site.saw(*others, ago=100)
    site.saw(*first, ago=10)
    everybody = sorted(first, reverse=True) + sorted(others, reverse=True)
    if store == "minute-sets":
        everybody = sorted(first + others)
    assert [who.id for who in site.presence.online(limit=limit)] == everybody[:limit]


# A real Cluster.


SHARDS = 6
PEOPLE = [f"user{number}" for number in range(60)]


def settings_of(cluster: Cluster, prefix: str, **given: Any) -> Settings:
    values = {"redis_url": cluster.url, "identity": "user=header:X-User", "shards": SHARDS}
    return Settings.from_env({}, prefix=prefix, **{**values, "flush_interval": "0.05s", **given})


@pytest.fixture
def settings(cluster: Cluster, prefix: str) -> Settings:
    return settings_of(cluster, prefix)


class Site:
    """A site with a worker that records, and a reader elsewhere."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.cluster, self.settings = cluster, settings
        self.recorder, self.presence = Recorder(settings), Presence(settings)
        self.shards = Backend(settings).stores["user"]

    def comes(self, *names: str) -> None:
        for name in names:
            visit(self.recorder, name)

    def home_of(self, name: str) -> Node:
        """The node that had the shard of an id at the start."""
        return self.cluster.owner_of(self.shards.shard_for(name).name)

    def is_online(self, name: str) -> bool:
        with suppress(PresenceUnavailable):
            return self.presence.is_online(name)
        return False

    def is_everyone_there(self) -> bool:
        with suppress(PresenceUnavailable):
            return {who.id for who in self.presence.online(limit=None)} == set(PEOPLE)
        return False


@pytest.fixture
def own(tmp_path: Path, prefix: str) -> Iterator[Site]:
    """A site with a Cluster of its own: three primaries without replicas."""
    cluster = Cluster(tmp_path)
    yield Site(cluster, settings_of(cluster, prefix))
    cluster.close()


def test_without_one_primary_the_others_still_work_and_nobody_is_missing_later(own: Site) -> None:
    """Nor do they wait for that of the agreement, which is asked again after some seconds."""
    meta, clock = keys.layout(own.settings.prefix), Clock()
    hung = own.cluster.owner_of(meta)
    there = [name for name in PEOPLE if own.home_of(name) is not hung]
    away = [name for name in PEOPLE if name not in there]
    recorder = Recorder(own.settings, clock=clock, background=False)
    presence = Presence(own.settings, clock=clock)

    def comes(*names: str) -> bool:
        recorder.health.lost_connection()  # after it, another server may answer
        for name in names:
            visit(recorder, name)
        return recorder.flush()

    assert comes(*PEOPLE)
    assert presence.count() == len(PEOPLE)
    hung.pause()
    with Stopwatch() as watch:
        for _ in range(8):
            assert comes(there[0])
    assert watch.seconds < 8 * TIMEOUT / 2
    for name in there:
        presence.leave(name)
    presence.backend.layout.known_until = -math.inf
    assert not any(map(presence.is_online, there))
    for ask in (presence.count, partial(presence.is_online, away[0])):
        with pytest.raises(PresenceUnavailable):
            ask()
    clock.now += 1
    wait_until(lambda: not comes(*PEOPLE) and recorder.stats().pending == len(away))
    assert all(map(presence.is_online, there))
    hung.go_on()
    hung.client.ping()  # before the reply, it does what came meanwhile
    hung.client.delete(meta)
    came, clock.now = clock.now, clock.now + MAX_PAUSE_SECONDS
    assert comes()
    assert hung.client.exists(meta)
    assert presence.last_seen_among(PEOPLE) == dict.fromkeys(PEOPLE, moment_of(came))
    assert adds_up(recorder)


def test_readers_wait_no_more_for_a_node_once_a_write_found_it_hanging(own: Site) -> None:
    recorder = Recorder(replace(own.settings, flush_interval=60.0), background=False)
    presence, node = Presence(backend=recorder.backend), own.cluster.primaries[0]
    name = next(name for name in PEOPLE if own.home_of(name) is node)  # asked for slots first
    visit(recorder, name)
    assert recorder.flush()
    target = recorder.backend.driver.node_of(own.shards.shard_for(name).name)
    recorder.health.failed(target, RedisRefused("it is full, and answers"))
    assert presence.count() == 1
    node.pause()
    visit(recorder, name)
    assert not recorder.flush()
    for _ in range(2):  # the first may ask the node for the time
        generation = recorder.health.generation
        with Stopwatch() as watch, pytest.raises(PresenceUnavailable, match=r"^a node did not"):
            presence.count()
    assert watch.seconds < TIMEOUT / 2
    assert recorder.health.generation == generation, "no connection is lost"
    node.go_on()
    wait_until(recorder.flush)
    assert presence.count() == 1


def test_while_a_node_is_away_a_question_about_it_delays_no_other(start: Start) -> None:
    """It is asked after the write, which other readers wait for."""
    recorder, delays_others = start().recorder, list[bool]()

    def question() -> Plan[None]:
        delays_others.append(recorder.writer.lock.locked())
        yield Batch((("TIME",),))

    for _ in range(2):
        visit(recorder, "ann")
        recorder.read(question())
        recorder.health.failed("another node")
    assert delays_others == [True, False]


def test_keys_that_move_to_another_node_are_followed(cluster: Cluster, settings: Settings) -> None:
    site = Site(cluster, settings)
    site.comes(*PEOPLE)
    wait_until(site.is_everyone_there)
    shard, source = site.shards.shard_for(PEOPLE[0]), site.home_of(PEOPLE[0])
    slot = keys.slot_of(shard.name)
    target = next(node for node in cluster.primaries if node is not source)
    cluster.move(slot, source, target, lambda: site.comes("while moving", *PEOPLE))
    try:
        wait_until(lambda: site.is_online("while moving"))
        site.presence.forget("while moving")
        wait_until(site.recorder.flush)
        wait_until(site.is_everyone_there)
        assert site.presence.last_seen(PEOPLE[0]) is not None
        assert target.client.exists(shard.keys(0)[0])
    finally:
        cluster.move(slot, target, source)  # other tests use this Cluster, and its clients
    wait_until(site.is_everyone_there)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.MovedError("1 127.0.0.1:1"),
        redis.exceptions.ClusterDownError("The cluster is down"),
    ],
    ids=repr,
)
def test_keys_that_a_node_does_not_have_any_more_are_asked_for_at_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    presence, asked = Presence(settings), list[Batch]()

    def moved_at_first(client: Any, batch: Batch) -> Any:
        asked.append(batch)
        return [error] * len(batch.commands) if len(asked) == 1 else send(client, batch)

    monkeypatch.setattr("presence_middleware.connections.cluster.send", moved_at_first)
    assert presence.count() == 0
    assert asked.count(asked[0]) == 2


def test_keys_that_no_node_had_are_asked_for_at_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence, uncovered = Presence(settings), [redis.exceptions.SlotNotCoveredError("a slot")]

    def fail_once(_: object) -> None:
        if uncovered:
            raise uncovered.pop()

    on_call(monkeypatch, presence.backend.driver.connect(), "get_node_from_key", fail_once)
    assert presence.count() == 0
    assert not uncovered


@pytest.mark.parametrize("error", [redis.ConnectionError, redis.TimeoutError])
def test_any_node_may_tell_the_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    backend, asked, is_away = Backend(settings), list[str](), True
    client = backend.driver.connect()
    names = sorted(str(node.name) for node in client.get_primaries())

    def connect(node: Any) -> None:
        asked.append(node.name)
        if node.name == names[0] and is_away:
            raise error

    on_call(monkeypatch, client, "get_redis_connection", connect)
    assert backend.driver.run(backend.clock.now()) > 0
    backend.driver.run(backend.clock.synchronise(0))
    assert asked[:2] == names[:2]
    assert names[0] not in asked[2:]
    # It is asked again later, as by the processes that noticed nothing.
    monkeypatch.setattr("presence_middleware.connections.cluster.PASSED_OVER", 0.0)
    is_away = False
    asked.clear()
    backend.driver.run(backend.clock.synchronise(0))
    assert set(asked) == {names[0]}


def test_a_question_that_asks_for_the_time_is_asked_with_a_write(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_UNCERTAINTY", math.inf)  # after a slow reply, it asks again
    recorder = Recorder(settings, background=False)
    for name in PEOPLE:
        recorder.record(("user", name), recorder.stamp())
    assert recorder.flush()
    batches = list[Batch]()
    driver = recorder.backend.writing_driver
    on_call(monkeypatch, driver, "execute", lambda _, batch: batches.append(batch))
    recorder.record(("user", "one more"), recorder.stamp())
    recorder.read(recorder.backend.clock.synchronise(0))
    assert [("TIME",) in batch.commands for batch in batches] == [True]
    assert recorder.read(recorder.backend.queries.count()) == len(PEOPLE) + 1


def test_a_write_waits_for_no_reader(settings: Settings) -> None:
    recorder = Recorder(settings, background=False)
    recorder.record(("user", "ann"), recorder.stamp())
    client = recorder.backend.driver.connect()
    with ExitStack() as stack:
        for _ in range(limits.CONNECTIONS):
            stack.enter_context(limits.free_slots(client, None))
        assert recorder.flush()
    recorder.close()


@pytest.mark.parametrize("asks_for_time", [True, False])
def test_a_cluster_that_returns_at_other_addresses_is_found_by_its_url(
    tmp_path: Path, prefix: str, *, asks_for_time: bool
) -> None:
    with closing(Cluster(tmp_path)) as old, closing(Cluster(tmp_path)) as new:
        proxy = Proxy(("127.0.0.1", old.primaries[0].port))
        url = f"redis+cluster://127.0.0.1:{proxy.port}"
        presence = Presence(settings_of(old, prefix, redis_url=url))
        assert presence.count() == 0
        proxy.server = "127.0.0.1", new.primaries[0].port
        old.close()
        clock = presence.backend.clock
        if asks_for_time:
            presence.backend.health.lost_connection()
        assert clock.is_trusted() is not asks_for_time
        with pytest.raises(PresenceUnavailable):
            presence.count()
        assert presence.count() == 0
    proxy.refuse()


@pytest.mark.parametrize("shards", [2, 16, 64, 1024])
def test_shards_fall_evenly_on_any_number_of_nodes(shards: int) -> None:
    prefixes = keys.shard_prefixes("presence", shards, is_cluster=True)
    slots = {keys.slot_of(f"{prefix}:user:seen") for prefix in prefixes}
    assert len(slots) == shards
    for nodes in (3, 5, 6, 12):
        each = Counter(slot * nodes // keys.SLOTS for slot in slots)
        assert max(each.values()) - min(each[n] for n in range(nodes)) <= (2 if shards < 64 else 1)


def test_slots_are_those_of_the_servers(cluster: Cluster) -> None:
    for key in ("a", "{a}b", "{}a", "a{b", "x{é}y", "a}{b}c", "{{a}}", ""):
        assert keys.slot_of(key) == cluster.primaries[0].ask("CLUSTER KEYSLOT", key), key


@pytest.mark.parametrize("shards", [1, SHARDS])
@pytest.mark.parametrize("name", ["friends", "friends{{{prefix}}}"])
def test_friends_are_exact_wherever_their_key_is(
    cluster: Cluster, prefix: str, shards: int, name: str
) -> None:
    site = Site(cluster, settings_of(cluster, prefix, shards=shards))
    site.comes(*PEOPLE)
    wait_until(site.recorder.flush)
    key = f"{prefix}:{name.format(prefix=prefix)}"
    client_of(site.settings.redis_url).sadd(key, *PEOPLE[:9], "stranger")
    intersections = count_of(cluster, "zinter")
    assert set(site.presence.online_friends(key)) == set(PEOPLE[:9])
    shares_slot = shards == 1 and name != "friends"
    assert count_of(cluster, "zinter") - intersections == shares_slot, "one snapshot, or by person"


def count_of(cluster: Cluster, command: str) -> int:
    found = [node.ask("INFO", "commandstats") for node in cluster.primaries]
    return sum(stats.get(f"cmdstat_{command}", {}).get("calls", 0) for stats in found)


def test_the_url_of_a_node_leads_to_the_form_of_a_cluster(cluster: Cluster, prefix: str) -> None:
    owner = cluster.owner_of(keys.layout(prefix))
    other = next(node for node in cluster.primaries if node is not owner)
    site = timed_site.settings(f"redis://127.0.0.1:{other.port}", prefix)
    with pytest.raises(PresenceUnavailable, match=r"of a Cluster is redis\+cluster://"):
        Presence(site).counts()


@pytest.mark.parametrize("url", ["redis://h", "redis+cluster://h"])
def test_a_client_of_another_sort_is_refused(cluster: Cluster, prefix: str, url: str) -> None:
    settings = Settings.from_env({}, redis_url=url, prefix=prefix)
    port = cluster.primaries[0].port
    client = redis.Redis(port=port) if "+" in url else redis.RedisCluster("127.0.0.1", port)
    with pytest.raises(SettingsError, match="not both"):
        Presence(settings, client=client)
    client.close()


def test_the_documented_rights_suffice_on_a_cluster(cluster: Cluster, prefix: str) -> None:
    page = (ROOT / "docs/servers.md").read_text("utf-8")
    (rights,) = re.findall(r"~presence:\* (.+)", page)
    (more,) = re.findall(r"On a Cluster, add `(.+?)`", page)
    for node in cluster.nodes:
        rules = (f"~{prefix}:*", *rights.split(), more)
        node.ask("ACL", "SETUSER", prefix, "on", ">password", *rules)
    url = cluster.url.replace("://", f"://{prefix}:password@")
    site = Site(cluster, settings_of(cluster, prefix, redis_url=url))
    site.comes(*PEOPLE)
    wait_until(site.is_everyone_there)
    site.presence.forget(PEOPLE[0])
    assert not site.is_online(PEOPLE[0])
    site.recorder.close()
    assert site.recorder.stats().last_error is None


def test_the_doctor_checks_each_node_and_the_balance(cluster: Cluster, settings: Settings) -> None:
    site = Site(cluster, settings)
    site.comes(*PEOPLE)
    wait_until(site.is_everyone_there)
    found = list(examine(Backend(settings)))
    told = "\n".join(finding.what for finding in found)
    assert all(finding.is_right for finding in found), told
    for node in cluster.primaries:
        assert f"127.0.0.1:{node.port} server: valkey" in told
        assert f"127.0.0.1:{node.port} eviction: noeviction" in told
    assert "shards: 6, 2 on each of 3 nodes" in told
    assert "kind user: sorted-set, 60 members in 6 keys (6 to 14 a shard)" in told
