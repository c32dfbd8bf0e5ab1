"""Output of commands: tables and colours on a terminal, lines with tabs in pipes, or JSON."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ..parsers import DAY
from ..stores import Sample
from .chart import Span, chart, in_ascii

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_UNITS = {"day": DAY, "hour": 3600, "minute": 60}


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def console() -> "Console":
    """Return the terminal. Call it only if standard output is a terminal."""
    from rich.console import Console

    return Console(force_terminal=True)


def document(answer: object) -> None:
    """Print a JSON document in ASCII."""
    click.echo(json.dumps(answer, indent=2 if is_terminal() else None))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows. Their columns, if any, are drawn with their names on a terminal only."""
    if not (columns and is_terminal()):
        separator = ", " if is_terminal() else "\t"
        for row in rows:
            click.echo(separator.join(map(printable, row)))
        return
    from rich import box, table
    from rich.text import Text

    drawn = table.Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in drawn.columns:
        column.overflow = "fold"
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
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


def print_chart(
    samples: Sequence[Sample], span: Span, height: int, peak: Sample | None = None
) -> None:
    """Print a `chart` that is `height` lines high and as wide as the terminal."""
    device = console()
    for line in styled(chart(samples, span, device.width - 1, height, peak), device.options):
        device.print(line, no_wrap=True, overflow="crop")


def styled(lines: Iterable[str], options: "ConsoleOptions") -> "list[Text]":
    """Return the lines of a chart in colours, and in ASCII if the terminal is limited to it."""
    from rich.text import Text

    mark, *bars = in_ascii(lines) if options.ascii_only else lines
    return [Text(mark, "yellow"), *(Text(bar, "cyan") for bar in bars)]


def printable(text: str) -> str:
    """Return text with escapes in place of line ends and terminal control codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def iso(moment: datetime) -> str:
    """Return a moment in UTC, to the second, as ISO 8601."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def age(moment: datetime) -> int:
    """Return the seconds since `moment` by this host's clock; 0 for a moment in the future."""
    return max(0, round((datetime.now(UTC) - moment).total_seconds()))


def ago(moment: datetime) -> str:
    """Return how long ago `moment` was, such as `3 minutes ago`."""
    seconds = age(moment)
    unit, size = next(((u, s) for u, s in _UNITS.items() if seconds >= s), ("second", 1))
    count = seconds // size
    return f"{count} {unit}{'' if count == 1 else 's'} ago"
