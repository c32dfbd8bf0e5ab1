"""A replay as it is printed: on a terminal, in a pipe, or as JSON."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from ..replay import Moment, Summary, blocks
from ..settings import Settings

ROWS = 4  # of a kind
COLOURS = ("cyan", "yellow", "bright_black", "green")


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
        print(_iso(moment.at), *moment.counts, sep="\t")


class Document(Shown):
    """One JSON document; its minutes are printed as soon as they are known, and nothing is kept."""

    _before = '{"minutes": [\n'

    def tell(self, moment: Moment) -> None:
        counts = dict(zip(self.kinds, moment.counts, strict=True))
        print(self._before + json.dumps({"at": _iso(moment.at), "counts": counts}), end="")
        self._before = ",\n"

    def end(self, summary: Summary) -> None:
        begun = "" if summary.first is not None else self._before
        rest = {
            "window": self.window,
            "peak": {
                kind: peak and {"at": _iso(peak.at), "count": peak.online}
                for kind, peak in summary.peaks.items()
            },
            "requests": summary.requests,
            "unreadable": summary.unreadable,
            "late": summary.late,
            "refused": summary.refused,
        }
        print(f"{begun}\n], {json.dumps(rest)[1:]}")


class Screen(Shown):
    """The peaks and a chart of each kind."""

    def end(self, summary: Summary) -> None:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for text, style in self._lines(summary, console.width):
            console.print(Text(text, style), soft_wrap=True)

    def _lines(self, summary: Summary, width: int) -> Iterator[tuple[str, str]]:
        yield f"{summary.requests:,} requests", "bold"
        series = summary.series
        present = {kind: peak for kind, peak in summary.peaks.items() if peak}
        for number, (kind, peak) in enumerate(present.items()):
            yield "", ""
            yield f"{kind}: {peak.online:,} online at most, {_when(peak.at)}", "bold"
            place = self.kinds.index(kind)
            counts = blocks.columns(series.points, series.step, place, width)
            for row in blocks.rows(counts, ROWS):
                yield row, COLOURS[number % len(COLOURS)]
        if present and summary.first is not None and summary.last is not None:
            yield _ends(summary.first, summary.last, width), ""
        if absent := [kind for kind in self.kinds if kind not in present]:
            yield f"nobody: {', '.join(absent)}", ""


def _ends(first: int, last: int, width: int) -> str:
    """The two ends of the time, below a chart."""
    left, right = _when(first), _when(last)
    return f"{left}{right:>{max(len(right) + 1, width - len(left))}}"


def _iso(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _when(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%d %b %Y %H:%M} UTC"
