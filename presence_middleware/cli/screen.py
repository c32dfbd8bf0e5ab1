"""The screen of `presence watch`: numbers, a chart, and the state of Redis."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import NoReturn

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from ..parsers import format_duration
from ..stores import Sample
from . import context, output
from .chart import Span, chart
from .readings import Reading

_MIN_CHART_LINES = 5
_MIN_SPAN = timedelta(minutes=1)
_SLOTS = 1000  # more than a terminal has columns
REDRAW_EVERY = 0.25  # seconds


class Recent:
    """The counts of a kind in the last hours: the site's samples, and the counts read since."""

    def __init__(self, hours: float) -> None:
        self.length = timedelta(hours=hours)
        self.recorded: list[Sample] = []
        """The samples that the site recorded."""
        self._read: dict[int, Sample] = {}

    def add(self, sample: Sample) -> None:
        """Add a count. A slot of time has only its highest count."""
        slot = int(sample.at.timestamp() // (self.length.total_seconds() / _SLOTS))
        former = self._read.pop(slot, sample)
        self._read[slot] = max(former, sample, key=attrgetter("count"))
        if len(self._read) > _SLOTS:
            del self._read[min(self._read)]

    def samples(self) -> list[Sample]:
        """Return all samples, oldest first."""
        return sorted([*self.recorded, *self._read.values()], key=attrgetter("at"))

    def span(self, now: datetime) -> Span:
        """Return the last hours, or the time since the first sample if that is shorter."""
        first = min((sample.at for sample in self.samples()), default=now)
        return Span(max(now - self.length, min(first, now - _MIN_SPAN)), now)


class Screen:
    """The newest counts with their peaks, a chart of a kind, and the state of Redis."""

    def __init__(self, kind: str, recent: Recent) -> None:
        self._kind, self._recent = kind, recent
        self._at = datetime.now(UTC)
        self._counts: dict[str, int] = {}
        self._peaks: dict[str, Sample] = {}
        self._outage: Reading | None = None

    def update(self, reading: Reading) -> None:
        """Show a new reading. In an outage, the last counts stay on the screen."""
        self._at = reading.at
        if reading.error:
            self._outage = self._outage or reading
            return
        self._outage, self._counts = None, reading.counts
        self._recent.add(Sample(reading.at, reading.counts[self._kind]))
        if reading.samples is not None:
            self._recent.recorded = reading.samples
        for kind, count in reading.counts.items():
            # Of equal counts, the first is the peak.
            known = self._peaks.get(kind), (reading.peaks or {}).get(kind)
            samples = [*filter(None, known), Sample(reading.at, count)]
            if (peak := max(samples, key=attrgetter("count"))).count:
                self._peaks[kind] = peak

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        state = Text(f"{self._at.astimezone():%H:%M:%S}  ")
        if self._outage is None:
            state.append("Ctrl-C ends", "dim")
        else:
            since = f"{self._outage.at.astimezone():%H:%M:%S}"
            error = output.printable(str(self._outage.error))
            state.append(f"no answer since {since}: {error}", "bold red")
        lines = [state]
        for kind, count in self._counts.items():
            # Counts from before an outage are dim.
            line = Text(f"{kind:>10}  ", "dim" if self._outage else "")
            line.append(f"{count:<9}", "bold")
            if kind in self._peaks:
                peak = self._peaks[kind]
                line.append(f"peak {peak.count}, {output.ago(peak.at)}", "dim")
            lines.append(line)
        height = (options.height or console.height) - len(lines) - 2
        if self._counts and height >= _MIN_CHART_LINES:
            span = self._recent.span(self._at)
            drawn = chart(self._recent.samples(), span, options.max_width - 1, height)
            title = Text(f"{self._kind:>10}", "bold")
            length = format_duration(self._recent.length.total_seconds())
            title.append(f"  in the last {length}", "dim")
            lines += [Text(), title, *output.styled(drawn, options)]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
            yield line


def draw(readings: Iterator[Reading], screen: Screen, interval: float) -> NoReturn:
    """Show readings until Ctrl-C, one each `interval` seconds."""
    context.exit_on_signals()
    console = output.console()
    live = Live(screen, console=console, screen=True, auto_refresh=False)
    due = 0.0
    try:
        live.start(refresh=True)
        while True:
            if time.monotonic() >= due:
                due = time.monotonic() + interval
                screen.update(next(readings))
            live.refresh()  # also after the terminal was resized
            time.sleep(max(0.0, min(due - time.monotonic(), REDRAW_EVERY)))
    finally:
        live.stop()
