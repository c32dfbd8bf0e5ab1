"""The reads of every store, with and without `await`, on every server."""

from datetime import timedelta

import pytest

from presence_middleware import Presence, QueryError, Sighting, UnsupportedQuery
from presence_middleware.stores import moment_of
from tests.support.timed_site import NOON, WINDOW, Site

DAY = 86400
WITH_IDS = pytest.mark.parametrize("store", ["sorted-set", "minute-sets"])


@pytest.fixture
def people(site: Site) -> Presence:
    """ann and bob are online, cid went more than a window and a minute ago; so is a guest."""
    site.saw("ann", "bob", ago=300)
    site.saw("ann")
    site.saw("cid", ago=720)
    site.saw("g1", kind="guest")
    return site.presence


def test_count_is_of_everyone_in_the_window_once(people: Presence) -> None:
    assert people.count() == 2
    assert people.count("user") == 2
    assert people.count("guest") == 1


def test_counts_are_of_every_kind_of_the_site(people: Presence) -> None:
    assert people.counts() == {"user": 2, "guest": 1}
    assert people.counts(window=120) == {"user": 1, "guest": 1}


def test_without_sightings_nobody_is_online(site: Site) -> None:
    assert site.presence.counts() == {"user": 0, "guest": 0}


def test_people_go_offline_as_the_clock_moves(site: Site, people: Presence) -> None:
    site.clock.now += 400
    assert people.count() == 1
    site.clock.now += WINDOW
    assert people.count() == 0


@pytest.mark.parametrize("window", [120, 120.0, timedelta(minutes=2), "2m", "120s", " 120 "])
def test_a_window_may_be_seconds_a_timedelta_or_text(people: Presence, window: object) -> None:
    assert people.count(window=window) == 1


@pytest.mark.parametrize(
    "window", ["soon", "", "-5m", -5, 0, True, float("nan"), timedelta(0), timedelta(-1), [600]]
)
def test_a_window_that_is_no_duration_is_refused(site: Site, window: object) -> None:
    with pytest.raises(QueryError, match=r"window is .*90s, 10m, 24h or 30d") as refusal:
        site.presence.count(window=window)
    assert not isinstance(refusal.value, UnsupportedQuery)


def test_a_window_longer_than_the_retention_is_refused(site: Site, store: str) -> None:
    keep = WINDOW + 30 * DAY if store == "sorted-set" else WINDOW
    site.presence.count(window=keep)
    with pytest.raises(UnsupportedQuery, match="PRESENCE_WINDOW and PRESENCE_RETENTION"):
        site.presence.count(window=keep + 1)
    with pytest.raises(UnsupportedQuery, match="kind 'guest' is stored for 10m"):
        site.presence.count("guest", window=WINDOW + 1)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        *[("count", ()), ("online", ()), ("online_among", (["ann"],))],
        *[("online_friends", ("key",)), ("is_online", ("ann",)), ("last_seen", ("ann",))],
        *[("touch", ("ann",)), ("leave", ("ann",)), ("forget", ("ann",))],
    ],
)
def test_an_unknown_kind_is_refused(site: Site, method: str, arguments: tuple[object]) -> None:
    with pytest.raises(QueryError, match="unknown kind 'bot': PRESENCE_IDENTITY has user, guest"):
        getattr(site.presence, method)(*arguments, kind="bot")


@pytest.mark.parametrize("store", ["hyperloglog"])
@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        *[("online", ()), ("online_among", (["ann"],)), ("online_friends", ("key",))],
        *[("is_online", ("ann",)), ("last_seen", ("ann",)), ("leave", ("ann",))],
    ],
)
def test_the_error_of_a_hyperloglog_names_the_stores_that_can_answer(
    people: Presence, method: str, arguments: tuple[object]
) -> None:
    with pytest.raises(UnsupportedQuery, match=r"kind 'user' .*sorted-set.* minute-sets.*_STORE"):
        getattr(people, method)(*arguments)


@WITH_IDS
def test_online_lists_the_newest_first_with_their_times(people: Presence, store: str) -> None:
    ages = {"ann": 0, "bob": 300}
    exact = store == "sorted-set"
    expected = [Sighting(id, moment_of(NOON - ago) if exact else None) for id, ago in ages.items()]
    assert people.online() == expected
    assert people.online(window="2m") == expected[:1]
    assert [who.id for who in people.online("guest")] == ["g1"]


@WITH_IDS
def test_online_pages_on_from_the_last_sighting(site: Site) -> None:
    ids = [f"id{number:03}" for number in range(150)]
    for number, id in enumerate(ids):
        site.saw(id, ago=number / 10)
    ask = site.presence.online
    assert [who.id for who in ask(limit=7)] == ids[:7]
    assert [who.id for who in ask(limit=7, before=ask(limit=7)[-1])] == ids[7:14]
    assert [who.id for who in ask()] == ids[:100], "a hundred by default"
    assert [who.id for who in ask(limit=None)] == ids
    assert ask(before=ask(limit=None)[-1]) == []


@WITH_IDS
@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(site: Site, limit: int) -> None:
    with pytest.raises(QueryError, match="at least 1, or None for everyone"):
        site.presence.online(limit=limit)


@WITH_IDS
def test_is_online_within_the_window_only(people: Presence) -> None:
    assert [people.is_online(id) for id in ("ann", "bob", "cid", "nobody")] == [1, 1, 0, 0]
    assert not people.is_online("bob", window="2m")
    assert people.is_online("g1", "guest")
    assert not people.is_online("g1"), "a guest's id is no user's"


@WITH_IDS
def test_online_among_returns_each_id_once_in_the_given_order(people: Presence) -> None:
    assert people.online_among(["bob", "cid", "ann", "nobody", "bob"]) == ["bob", "ann"]
    assert people.online_among(iter(["ann", "bob"]), window="2m") == ["ann"]
    assert people.online_among([]) == []


@WITH_IDS
def test_an_id_may_be_a_number(site: Site) -> None:
    site.presence.touch(42)
    assert site.presence.is_online(42)
    assert site.presence.online_among([7, 42]) == ["42"]


@pytest.mark.parametrize("store", ["sorted-set"])
def test_a_sorted_set_is_exact_to_the_microsecond(site: Site) -> None:
    site.saw("just-gone", ago=WINDOW)
    site.saw("just-there", ago=WINDOW - 1e-6)
    assert site.presence.online_among(["just-gone", "just-there"]) == ["just-there"]
    assert [who.id for who in site.presence.online()] == ["just-there"]
    assert site.presence.count() == 1


@WITH_IDS
def test_last_seen_among_returns_what_last_seen_returns_in_the_given_order(
    site: Site, people: Presence
) -> None:
    site.saw("dan", ago=60)
    people.leave("dan")
    ids = ["bob", "nobody", "ann", "cid", "dan", *(f"stranger{number}" for number in range(600))]
    found = people.last_seen_among([*ids, "bob"])
    assert list(found) == ids
    assert {id: moment for id, moment in found.items() if moment} == {
        id: moment for id in ids[:5] if (moment := people.last_seen(id))
    }
    assert found["dan"] is not None
    assert people.last_seen_among(iter(["g1"]), "guest") == {"g1": people.last_seen("g1", "guest")}
    assert people.last_seen_among([]) == {}


@pytest.mark.parametrize("store", ["sorted-set"])
def test_last_seen_of_offline_ids_is_known_until_the_retention_ends(
    site: Site, people: Presence
) -> None:
    assert people.last_seen("cid") == moment_of(NOON - 720)
    assert people.last_seen("nobody") is None
    assert people.last_seen("g1", "guest") == moment_of(NOON)
    site.clock.now = NOON + 30 * DAY
    assert people.last_seen("ann") == moment_of(NOON)
    assert people.last_seen("g1", "guest") is None, "guests are kept for the window only"
    site.clock.now = NOON - 720 + 30 * DAY + WINDOW
    assert people.last_seen("cid") is None


@pytest.mark.parametrize("store", ["minute-sets"])
def test_last_seen_of_minute_sets_is_the_minute(site: Site, people: Presence) -> None:
    assert people.last_seen("ann") == moment_of(NOON - 30)
    assert people.last_seen("bob") == moment_of(NOON - 330)
    assert people.last_seen("cid") is None
    site.clock.now += WINDOW + 60
    assert people.last_seen("ann") is None


@WITH_IDS
@pytest.mark.parametrize(
    "friends",
    [
        ["bob", "cid", "ann", "stranger"],
        {"ann": 1.0, "bob": 1e18, "cid": 1e18, "stranger": 3.0},
        {"ann": float("-inf"), "bob": float("inf"), "cid": float("inf"), "stranger": 0.0},
        {"ann": float("inf"), "bob": float("-inf"), "cid": float("-inf")},
    ],
    ids=["set", "scores", "infinite", "infinite the other way"],
)
def test_online_friends_are_those_of_a_set_or_sorted_set(
    site: Site, people: Presence, friends: list[str] | dict[str, float]
) -> None:
    key = f"{site.settings.prefix}:friends"
    if isinstance(friends, dict):
        site.redis.zadd(key, friends)
    else:
        site.redis.sadd(key, *friends)
    kept = site.held()[key]
    assert people.online_friends(key) == ["ann", "bob"]
    assert people.online_friends(key, window="2m") == ["ann"]
    assert people.online_friends(key, "guest") == []
    assert site.held()[key] == kept


@WITH_IDS
def test_without_a_key_there_are_no_friends(site: Site, people: Presence) -> None:
    assert people.online_friends(f"{site.settings.prefix}:nothing") == []


@WITH_IDS
def test_friends_in_a_key_of_another_type_are_refused(site: Site, people: Presence) -> None:
    key = f"{site.settings.prefix}:text"
    site.redis.set(key, "ann")
    with pytest.raises(QueryError, match="WRONGTYPE"):
        people.online_friends(key)
