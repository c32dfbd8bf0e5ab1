"""The number online for each minute, and the peak: one process of the site takes the samples."""

import threading
from typing import Any

import pytest

from presence_middleware import Presence, QueryError, Sample, Settings
from presence_middleware.backend import Backend
from presence_middleware.connections.clients import sync_client
from presence_middleware.recorder import Recorder
from presence_middleware.stores import History, Plan, moment_of
from tests.support.backends import Server, wait_until
from tests.support.timed_site import NOON, Clock, Site, settings


def process(settings: Settings, clock: Clock) -> Recorder:
    """A process of the site, which samples in each round."""
    return Recorder(settings, clock=clock, background=False)


class Minutes:
    """A site whose clock goes on minute by minute; somebody samples each."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def go_on(self, *names: str, minutes: int = 1) -> None:
        """Let an id be seen in each of the next minutes, or none."""
        for _ in range(minutes):
            self.site.clock.now += 60
            self.site.saw(*names)
            self.site.recorder.run_once()


@pytest.fixture
def minutes(site: Site) -> Minutes:
    site.recorder.background = False  # its thread must not sample as well
    return Minutes(site)


def at(minute: int) -> Any:
    """A moment, in minutes after noon."""
    return moment_of(NOON - NOON % 60 + minute * 60)


def test_each_minute_is_sampled_once_and_listed_oldest_first(minutes: Minutes) -> None:
    ask = minutes.site.presence
    minutes.go_on("ann")
    minutes.go_on("ann", "bob")
    minutes.site.recorder.run_once()
    minutes.go_on(minutes=13)
    history = ask.history()
    assert history[:2] == [Sample(at(1), 1), Sample(at(2), 2)]
    assert [sample.at for sample in history] == [at(n) for n in range(1, 16)]
    assert [sample.count for sample in history[2:10]] == [2] * 8
    assert history[-1].count == 0
    assert ask.history(hours=3 / 60) == history[-3:]
    assert {sample.count for sample in ask.history(kind="guest")} == {0}


def test_the_peak_stays_with_its_time_until_it_is_reset(minutes: Minutes) -> None:
    ask = minutes.site.presence
    assert ask.peak() is None
    minutes.go_on("ann")
    minutes.go_on("ann", "bob", "cy")
    minutes.go_on("ann", "bob", "cy")
    assert ask.peak() == Sample(at(2), 3)
    minutes.go_on(minutes=15)
    assert ask.peak() == Sample(at(2), 3)
    assert ask.peak("guest") is None, "nobody was there"
    ask.reset_peak()
    assert ask.peak() is None
    minutes.go_on("zoe")
    assert ask.peak() == Sample(at(19), 1)


@pytest.mark.parametrize("backend", ["memory"], indirect=True)
@pytest.mark.parametrize("hours", [0, -1, float("inf"), float("nan")])
def test_hours_are_above_zero(site: Site, hours: float) -> None:
    with pytest.raises(QueryError, match="a number above zero"):
        site.presence.history(hours=hours)
    assert site.presence.history(hours=1e12) == []


def test_the_first_sample_of_a_minute_stays(valkey: Server, prefix: str) -> None:
    backend = Backend(settings(valkey.url, prefix), clock=Clock())
    minute = int(NOON // 60)
    for count in (3, 5):
        backend.driver.run(backend.history.record(minute, {"user": count}))
    assert Presence(backend=backend).history() == [Sample(moment_of(minute * 60), 3)]


def test_one_of_many_processes_samples_a_minute(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, clock = settings(valkey.url, prefix), Clock()
    processes = [process(given, clock) for _ in range(8)]
    wrote: list[int] = []
    record = History.record

    def noted(history: History, minute: int, counts: dict[str, int]) -> Plan[None]:
        wrote.append(minute)
        return record(history, minute, counts)

    monkeypatch.setattr(History, "record", noted)
    for minute in range(5):
        clock.now = NOON + minute * 60
        threads = [threading.Thread(target=each.run_once) for each in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(wrote) == len(set(wrote)) == 5
    assert len(Presence(given, clock=clock).history()) == 5


def test_samples_older_than_the_retention_expire(valkey: Server, prefix: str) -> None:
    given, clock = settings(valkey.url, prefix, history="1h"), Clock()
    process(given, clock).run_once()
    left = sync_client(given.redis_url).ttl(f"{prefix}:user:history:{int(NOON // 86400)}")
    assert 3600 < left <= 3600 + 120 + 86400


def test_a_worker_samples_by_itself(valkey: Server, prefix: str) -> None:
    given = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, flush_interval="0.05s")
    recorder, presence = Recorder(given), Presence(given)
    recorder.record(("guest", "x"), recorder.stamp())
    wait_until(lambda: presence.peak("guest"))
    assert presence.history(kind="guest")[0].count == 1
    assert presence.peak("bot") is None
    recorder.close()
