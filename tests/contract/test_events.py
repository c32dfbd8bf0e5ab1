"""Who comes and who goes is announced once: every edge case, with a clock that the test moves."""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import pairwise
from typing import Any

import pytest

from presence_middleware import EventsLost, Presence, SettingsError, UnsupportedQuery
from presence_middleware.backend import Backend
from presence_middleware.people import Room
from presence_middleware.stores import Plan, Position, room_number
from tests.support.acts import send
from tests.support.backends import Server
from tests.support.followed_site import LAG, FollowedSite
from tests.support.timed_site import NOON, WINDOW, settings

GONE = WINDOW + LAG + 1  # seconds after which a leave is announced by the next sweep
Open = Callable[..., FollowedSite]


@pytest.fixture(params=[1, 16])
def opened(request: pytest.FixtureRequest, valkey: Server, prefix: str, stack: ExitStack) -> Open:
    def open_site(**given: Any) -> FollowedSite:
        site = FollowedSite(valkey.url, prefix, **{"shards": request.param, **given})
        stack.callback(site.close)
        return site

    return open_site


@pytest.fixture
def site(opened: Open) -> FollowedSite:
    return opened()


def after(site: FollowedSite, seconds: float) -> list[tuple[str, float]]:
    """Return what is announced after some seconds and a sweep."""
    site.clock.now += seconds
    site.sweep()
    return site.announced()


def test_events_that_are_turned_on_announce_nobody_who_is_there(opened: Open) -> None:
    opened(events=()).saw("ann", "gone", ago=10)
    site = opened()
    site.sweep()
    site.saw("ann", "bob")
    assert site.announced() == [("+bob", 0)]
    assert sorted(after(site, GONE)) == [("-ann", 0), ("-bob", 0), ("-gone", -10)]


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


@pytest.mark.parametrize("store", ["minute-sets", "hyperloglog"])
def test_only_the_store_that_knows_who_comes_and_goes_has_events(store: str) -> None:
    with pytest.raises(SettingsError, match=f"kind 'user' has the store {store}.*sorted-set"):
        settings("redis://h", "p", events="user", store=store)


def test_without_events_there_is_nothing_to_follow(prefix: str) -> None:
    site = settings(f"memory://{prefix}", prefix)
    with pytest.raises(UnsupportedQuery, match="PRESENCE_EVENTS=user"):
        Presence(site).events()


def test_an_idle_iterator_has_no_dictionary_of_its_own(prefix: str) -> None:
    """A site may have hundreds of thousands of them."""
    with Presence(settings(f"memory://{prefix}", prefix, events="user")).events() as events:
        assert not hasattr(events, "__dict__")


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


def test_nothing_counts_on_a_site_that_slept_until_its_keys_expired(site: FollowedSite) -> None:
    """A process that outlives the last visitor sweeps, and makes no key live longer."""
    site.saw("ann")
    site.expire("ann", "seen", 400)
    site.sweep()
    assert 0 < site.lifetime("ann", "progress") <= 400


def test_after_a_clock_was_set_back_rooms_are_empty_and_people_come_again(opened: Open) -> None:
    site = opened(rooms="/t/{topic}")

    def enters(id: str) -> None:
        room = Room(room_number("/t/1"), site.clock.now)
        site.recorder.record(("user", id), site.clock.now, room=room)
        assert site.recorder.flush()

    site.sweep()
    enters("ann")
    site.clock.now += WINDOW + 5
    site.sweep()
    enters("cid")
    site.clock.now -= WINDOW + 3600
    site.sweep()
    assert site.presence.count(room="/t/1") == 0
    with pytest.raises(EventsLost):
        site.announced()
    site.positions = [site.run(stream.position()) for stream in site.streams]
    enters("bob")
    assert [each.id for each in site.presence.online(room="/t/1")] == ["bob"]
    assert site.announced() == [("+bob", -3595.0)]


def test_an_event_in_the_millisecond_in_which_a_reader_begins_is_not_missed(opened: Open) -> None:
    site = opened(shards=1)
    site.sweep()
    site.saw("ann")
    (stream,) = site.streams
    *_, (entry, _) = site.run(send("XRANGE", f"{site.store.all[0].name}:changes", "-", "+"))
    milliseconds = int(entry.partition(b"-")[0])
    plan = stream.position(time.monotonic())

    def asked() -> Plan[Position]:
        next(plan)  # it asks for the time, and is told the end of that millisecond
        batch = plan.send([[milliseconds // 1000, milliseconds % 1000 * 1000 + 999]])
        while True:
            replies = yield batch
            try:
                batch = plan.send(replies)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    site.positions = [site.run(asked())]
    assert site.announced() == [("+ann", 0)]


@pytest.mark.parametrize("events", ["", "user"])
def test_only_the_kinds_of_the_setting_have_streams(prefix: str, events: str) -> None:
    """Also if goodbyes and rooms need a sweep: others send no command about events."""
    given = {"events": events, "rooms": "/t/{topic}", "pulse_path": "/pulse"}
    stores, announced = Backend(settings("memory://", prefix, **given)).stores, []
    for kind, shards in stores.items():
        with suppress(UnsupportedQuery):
            shards.all[0].event_stream()
            announced.append(kind)
    assert announced == [kind for kind in ["user"] if events]


def test_a_goodbye_is_announced_with_its_moment(site: FollowedSite) -> None:
    site.saw("ann")
    site.clock.now += 10
    site.say_goodbye("ann")
    assert site.announced() == [("+ann", 0)]
    assert after(site, site.settings.grace_seconds + LAG + 1) == [("-ann", 10)]
    site.saw("bob")
    came = site.clock.now - NOON
    site.clock.now += 100
    site.sweep()
    site.say_goodbye("bob", ago=90)  # so late that bob has gone by now
    assert site.announced() == [("+bob", came), ("-bob", came + 10)]
