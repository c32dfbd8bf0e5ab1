"""Prometheus metrics: of the site from a real Redis, of a process from its recorder."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly

from presence_middleware import Presence, Settings
from presence_middleware.people import Reason
from presence_middleware.prometheus import PresenceCollector, make_asgi_app
from presence_middleware.recorder import Recorder, recorder_for
from presence_middleware.wsgi import WsgiVisit
from tests.support.asking import Answer, exchange
from tests.support.backends import wait_until
from tests.support.beside import on_call
from tests.support.faults import Fault, Place, adds_up, hung, refused
from tests.support.servers import ROOT
from tests.support.stopwatch import Stopwatch
from tests.support.timed_site import Process, Start, visit

DASHBOARD = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())
SOON = 1.5  # seconds: two timeouts, and some noise

Samples = dict[tuple[str, str], float]
"""Values by name, and by the one label if there is any."""


def scraped(collector: Any) -> Samples:
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def values(found: Samples, name: str) -> dict[str, float]:
    return {label: value for (other, label), value in found.items() if other == name}


@pytest.fixture
def recorder(place: Place, unwritten: Callable[..., Settings]) -> Recorder:
    return recorder_for(unwritten(redis_url=place.url, identity="user=header:X-User"))


def test_a_scrape_contains_online_counts_and_the_peak(recorder: Recorder) -> None:
    presence = Presence(recorder.settings)
    for name in ("ann", "bob"):
        presence.touch(name)
    visit(recorder, "ann")
    wait_until(presence.peak)
    presence.touch("eve")
    found = scraped(PresenceCollector(recorder))
    assert values(found, "presence_up") == {"": 1}
    assert values(found, "presence_online") == {"user": 3, "bot": 0}
    assert found["presence_active", "user7d"] == 3
    assert values(found, "presence_peak") == {"user": 2}


SCRAPE: Any = {"type": "http", "method": "GET", "query_string": b"", "headers": []}


@pytest.mark.parametrize("run", [trio.run, lambda app, *given: asyncio.run(app(*given))])
def test_the_app_serves_metrics_in_any_loop_and_collects_outside_of_it(
    recorder: Recorder, run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, registry = list[threading.Thread](), CollectorRegistry()
    registry.register(PresenceCollector(recorder))
    here = threading.current_thread
    on_call(monkeypatch, PresenceCollector, "collect", lambda _: threads.append(here()))
    answer = run(exchange, make_asgi_app(registry), SCRAPE)
    assert (answer.status, b"presence_up 1.0" in answer.body) == (200, True)
    assert threads
    assert here() not in threads


def test_the_counters_match_the_recorder(recorder: Recorder) -> None:
    presence = Presence(recorder.settings)
    before = time.time()
    for name in ("ann", "ann", "bob"):
        visit(recorder, name)
    assert recorder.flush()
    was_open = WsgiVisit(recorder, {"HTTP_X_USER": "ann"})
    presence.leave("ann")
    was_open.end()
    assert recorder.flush()
    visit(recorder, "eve")
    found, stats = scraped(PresenceCollector(recorder)), recorder.stats()
    for name in ("recorded", "coalesced", "flushed"):
        assert found[f"presence_sightings_{name}_total", ""] == getattr(stats, name) > 0
    dropped = values(found, "presence_sightings_dropped_total")
    assert dropped == {**dict.fromkeys(get_args(Reason), 0), "left": 1}
    assert found["presence_sightings_pending", ""] == stats.pending == 1
    assert found["presence_outage", ""] == 0
    assert found["presence_flush_duration_seconds_count", ""] == stats.flushes >= 2
    assert 0 < found["presence_flush_duration_seconds_sum", ""] == stats.flush_seconds
    assert stats.flush_seconds <= time.time() - before
    assert before <= found["presence_last_flush_timestamp_seconds", ""] <= time.time()
    assert adds_up(recorder)


@pytest.fixture
def announcing(start: Start) -> Process:
    identity = "user=header:X-User, guest=header:X-Guest"
    return start(identity=identity, events="user, guest", shards=4)


def test_who_came_and_who_went_is_counted_and_the_sweep_lag_grows_until_somebody_sweeps(
    announcing: Process,
) -> None:
    recorder, clock = announcing.recorder, announcing.clock
    collector = PresenceCollector(recorder)

    def found(name: str) -> dict[str, float]:
        collector.next_read = 0.0
        return values(scraped(collector), f"presence_{name}")

    assert found("sweep_lag_seconds") == {}
    for name in ("ann", "bob", "ann"):
        visit(recorder, name)
    WsgiVisit(recorder, {"HTTP_X_GUEST": "eve"}).end()
    recorder.run_once()
    assert found("came_total") == recorder.stats().came == {"user": 2, "guest": 1}
    assert found("went_total") == {"user": 0, "guest": 0}
    assert found("sweep_lag_seconds")["user"] == 0
    clock.now += recorder.settings.window + (recorder.settings.lag_seconds("user") or 0)
    assert found("sweep_lag_seconds")["user"] == 0
    clock.now += 100
    assert found("sweep_lag_seconds")["user"] == pytest.approx(100)
    wait_until(lambda: recorder.run_once() == 0 and sum(recorder.stats().went.values()) == 3)
    assert found("sweep_lag_seconds")["user"] == 0
    visit(recorder, "ann")
    recorder.run_once()
    assert found("came_total") == {"user": 3, "guest": 1}
    assert found("went_total") == {"user": 2, "guest": 1}


def test_many_scrapes_cause_one_redis_read_per_second(recorder: Recorder, place: Place) -> None:
    collector = PresenceCollector(recorder)
    begins = time.monotonic()
    for _ in range(50):
        scraped(collector)
    seconds = time.monotonic() - begins
    reads = place.admin.info("commandstats")["cmdstat_zcount"]["calls"] / 7  # online, active
    assert 1 <= reads <= 1 + seconds


@pytest.mark.parametrize("fault", [refused, hung], ids=["refused", "hung"])
def test_a_scrape_in_an_outage_reports_it(recorder: Recorder, place: Place, fault: Fault) -> None:
    collector = PresenceCollector(recorder)
    with fault(place):
        visit(recorder, "ann")
        recorder.flush()
        with Stopwatch() as watch:
            found = scraped(collector)
        assert watch.seconds < SOON
        assert found["presence_up", ""] == 0
        assert not values(found, "presence_online") | values(found, "presence_peak")
        assert found["presence_outage", ""] == 1
        assert found["presence_sightings_pending", ""] == 1
        failed = found["presence_flush_duration_seconds_count", ""]
    assert recorder.flush()
    wait_until(lambda: scraped(collector)["presence_up", ""])
    found = scraped(collector)
    assert values(found, "presence_online")["user"] == 1
    assert found["presence_outage", ""] == 0
    assert found["presence_flush_duration_seconds_count", ""] > failed


def test_the_metrics_follow_the_strict_format_and_work_beside_the_multiprocess_collector(
    recorder: Recorder, tmp_path: Path
) -> None:
    collector = PresenceCollector(recorder)
    text = openmetrics.generate_latest(collector)  # type: ignore[no-untyped-call]
    for family in strictly(text.decode()):  # type: ignore[no-untyped-call]
        assert family.documentation
        assert not family.name.endswith(("_total", "_count", "_sum"))
    names = {family.name for family in collector.describe()}
    assert not names & {"presence_came", "presence_went", "presence_sweep_lag_seconds"}
    assert (recorder.stats().came, recorder.stats().went) == ({}, {}), "the site has no events"
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]
    registry.register(collector)
    assert values(scraped(registry), "presence_online") == {"user": 0, "bot": 0}


SUFFIXES = {"gauge": [""], "counter": ["_total"], "summary": ["_count", "_sum"]}


def test_the_dashboard_uses_only_existing_metrics(announcing: Process) -> None:
    families = PresenceCollector(announcing.recorder).describe()
    exposed = {family.name + end for family in families for end in SUFFIXES[family.type]}
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    asked = " ".join(target["expr"] for target in targets)
    assert set(re.findall(r"presence_\w+", asked)) == exposed
