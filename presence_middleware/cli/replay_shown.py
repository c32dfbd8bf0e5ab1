"""A replay as it is printed: on a terminal, in a pipe, or as JSON."""

import json
from datetime import UTC, datetime, timedelta

from ..replay import Moment, Summary
from ..settings import Settings
from ..stores import Sample
from . import show
from .chart import Span

LINES = 8  # of a chart


class Shown:
    """Prints nothing; the others print it in their ways."""

    def __init__(self, settings: Settings) -> None:
        self.kinds, self.window = settings.kinds, settings.window

    def tell(self, moment: Moment) -> None:
        """Prints a minute, where minutes are printed."""

    def end(self, summary: Summary) -> None:
        """Prints what there is in the end."""


class Lines(Shown):
    """A line with tabs for each minute, as soon as it is known."""

    def tell(self, moment: Moment) -> None:
        print(_iso(moment), *moment.counts, sep="\t")


class Document(Shown):
    """One JSON document; its minutes are printed as soon as they are known, and not kept."""

    _before = '{"minutes": [\n'

    def tell(self, moment: Moment) -> None:
        counts = dict(zip(self.kinds, moment.counts, strict=True))
        print(self._before + json.dumps({"at": _iso(moment), "counts": counts}), end="")
        self._before = ",\n"

    def end(self, summary: Summary) -> None:
        begun = "" if summary.series.points else self._before
        rest = {
            "window": self.window,
            "peak": {
                kind: peak and {"at": show.iso(peak.at), "count": peak.count}
                for kind, peak in summary.peaks.items()
            },
            "requests": summary.requests,
            "unreadable": summary.unreadable,
            "late": summary.late,
            "ahead": summary.ahead,
            "refused": summary.refused,
        }
        print(f"{begun}\n], {json.dumps(rest)[1:]}")


class Screen(Shown):
    """The peak and a chart of each kind."""

    def end(self, summary: Summary) -> None:
        show.line(f"{summary.requests:,} requests", "bold")
        points = summary.series.points
        for place, (kind, peak) in enumerate(summary.peaks.items()):
            if peak is None:
                show.line(f"{kind}: nobody", "bold")
                continue
            show.line(f"{kind}: {peak.count:,} at most, {show.iso(peak.at)}", "bold")
            samples = [Sample(_time(point), point.counts[place]) for point in points]
            span = Span(samples[0].at, samples[-1].at + timedelta(seconds=summary.series.step))
            show.drawn(samples, span, LINES)


def _time(moment: Moment) -> datetime:
    return datetime.fromtimestamp(moment.at, UTC)


def _iso(moment: Moment) -> str:
    return f"{_time(moment):%Y-%m-%dT%H:%M:%SZ}"
