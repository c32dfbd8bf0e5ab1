"""Goodbyes, step by step with given times: over shards and backends, for both kinds of readers."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime

import pytest

from presence_middleware import Sighting
from presence_middleware.recorder import Recorder
from presence_middleware.stores import Act, moment_of
from tests.support.backends import Backend, in_turn, matrix
from tests.support.timed_site import NOON, WINDOW, opened, settings

GRACE = 75.0
DAY = 86_400.0
WHERE = [
    *("memory", "memory/16", "valkey", "valkey/16", "cluster"),
    *matrix("cluster/16", "redis_server", "redis_server/16", "redis62"),
]

pytestmark = pytest.mark.parametrize(
    ("backend", "mode"), in_turn(WHERE, ["sync", "async"]), indirect=["backend"]
)


class Pages:
    """A site whose pages send a pulse: two processes, and a reader elsewhere."""

    def __init__(self, backend: Backend, prefix: str, mode: str, stack: ExitStack) -> None:
        given = settings(
            backend.url, prefix, shards=backend.shards, pulse_path="/pulse", flush_interval="3m"
        )
        self.site = stack.enter_context(opened(given, mode))
        self.presence, self.clock = self.site.presence, self.site.clock
        self.workers = [Recorder(given, clock=self.clock, background=False) for _ in range(2)]

    def sees(self, *ids: str, ago: float = 0.0, worker: int = 0, kind: str = "user") -> None:
        """A process writes that ids were seen `ago` seconds before now."""
        for id in ids:
            self.workers[worker].record((kind, id), self.clock.now - ago)
        assert self.workers[worker].flush()

    def closes(self, *ids: str, ago: float = 0.0, worker: int = 1, kind: str = "user") -> None:
        """A process writes that ids said goodbye, by default not the process that saw them."""
        for id in ids:
            self.workers[worker].record((kind, id), self.clock.now - ago, act=Act.GOODBYE)
        assert self.workers[worker].flush()

    def clean_up(self) -> None:
        backend = self.workers[0].backend
        for store in backend.stores.values():
            for shard in store.all:
                while backend.driver.run(shard.clean_up(self.clock.now)):
                    pass

    def online_from_until(self, id: str, seconds: float, kind: str = "user") -> None:
        """Assert that an id is online for so many more seconds, and not for longer."""
        began = self.clock.now
        self.clock.now = began + seconds - 1
        assert self.presence.is_online(id, kind)
        self.clock.now = began + seconds + 1
        assert not self.presence.is_online(id, kind)
        self.clock.now = began

    def last_seen(self, id: str) -> datetime | None:
        """Return the last-seen time on which all ways of asking agree."""
        moment = self.presence.last_seen(id)
        assert self.presence.last_seen_among([id]) == {id: moment}
        online = {each.id: each.last_seen for each in self.presence.online()}
        assert online.get(id, moment) == moment
        return moment


@pytest.fixture
def pages(backend: Backend, prefix: str, mode: str) -> Iterator[Pages]:
    with ExitStack() as stack:
        yield Pages(backend, prefix, mode, stack)


def test_who_closed_the_last_page_is_offline_after_the_grace(pages: Pages) -> None:
    pages.sees("ann", "bob", ago=30)
    pages.closes("ann")
    assert pages.presence.is_online("ann")
    assert pages.presence.count() == 2
    pages.online_from_until("ann", GRACE)
    pages.online_from_until("bob", WINDOW - 30)
    pages.clock.now += GRACE + 1
    assert pages.presence.online_among(["ann", "bob"]) == ["bob"]
    assert pages.presence.counts() == {"user": 1, "guest": 0}


def test_the_last_seen_time_is_the_true_one_before_and_after_the_goodbye_is_written_back(
    pages: Pages,
) -> None:
    pages.sees("ann", ago=30)
    pages.closes("ann")
    for later in (0.0, GRACE - 1, GRACE + 1, WINDOW - 1, WINDOW + 1, 3 * DAY):
        pages.clock.now = NOON + later
        assert pages.last_seen("ann") == moment_of(NOON), later
        pages.clean_up()
        assert pages.last_seen("ann") == moment_of(NOON), later
    held = pages.site.held()
    assert not any(key.endswith(":bye") for key in held), "it is written back"
    assert not pages.presence.is_online("ann")


def test_goodbyes_without_a_clean_up_are_true_as_long_as_they_are_stored(pages: Pages) -> None:
    pages.sees("ann", ago=30)
    pages.closes("ann")
    pages.clock.now += 29 * DAY
    assert pages.last_seen("ann") == moment_of(NOON)


def test_a_click_that_arrives_before_the_goodbye_of_its_page_is_undone_by_the_next_pulse(
    pages: Pages,
) -> None:
    pages.sees("ann", ago=0.03)  # the GET of the next page
    pages.closes("ann")
    assert pages.presence.is_online("ann")
    pages.clock.now += 0.05
    pages.sees("ann")  # the pulse of the next page
    pages.online_from_until("ann", WINDOW)
    assert pages.last_seen("ann") == moment_of(NOON + 0.05)


@pytest.mark.parametrize("later", [0.001, 1.0, GRACE - 1, GRACE + 1, WINDOW + 1])
@pytest.mark.parametrize("worker", [0, 1])
def test_another_tab_or_device_restores_the_window(pages: Pages, later: float, worker: int) -> None:
    pages.sees("ann", ago=60)
    pages.closes("ann")
    pages.clock.now += later
    pages.clean_up()
    pages.sees("ann", worker=worker)
    pages.clean_up()
    pages.online_from_until("ann", WINDOW)
    assert pages.last_seen("ann") == moment_of(NOON + later)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_late_sighting_from_before_the_goodbye_is_dropped(pages: Pages, worker: int) -> None:
    pages.sees("ann", ago=60)
    pages.closes("ann")
    pages.clock.now += 3
    pages.sees("ann", ago=4, worker=worker)
    pages.sees("bob", ago=4, worker=worker)
    pages.online_from_until("ann", GRACE - 3)
    pages.online_from_until("bob", WINDOW - 4)
    assert pages.last_seen("ann") == moment_of(NOON)


def test_a_goodbye_that_was_written_before_its_sighting_is_repeated_with_it(pages: Pages) -> None:
    pages.closes("ann", ago=3, worker=0)
    pages.sees("ann", ago=4, worker=0)
    pages.online_from_until("ann", GRACE - 3)


def test_a_goodbye_from_before_a_sighting_changes_nothing(pages: Pages) -> None:
    pages.sees("ann", ago=1)
    pages.closes("ann", ago=2)
    pages.online_from_until("ann", WINDOW - 1)
    assert pages.last_seen("ann") == moment_of(NOON - 1)


def test_a_goodbye_makes_nobody_online_and_moves_no_old_time(pages: Pages) -> None:
    pages.sees("ann", ago=WINDOW + 5)
    pages.sees("bob", ago=WINDOW - GRACE + 5)
    pages.closes("ann", "bob", "never came")
    assert pages.presence.online_among(["ann", "bob", "never came"]) == ["bob"]
    pages.online_from_until("bob", GRACE - 5)
    assert pages.last_seen("ann") == moment_of(NOON - WINDOW - 5)
    assert pages.last_seen("never came") is None
    pages.clock.now += WINDOW + 1
    pages.clean_up()
    assert pages.last_seen("bob") == moment_of(NOON - WINDOW + GRACE - 5)


def test_a_repeated_goodbye_does_not_prolong_the_first(pages: Pages) -> None:
    pages.sees("ann", ago=30)
    pages.closes("ann")
    pages.clock.now += 20
    pages.closes("ann", worker=0)
    pages.online_from_until("ann", GRACE - 20)
    pages.clock.now += GRACE
    pages.closes("ann")
    assert not pages.presence.is_online("ann")


def test_the_same_goodbye_twice_is_that_goodbye(pages: Pages) -> None:
    pages.sees("ann", ago=30)
    pages.closes("ann")
    pages.closes("ann", worker=0)
    pages.online_from_until("ann", GRACE)
    assert pages.last_seen("ann") == moment_of(NOON)


@pytest.mark.parametrize("goodbye_first", [True, False])
def test_a_logout_and_a_goodbye_are_a_logout(pages: Pages, *, goodbye_first: bool) -> None:
    pages.sees("ann", ago=30)
    if goodbye_first:
        pages.closes("ann")
        pages.clock.now += 1
    pages.presence.leave("ann")
    if not goodbye_first:
        pages.clock.now += 1
        pages.closes("ann")
    assert not pages.presence.is_online("ann")
    expected = moment_of(NOON if goodbye_first else NOON - 30)
    assert pages.last_seen("ann") == expected
    pages.clean_up()
    assert pages.last_seen("ann") == expected
    pages.clock.now += 1
    pages.sees("ann")
    pages.online_from_until("ann", WINDOW)


@pytest.mark.parametrize("goodbye_first", [True, False])
def test_of_an_erased_id_a_goodbye_leaves_nothing(pages: Pages, *, goodbye_first: bool) -> None:
    pages.sees("ann", ago=30)
    if goodbye_first:
        pages.closes("ann")
        pages.clock.now += 1
    pages.presence.forget("ann")
    if not goodbye_first:
        pages.clock.now += 1
        pages.closes("ann")
    assert pages.last_seen("ann") is None
    assert not any("ann" in members for members in pages.site.held().values())


def test_pages_of_those_online_skip_nobody_and_repeat_nobody(pages: Pages) -> None:
    people = [f"user{number:02}" for number in range(30)]
    for number, id in enumerate(people):
        pages.sees(id, ago=2.0 * number)
    pages.closes(*people[::3])
    true_times = {
        id: moment_of(NOON if number % 3 == 0 else NOON - 2 * number)
        for number, id in enumerate(people)
    }
    for size in (1, 4, 30, 31):
        listed: list[Sighting] = []
        while page := pages.presence.online(limit=size, before=listed[-1] if listed else None):
            listed += page
        assert sorted(each.id for each in listed) == people
        assert dict(listed) == true_times


def test_a_goodbye_between_two_pages_hides_nobody_else(pages: Pages) -> None:
    for number in range(9):
        pages.sees(f"user{number}", ago=2.0 * number)
    first = pages.presence.online(limit=4)
    pages.closes("user2", "user7")
    rest = pages.presence.online(limit=None, before=first[-1])
    assert {"user4", "user5", "user6", "user8"} <= {each.id for each in rest}


def test_each_kind_says_its_own_goodbyes(pages: Pages) -> None:
    for kind in ("user", "guest"):
        pages.sees("ann", ago=30, kind=kind)
    pages.closes("ann", kind="guest")
    pages.online_from_until("ann", GRACE, "guest")
    pages.online_from_until("ann", WINDOW - 30, "user")


def test_a_goodbye_from_ahead_of_a_clock_that_was_set_back_gives_way_to_the_next_sighting(
    pages: Pages,
) -> None:
    pages.sees("ann", ago=30)
    pages.closes("ann")
    pages.clock.now = NOON - 3600
    pages.sees("bob", worker=1)
    pages.clock.now += WINDOW + 1
    assert not pages.presence.is_online("bob")
    pages.clock.now = NOON + GRACE + 1
    assert not pages.presence.is_online("ann")
    assert pages.last_seen("ann") == moment_of(NOON)


def test_shorter_windows_see_a_goodbye_at_once(pages: Pages) -> None:
    """For them, the id was last seen so long ago that its window ends after the grace."""
    pages.sees("ann", "bob", ago=30)
    pages.closes("ann")
    assert pages.presence.is_online("bob", window="2m")
    assert not pages.presence.is_online("ann", window="2m")
    assert pages.presence.is_online("ann", window="1d")
