"""Pages neither lose nor repeat ids, even if many were last seen in the same instant."""

from collections.abc import Iterator

import pytest

from presence_middleware import Presence, Sighting
from presence_middleware.stores import Act
from tests.support.backends import Server
from tests.support.timed_site import NOON, Site, opened, settings


@pytest.fixture(params=["sorted-set", "minute-sets"])
def site(request: pytest.FixtureRequest, valkey: Server, prefix: str) -> Iterator[Site]:
    with opened(settings(valkey.url, prefix, store=request.param)) as site:
        yield site


def _paged(presence: Presence, limit: int, window: float | None = None) -> list[Sighting]:
    """Everyone, a page after the other; each but the last is full."""
    found: list[Sighting] = []
    before = None
    while page := presence.online(limit=limit, before=before, window=window):
        assert not len(found) % limit, "a page before this one was not full"
        assert page[-1] not in found[-limit:], "this page was there before"
        found += page
        before = page[-1]
    return found


@pytest.fixture
def crowd(site: Site) -> list[str]:
    """2,500 ids, most of them seen in one of two instants: more than one reply brings."""
    ids = [f"id{number:04}" for number in range(2500)]
    site.saw(*ids[:1200], ago=20)
    site.saw(*ids[1200:2420], ago=10)
    for number, id in enumerate(ids[2420:]):
        site.saw(id, ago=number / 8)
    return ids


@pytest.mark.parametrize("limit", [37, 1000, 1001, 2501])
def test_pages_list_ids_of_equal_times_once_each(site: Site, crowd: list[str], limit: int) -> None:
    found = _paged(site.presence, limit)
    assert sorted(who.id for who in found) == crowd
    assert found == site.presence.online(limit=None)
    times = [who.last_seen for who in found if who.last_seen]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("change", ["leaves", "is seen again"])
def test_changes_between_two_pages_hide_no_other_id(site: Site, change: str) -> None:
    ids = [f"id{number:02}" for number in range(30)]
    site.saw(*ids, ago=5)
    found: list[str] = []
    before = None
    while page := site.presence.online(limit=4, before=before):
        found += [who.id for who in page]
        assert before != page[-1]
        before = page[-1]
        if change == "leaves":
            site.presence.leave(before.id)
        else:
            site.presence.touch(before.id)
    assert sorted(found) == ids


def test_times_written_by_another_program_do_not_block_a_reader(
    valkey: Server, prefix: str
) -> None:
    with opened(settings(valkey.url, prefix)) as site:
        moment = NOON + 0.1234568
        site.redis.zadd(f"{prefix}:user:seen", {f"u{n:05}": moment for n in range(2500)})
        assert len({who.id for who in site.presence.online(limit=None)}) >= 1000


def test_return_in_the_instant_of_a_goodbye_hides_nobody_on_the_next_page(
    valkey: Server, prefix: str
) -> None:
    with opened(settings(valkey.url, prefix, pulse_path="/pulse")) as site:
        site.saw("bob", ago=1)
        site.saw("ann")
        site.recorder.record(("user", "ann"), site.clock.now, act=Act.GOODBYE)
        assert site.recorder.flush()
        site.presence.touch("ann")
        assert [who.id for who in _paged(site.presence, limit=1)] == ["ann", "bob"]
