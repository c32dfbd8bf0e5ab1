"""Common parts of the commands: settings of the site, a reader, exit statuses, options, output.

Commands print tables, charts and colours on a terminal, lines in pipes, or JSON.
"""

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from .. import parsers
from ..errors import PresenceError, PresenceUnavailable, SettingsError
from ..paste import Filter, find_filter
from ..presence import Presence
from ..settings import Settings
from ..stores import Sample

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

NO, USAGE, UNAVAILABLE = 1, 2, 3
MIN_DURATION = 0.1  # seconds
MAX_PORT = 65535
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_UNITS = {"day": parsers.DAY, "hour": 3600, "minute": 60}
_BLOCKS = " ▁▂▃▄▅▆▇█"  # eighths of a line
_EIGHTHS = 8
_NO_SAMPLE = "·"
_ASCII = str.maketrans("▁▂▃▄▅▆▇█·▼│└─", "__--==##.v|+-")
_SAMPLE_LENGTH = timedelta(seconds=90)  # a sample is taken once a minute, give or take
_TICK = 16  # columns between two times

kind_option = click.Option(
    ["--kind", "kind_given"],
    metavar="KIND",
    help="Such as guest; by default the first of PRESENCE_IDENTITY.",
)
kind_argument = click.Argument(["kind_given"], metavar="[KIND]", required=False)
id_argument = click.Argument(["id"])
ids_argument = click.Argument(["ids"], metavar="ID...", nargs=-1, required=True)
window_option = click.Option(
    ["--window"], metavar="DURATION", help="Such as 15m; by default PRESENCE_WINDOW."
)
room_option = click.Option(
    ["--room"], metavar="ROOM", help="Only in this room: its name, or a path such as /t/42."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


class Report(NamedTuple):
    """The answer of a command."""

    document: dict[str, Any]
    """The answer for `--json`, without the kind and the room."""
    rows: Iterable[Sequence[object]] = ()
    """The answer for people and scripts."""
    columns: Sequence[str] = ()
    """The names of the columns of a table; empty for lines."""
    is_yes: bool = True
    """If it is False, the exit status is 1."""
    picture: object = None
    """What rich draws on a terminal in place of the rows."""


def answering(command: Callable[..., Report]) -> Callable[..., None]:
    """Return a command that prints what `command` answers, also with `--json`.

    `command` is called with a reader of the site, the kind, and the further options.
    """

    @json_option
    @wraps(command)
    def run(kind_given: str | None, as_json: bool, **options: Any) -> None:
        reader, kind = site_reader(kind_given)
        answer = command(reader, kind, **options)
        room = options.get("room")
        asked = {"kind": kind} if room is None else {"kind": kind, "room": room}
        show(answer._replace(document=asked | answer.document), as_json=as_json)

    return run


def show(answer: Report, *, as_json: bool) -> None:
    """Print an answer, and end the command with 1 if it is no."""
    if as_json:
        document(answer.document)
    elif answer.picture is not None and is_terminal():
        console().print(answer.picture)
    else:
        table(answer.columns, answer.rows)
    if not answer.is_yes:
        raise click.exceptions.Exit(NO)


def ini_filter() -> Filter:
    """Return the section that `--ini` names, or one without settings. Raises `SettingsError`."""
    ini = click.get_current_context().obj
    return find_filter(ini) if ini else Filter("", "", {})


def site_settings(**overrides: Any) -> Settings:
    """Return the settings of the site: overrides, then the environment, then `--ini`.

    From then on, what they name is found in the working directory, too. Raises `SettingsError`.
    """
    section = ini_filter()
    settings = Settings.from_env(None, section.settings, section.where, **overrides)
    provider = settings.redis_url.address.options.get("credential_provider")
    if provider or any(rule.function for rule in settings.identity):
        # As servers do it. Last, so that no file there replaces another module; and only then,
        # because anybody may put a file into a shared directory, with the name of a package that
        # redis-py imports if it is installed.
        sys.path.append("")
    return settings


def joining(settings: Settings) -> Settings:
    """Return the settings of a site for those who read it, and start no embedded server.

    Raises `SettingsError` for `memory://`, which only the process of the site can read.
    """
    if settings.redis_url.scheme == "memory":
        raise SettingsError(
            "memory:// is inside the process of the site, so a command cannot read it: use the "
            "readers of the site, or embedded:// in place of memory://"
        )
    return replace(settings, redis_url=settings.redis_url.joining())


def site_reader(kind: str | None = None) -> tuple[Presence, str]:
    """Return a reader of the site, and `kind` or the site's first kind. Raises `SettingsError`."""
    settings = site_settings()
    return Presence(joining(settings)), kind or settings.kinds[0]


class Commands(click.Group):
    """The commands. An error of the package ends each: with 3 if Redis cannot answer, or with 2.

    A full disk ends them with 1, as any file that cannot be written. A pipe that is closed, as
    `head` does, ends them with 0: 1 is an answer.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PresenceError as error:
            end = click.ClickException(str(error))
            status = UNAVAILABLE if isinstance(error, PresenceUnavailable) else USAGE
            end.exit_code = status  # type: ignore[misc]  # click reads it from the instance
            raise end from error
        except BrokenPipeError:
            # What waits for the closed pipe must not fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise click.ClickException(f"cannot write the output: {error.strerror}") from error


def exit_on_signals(signals: Sequence[signal.Signals] = _SIGNALS) -> None:
    """End the command with its `finally` blocks: with 0 on Ctrl-C, with 143 on SIGTERM.

    Without this, process 1 of a container ignores SIGTERM.
    """

    def end(signum: int, _: object) -> NoReturn:
        # A second signal must not interrupt the restoring of the terminal, nor the end of Python,
        # which resets the handlers. While it is blocked in this thread, another thread may receive
        # it. It is not set to SIG_IGN, because Python reports a signal that it received before.
        if hasattr(signal, "pthread_sigmask"):  # not on Windows
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for each in _SIGNALS:
            signal.signal(each, lambda *_: None)
        sys.exit(0 if signum == signal.SIGINT else 128 + signum)

    for signum in signals:
        signal.signal(signum, end)


def duration(value: str) -> float:
    """Return a duration of at least `MIN_DURATION` in seconds; the type of an option."""
    try:
        seconds = parsers.duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: expected {error}") from None
    if seconds < MIN_DURATION:
        raise click.BadParameter(f"{value!r}: expected at least {MIN_DURATION}s")
    return seconds


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal, unless `yes`, and abort the command unless the answer is yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("standard input is not a terminal, so you cannot confirm: add --yes")
    click.confirm(question, abort=True, err=True)


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


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
    return f"{parsers.format_duration(seconds)} ago" if is_terminal() else f"{seconds}s"


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
