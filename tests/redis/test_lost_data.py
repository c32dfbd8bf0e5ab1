"""After a server lost its data, or a key of it, whatever still counts is written again."""

from typing import Any

import pytest

from presence_middleware.stores import Act, moment_of
from tests.support.backends import Server
from tests.support.clusters import Cluster
from tests.support.process import Start
from tests.support.timed_site import NOON, WINDOW

GRACE = 75.0
SEEN, LEFT, GOODBYE = Act.SEEN, Act.LEFT, Act.GOODBYE


def test_after_a_restart_without_data_all_sightings_are_written_again_with_their_times(
    own: Server, start: Start, store: str
) -> None:
    first, second = workers = [start(own.url, store=store) for _ in range(2)]
    first.saw("ann", "bob")
    second.saw("bob", "cy")
    for worker in workers:
        worker.looks()
    own.stop()
    own.start()
    assert first.presence.count() == 0
    for worker in workers:
        worker.looks()
        worker.writes()
    assert first.presence.count() == 3
    if store == "sorted-set":
        assert second.presence.last_seen("ann") == moment_of(NOON)
    for worker in workers:
        assert worker.dropped == {}
        assert worker.recorder.stats().recorded == 4


def test_a_process_that_was_silent_for_a_window_has_lost_nothing(
    valkey: Server, start: Start
) -> None:
    worker = start(valkey.url)
    worker.saw("ann")
    worker.clock.now += WINDOW + 300
    (shard,) = worker.recorder.backend.stores["user"].all
    # Another process cleans up, and forgets the processes that are silent.
    worker.recorder.backend.driver.run(shard.clean_up(worker.clock.now))
    worker.did("bob", act=LEFT)
    worker.clock.now += 1
    worker.saw("bob")
    assert worker.recorder.stats().recorded == 2
    assert worker.presence.is_online("bob")


@pytest.mark.parametrize("writes_first", [False, True])
def test_a_key_that_was_evicted_alone_is_written_again(
    own: Server, client: Any, start: Start, prefix: str, *, writes_first: bool
) -> None:
    """As under `volatile-lru`. Another process may write to the shard before."""
    worker, other = start(own.url), start(own.url)
    worker.saw("ann")
    client.delete(f"{prefix}:user:seen")
    if writes_first:
        other.saw("bob")
    worker.recorder.health.lost_connection()  # so that it looks at once
    worker.recorder.run_once()
    worker.writes()
    assert worker.online() == ["ann", "bob"][: 1 + writes_first]


def test_a_cluster_node_that_lost_its_data_gets_its_shards_again(
    cluster: Cluster, start: Start
) -> None:
    worker, names = start(cluster.url, shards=6), [f"user{n}" for n in range(60)]
    worker.saw(*names)
    worker.looks()
    cluster.primaries[1].ask("FLUSHALL")
    assert 30 < worker.presence.count() < 50
    worker.looks()
    worker.writes()
    assert worker.online() == sorted(names)
    assert worker.recorder.stats().recorded < 100, "no more than was lost"


def test_a_loss_that_a_write_shows_is_looked_for_in_all_shards(
    own: Server, client: Any, start: Start
) -> None:
    worker, names = start(own.url, shards=6), [f"user{n}" for n in range(60)]
    worker.saw(*names)
    worker.looks()
    client.flushall()
    worker.clock.now += 1
    worker.did("user0")
    worker.recorder.run_once()
    worker.writes()
    assert worker.online() == sorted(names)


def test_remembered_sightings_never_exceed_the_configured_limit(
    own: Server, client: Any, start: Start
) -> None:
    worker = start(own.url, max_pending=10)
    for name in ("user", "more"):
        worker.saw(*(f"{name}{n}" for n in range(8)))
    worker.looks()
    client.flushall()
    worker.looks()
    worker.writes()
    assert worker.presence.count() == 10
