"""Output of commands: tables, charts and colours on a terminal, lines in pipes, or JSON."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from ..parsers import DAY, format_duration
from ..stores import Sample

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_UNITS = {"day": DAY, "hour": 3600, "minute": 60}
_BLOCKS = " ▁▂▃▄▅▆▇█"  # eighths of a line
_EIGHTHS = 8
_NO_SAMPLE = "·"
_ASCII = str.maketrans("▁▂▃▄▅▆▇█·▼│└─", "__--==##.v|+-")
_SAMPLE_LENGTH = timedelta(seconds=90)  # a sample is taken once a minute, give or take
_TICK = 16  # columns between two times


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def draw(picture: object) -> None:
    """Print what rich can draw. Call it only if standard output is a terminal."""
    console().print(picture)


def console() -> "Console":
    """Return the terminal. Call it only if standard output is a terminal."""
    from rich.console import Console

    return Console(force_terminal=True)


def document(answer: object) -> None:
    """Print a JSON document in ASCII."""
    click.echo(to_json(answer, indent=2 if is_terminal() else None))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows. Their columns, if any, are drawn with their names on a terminal only."""
    if not (columns and is_terminal()):
        separator = ", " if is_terminal() else "\t"
        for row in rows:
            click.echo(separator.join(map(_cell, row)))
        return
    from rich import box, table
    from rich.text import Text

    drawn = table.Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in drawn.columns:
        column.overflow = "fold"
    for row in rows:
        drawn.add_row(*(Text(_cell(cell)) for cell in row))
    console().print(drawn)


def line(text: str, style: str = "") -> None:
    """Print a line, coloured on a terminal, with escapes in place of control codes."""
    if not is_terminal():
        click.echo(printable(text))
        return
    from rich.text import Text

    console().print(Text(printable(text), style), soft_wrap=True)


def remark(text: str) -> None:
    """Print a line on a terminal, and nothing in a pipe."""
    if is_terminal():
        line(text)


def printable(text: str) -> str:
    """Return text with escapes in place of line ends and terminal control codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def iso(moment: datetime) -> str:
    """Return a moment in UTC, to the second, as ISO 8601."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


to_json = partial(json.dumps, default=iso)
"""Returns JSON in ASCII, with moments as ISO 8601."""


def _cell(value: object) -> str:
    return printable(iso(value) if isinstance(value, datetime) else str(value))


def age(moment: datetime) -> int:
    """Return the seconds since `moment` by this host's clock; 0 for a moment in the future."""
    return max(0, round((datetime.now(UTC) - moment).total_seconds()))


def brief_age(moment: datetime) -> str:
    """Return how long ago `moment` was: `3m ago` on a terminal, or `180s`."""
    seconds = age(moment)
    return f"{format_duration(seconds)} ago" if is_terminal() else f"{seconds}s"


def ago(moment: datetime) -> str:
    """Return how long ago `moment` was, such as `3 minutes ago`."""
    seconds = age(moment)
    unit, size = next(((u, s) for u, s in _UNITS.items() if seconds >= s), ("second", 1))
    count = seconds // size
    return f"{count} {unit}{'' if count == 1 else 's'} ago"


@dataclass
class Chart:
    """A chart of samples over time, as wide as the terminal on which it is printed."""

    samples: Sequence[Sample]
    since: datetime
    until: datetime
    height: int
    """In lines. At least 4 are drawn."""
    peak: Sample | None = None
    """The exact minute of the highest sample, if samples are longer than that."""

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        for number, line in enumerate(self.lines(options.max_width - 1)):
            shown = line.translate(_ASCII) if options.ascii_only else line
            yield Text(shown, "cyan" if number else "yellow", no_wrap=True, overflow="crop")

    def lines(self, width: int) -> list[str]:
        """Return the chart as lines of text that are `width` columns wide.

        The first line marks the peak, bars follow, and the last line has the times.
        """
        within = [sample for sample in self.samples if self.since <= sample.at <= self.until]
        peak = self.peak or max(within, key=attrgetter("count"), default=Sample(self.until, 0))
        margin, lines = len(str(peak.count)), max(1, self.height - 3)
        counts = self._resample(within, max(1, width - margin - 2))
        columns = len(counts)
        # The heights of the bars in eighths of a line, at least 1 for a count above zero.
        heights = [max(1, n * lines * _EIGHTHS // peak.count) if n else 0 for n in counts]
        bars = [
            "".join(_BLOCKS[min(_EIGHTHS, max(0, high - _EIGHTHS * below))] for high in heights)
            for below in reversed(range(lines))
        ]
        lowest = zip(bars[-1], counts, strict=True)
        bars[-1] = "".join(_NO_SAMPLE if count is None else bar for bar, count in lowest)
        length = self.until - self.since
        form = "%m-%d %H:%M" if length > timedelta(days=1) else "%H:%M"
        form = "%H:%M:%S" if length < timedelta(minutes=10) else form
        mark = ""
        if peak.count:
            place, text = counts.index(peak.count), f"{peak.count} at {peak.at.astimezone():{form}}"
            marks = f"{'':{place}}▼ {text}", f"{text} ▼".rjust(place + 1), f"{'':{place}}▼"
            mark = next(each for each in marks if len(each) <= columns and each[place] == "▼")
        starts = range(0, columns - len(f"{self.since:{form}}") + 1, _TICK)
        moments = [(self.since + length / columns * start).astimezone() for start in starts]
        times = "".join(f"{moment:{form}}".ljust(_TICK) for moment in moments)[:columns]
        indent = " " * (margin + 2)
        return [
            indent + mark,
            f"{peak.count} │{bars[0]}",
            *(f"{'':{margin}} │{bar}" for bar in bars[1:]),
            f"{0:>{margin}} └" + "─" * columns,
            indent + times,
        ]

    def _resample(self, samples: Sequence[Sample], width: int) -> list[int | None]:
        """Return the highest count of each of `width` columns; None where samples are missing.

        A sample lasts until the next, and 90 seconds at most.
        """
        columns: list[int | None] = [None] * width
        step = (self.until - self.since) / width
        for sample, following in pairwise([*samples, Sample(self.until, 0)]):
            first = min(width - 1, (sample.at - self.since) // step)
            end = (min(following.at, sample.at + _SAMPLE_LENGTH) - self.since) // step
            for column in range(first, max(first + 1, min(width, end))):
                columns[column] = max(columns[column] or 0, sample.count)
        return columns
