"""The number online for each minute, and the peak: one process of the site takes the samples."""

import threading
from typing import Any

import pytest

from presence_middleware import Presence, Sample, Settings
from presence_middleware.backend import Backend
from presence_middleware.recorder import Recorder
from presence_middleware.stores import History, Plan, moment_of
from tests.support.backends import Server, client_of, wait_until
from tests.support.process import Process, Start
from tests.support.timed_site import NOON, Clock, settings


def go_on(worker: Process, *names: str, minutes: int = 1) -> None:
    """Let ids be seen in each of the next minutes, or none; each is sampled."""
    for _ in range(minutes):
        worker.clock.now += 60
        worker.saw(*names)
        worker.recorder.run_once()


def at(minute: int) -> Any:
    """A moment, in minutes after noon."""
    return moment_of(NOON - NOON % 60 + minute * 60)


def test_each_minute_is_sampled_once_and_listed_oldest_first(valkey: Server, start: Start) -> None:
    worker = start(valkey.url)
    ask = worker.presence
    go_on(worker, "ann")
    go_on(worker, "ann", "bob")
    worker.recorder.run_once()
    go_on(worker, minutes=13)
    history = ask.history()
    assert history[:2] == [Sample(at(1), 1), Sample(at(2), 2)]
    assert [sample.at for sample in history] == [at(n) for n in range(1, 16)]
    assert [sample.count for sample in history[2:10]] == [2] * 8
    assert history[-1].count == 0
    assert ask.history(hours=3 / 60) == history[-3:]
    assert {sample.count for sample in ask.history(kind="guest")} == {0}


def test_the_peak_stays_with_its_time_until_it_is_reset(valkey: Server, start: Start) -> None:
    worker = start(valkey.url)
    ask = worker.presence
    assert ask.peak() is None
    go_on(worker, "ann")
    go_on(worker, "ann", "bob", "cy")
    go_on(worker, "ann", "bob", "cy")
    assert ask.peak() == Sample(at(2), 3)
    go_on(worker, minutes=15)
    assert ask.peak() == Sample(at(2), 3)
    assert ask.peak("guest") is None, "nobody was there"
    ask.reset_peak()
    assert ask.peak() is None
    go_on(worker, "zoe")
    assert ask.peak() == Sample(at(19), 1)


def test_hours_beyond_the_retention_cost_no_more_reads() -> None:
    week = 7 * 86400.0
    batch = next(History("p", week).samples("user", NOON - 1000 * week, NOON))
    assert len(batch.commands) == 9, "a day more at each end"


def test_the_first_sample_of_a_minute_stays(valkey: Server, prefix: str) -> None:
    backend = Backend(settings(valkey.url, prefix), clock=Clock())
    minute = int(NOON // 60)
    for count in (3, 5):
        backend.driver.run(backend.history.record(minute, {"user": count}))
    assert Presence(backend=backend).history() == [Sample(moment_of(minute * 60), 3)]


def test_one_of_many_processes_samples_a_minute(
    valkey: Server, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    processes = [start(valkey.url, clock=clock) for _ in range(8)]
    wrote: list[int] = []
    record = History.record

    def noted(history: History, minute: int, counts: dict[str, int]) -> Plan[None]:
        wrote.append(minute)
        return record(history, minute, counts)

    monkeypatch.setattr(History, "record", noted)
    for minute in range(5):
        clock.now = NOON + minute * 60
        threads = [threading.Thread(target=each.recorder.run_once) for each in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(wrote) == len(set(wrote)) == 5
    assert len(processes[0].presence.history()) == 5


def test_samples_older_than_the_retention_expire(valkey: Server, start: Start, prefix: str) -> None:
    worker = start(valkey.url, history="1h")
    worker.recorder.run_once()
    left = client_of(worker.settings.redis_url).ttl(f"{prefix}:user:history:{int(NOON // 86400)}")
    assert 3600 < left <= 3600 + 120 + 86400


def test_after_a_loss_of_data_every_key_expires_again(
    valkey: Server, start: Start, prefix: str
) -> None:
    worker = start(valkey.url)
    client = client_of(worker.settings.redis_url)
    go_on(worker, "ann")
    client.delete(*client.keys(f"{prefix}:*"))
    go_on(worker, minutes=2)
    lives = {key: client.ttl(key) for key in client.keys(f"{prefix}:*")}
    assert len(lives) > 2
    assert min(lives.values()) > 0, lives


def test_a_worker_samples_by_itself(valkey: Server, prefix: str) -> None:
    given = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, flush_interval="0.05s")
    recorder, presence = Recorder(given), Presence(given)
    recorder.record(("guest", "x"), recorder.stamp())
    wait_until(lambda: presence.peak("guest"))
    assert presence.history(kind="guest")[0].count == 1
    assert presence.peak("bot") is None
    recorder.close()
