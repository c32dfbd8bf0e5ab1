"""How many were seen in a period, each once: also those who left since, and never the erased."""

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from presence_middleware import Presence, QueryError, Settings, UnsupportedQuery
from tests.support.timed_site import NOON, Clock

HOUR, DAY = 3600, 24 * 3600
IDS = st.sampled_from(["ann", "bob", "cid", "dan", "eve"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["touch", "touch", "leave", "forget"]), IDS),
        st.tuples(st.just("wait"), st.sampled_from([1, 61, 601, 5 * HOUR, 20 * HOUR, 40 * DAY])),
    ),
    max_size=12,
)


@pytest.mark.parametrize("shards", [1, 3])
@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_active_is_everybody_seen_in_the_period(
    shards: int, steps: list[tuple[str, Any]], valkey_url: str
) -> None:
    clock = Clock(NOON)
    site = Settings.from_env(
        {}, redis_url=valkey_url, prefix=f"t{uuid.uuid4().hex[:12]}", shards=str(shards)
    )
    presence = Presence(site, clock=clock)
    seen: dict[str, float] = {}
    for act, value in steps:
        clock.now += value if act == "wait" else 0.001
        if act != "wait":
            getattr(presence, act)(value)
        if act == "touch":
            seen[value] = clock.now
        elif act == "forget":
            seen.pop(value, None)
    for period, seconds in {"1d": DAY, "7d": 7 * DAY, "30d": 30 * DAY}.items():
        assert presence.active(period) == sum(at > clock.now - seconds for at in seen.values())


def test_minute_sets_know_their_window_and_count_nobody_twice(valkey_url: str, prefix: str) -> None:
    clock = Clock(NOON)
    site = Settings.from_env({}, redis_url=valkey_url, prefix=prefix, store="minute-sets")
    presence = Presence(site, clock=clock)
    for id in ("ann", "bob", "cid", "dan"):
        presence.touch(id)
    clock.now += 1
    presence.leave("ann")
    presence.leave("bob")
    presence.forget("cid")
    clock.now += 1
    presence.touch("bob")
    assert (presence.count("user"), presence.active("10m")) == (2, 3)


def test_what_is_not_kept_is_refused(valkey_url: str, prefix: str) -> None:
    site = Settings.from_env({}, redis_url=valkey_url, prefix=prefix, pulse_path="/pulse")
    presence = Presence(site)
    assert presence.active("10m", "bot") == presence.active("20m") == 0
    for period, kind, problem in [
        ("31d", "user", "is stored for"),
        ("1d", "guest", "is stored for 10m"),
        ("1d", "bot", "is stored for 10m"),
        ("10m", "user", "two windows or more"),
    ]:
        with pytest.raises(UnsupportedQuery, match=problem):
            presence.active(period, kind)
    with pytest.raises(QueryError, match="period is 'soon'"):
        presence.active("soon")


@pytest.mark.parametrize(
    ("site", "periods"),
    [
        ({}, ["1d", "7d", "30d"]),
        ({"retention": "7d"}, ["1d", "7d"]),
        ({"retention": "6h"}, []),
        ({"window": "18h", "pulse_path": "/pulse"}, ["7d", "30d"]),
    ],
)
def test_the_usual_periods_are_those_that_a_kind_can_answer(
    site: dict[str, str], periods: list[str], valkey_url: str, prefix: str
) -> None:
    presence = Presence(Settings.from_env({}, redis_url=valkey_url, prefix=prefix, **site))
    presence.touch("ann")
    assert presence.run(presence.backend.queries.active_in_periods("user")) == dict.fromkeys(
        periods, 1
    )
