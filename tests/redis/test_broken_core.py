"""The tests of each rule of the core fail on a copy of the core without that rule."""

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from presence_middleware.people import People
from presence_middleware.stores import Act, Departure, Seen, minute_sets, sorted_set
from presence_middleware.stores.changes import to_microseconds
from presence_middleware.stores.script import Script, load_script
from tests.support.backends import Server
from tests.support.timed_site import Site, opened, settings

Check = Callable[[Site], None]


def who_left_stays_offline(site: Site) -> None:
    site.saw("ann", ago=20)
    site.presence.leave("ann")
    site.saw("ann", ago=10)  # another worker held it
    assert not site.presence.is_online("ann")


def who_was_erased_stays_away(site: Site) -> None:
    site.saw("ann", ago=20)
    site.presence.forget("ann")
    site.saw("ann", ago=10)
    assert not site.presence.is_online("ann")


def who_left_on_a_long_connection_stays_offline(site: Site) -> None:
    site.presence.leave("ann")
    site.clock.now += 10
    site.saw("ann", open_for=60)  # seen now, but it arrived before
    assert not site.presence.is_online("ann")


def there_are_never_more_than_the_cap(site: Site) -> None:
    site.saw(*(f"user{n}" for n in range(9)))
    assert site.presence.count() == 5


def who_said_goodbye_stays_on_the_way_out(site: Site) -> None:
    site.saw("ann", ago=20)
    write(site, (), [(Act.GOODBYE, "ann", at(site, 10), None)])
    write(site, [("ann", at(site, 15), at(site, 15), None)], ())  # another worker held it
    site.clock.now += 100
    assert not site.presence.is_online("ann")


def who_came_back_on_the_way_out_stays_online(site: Site) -> None:
    """A delayed logout meets a last-seen time that a goodbye has lowered."""
    site.saw("ann")
    write(site, (), [(Act.GOODBYE, "ann", at(site, 0), None)])
    write(site, (), [(Act.LEFT, "ann", at(site, 30), None)])
    assert site.presence.is_online("ann")


def who_was_erased_has_no_last_seen(site: Site) -> None:
    site.saw("ann", ago=30)
    site.presence.forget("ann")
    write(site, (), [(Act.LEFT, "ann", at(site, 0), at(site, 30))])
    assert site.presence.last_seen("ann") is None


def who_came_back_has_one_last_seen_time(site: Site) -> None:
    site.saw("ann", ago=30)
    site.presence.leave("ann")
    site.clock.now += 10
    site.saw("ann")
    assert [name for name, ids in site.held().items() if "ann" in ids and "gone" in name] == []


def who_is_refused_keeps_a_time(site: Site) -> None:
    site.saw("ann", ago=20)
    site.presence.leave("ann")
    old, new = at(site, 30), at(site, 0)
    write(site, [("ann", old, old, None), ("new", new, new, None)], ())
    assert site.presence.last_seen("ann") is not None


def who_came_back_before_the_departure_was_written_stays(site: Site) -> None:
    """Sightings come first, so that who came back before the departure was written stays online."""
    site.saw("ann", ago=60)
    seen, left = at(site, 10), at(site, 20)
    write(site, [("ann", seen, seen, None)], [(Act.LEFT, "ann", left, None)])
    assert site.presence.is_online("ann")


def at(site: Site, ago: float) -> int:
    return to_microseconds(site.clock.now - ago)


def write(site: Site, seen: Sequence[Seen], departures: Sequence[Departure]) -> None:
    """Write as another worker does, or as the outbox of this one does later."""
    backend = site.recorder.backend
    backend.driver.run(backend.stores["user"].all[0].write(seen, departures))


def with_changed(*changes: tuple[str, str]) -> Callable[[pytest.MonkeyPatch], None]:
    """Change the scripts of the stores."""

    def break_it(patch: pytest.MonkeyPatch) -> None:
        def broken(name: str, *hooks: str) -> Script:
            text = load_script(name, *hooks).text
            for old, new in changes:
                text = text.replace(old, new)
            return Script(text, hashlib.sha1(text.encode()).hexdigest())

        texts = [load_script(name).text for name in ("record", "minute_sets")]
        assert all(any(old in text for text in texts) for old, _ in changes)
        for module in (sorted_set, minute_sets):
            patch.setattr(module, "load_script", broken)

    return break_it


BOTH = ["sorted-set", "minute-sets"]
SORTED = ["sorted-set"]
LEFT = "at_least(left_at[id], since)", "false"
ERASED = "at_least(left_at[erased(id)], since)", "false"
CAP = "#ids > room", "false"
ARRIVAL = "arrived()", "now"
GOODBYE = "not at_least(goodbye_at[id], later(time, arrival))", "true"
TRUE_TIME = "score and later(score, goodbye)", "score"
ORDER = "if not at_least(moment, last_seen or 0) then last_seen = false end", ""
LOST = "at_least(redis.call('ZSCORE', left, erased(id)), last_known)", "false"
RETURNED = "added > 0", "false"
BROKEN: dict[str, tuple[list[tuple[str, str]], Check, list[str]]] = {
    "looks for nobody who left": ([LEFT], who_left_stays_offline, BOTH),
    "looks for nobody erased": ([ERASED], who_was_erased_stays_away, BOTH),
    "knows no cap": ([CAP], there_are_never_more_than_the_cap, BOTH),
    "forgets the arrival": ([ARRIVAL], who_left_on_a_long_connection_stays_offline, BOTH),
    "undoes a goodbye": ([GOODBYE], who_said_goodbye_stays_on_the_way_out, SORTED),
    "believes a lowered time": ([TRUE_TIME], who_came_back_on_the_way_out_stays_online, SORTED),
    "checks no departure": ([ORDER], who_came_back_before_the_departure_was_written_stays, SORTED),
    "lets an erased id reappear": ([LOST], who_was_erased_has_no_last_seen, BOTH),
    "keeps who returns among the gone": ([RETURNED], who_came_back_has_one_last_seen_time, SORTED),
    "drops who is refused": ([("ids = accepted_ids", "")], who_is_refused_keeps_a_time, SORTED),
}


@contextmanager
def site_of(server: Server, prefix: str, store: str) -> Iterator[Site]:
    given = settings(server.url, prefix, store=store, max_members=5, pulse_path="/pulse")
    with opened(given) as site:
        yield site


@pytest.mark.parametrize(
    ("name", "store"),
    [(name, store) for name, (*_, stores) in BROKEN.items() for store in stores],
)
def test_each_rule_of_the_core_is_checked(
    name: str, store: str, valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, check, _ = BROKEN[name]
    with site_of(valkey, prefix, store) as site:
        check(site)
    with_changed(*changes)(monkeypatch)
    with (
        site_of(valkey, f"{prefix}-broken", store) as site,
        pytest.raises(AssertionError),
    ):
        check(site)


class NoLock:
    """In place of a lock, nothing."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def is_sound(people: Any) -> bool:
    """Return whether counters add up and no id waits twice while threads record and write."""
    doubles, writing, remember = [], threading.Lock(), people.remember

    def remember_slowly(who: Any) -> Any:
        time.sleep(0)  # lets another thread run
        return remember(who)

    people.remember = remember_slowly

    def work() -> None:
        with suppress(IndexError):  # of a queue that another thread has emptied
            work_on()

    def work_on() -> None:
        for number in range(3000):
            people.note(("user", str(number // 8)), float(number), float(number))
            if not number % 3 and writing.acquire(blocking=False):
                taken = people.take(100)
                doubles.append(len(taken) - len({each.person.who for each in taken}))
                people.written(taken, (), 0)
                people.restore()
                writing.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters = people.counters()
    dropped = sum(counters.pop("dropped").values())
    recorded = counters.pop("recorded")
    return not any(doubles) and recorded == sum(counters.values()) + dropped == 12_000


def test_without_its_lock_the_memory_is_not_sound() -> None:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert is_sound(People(1000, 600))
        for _ in range(50):
            broken = People(1000, 600)
            broken.lock = NoLock()  # type: ignore[assignment]
            try:
                if not is_sound(broken):
                    return
            except Exception:  # what two threads take at once may also be gone
                return
        pytest.fail("nobody noticed that the lock is gone")
    finally:
        sys.setswitchinterval(usual)
