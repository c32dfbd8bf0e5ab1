"""Who comes and who goes is announced once: every edge case, with a clock that the test moves."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from presence_middleware import EventsLost, Presence, SettingsError, UnsupportedQuery
from presence_middleware.stores import moment_of
from tests.support.followed_site import KEYS, LAG, FollowedSite
from tests.support.timed_site import NOON, WINDOW, settings

GONE = WINDOW + LAG + 1  # seconds after which a leave is announced by the next sweep
ALL = [*KEYS, "gone"]
Open = Callable[..., FollowedSite]


@pytest.fixture(params=["valkey/1", "valkey/16"])
def opened(request: pytest.FixtureRequest, prefix: str) -> Iterator[Open]:
    server, _, shards = request.param.partition("/")
    memory = f"memory://{prefix}"
    url = memory if server == "memory" else request.getfixturevalue(server).url
    sites: list[FollowedSite] = []

    def open_site(**given: Any) -> FollowedSite:
        sites.append(FollowedSite(url, prefix, **{"shards": int(shards), **given}))
        return sites[-1]

    yield open_site
    for site in sites:
        site.close()


@pytest.fixture
def site(opened: Open) -> FollowedSite:
    return opened()


def after(site: FollowedSite, seconds: float) -> list[tuple[str, float]]:
    """Return what is announced after some seconds and a sweep."""
    site.clock.now += seconds
    site.sweep()
    return site.announced()


def test_a_user_comes_once_and_goes_once(site: FollowedSite) -> None:
    for _ in range(3):
        site.saw("ann")
        site.clock.now += 60
    assert site.announced() == [("+ann", 0)]
    assert after(site, WINDOW - 60 + LAG - 1) == [], "a late write may still arrive"
    assert after(site, 2) == [("-ann", 120)]
    assert after(site, 2) == after(site, 1000) == []
    site.saw("ann")
    assert site.announced() == [("+ann", round(site.clock.now - NOON, 3))]


def test_events_that_are_turned_on_announce_nobody_who_is_there(opened: Open) -> None:
    opened(events=()).saw("ann", "gone", ago=10)
    site = opened()
    site.sweep()
    site.saw("ann", "bob")
    assert site.announced() == [("+bob", 0)]
    assert sorted(after(site, GONE)) == [("-ann", 0), ("-bob", 0), ("-gone", -10)]


def test_an_evicted_key_is_noticed_when_its_writers_are_forgotten(site: FollowedSite) -> None:
    site.saw("ann")
    site.announced()
    site.delete("seen")
    site.clock.now += WINDOW + 300
    site.clean_up()
    assert site.lifetime("ann", "writers") > 0
    site.saw("ann")
    with pytest.raises(EventsLost):
        site.announced()


def test_nothing_counts_on_a_site_that_slept_until_its_keys_expired(site: FollowedSite) -> None:
    site.saw("ann")
    site.clock.now += 300
    site.announced()
    site.sweep()  # by a process that outlives the last visitor
    remaining = site.lifetime("ann", "seen")
    assert 0 < site.lifetime("ann", "progress") <= remaining
    site.expire("seen", 400)
    site.sweep()
    assert 0 < site.lifetime("ann", "progress") <= 400


def test_a_clock_set_back_by_much_begins_again(site: FollowedSite) -> None:
    site.sweep()
    site.saw("ann")
    site.announced()
    site.clock.now -= 2 * WINDOW
    site.sweep()
    with pytest.raises(EventsLost):
        site.announced()
    site.skip()
    site.saw("bob")
    assert site.announced() == [("+bob", -2 * WINDOW)]


def test_processes_with_different_windows_lose_no_events(opened: Open) -> None:
    """A deploy that changes `PRESENCE_WINDOW` replaces one process after the other."""
    before, after_deploy = opened(), opened(window=2 * WINDOW)
    before.saw("ann")
    before.sweep()
    before.announced()
    for _ in range(3):
        before.clock.now += GONE / 2
        after_deploy.clock.now = before.clock.now
        after_deploy.sweep()
        before.sweep()
        before.saw("bob")
    assert before.announced() == [("+bob", GONE / 2), ("-ann", 0)]


def test_people_come_and_go_after_a_clock_is_set_back_by_more_than_a_short_window(
    opened: Open,
) -> None:
    site = opened(window=30)
    site.sweep()
    site.saw("ann")
    site.announced()
    site.clock.now -= 100
    site.sweep()
    with pytest.raises(EventsLost):
        site.announced()
    site.skip()
    site.saw("bob")
    assert site.announced() == [("+bob", -100)]


def test_cleaning_removes_nobody_who_was_not_announced(opened: Open) -> None:
    site = opened(kind="guest")  # kept no longer than the window
    site.saw("cy")
    site.announced()
    site.clock.now += WINDOW + LAG - 1
    site.clean_up()
    assert site.announced() == []
    site.clock.now += 2
    site.clean_up()
    assert site.announced() == [("-cy", 0)]
    assert site.keys_with("cy") == {"changes"}
    site.saw("dee")
    assert site.announced() == [("+dee", WINDOW + LAG + 1)], "an empty set is no lost data"


def test_after_an_outage_longer_than_the_window_all_leave_and_come_again(
    site: FollowedSite,
) -> None:
    crowd = [f"user{number}" for number in range(1200)]
    for number, id in enumerate(crowd):
        site.recorder.record(("user", id), site.clock.now + number / 100, site.clock.now)
    assert site.recorder.flush()
    site.announced()
    site.clock.now += 3 * WINDOW
    assert site.sweep() >= 3, "a page at a time"
    gone = site.announced()
    assert sorted(gone) == sorted(
        (f"-{id}", round(number / 100, 3)) for number, id in enumerate(crowd)
    ), "with the moments at which they were seen"
    site.saw(*crowd)
    assert {name for name, _ in site.announced()} == {f"+{id}" for id in crowd}


def test_a_lower_limit_removes_a_bounded_number_in_each_write(opened: Open) -> None:
    crowd = [f"user{number}" for number in range(3000)]
    opened(shards=1).saw(*crowd)
    site = opened(shards=1, max_members=10)
    site.clock.now += WINDOW + 1
    sizes = [3000]
    while sizes[-1] > 10:
        site.saw("ann")
        sizes.append(len(site.run(site.store.all[0].online(site.clock.now, 1e6, None, None))))
    assert all(1 <= a - b <= 1000 for a, b in pairwise(sizes)), sizes
    site.saw("ann")
    announced = site.announced()
    assert len(announced) == len(dict(announced)), "once"


def test_people_of_one_moment_leave_together(site: FollowedSite) -> None:
    crowd = [f"user{number}" for number in range(300)]
    site.saw(*crowd)
    site.announced()
    assert {name for name, _ in after(site, GONE)} == {f"-{id}" for id in crowd}


def test_a_crowd_of_one_moment_leaves_in_several_entries(opened: Open) -> None:
    site = opened(shards=1)
    crowd = [f"user{number}" for number in range(5000)]  # open connections of a process
    site.saw(*crowd)
    assert len(site.announced()) == 5000
    announced = after(site, GONE)
    assert len(announced) == 5000
    assert {name for name, _ in announced} == {f"-{id}" for id in crowd}
    assert max(site.entries()) <= 250


def test_a_kind_that_is_not_named_announces_nobody(opened: Open) -> None:
    site = opened(identity="user=header:x-user, app=header:x-app")
    site.recorder.record(("app", "42"), site.clock.now)
    site.saw("42")
    assert site.announced() == [("+42", 0)]
    with pytest.raises(UnsupportedQuery, match="PRESENCE_EVENTS"):
        site.presence.events("app")


def test_whoever_was_erased_is_in_the_stream_for_five_minutes_at_most(site: FollowedSite) -> None:
    site.saw("ann")
    site.say_goodbye("ann")
    assert site.keys_with("ann") == {"seen", "changes", "bye"}
    site.presence.forget("ann")
    assert site.keys_with("ann") == {"changes"}
    assert 0 < site.lifetime("ann", "changes") <= 300


def test_a_goodbye_is_announced_once_with_its_moment(site: FollowedSite) -> None:
    site.saw("ann")
    site.clock.now += 10
    site.say_goodbye("ann")
    grace = site.settings.grace_seconds
    assert site.announced() == [("+ann", 0)]
    assert after(site, grace + LAG - 1) == []
    assert after(site, 2) == [("-ann", 10)]
    # Its true last-seen time is written back when that can no longer bring it online.
    assert after(site, WINDOW - 100) == []
    for _ in range(20):
        assert after(site, 2) == []
    assert site.presence.last_seen("ann") == moment_of(NOON + 10)


def test_whoever_comes_back_late_after_a_goodbye_leaves_first(site: FollowedSite) -> None:
    site.saw("ann")
    site.clock.now += 10
    site.say_goodbye("ann")
    site.announced()
    site.clock.now += site.settings.grace_seconds + 1
    site.saw("ann")
    assert site.announced() == [
        ("-ann", 10),
        ("+ann", 11 + site.settings.grace_seconds),
    ]


@pytest.mark.parametrize("store", ["minute-sets", "hyperloglog"])
def test_only_the_store_that_knows_who_comes_and_goes_has_events(store: str) -> None:
    with pytest.raises(SettingsError, match=f"kind 'user' has the store {store}.*sorted-set"):
        settings("redis://h", "p", events="user", store=store)


def test_without_events_there_is_nothing_to_follow(prefix: str) -> None:
    site = settings(f"memory://{prefix}", prefix)
    with pytest.raises(UnsupportedQuery, match="PRESENCE_EVENTS=user"):
        Presence(site).events()


def test_a_late_sighting_beside_a_newer_one_of_somebody_else_is_no_join(opened: Open) -> None:
    site = opened(shards=1)
    site.saw("ann")
    assert site.announced() == [("+ann", 0)]
    site.clock.now += WINDOW + 2  # the window of ann is over, but not announced yet
    now = site.clock.now
    site.recorder.record(("user", "ann"), now - 3)
    site.recorder.record(("user", "bob"), now)
    assert site.recorder.flush()
    assert site.announced() == [("+bob", WINDOW + 2)]
