"""Metrics for Prometheus: the numbers online on the site, and the work of this process's recorder.

The counts and peaks are of the whole site. The other metrics are of the process that is scraped.
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
from .people import Reason
from .presence import Presence
from .recorder import Recorder, Stats, recorder_for

READ_EVERY = 1.0  # seconds


class SiteCounts(NamedTuple):
    """The numbers of the site that Redis returned, each by kind."""

    is_up: bool = False
    online: Mapping[str, int] = {}
    peaks: Mapping[str, int] = {}
    sweep_lags: Mapping[str, float] = {}
    """In seconds, of the kinds that announce who comes and goes."""


class PresenceCollector(Collector):
    """A collector, to be registered once: `REGISTRY.register(PresenceCollector())`.

    A second collector needs a registry of its own, because the names of its metrics are the same.
    """

    def __init__(self, recorder: Recorder | None = None, *, client: Any = None) -> None:
        """Create a collector for `recorder`, by default that of the environment's settings.

        Pass `middleware.recorder` if the middleware has settings of its own. `client` is a
        synchronous `redis.Redis` to read with; by default, the recorder's connections are used.
        This opens no connection. Raises `SettingsError` for invalid settings or a client that does
        not fit them.
        """
        self._recorder = recorder_for() if recorder is None else recorder
        self._kinds, self._announced = self._recorder.settings.kinds, self._recorder.settings.events
        self._presence = Presence(
            self._recorder.settings,
            client=client,
            backend=self._recorder.backend if client is None else None,
        )
        self._counts: SiteCounts | None = None
        self.next_read = 0.0
        """The earliest time at which Redis is read again, by `time.monotonic()`."""

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without reading Redis."""
        return self._families(SiteCounts())

    def collect(self) -> Iterable[Metric]:
        """Return all metrics. Counts and peaks are at most `READ_EVERY` seconds old.

        If Redis does not answer, `presence_up` is 0, and counts and peaks are left out. Never
        raises.
        """
        return self._families(self._read())

    def _families(self, counts: SiteCounts) -> list[Metric]:
        stats = self._recorder.stats()
        families = [
            *_site_metrics(counts),
            *_process_metrics(stats, self._recorder.health.is_outage),
        ]
        return [*families, *_event_metrics(stats, counts)] if self._announced else families

    def _read(self) -> SiteCounts:
        # No lock: after a fork or gevent's patch, it could stay locked. A scrape during the read of
        # another scrape gets the counts of the last read.
        if self._counts is None or time.monotonic() >= self.next_read:
            self.next_read = time.monotonic() + READ_EVERY
            self._counts = self._ask()
            self.next_read = time.monotonic() + READ_EVERY
        return self._counts

    def _ask(self) -> SiteCounts:
        try:
            online = self._presence.counts()
            peaks = {kind: self._presence.peak(kind) for kind in self._kinds}
            sweep_lag = self._presence.backend.queries.sweep_lag
            lags = {kind: self._presence.run(sweep_lag(kind)) for kind in self._announced}
        except PresenceError:
            return SiteCounts()
        return SiteCounts(
            True,
            online,
            {kind: peak.count for kind, peak in peaks.items() if peak},
            {kind: lag for kind, lag in lags.items() if lag is not None},
        )


def make_asgi_app(registry: Any = REGISTRY) -> Any:
    """Return the ASGI app of `prometheus_client` for `registry`, with Redis read in a thread.

    So the event loop does not wait for Redis. The collector must be registered in `registry`.
    """
    serve = prometheus_client.make_asgi_app(registry)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        # The collector caches this read, so that `serve` does not read Redis again.
        await in_thread(list, registry.collect())
        await serve(scope, receive, send)

    return app


def _site_metrics(counts: SiteCounts) -> Iterable[Metric]:
    yield _gauge("presence_up", "Whether Redis answered.", counts.is_up)
    yield _by_kind("presence_online", "How many are online on the site.", counts.online)
    yield _by_kind("presence_peak", "The most that were ever online in a minute.", counts.peaks)


def _process_metrics(stats: Stats, is_outage: bool) -> Iterable[Metric]:
    for name, value, help_text in (
        ("recorded", stats.recorded, "Sightings, one for each visit."),
        ("coalesced", stats.coalesced, "Sightings that were merged with a waiting one."),
        ("flushed", stats.flushed, "Sightings that were written."),
    ):
        yield CounterMetricFamily(f"presence_sightings_{name}", help_text, value)
    dropped = CounterMetricFamily(
        "presence_sightings_dropped", "Sightings that were not written.", labels=["reason"]
    )
    for reason in get_args(Reason):
        dropped.add_metric([reason], stats.dropped.get(reason, 0))
    yield dropped
    yield _gauge("presence_sightings_pending", "Sightings that wait to be written.", stats.pending)
    yield _gauge("presence_outage", "Whether sightings cannot be written.", is_outage)
    yield SummaryMetricFamily(
        "presence_flush_duration_seconds",
        "Attempts to write, including those that failed.",
        stats.flushes,
        stats.flush_seconds,
    )
    yield _gauge(
        "presence_last_flush_timestamp_seconds",
        "When sightings were last written.",
        stats.last_flush.timestamp() if stats.last_flush else None,
    )


def _event_metrics(stats: Stats, counts: SiteCounts) -> Iterable[Metric]:
    for name, values, help_text in (
        ("presence_came", stats.came, "Users who were announced to have come online."),
        ("presence_went", stats.went, "Users who were announced to have gone offline."),
    ):
        family = CounterMetricFamily(name, help_text, labels=["kind"])
        for kind, value in values.items():
            family.add_metric([kind], value)
        yield family
    yield _by_kind(
        "presence_sweep_lag_seconds",
        "How late it is announced that users have gone.",
        counts.sweep_lags,
    )


def _gauge(name: str, help_text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(name, help_text, None if value is None else float(value))


def _by_kind(name: str, help_text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=["kind"])
    for kind, value in values.items():
        family.add_metric([kind], value)
    return family
