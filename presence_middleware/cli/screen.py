"""The screen of `presence watch`: numbers, a chart, and the state of Redis."""

import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from ..stores import Sample
from . import context, output
from .chart import Span, by_time, chart
from .readings import Poller, Reading

_MIN_CHART_LINES = 5
_MIN_SPAN = timedelta(minutes=1)
_SLOTS = 1000  # more than a terminal has columns


class Recent:
    """The counts of a kind in the last hours: the site's samples, and the counts read since."""

    def __init__(self, hours: float) -> None:
        self._length = timedelta(hours=hours)
        self._recorded: list[Sample] = []
        self._read: dict[int, Sample] = {}

    def set_recorded(self, samples: Iterable[Sample]) -> None:
        """Replace the samples that the site recorded."""
        self._recorded = list(samples)

    def add(self, sample: Sample) -> None:
        """Add a count. A slot of time has only its highest count."""
        slot = int(sample.at.timestamp() // (self._length.total_seconds() / _SLOTS))
        former = self._read.pop(slot, sample)
        self._read[slot] = max(former, sample, key=lambda each: each.count)
        if len(self._read) > _SLOTS:
            del self._read[min(self._read)]

    def samples(self) -> list[Sample]:
        """Return all samples, oldest first."""
        return sorted([*self._recorded, *self._read.values()], key=by_time)

    def span(self, now: datetime) -> Span:
        """Return the last hours, or the time since the first sample if that is shorter."""
        first = min((sample.at for sample in self.samples()), default=now)
        return Span(max(now - self._length, min(first, now - _MIN_SPAN)), now)


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
        if reading.past:
            self._recent.set_recorded(reading.past.samples)
            self._raise_peaks(reading.past.peaks)
        self._raise_peaks({kind: Sample(reading.at, n) for kind, n in reading.counts.items()})

    def _raise_peaks(self, samples: Mapping[str, Sample]) -> None:
        for kind, sample in samples.items():
            highest = self._peaks[kind].count if kind in self._peaks else 0
            if sample.count > highest:
                self._peaks[kind] = sample

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width, height = options.max_width, options.height or console.height
        numbers, state = list(self._numbers()), self._state()
        lines = [state, *numbers, *self._chart(width, height - len(numbers) - 1, options)]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
            yield line

    def _state(self) -> Text:
        time = Text(f"{self._at.astimezone():%H:%M:%S}  ")
        if self._outage is None:
            return time.append("Ctrl-C ends", "dim")
        since = f"{self._outage.at.astimezone():%H:%M:%S}"
        error = output.printable(str(self._outage.error))
        return time.append(f"no answer since {since}: {error}", "bold red")

    def _numbers(self) -> Iterator[Text]:
        """Yield a line for each kind, dim if it is from before an outage."""
        style = "dim" if self._outage else ""
        for kind, count in self._counts.items():
            line = Text(f"{kind:>10}  ", style).append(f"{count:<9}", "bold")
            if (peak := self._peaks.get(kind)) is not None:
                line.append(f"peak {peak.count}, {output.ago(peak.at)}", "dim")
            yield line

    def _chart(self, width: int, height: int, options: ConsoleOptions) -> list[Text]:
        """Return a blank line, the kind and a chart, or no lines if there is no room for them."""
        if not self._counts or height < _MIN_CHART_LINES + 2:
            return []
        span = self._recent.span(self._at)
        drawn = chart(self._recent.samples(), span, width - 1, height - 2)
        return [Text(), Text(f"{self._kind:>10}", "bold"), *output.styled(drawn, options)]


def draw(poller: Poller, screen: Screen, interval: float) -> None:
    """Show readings until Ctrl-C, one each `interval` seconds."""
    # A SimpleQueue is the only queue whose put() may be called by a signal handler.
    resized: SimpleQueue[None] = SimpleQueue()
    signal.signal(signal.SIGWINCH, lambda *_: resized.put(None))
    context.exit_on_signals()
    live = Live(screen, console=output.console(), screen=True, auto_refresh=False)
    try:
        live.start(refresh=True)
        while True:
            due = time.monotonic() + interval
            screen.update(poller.read())
            live.refresh()
            while (left := due - time.monotonic()) > 0:
                with suppress(Empty):
                    # A signal just before get() does not end it, so each wait is short.
                    resized.get(timeout=min(left, 1.0))
                    live.refresh()  # the terminal was resized
    finally:
        live.stop()
