"""URLs of Sentinels. How a failover is survived, test_walks.py and test_events_chaos.py show."""

import asyncio
from collections.abc import Callable
from traceback import format_exception

import pytest

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable, Settings
from tests.support.backends import client_of
from tests.support.servers import free_port


def test_without_a_sentinel_redis_is_unavailable_and_nothing_waits(prefix: str) -> None:
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/site"
    with pytest.raises(PresenceUnavailable, match="No master found for 'site'"):
        Presence(Settings.from_env({}, redis_url=url, prefix=prefix)).count()


QUESTIONS: dict[str, Callable[[Settings], object]] = {
    "sync": lambda settings: Presence(settings).count(),
    "async": lambda settings: asyncio.run(AsyncPresence(settings).count()),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=list(QUESTIONS))
def test_the_error_of_sentinels_gives_a_reason_and_none_of_their_options(
    prefix: str, ask: Callable[[Settings], object]
) -> None:
    password = "canary%20%3E)%3E)%3E)%3E%20-%20of%26the%0ASentinels"
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/site"
    settings = Settings.from_env({}, redis_url=f"{url}?sentinel_password={password}", prefix=prefix)
    with pytest.raises(
        PresenceUnavailable, match=r"No master .*'site': .*ConnectionError"
    ) as raised:
        ask(settings)
    # Some versions of redis-py show the password there, others hide it.
    for shown in (str(raised.value), "".join(format_exception(raised.value))):
        assert "password" not in shown
        assert "canary" not in shown


def test_options_of_the_url_reach_the_primary_and_the_sentinels(prefix: str) -> None:
    url = "valkey+sentinel://ann:a%3Ab@[::1],host:1/site/3?sentinel_password=c&socket_timeout=0.25"
    settings = Settings.from_env({}, redis_url=url, prefix=prefix)
    assert "a%3Ab" not in repr(settings)
    client = client_of(settings.redis_url)
    manager = client.connection_pool.sentinel_manager
    asked = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("::1", 26379), ("host", 1)]
    assert {each["password"] for each in asked} == {"c"}
    given = client.connection_pool.connection_kwargs
    assert (given["username"], given["password"], given["db"]) == ("ann", "a:b", 3)
    assert given["socket_timeout"] == 0.25
