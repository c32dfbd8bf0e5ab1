"""Metrics for Prometheus: the numbers online on the site, and the work of this process's recorder.

The counts and peaks are of the whole site. The other metrics are of the process that is scraped.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, get_args

from .connections.drivers import at_once
from .connections.loops import outside_loop
from .errors import PresenceError, SettingsError, importing
from .people import Reason
from .presence import Presence
from .recorder import Recorder, recorder_for

with importing("prometheus"):
    import prometheus_client
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

READ_EVERY = 1.0  # seconds
Values = Mapping[Any, float | None] | float | None
"""The value of a metric, or its values by its labels. None is left out."""


class PresenceCollector(Collector):
    """A collector, to be registered once: `REGISTRY.register(PresenceCollector())`.

    A second collector needs a registry of its own, because the names of its metrics are the same.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        """Create a collector for `recorder`, by default that of the environment's settings.

        Pass `middleware.recorder` if the middleware has settings of its own. This opens no
        connection. Raises `SettingsError` for invalid settings and for what is no recorder.
        """
        if not isinstance(recorder, Recorder | None):
            raise SettingsError(
                f"recorder is a {type(recorder).__name__}: pass middleware.recorder"
            )
        self._recorder = recorder_for() if recorder is None else recorder
        self._presence = Presence(backend=self._recorder.backend)
        self._site: Mapping[str, Values] | None = None
        self.next_read = 0.0
        """The earliest time at which Redis is read again, by `time.monotonic()`."""

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without reading Redis."""
        return self._families({})

    def collect(self) -> Iterable[Metric]:
        """Return all metrics. Counts and peaks are at most `READ_EVERY` seconds old.

        If Redis does not answer, `presence_up` is 0, and counts and peaks are left out. Never
        raises.
        """
        # No lock: after a fork or gevent's patch, it could stay locked. A scrape during the read of
        # another scrape gets the counts of the last read.
        if self._site is None or time.monotonic() >= self.next_read:
            self.next_read = time.monotonic() + READ_EVERY
            presence, ask = self._presence, self._presence.backend.queries
            kinds, announced = ask.settings.kinds, ask.settings.events
            try:
                seen = {kind: presence.run(ask.active_in_periods(kind)) for kind in kinds}
                self._site = {
                    "online": presence.counts(),
                    "active": {(kind, each): n for kind in kinds for each, n in seen[kind].items()},
                    "peak": {kind: peak.count for kind in kinds if (peak := presence.peak(kind))},
                    "sweep_lag": {kind: presence.run(ask.sweep_lag(kind)) for kind in announced},
                }
            except PresenceError:
                self._site = {}
            self.next_read = time.monotonic() + READ_EVERY
        return self._families(self._site)

    def _families(self, site: Mapping[str, Values]) -> Iterator[Metric]:
        """Yield all metrics. `site` is empty while Redis does not answer."""
        stats, settings = self._recorder.stats(), self._recorder.settings
        attempts = "Attempts to write, including those that failed."
        yield SummaryMetricFamily(
            "presence_flush_duration_seconds", attempts, stats.flushes, stats.flush_seconds
        )
        yield gauge("up", "Whether Redis answered.", bool(site))
        yield gauge("online", "How many are online on the site.", site.get("online", {}))
        active = "How many were seen on the site in a period, also who left since."
        yield gauge("active", active, site.get("active", {}), ("kind", "period"))
        yield gauge("peak", "The most that were ever online in a minute.", site.get("peak", {}))
        yield gauge("sightings_pending", "Sightings that wait to be written.", stats.pending)
        is_outage = self._recorder.health.is_outage
        yield gauge("outage", "Whether sightings cannot be written.", is_outage)
        written = stats.last_flush.timestamp() if stats.last_flush else None
        yield gauge("last_flush_timestamp_seconds", "When sightings were last written.", written)
        if settings.events:
            late = "How late it is announced that users have gone."
            yield gauge("sweep_lag_seconds", late, site.get("sweep_lag", {}))
            yield counter("came", "Users who were announced to have come online.", stats.came)
            yield counter("went", "Users who were announced to have gone offline.", stats.went)
        yield counter("sightings_recorded", "Sightings, one for each visit.", stats.recorded)
        merged = "Sightings that were merged with a waiting one."
        yield counter("sightings_coalesced", merged, stats.coalesced)
        yield counter("sightings_flushed", "Sightings that were written.", stats.flushed)
        dropped = dict.fromkeys(get_args(Reason), 0) | stats.dropped
        yield counter("sightings_dropped", "Sightings that were not written.", dropped, ("reason",))


def _metric(
    family: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    help_text: str,
    value: Values,
    labels: tuple[str, ...] = ("kind",),
) -> Metric:
    metric = family(f"presence_{name}", help_text, labels=labels)
    for label, number in value.items() if isinstance(value, Mapping) else [((), value)]:
        if number is not None:
            metric.add_metric([label] if isinstance(label, str) else label, float(number))
    return metric


gauge, counter = partial(_metric, GaugeMetricFamily), partial(_metric, CounterMetricFamily)


def make_asgi_app(
    registry: CollectorRegistry = REGISTRY,
) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """Return the ASGI app of `prometheus_client` for `registry`, which runs in a thread.

    So the event loop does not wait for Redis. The collector must be registered in `registry`.
    """
    serve = prometheus_client.make_asgi_app(registry)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        messages: list[Any] = []

        async def receive_at_once() -> Any:
            return {"type": "http.request"}

        async def send_later(message: Any) -> None:
            messages.append(message)

        await outside_loop(lambda: at_once(serve(scope, receive_at_once, send_later)))
        for message in messages:
            await send(message)

    return app
