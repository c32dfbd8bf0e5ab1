"""A chart of counts over time as lines of text, for terminals."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
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


def chart(samples: Iterable[Sample], span: Span, width: int, height: int) -> list[str]:
    """Return a chart of the samples of a span as lines of text.

    The first line marks the peak, bars follow, and the last line has the times. `width` is in
    columns; `height` is in lines, and at least 4 are returned.
    """
    within = [sample for sample in samples if span.since <= sample.at <= span.until]
    peak = max(within, key=lambda sample: sample.count, default=Sample(span.until, 0))
    margin = len(str(peak.count))
    columns = resample(within, span, max(1, width - margin - 2))
    bars = _bars(columns, max(1, height - 3), max(1, peak.count))
    indent = " " * (margin + 2)
    return [
        indent + (_mark(columns, peak, span) if peak.count else ""),
        f"{peak.count} │{bars[0]}",
        *(f"{'':{margin}} │{bar}" for bar in bars[1:]),
        f"{0:>{margin}} └" + "─" * len(columns),
        indent + _times(span, len(columns)),
    ]


def by_time(sample: Sample) -> datetime:
    """Return the sort key of samples in order of time."""
    return sample.at


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


def _bars(columns: Sequence[int | None], height: int, most: int) -> list[str]:
    """Return the bars from top to bottom, with a dot where samples are missing."""
    # In eighths of a line, at least 1 for a count above zero.
    eighths = [max(1, count * height * _EIGHTHS // most) if count else 0 for count in columns]
    lines = [
        "".join(_BLOCKS[min(_EIGHTHS, max(0, high - _EIGHTHS * below))] for high in eighths)
        for below in reversed(range(height))
    ]
    lowest = zip(lines[-1], columns, strict=True)
    lines[-1] = "".join(_NO_SAMPLE if count is None else bar for bar, count in lowest)
    return lines


def _mark(columns: Sequence[int | None], peak: Sample, span: Span) -> str:
    """Return an arrow above the peak, with its count and time beside it if there is room."""
    column, text = columns.index(peak.count), f"{peak.count} at {_time(peak.at, span)}"
    if column + 2 + len(text) <= len(columns):
        return f"{'':{column}}▼ {text}"
    return f"{text} ▼".rjust(column + 1) if len(text) + 1 < column else f"{'':{column}}▼"


def _times(span: Span, width: int) -> str:
    step = (span.until - span.since) / width
    starts = range(0, width - len(_time(span.since, span)) + 1, _TICK)
    return "".join(f"{_time(span.since + step * start, span):{_TICK}}" for start in starts)[:width]


def _time(moment: datetime, span: Span) -> str:
    """Return a local time, with seconds or the date if the length of the span needs them."""
    length = span.until - span.since
    form = "%m-%d %H:%M" if length > timedelta(days=1) else "%H:%M"
    return moment.astimezone().strftime("%H:%M:%S" if length < timedelta(minutes=10) else form)
