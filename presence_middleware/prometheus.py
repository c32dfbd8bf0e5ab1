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
from .presence import Presence
from .recorder import Recorder, recorder_for
from .recorder.buffer import Reason

READ_EVERY = 1.0  # seconds
GAUGES = {
    "presence_up": "Whether Redis answered.",
    "presence_online": "How many are online on the site.",
    "presence_peak": "The most that were ever online in a minute.",
    "presence_sightings_pending": "Sightings that wait to be written.",
    "presence_outage": "Whether sightings cannot be written.",
    "presence_last_flush_timestamp_seconds": "When sightings were last written.",
    "presence_sweep_lag_seconds": "How late it is announced that users have gone.",
}
COUNTERS = {
    "presence_sightings_recorded": "Sightings, one for each visit.",
    "presence_sightings_coalesced": "Sightings that were merged with a waiting one.",
    "presence_sightings_flushed": "Sightings that were written.",
    "presence_sightings_dropped": "Sightings that were not written.",
    "presence_came": "Users who were announced to have come online.",
    "presence_went": "Users who were announced to have gone offline.",
}


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
        # No lock: after a fork or gevent's patch, it could stay locked. A scrape during the read of
        # another scrape gets the counts of the last read.
        if self._counts is None or time.monotonic() >= self.next_read:
            self.next_read = time.monotonic() + READ_EVERY
            self._counts = self._read()
            self.next_read = time.monotonic() + READ_EVERY
        return self._families(self._counts)

    def _read(self) -> SiteCounts:
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

    def _families(self, site: SiteCounts) -> list[Metric]:
        stats = self._recorder.stats()
        values: dict[str, Mapping[str, float] | float | None] = {
            "presence_up": site.is_up,
            "presence_online": site.online,
            "presence_peak": site.peaks,
            "presence_sightings_recorded": stats.recorded,
            "presence_sightings_coalesced": stats.coalesced,
            "presence_sightings_flushed": stats.flushed,
            "presence_sightings_dropped": {
                reason: stats.dropped.get(reason, 0) for reason in get_args(Reason)
            },
            "presence_sightings_pending": stats.pending,
            "presence_outage": self._recorder.health.is_outage,
            "presence_last_flush_timestamp_seconds": (
                stats.last_flush.timestamp() if stats.last_flush else None
            ),
        }
        if self._announced:
            values["presence_came"], values["presence_went"] = stats.came, stats.went
            values["presence_sweep_lag_seconds"] = site.sweep_lags
        metrics: list[Metric] = [
            SummaryMetricFamily(
                "presence_flush_duration_seconds",
                "Attempts to write, including those that failed.",
                stats.flushes,
                stats.flush_seconds,
            )
        ]
        for name, value in values.items():
            family = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
            help_text = GAUGES.get(name) or COUNTERS[name]
            if isinstance(value, Mapping):
                label = "reason" if name == "presence_sightings_dropped" else "kind"
                metric = family(name, help_text, labels=[label])
                for label_value, number in value.items():
                    metric.add_metric([label_value], number)
            else:
                metric = family(name, help_text, None if value is None else float(value))
            metrics.append(metric)
        return metrics


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
