"""The tests of each rule of the core fail on a copy of the core without that rule."""

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from presence_middleware.people import People
from presence_middleware.recorder import Recorder
from presence_middleware.stores import minute_sets, script, sorted_set
from presence_middleware.stores.script import Script
from tests.support.backends import Server
from tests.support.timed_site import Site, opened, settings

STORES = ["sorted-set", "minute-sets"]
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


def without(*conditions: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Takes a condition out of the scripts that write."""

    def break_it(patch: pytest.MonkeyPatch) -> None:
        load_script = script.load_script
        sources = [load_script(name).text for name in ("record", "minute_sets")]
        assert all(any(each in source for source in sources) for each in conditions)

        def broken(*names: str) -> Script:
            text = load_script(*names).text
            for each in conditions:
                text = text.replace(each, "false")
            return Script(text, hashlib.sha1(text.encode()).hexdigest())

        for module in (sorted_set, minute_sets):
            patch.setattr(module, "load_script", broken)

    return break_it


def forgets_the_arrival(patch: pytest.MonkeyPatch) -> None:
    record = Recorder.record

    def broken(self: Recorder, who: Any, at: float, arrival: Any = None, *others: Any) -> None:
        record(self, who, at, None, *others)

    patch.setattr(Recorder, "record", broken)


LEFT = ("at_least(left_at[id], since)", "at_least(redis.call('ZSCORE', left, id), arrival)")
ERASED = (
    "at_least(left_at[erased(id)], since)",
    "at_least(redis.call('ZSCORE', left, erased(id)), arrival)",
)
BROKEN = {
    "looks for nobody who left": (without(*LEFT), who_left_stays_offline),
    "looks for nobody erased": (without(*ERASED), who_was_erased_stays_away),
    "knows no cap": (
        without("sightings + 0 > room", "#ids > room"),
        there_are_never_more_than_the_cap,
    ),
    "forgets the arrival": (forgets_the_arrival, who_left_on_a_long_connection_stays_offline),
}


@contextmanager
def site_of(server: Server, prefix: str, store: str) -> Iterator[Site]:
    with opened(settings(server.url, prefix, store=store, max_members=5)) as site:
        yield site


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", list(BROKEN))
def test_each_rule_of_the_core_is_checked(
    name: str, store: str, valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it, check = BROKEN[name]
    with site_of(valkey, prefix, store) as site:
        check(site)
    break_it(monkeypatch)
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
    doubles = []

    def work() -> None:
        with suppress(IndexError):  # of a queue that another thread has emptied
            work_on()

    def work_on() -> None:
        for number in range(3000):
            people.note(("user", str(number // 8 % 5)), float(number), float(number))
            if not number % 3:
                taken = people.take(100)
                doubles.append(len(taken) - len({each.person.who for each in taken}))
                people.written(taken, (), 0)

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
        assert is_sound(People(100, 600))
        for _ in range(50):
            broken = People(100, 600)
            broken.lock = NoLock()  # type: ignore[assignment]
            try:
                if not is_sound(broken):
                    return
            except Exception:  # what two threads take at once may also be gone
                return
        pytest.fail("nobody noticed that the lock is gone")
    finally:
        sys.setswitchinterval(usual)
