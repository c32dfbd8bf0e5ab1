"""`presence replay`: compute the numbers online from the access logs of a site."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from ..identity import Rule
from ..replay import Logs, Moment, Replay, Summary, size_of
from ..settings import Settings
from ..stores import Sample
from . import context, output
from .chart import Span

SOURCES_IN_A_LOG = {"auth", "ip", "visitor", "user-agent"}
HEADERS_IN_A_LOG = {"referer", "user-agent"}
_CHART_LINES = 8


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="LOG...",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
)
@context.window_option
@click.option("--chart", metavar="FILE", type=click.Path(dir_okay=False), help="Write an SVG.")
@context.json_option
def replay(paths: tuple[str, ...], window: str | None, chart: str | None, as_json: bool) -> None:
    """Show how many were online, from the access logs of a site.

    No Redis is needed. Logs are in the common or combined format, also gzip; - is standard input.
    Several logs are merged by time. The settings (PRESENCE_*) apply as on the site: they decide
    which requests are visits, and of which kind. A log has no cookies, and no headers except
    Referer and User-Agent.

    In a pipe, print a line for each minute: its time, and how many of each kind were online.
    """
    if paths.count("-") > 1:
        raise click.UsageError("standard input (-) can be read only once")
    with context.exit_on_error():
        settings = context.site_settings(enabled=True, **({"window": window} if window else {}))
    _warn_of_blind_rules(settings)
    summary = Summary(settings.kinds)
    reporter = _reporter(settings, as_json)
    with _progress(size_of(paths), as_json) as advance:
        logs = Logs(paths, advance)
        _replay(logs, settings, summary, reporter)
    if not summary.requests and logs.unreadable:
        raise click.ClickException("no line is in the common or combined format")
    reporter.end(summary)
    _warn_of_lines(summary, logs)
    if chart:
        _write(chart, summary)
    # Flushed here, where a closed pipe ends the command without an error.
    sys.stdout.flush()


def _replay(logs: Logs, settings: Settings, summary: Summary, reporter: "Reporter") -> None:
    def report(moment: Moment) -> None:
        summary.add(moment)
        reporter.add(moment)

    with context.exit_on_error():
        site = Replay(settings, report)
    for line in logs:
        site.add(line)
    site.finish()
    summary.requests, summary.unreadable = logs.lines - logs.unreadable, logs.unreadable
    summary.late, summary.ahead, summary.refused = site.late, logs.ahead, site.refused


class Reporter:
    """Prints a replay. This base class prints nothing; subclasses print lines, JSON or charts."""

    def __init__(self, settings: Settings) -> None:
        self.kinds, self.window = settings.kinds, settings.window

    def add(self, moment: Moment) -> None:
        """Print a minute of the replay, if the format allows it before the end."""

    def end(self, summary: Summary) -> None:
        """Print the remaining output after the last line of the logs."""


class LineReporter(Reporter):
    """Prints a line with tabs for each minute."""

    def add(self, moment: Moment) -> None:
        print(_iso(moment), *moment.counts, sep="\t")


class JsonReporter(Reporter):
    """Prints a JSON document minute by minute, so that no minutes stay in memory."""

    _before = '{"minutes": [\n'

    def add(self, moment: Moment) -> None:
        counts = dict(zip(self.kinds, moment.counts, strict=True))
        print(self._before + json.dumps({"at": _iso(moment), "counts": counts}), end="")
        self._before = ",\n"

    def end(self, summary: Summary) -> None:
        begun = "" if summary.series.points else self._before
        rest = {
            "window": self.window,
            "peak": {
                kind: peak and {"at": output.iso(peak.at), "count": peak.count}
                for kind, peak in summary.peaks.items()
            },
            "requests": summary.requests,
            "unreadable": summary.unreadable,
            "late": summary.late,
            "ahead": summary.ahead,
            "refused": summary.refused,
        }
        print(f"{begun}\n], {json.dumps(rest)[1:]}")


class ChartReporter(Reporter):
    """Prints the peak and a chart of each kind on a terminal."""

    def end(self, summary: Summary) -> None:
        output.line(f"{summary.requests:,} requests", "bold")
        points = summary.series.points
        for place, (kind, peak) in enumerate(summary.peaks.items()):
            if peak is None:
                output.line(f"{kind}: nobody", "bold")
                continue
            output.line(f"{kind}: {peak.count:,} at most, {output.iso(peak.at)}", "bold")
            samples = [Sample(_time(point), point.counts[place]) for point in points]
            span = Span(samples[0].at, samples[-1].at + timedelta(seconds=summary.series.step))
            output.print_chart(samples, span, _CHART_LINES)


def _reporter(settings: Settings, as_json: bool) -> Reporter:
    if as_json:
        return JsonReporter(settings)
    return ChartReporter(settings) if output.is_terminal() else LineReporter(settings)


def _time(moment: Moment) -> datetime:
    return datetime.fromtimestamp(moment.at, UTC)


def _iso(moment: Moment) -> str:
    return f"{_time(moment):%Y-%m-%dT%H:%M:%SZ}"


@contextmanager
def _progress(size: int | None, as_json: bool) -> Iterator[Callable[[int], object]]:
    """Draw a progress bar of the bytes that are read, if standard error is a terminal."""
    if not sys.stderr.isatty() or (as_json and output.is_terminal()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=Console(stderr=True, force_terminal=True), transient=True
    ) as bar:
        task = bar.add_task("", total=size)
        yield lambda count: bar.advance(task, count)


def _warn_of_blind_rules(settings: Settings) -> None:
    if blind := [str(rule) for rule in settings.identity if not _may_match(rule)]:
        click.echo(f"never matches, because a log has no such field: {', '.join(blind)}", err=True)


def _may_match(rule: Rule) -> bool:
    if rule.source == "header":
        return rule.argument.lower() in HEADERS_IN_A_LOG
    # A function of the site (package.module:callable) may read any field of a log.
    return rule.source in SOURCES_IN_A_LOG or ":" in rule.source


def _warn_of_lines(summary: Summary, logs: Logs) -> None:
    warnings = {
        "in neither format": summary.unreadable,
        "out of order by more than the window, not counted": summary.late,
        "more than a day ahead of the log, not counted": summary.ahead,
        "past the quota of new guests per address, not counted": summary.refused,
    }
    for problem, lines in warnings.items():
        if lines:
            click.echo(f"{lines:,} line{'' if lines == 1 else 's'} {problem}", err=True)
    for path, reason in logs.broken.items():
        click.echo(f"{output.printable(path)} ends early: {reason}", err=True)


def _write(path: str, summary: Summary) -> None:
    try:
        Path(path).write_text(summary.chart(), encoding="utf-8")
    except OSError as error:
        raise click.FileError(path, error.strerror) from error
