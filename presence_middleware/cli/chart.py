"""A chart of counts over time as lines of text, for terminals."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from ..stores import Sample

_BLOCKS = " ▁▂▃▄▅▆▇█"  # eighths of a line
_EIGHTHS = 8
_NO_SAMPLE = "·"
_ASCII = str.maketrans("▁▂▃▄▅▆▇█·▼│└─", "__--==##.v|+-")
_SAMPLE_LENGTH = timedelta(seconds=90)  # a sample is taken once a minute, give or take
_TICK = 16  # columns between two times


class Span(NamedTuple):
    """The time that a chart covers."""

    since: datetime
    until: datetime


def chart(
    samples: Iterable[Sample], span: Span, width: int, height: int, peak: Sample | None = None
) -> list[str]:
    """Return a chart of the samples of a span as lines of text.

    The first line marks the peak, bars follow, and the last line has the times. `width` is in
    columns; `height` is in lines, and at least 4 are returned. `peak` is the exact minute of the
    highest sample, if samples are longer than that.
    """
    within = [sample for sample in samples if span.since <= sample.at <= span.until]
    peak = peak or max(within, key=attrgetter("count"), default=Sample(span.until, 0))
    margin, lines = len(str(peak.count)), max(1, height - 3)
    counts = resample(within, span, max(1, width - margin - 2))
    columns = len(counts)
    # The heights of the bars in eighths of a line, at least 1 for a count above zero.
    heights = [max(1, count * lines * _EIGHTHS // peak.count) if count else 0 for count in counts]
    bars = [
        "".join(_BLOCKS[min(_EIGHTHS, max(0, high - _EIGHTHS * below))] for high in heights)
        for below in reversed(range(lines))
    ]
    lowest = zip(bars[-1], counts, strict=True)
    bars[-1] = "".join(_NO_SAMPLE if count is None else bar for bar, count in lowest)
    length = span.until - span.since
    form = "%m-%d %H:%M" if length > timedelta(days=1) else "%H:%M"
    form = "%H:%M:%S" if length < timedelta(minutes=10) else form
    mark = ""
    if peak.count:
        column, text = counts.index(peak.count), f"{peak.count} at {peak.at.astimezone():{form}}"
        mark = f"{'':{column}}▼"
        if column + 2 + len(text) <= columns:
            mark += f" {text}"
        elif len(text) + 1 < column:
            mark = f"{text} ▼".rjust(column + 1)
    starts = range(0, columns - len(f"{span.since:{form}}") + 1, _TICK)
    moments = [(span.since + length / columns * start).astimezone() for start in starts]
    times = "".join(f"{moment:{form}}".ljust(_TICK) for moment in moments)[:columns]
    indent = " " * (margin + 2)
    return [
        indent + mark,
        f"{peak.count} │{bars[0]}",
        *(f"{'':{margin}} │{bar}" for bar in bars[1:]),
        f"{0:>{margin}} └" + "─" * columns,
        indent + times,
    ]


def in_ascii(lines: Iterable[str]) -> list[str]:
    """Return the lines of a chart in ASCII, for terminals without block characters."""
    return [line.translate(_ASCII) for line in lines]


def resample(samples: Sequence[Sample], span: Span, width: int) -> list[int | None]:
    """Return the highest count of each of `width` columns; None where samples are missing.

    A sample lasts until the next, and 90 seconds at most.
    """
    columns: list[int | None] = [None] * width
    step = (span.until - span.since) / width
    for sample, following in pairwise([*samples, Sample(span.until, 0)]):
        first = min(width - 1, (sample.at - span.since) // step)
        end = (min(following.at, sample.at + _SAMPLE_LENGTH) - span.since) // step
        for column in range(first, max(first + 1, min(width, end))):
            columns[column] = max(columns[column] or 0, sample.count)
    return columns
