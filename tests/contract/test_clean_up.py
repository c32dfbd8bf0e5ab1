"""Clean-up removes all stale ids, a bounded number at a time, and no current id."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from presence_middleware import upkeep
from presence_middleware.backend import Backend
from presence_middleware.stores import Plan
from presence_middleware.stores.sorted_set import PAGE
from tests.support.backends import Server
from tests.support.timed_site import NOON, Site, opened, settings

KEEP = 600.0


@pytest.fixture
def site(valkey: Server, prefix: str) -> Iterator[Site]:
    """A site that stores guests for the window only, so that stale ids appear soon."""
    with opened(settings(valkey.url, prefix, window=KEEP)) as site:
        yield site


def cleaned_up(site: Site, kind: str, key: str) -> list[int]:
    """Clean up in rounds until one reports that it was the last; return how many each removed."""
    store, run, more = (
        Backend(site.settings).stores[kind].all[0],
        Backend(site.settings).driver.run,
        True,
    )
    removed: list[int] = []
    while more:
        before = site.redis.zcard(key)
        more = run(store.clean_up(NOON))
        removed.append(before - site.redis.zcard(key))
    return removed


@pytest.mark.parametrize("stale", [0, 1, 999, 1000, 1001, 3500])
def test_one_command_removes_a_thousand_at_most_and_rounds_go_on_to_the_end(
    site: Site, stale: int
) -> None:
    key = f"{site.settings.prefix}:guest:seen"
    # Four share each moment, and one of these is not split.
    crowd = {f"id{n}": NOON - KEEP - n // 4 for n in range(stale)}
    site.redis.zadd(key, crowd | {"online": NOON - KEEP + 0.000001})
    removed = cleaned_up(site, "guest", key)
    assert max(removed) <= PAGE + 4
    assert sum(removed) == stale
    assert len(removed) == stale // PAGE + 1
    assert site.redis.zrange(key, 0, -1) == [b"online"]


def test_future_times_are_lowered_to_now_a_thousand_at_a_time(site: Site) -> None:
    """After the server's clock was set back, no id is lost, and none stays an hour longer."""
    names = [f"{site.settings.prefix}:user:{name}" for name in ("seen", "left")]
    crowd = {f"id{n}": NOON + 3600 + n for n in range(2500)}
    site.redis.zadd(names[0], crowd | {"soon": NOON + 100, "now": NOON})
    site.redis.zadd(names[1], {"gone": NOON + 3600})
    assert cleaned_up(site, "user", names[0]) == [0, 0, 0]
    times = {at for _, at in site.redis.zrange(names[0], 0, -1, withscores=True)}
    assert max(times) == NOON + 100
    # All at one moment would have to be handled together.
    assert NOON - 0.001 <= min(times) <= max(times - {NOON + 100}) == NOON
    assert site.redis.zcard(names[0]) == 2502
    assert site.redis.zscore(names[1], "gone") == NOON


@pytest.mark.parametrize("is_lasting", [True, False])
def test_a_clean_up_without_permission_is_no_outage_and_is_logged_once_if_it_lasts(
    is_lasting: bool,
    valkey: Server,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "CLEAN_EVERY", 0)
    monkeypatch.setattr(upkeep, "CLEAN_IDLE", 0)
    monkeypatch.setattr(upkeep, "STEPS_SECONDS", 0)  # or it is always due again
    url = valkey.url.replace("unix://", f"unix://{prefix}:x@")
    with Redis.from_url(valkey.url) as admin:
        admin.execute_command("ACL", "SETUSER", prefix, "on", "nopass", "~*", "+@all")
        with opened(settings(url, prefix)) as site, caplog.at_level(logging.WARNING):
            site.recorder.background = False
            for number in range(5):
                is_allowed = not is_lasting and number % 2 == 0
                right = "+zremrangebyscore" if is_allowed else "-zremrangebyscore"
                admin.execute_command("ACL", "SETUSER", prefix, right)
                site.saw(f"ann{number}")
                site.recorder.run_once()
            assert not site.recorder.health.is_outage
    messages = [message for message in caplog.messages if "stale entries" in message]
    assert len(messages) == is_lasting
    for message in messages:
        assert "stale entries cannot be removed, so keys keep growing (Redis refused: " in message


def test_two_processes_that_clean_up_at_once_remove_nobody_who_is_online(site: Site) -> None:
    key = f"{site.settings.prefix}:guest:seen"
    site.redis.zadd(key, {f"id{n}": NOON - KEEP - n for n in range(PAGE)} | {"online": NOON})

    def beside_another(plan: Plan[bool]) -> Plan[bool]:
        replies: Any = None
        while True:
            try:
                batch = plan.send(replies)
            except StopIteration as end:
                return bool(end.value)
            sent = [command[:2] for command in batch.commands]
            if any("ZREMRANGE" in str(name) and of == key for name, of in sent):
                cleaned_up(site, "guest", key)
            replies = yield batch

    backend = Backend(site.settings)
    backend.driver.run(beside_another(backend.stores["guest"].all[0].clean_up(NOON)))
    assert site.redis.zrange(key, 0, -1) == [b"online"]
