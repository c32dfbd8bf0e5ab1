"""What `presence watch` draws: numbers, a chart, how it stands with Redis; as the terminal fits."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions
from rich.text import Text

from ..stores import Sample
from . import show
from .chart import chart
from .recent import Reading, Recent

_LEAST = 5  # lines, or there is nothing to see of a chart


class Screen:
    """The last counts and the ones before, and since when there have been none."""

    def __init__(self, kind: str, recent: Recent) -> None:
        self._kind, self._recent = kind, recent
        self._at = datetime.now(UTC)
        self._counts: dict[str, int] = {}
        self._peaks: dict[str, Sample] = {}
        self._outage: Reading | None = None

    def update(self, reading: Reading) -> None:
        """Takes the newest reading."""
        self._at = reading.at
        if reading.error:
            self._outage = self._outage or reading
            return
        self._outage, self._counts = None, reading.counts
        self._recent.saw(Sample(reading.at, reading.counts[self._kind]))
        if reading.past:
            self._recent.recorded(reading.past.samples)
            self._keep_highest(reading.past.peaks)
        self._keep_highest({kind: Sample(reading.at, n) for kind, n in reading.counts.items()})

    def _keep_highest(self, samples: Mapping[str, Sample]) -> None:
        for kind, sample in samples.items():
            highest = self._peaks[kind].count if kind in self._peaks else 0
            if sample.count > highest:
                self._peaks[kind] = sample

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines, with a chart as high as there is room."""
        width, height = options.max_width, options.height or console.height
        numbers, state = list(self._numbers()), self._state()
        lines = [state, *numbers, *self._chart(width, height - len(numbers) - 1, options)]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
            yield line

    def _state(self) -> Text:
        told = Text(f"{self._at.astimezone():%H:%M:%S}  ")
        if self._outage is None:
            return told.append("Ctrl-C ends", "dim")
        since = f"{self._outage.at.astimezone():%H:%M:%S}"
        error = show.printable(str(self._outage.error))
        return told.append(f"no answer since {since}: {error}", "bold red")

    def _numbers(self) -> Iterator[Text]:
        """A line a kind; what was known before an outage is dim."""
        style = "dim" if self._outage else ""
        for kind, count in self._counts.items():
            line = Text(f"{kind:>10}  ", style).append(f"{count:<9}", "bold")
            if (peak := self._peaks.get(kind)) is not None:
                line.append(f"peak {peak.count}, {show.ago(peak.at)}", "dim")
            yield line

    def _chart(self, width: int, height: int, options: ConsoleOptions) -> list[Text]:
        if not self._counts or height < _LEAST + 2:
            return []
        span = self._recent.span(self._at)
        drawn = chart(self._recent.samples(), span, width - 1, height - 2)
        return [Text(), Text(f"{self._kind:>10}", "bold"), *show.styled(drawn, options)]
