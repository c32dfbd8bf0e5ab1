"""`presence replay`: compute the numbers online from the access logs of a site."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import click

from ..parsers import format_duration
from ..replay import FIELDS, Logs, Moment, Replay, Summary, size_of
from ..settings import Settings
from ..stores import Sample, moment_of
from . import context, output
from .chart import Span

SOURCES_IN_A_LOG = {"auth", "ip", "visitor", "user-agent"}
_CHART_LINES = 8

logs_argument = click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="LOG...",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
)


@click.command(params=[context.window_option])
@logs_argument
@click.option("--chart", metavar="FILE", type=click.Path(dir_okay=False), help="Write an SVG.")
@context.json_option
def replay(paths: tuple[str, ...], window: str | None, chart: str | None, as_json: bool) -> None:
    """Show how many were online, from the access logs of a site.

    No Redis is needed. Logs are in the common, combined or a JSON format, also gzip; - is standard
    input.
    Several logs are merged by time. The settings (PRESENCE_*) apply as on the site: they decide
    which requests are visits, and of which kind. A log has no cookies, and no headers except
    Referer and User-Agent.

    In a pipe, print a line for each minute: its time, and how many of each kind were online.
    """
    if paths.count("-") > 1:
        raise click.UsageError("standard input (-) can be read only once")
    has_charts = output.is_terminal() and not as_json
    # Minutes are printed as they come, so that none stays in memory.
    before_minute = '{"minutes": [\n'

    def report(moment: Moment) -> None:
        nonlocal before_minute
        summary.add(moment)
        at = output.iso(moment_of(moment.at))
        if as_json:
            counts = dict(zip(settings.kinds, moment.counts, strict=True))
            print(before_minute + json.dumps({"at": at, "counts": counts}), end="")
            before_minute = ",\n"
        elif not has_charts:
            print(at, *moment.counts, sep="\t")

    settings = context.site_settings(enabled=True, **({"window": window} if window else {}))
    summary = Summary(settings.kinds)
    site = Replay(settings, report)
    if blind := blind_rules(settings):
        click.echo(f"never matches, because a log has no such field: {', '.join(blind)}", err=True)
    logs = _read(site, paths, is_shown=has_charts or not output.is_terminal())
    requests = logs.parser.lines - logs.parser.unreadable
    if not requests and logs.parser.unreadable:
        raise click.ClickException(
            "no line is in the common, the combined or a JSON format: the first is "
            f"{logs.parser.example}"
        )
    uncounted = {
        "unreadable": (
            logs.parser.unreadable,
            f"in no known format, such as: {logs.parser.example}",
        ),
        "late": (site.timeline.late, "out of order by more than the window, not counted"),
        "ahead": (logs.ahead, "more than a day ahead of the log, not counted"),
        "refused": (site.refused, "past the quota of new guests per address, not counted"),
    }
    if as_json:
        peaks = {
            kind: peak and {"at": output.iso(peak.at), "count": peak.count}
            for kind, peak in summary.peaks.items()
        }
        rest = {"window": settings.window, "peak": peaks, "requests": requests}
        rest |= {problem: lines for problem, (lines, _) in uncounted.items()}
        print(f"{'' if summary.series.points else before_minute}\n], {json.dumps(rest)[1:]}")
    elif has_charts:
        output.line(
            f"{requests:,} requests, each online for {format_duration(settings.window)}", "bold"
        )
        series = summary.series
        for place, (kind, peak) in enumerate(summary.peaks.items()):
            if peak is None:
                output.line(f"{kind}: nobody", "bold")
                continue
            output.line(f"{kind}: {peak.count:,} at most, {output.iso(peak.at)}", "bold")
            samples = [Sample(moment_of(each.at), each.counts[place]) for each in series.points]
            span = Span(samples[0].at, samples[-1].at + timedelta(seconds=series.step))
            output.print_chart(samples, span, _CHART_LINES, peak)
    for lines, problem in uncounted.values():
        if lines:
            click.echo(f"{lines:,} line{'' if lines == 1 else 's'} {problem}", err=True)
    for path, reason in logs.broken.items():
        click.echo(f"{output.printable(path)} ends early: {reason}", err=True)
    if chart:
        try:
            Path(chart).write_text(summary.chart(), encoding="utf-8")
        except OSError as error:
            raise click.FileError(chart, error.strerror) from error
    # Flushed here, where a closed pipe ends the command without an error.
    sys.stdout.flush()


def blind_rules(settings: Settings) -> list[str]:
    """Return the rules of `PRESENCE_IDENTITY` that find nobody in a log."""
    blind: list[str] = []
    for rule in settings.identity:
        fields = {
            "header": f"HTTP_{rule.argument.upper().replace('-', '_')}",
            "environ": rule.argument,
        }
        # A function of the site (package.module:callable) may read any field of a log.
        may_match = rule.source in SOURCES_IN_A_LOG or ":" in rule.source
        if not (may_match or fields.get(rule.source) in FIELDS):
            blind.append(str(rule))
    return blind


def _read(site: Replay, paths: tuple[str, ...], *, is_shown: bool) -> Logs:
    """Add all lines to a site, and draw a progress bar if standard error is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    with Progress(
        *(BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn()),
        console=Console(stderr=True, force_terminal=True),
        transient=True,
        disable=not (is_shown and sys.stderr.isatty()),
    ) as bar:
        task = bar.add_task("", total=size_of(paths))
        logs = Logs(paths, lambda count: bar.advance(task, count))
        for line in logs:
            site.add(line)
        site.timeline.finish()
    return logs
