"""After a server lost its data, the sightings of the window are written again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from presence_middleware import Presence
from presence_middleware.embedded import find_server
from presence_middleware.recorder import Recorder
from presence_middleware.recorder import lost as module
from presence_middleware.stores import Act, moment_of
from tests.support.backends import Server
from tests.support.clusters import Cluster
from tests.support.timed_site import NOON, WINDOW, Clock, settings


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    server = Server(str(find_server()), tmp_path)
    yield server
    server.stop()


class Worker:
    """A process of a site, and a reader elsewhere."""

    def __init__(self, url: str, prefix: str, **given: object) -> None:
        site = settings(url, prefix, flush_interval="0.05s", **given)
        self.clock = Clock()
        self.recorder = Recorder(site, clock=self.clock, background=False)
        self.presence = Presence(site, clock=self.clock)

    def saw(self, *names: str) -> None:
        for name in names:
            self.recorder.record(("user", name), self.clock.now)
        assert self.recorder.flush()

    def look(self) -> None:
        """As the thread does now and then."""
        self.clock.now += module.CHECK_EVERY + 1
        self.recorder.run_once()

    def has(self, *names: str) -> bool:
        return self.presence.count() == len(names)


def test_after_a_restart_without_data_all_sightings_are_written_again_with_their_times(
    own: Server, prefix: str, store: str
) -> None:
    workers = [Worker(own.url, prefix, store=store) for _ in range(2)]
    workers[0].saw("ann", "bob")
    workers[1].saw("bob", "cy")
    for worker in workers:
        worker.look()
    own.stop()
    own.start()
    assert workers[0].has()
    for worker in workers:
        worker.look()
    for worker in workers:
        worker.recorder.flush()
    assert workers[0].has("ann", "bob", "cy")
    if store == "sorted-set":
        assert workers[1].presence.last_seen("ann") == moment_of(NOON)
    for worker in workers:
        stats = worker.recorder.stats()
        dropped = sum(stats.dropped.values())
        assert stats.recorded == stats.coalesced + stats.flushed + stats.pending + dropped == 4
        worker.recorder.close()


def test_only_lost_sightings_of_the_window_are_written_again(own: Server, prefix: str) -> None:
    worker = Worker(own.url, prefix)
    worker.saw("early")
    worker.look()
    worker.saw("late")
    worker.look()
    assert worker.recorder.stats().recorded == 2
    worker.clock.now = NOON + WINDOW - module.CHECK_EVERY - 1
    with redis.Redis.from_url(own.url) as client:
        client.flushall()
    worker.look()
    assert worker.recorder.flush()
    assert worker.has("late")
    assert worker.recorder.stats().recorded == 3
    worker.recorder.close()


def test_a_process_that_was_silent_for_a_window_has_lost_nothing(
    valkey: Server, prefix: str
) -> None:
    worker = Worker(valkey.url, prefix)
    worker.saw("ann")
    worker.clock.now += WINDOW + 300
    (shard,) = worker.recorder.backend.stores["user"].all
    # Another process cleans up, and forgets the processes that are silent.
    worker.recorder.backend.driver.run(shard.clean_up(worker.clock.now))
    worker.recorder.record(("user", "bob"), worker.clock.now, act=Act.LEFT)
    worker.clock.now += 1
    worker.saw("bob")
    assert worker.recorder.stats().recorded == 2
    assert worker.presence.is_online("bob")


def test_departed_ids_are_not_written_again(own: Server, prefix: str) -> None:
    worker = Worker(own.url, prefix)
    worker.saw("ann", "bob")
    worker.look()
    worker.presence.leave("ann")
    worker.recorder.record(("user", "ann"), worker.clock.now - 5)
    assert worker.recorder.flush(), "a request of before was refused"
    with redis.Redis.from_url(own.url) as client:
        client.flushall()
    worker.look()
    assert worker.recorder.flush()
    assert worker.has("bob")
    assert not worker.presence.is_online("ann")
    worker.recorder.close()


def test_remembered_sightings_never_exceed_the_configured_limit(own: Server, prefix: str) -> None:
    worker = Worker(own.url, prefix, max_pending=10)
    worker.saw(*(f"user{n}" for n in range(8)))
    worker.saw(*(f"more{n}" for n in range(8)))
    worker.look()
    with redis.Redis.from_url(own.url) as client:
        client.flushall()
    worker.look()
    assert worker.recorder.flush()
    assert worker.presence.count() == 10
    worker.recorder.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def test_a_cluster_node_that_lost_its_data_gets_its_shards_again(
    cluster: Cluster, prefix: str
) -> None:
    worker = Worker(cluster.url, prefix, shards=6)
    names = [f"user{n}" for n in range(60)]
    worker.saw(*names)
    worker.look()
    cluster.primaries[1].ask("FLUSHALL")
    assert 30 < worker.presence.count() < 50
    worker.look()
    assert worker.recorder.flush()
    assert worker.has(*names)
    assert worker.recorder.stats().recorded < 100, "no more than was lost"
    worker.recorder.close()
