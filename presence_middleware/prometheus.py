"""Metrics for Prometheus: the numbers online on the site, and the work of this process's recorder.

The counts and peaks are of the whole site. The other metrics are of the process that is scraped.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector

from .connections.loops import in_thread
from .errors import PresenceError
from .people import Reason
from .presence import Presence
from .recorder import Recorder, recorder_for
from .stores import merge_plans

READ_EVERY = 1.0  # seconds
GAUGES = {
    "presence_up": "Whether Redis answered.",
    "presence_online": "How many are online on the site.",
    "presence_active": "How many were seen on the site in a period, also who left since.",
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


LABELS = {"presence_sightings_dropped": ("reason",), "presence_active": ("kind", "period")}
"""The labels of metrics that are not by kind alone."""

EVENTS = frozenset({"presence_came", "presence_went", "presence_sweep_lag_seconds"})
"""The metrics of a site with events."""

Values = dict[str, Mapping[str, float] | Mapping[tuple[str, str], float] | float | None]
"""The value of each metric, or its values by its labels."""

NO_ANSWER: Values = {"presence_up": False}
"""The metrics of the site while Redis does not answer."""


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
        self._presence = Presence(
            self._recorder.settings,
            client=client,
            backend=self._recorder.backend if client is None else None,
        )
        self._site: Values | None = None
        self.next_read = 0.0
        """The earliest time at which Redis is read again, by `time.monotonic()`."""

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without reading Redis."""
        return self._families(NO_ANSWER)

    def collect(self) -> Iterable[Metric]:
        """Return all metrics. Counts and peaks are at most `READ_EVERY` seconds old.

        If Redis does not answer, `presence_up` is 0, and counts and peaks are left out. Never
        raises.
        """
        # No lock: after a fork or gevent's patch, it could stay locked. A scrape during the read of
        # another scrape gets the counts of the last read.
        if self._site is None or time.monotonic() >= self.next_read:
            self.next_read = time.monotonic() + READ_EVERY
            try:
                presence, queries = self._presence, self._presence.backend.queries
                kinds, announced = queries.settings.kinds, queries.settings.events
                peaks = {kind: presence.peak(kind) for kind in kinds}
                lags = {kind: presence.run(queries.sweep_lag(kind)) for kind in announced}
                active = presence.run(merge_plans([*map(queries.active_in_periods, kinds)]))
                self._site = {
                    "presence_up": True,
                    "presence_online": presence.counts(),
                    "presence_active": {
                        (kind, period): number
                        for kind, numbers in zip(kinds, active, strict=True)
                        for period, number in numbers.items()
                    },
                    "presence_peak": {kind: peak.count for kind, peak in peaks.items() if peak},
                    "presence_sweep_lag_seconds": {
                        kind: lag for kind, lag in lags.items() if lag is not None
                    },
                }
            except PresenceError:
                self._site = NO_ANSWER
            self.next_read = time.monotonic() + READ_EVERY
        return self._families(self._site)

    def _families(self, site: Values) -> list[Metric]:
        stats = self._recorder.stats()
        written = stats.last_flush
        values: Values = {
            **site,
            "presence_sightings_recorded": stats.recorded,
            "presence_sightings_coalesced": stats.coalesced,
            "presence_sightings_flushed": stats.flushed,
            "presence_sightings_dropped": dict.fromkeys(get_args(Reason), 0) | stats.dropped,
            "presence_sightings_pending": stats.pending,
            "presence_outage": self._recorder.health.is_outage,
            "presence_last_flush_timestamp_seconds": written.timestamp() if written else None,
            "presence_came": stats.came,
            "presence_went": stats.went,
        }
        metrics: list[Metric] = [
            SummaryMetricFamily(
                "presence_flush_duration_seconds",
                "Attempts to write, including those that failed.",
                stats.flushes,
                stats.flush_seconds,
            )
        ]
        for name, help_text in {**GAUGES, **COUNTERS}.items():
            if name in EVENTS and not self._recorder.settings.events:
                continue
            family = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
            value = values.get(name, {})
            if isinstance(value, Mapping):
                metric = family(name, help_text, labels=LABELS.get(name, ("kind",)))
                for label, number in value.items():
                    metric.add_metric([label] if isinstance(label, str) else label, number)
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
