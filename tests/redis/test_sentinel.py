"""A real Sentinel: three of them watch a primary and its replica, and the primary is killed."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable, Settings
from presence_middleware.connections.clients import sync_client
from presence_middleware.recorder import Recorder
from presence_middleware.wsgi import WsgiVisit
from tests.support.backends import wait_until
from tests.support.sentinels import Sentinels
from tests.support.servers import free_port


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    sentinels = Sentinels(tmp_path)
    yield sentinels
    sentinels.close()


def comes(recorder: Recorder, name: str) -> None:
    WsgiVisit(recorder, {"HTTP_X_USER": name}).end()


def answers(presence: Presence) -> bool:
    with suppress(PresenceUnavailable):
        return presence.count() > 0
    return False


@pytest.mark.matrix
def test_nobody_is_missing_after_a_failover(sentinels: Sentinels, prefix: str) -> None:
    settings = Settings.from_env(
        {},
        redis_url=sentinels.url,
        prefix=prefix,
        identity="user=header:X-User",
        flush_interval="0.05s",
    )
    recorder, presence = Recorder(settings), Presence(settings)
    comes(recorder, "before")
    wait_until(lambda: answers(presence))
    wait_until(sentinels.is_replicated)
    sentinels.primary.kill()
    number = 0
    while not (answers(presence) and number > 20):
        number += 1
        comes(recorder, f"during{number}")
        recorder.flush(0.1)
    comes(recorder, "after")
    wait_until(recorder.flush)
    names = {"before", "after", *(f"during{n + 1}" for n in range(number))}
    assert {seen.id for seen in presence.online(limit=None)} == names
    recorder.close()

    async def ask() -> int:
        readers = AsyncPresence(settings)
        count = await readers.count()
        await readers.aclose()
        return count

    assert asyncio.run(ask()) == len(names)


def test_without_a_sentinel_redis_is_unavailable_and_nothing_waits(prefix: str) -> None:
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/site"
    with pytest.raises(PresenceUnavailable, match="No master found for 'site'"):
        Presence(Settings.from_env({}, redis_url=url, prefix=prefix)).count()


def test_options_of_the_url_reach_the_primary_and_the_sentinels(prefix: str) -> None:
    url = "valkey+sentinel://ann:a%3Ab@[::1],host:1/site/3?sentinel_password=c&socket_timeout=0.25"
    settings = Settings.from_env({}, redis_url=url, prefix=prefix)
    assert "a%3Ab" not in repr(settings)
    client = sync_client(settings.redis_url)
    manager = client.connection_pool.sentinel_manager
    asked = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("::1", 26379), ("host", 1)]
    assert {each["password"] for each in asked} == {"c"}
    given = client.connection_pool.connection_kwargs
    assert (given["username"], given["password"], given["db"]) == ("ann", "a:b", 3)
    assert given["socket_timeout"] == 0.25
