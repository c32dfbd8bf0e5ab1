"""All processes use the same number of shards; a read of one server is one snapshot."""

import logging

import pytest

from presence_middleware import Presence, PresenceUnavailable
from presence_middleware.backend import Backend
from presence_middleware.recorder import Recorder
from presence_middleware.stores.agreement import LAYOUT_TRUSTED_SECONDS
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import Server, client_of
from tests.support.timed_site import Clock, opened, settings


def test_another_number_of_shards_is_refused_until_the_key_is_deleted(
    valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    old = settings(valkey.url, prefix, shards=4)
    with opened(old) as site:
        site.saw("ann")
    new = settings(valkey.url, prefix)
    recorder = Recorder(new, clock=clock)
    recorder.background = False
    with caplog.at_level(logging.WARNING, "presence_middleware"):
        WsgiVisit(recorder, {"HTTP_X_USER": "bob"}).end()
        assert not recorder.flush()
    refusal = f"PRESENCE_SHARDS=1, but keys are spread over 4: .* delete the key {prefix}:meta"
    assert f"{prefix}:meta" in caplog.text
    for ask in ("count", "online"):
        with pytest.raises(PresenceUnavailable, match=refusal):
            getattr(Presence(new, clock=clock), ask)()
    for ask in ("touch", "leave", "forget", "last_seen"):
        with pytest.raises(PresenceUnavailable, match=refusal):
            getattr(Presence(new, clock=clock), ask)("bob")
    client_of(new.redis_url).delete(f"{prefix}:meta")
    assert recorder.flush()
    assert Presence(new, clock=clock).is_online("bob")
    with pytest.raises(PresenceUnavailable, match="PRESENCE_SHARDS=4, but keys are spread over 1"):
        Presence(old, clock=clock).count()
    recorder.close()


def test_a_worker_that_runs_on_with_the_old_number_stops_recording(
    valkey: Server, prefix: str
) -> None:
    with opened(settings(valkey.url, prefix)) as site:
        site.saw("ann")
        redis = client_of(site.settings.redis_url)
        redis.set(f"{prefix}:meta", 8, ex=600)
        site.clock.now += LAYOUT_TRUSTED_SECONDS + 1
        with pytest.raises(AssertionError, match="spread over 8"):
            site.saw("bob")
        assert redis.zscore(f"{prefix}:user:seen", "bob") is None


def test_a_reader_writes_nothing(valkey: Server, prefix: str) -> None:
    with opened(settings(valkey.url, prefix, shards=2)) as site:
        site.presence.counts()
        site.presence.last_seen("ann")
        assert site.held() == {}


@pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])
@pytest.mark.parametrize("limit", [1, 20, 60])
def test_the_first_ids_are_listed_even_if_one_shard_has_them_all(
    valkey: Server, prefix: str, store: str, limit: int
) -> None:
    with opened(settings(valkey.url, prefix, store=store, shards=4)) as site:
        shards = Backend(site.settings).stores["user"]
        ids = [f"id{n:03}" for n in range(200)]
        first = [id for id in ids if shards.shard_for(id) is shards.all[0]]
        others = [id for id in ids if id not in first]
        if store == "minute-sets":  # which lists by id
            others = [f"later{id}" for id in others]
        site.saw(*others, ago=100)
        site.saw(*first, ago=10)
        listed = [who.id for who in site.presence.online(limit=limit)]
    everybody = sorted(first, reverse=True) + sorted(others, reverse=True)
    if store == "minute-sets":
        everybody = sorted(first + others)
    assert listed == everybody[:limit]
