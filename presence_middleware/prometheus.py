"""Metrics for Prometheus: who is online on the site, and how this process records it.

What Redis says is of the whole site, the counters are of the process that is asked.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector

from .connections import in_thread
from .errors import PresenceError
from .presence import Presence
from .recorder import Recorder, Stats, recorder_for
from .recorder.buffer import Reason

READ_EVERY = 1.0  # seconds, at most


class Site(NamedTuple):
    """What Redis says of the site."""

    is_up: bool = False
    online: Mapping[str, int] = {}
    peaks: Mapping[str, int] = {}


class PresenceCollector(Collector):
    """To be registered once: `REGISTRY.register(PresenceCollector())`.

    A second one wants a registry of its own: the names are the same.
    """

    def __init__(self, recorder: Recorder | None = None, *, client: Any = None) -> None:
        """`recorder` is a middleware's, by default that of the environment's settings.

        `client` is a `redis.Redis` to ask with, by default one of those settings.
        """
        self._recorder = recorder_for() if recorder is None else recorder
        self._kinds = self._recorder.settings.kinds
        self._presence = Presence(
            self._recorder.settings,
            client=client,
            backend=self._recorder.backend if client is None else None,
        )
        self._site: Site | None = None
        self._read_at = 0.0

    def describe(self) -> Iterable[Metric]:
        """The names, without asking Redis."""
        return self._families(Site())

    def collect(self) -> Iterable[Metric]:
        """All metrics; those that Redis knows are at most a second old, or left out."""
        return self._families(self._read())

    def _families(self, site: Site) -> list[Metric]:
        return [
            *_of_site(site),
            *_of_process(self._recorder.stats(), self._recorder.health.is_outage),
        ]

    def _read(self) -> Site:
        # No lock: a fork or gevent's patch could leave it taken. Who comes meanwhile gets the last.
        if self._site is None or time.monotonic() >= self._read_at:
            self._read_at = time.monotonic() + READ_EVERY
            self._site = self._ask()
            self._read_at = time.monotonic() + READ_EVERY
        return self._site

    def _ask(self) -> Site:
        try:
            online = self._presence.counts()
            peaks = {kind: self._presence.peak(kind) for kind in self._kinds}
        except PresenceError:
            return Site()
        return Site(True, online, {kind: peak.count for kind, peak in peaks.items() if peak})


def make_asgi_app(registry: Any = REGISTRY) -> Any:
    """That of prometheus_client, but the event loop does not wait for Redis."""
    serve = prometheus_client.make_asgi_app(registry)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await in_thread(list, registry.collect())  # what that read, the loop need not
        await serve(scope, receive, send)

    return app


def _of_site(site: Site) -> Iterable[Metric]:
    yield _gauge("presence_up", "Whether Redis answered.", site.is_up)
    yield _by_kind("presence_online", "How many are online on the site.", site.online)
    yield _by_kind("presence_peak", "The most that were ever online in a minute.", site.peaks)


def _of_process(stats: Stats, is_cut_off: bool) -> Iterable[Metric]:
    for name, value, told in (
        ("recorded", stats.recorded, "Sightings, one for each visit."),
        ("coalesced", stats.coalesced, "Sightings that were merged with one that waited."),
        ("flushed", stats.flushed, "Sightings that were written."),
    ):
        yield CounterMetricFamily(f"presence_sightings_{name}", told, value)
    dropped = CounterMetricFamily(
        "presence_sightings_dropped", "Sightings that were not written.", labels=["reason"]
    )
    for reason in get_args(Reason):
        dropped.add_metric([reason], stats.dropped.get(reason, 0))
    yield dropped
    yield _gauge("presence_sightings_pending", "Sightings that wait to be written.", stats.pending)
    yield _gauge("presence_outage", "Whether something could not be written.", is_cut_off)
    yield SummaryMetricFamily(
        "presence_flush_duration_seconds",
        "Attempts to write, also those that failed.",
        stats.flushes,
        stats.flush_seconds,
    )
    yield _gauge(
        "presence_last_flush_timestamp_seconds",
        "When sightings were last written.",
        stats.last_flush.timestamp() if stats.last_flush else None,
    )


def _gauge(name: str, told: str, value: float | None) -> Metric:
    return GaugeMetricFamily(name, told, None if value is None else float(value))


def _by_kind(name: str, told: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, told, labels=["kind"])
    for kind, value in values.items():
        family.add_metric([kind], value)
    return family
