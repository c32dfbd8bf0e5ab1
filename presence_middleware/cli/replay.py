"""`presence replay`: what the site would have shown, from its access logs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ..identity import Rule
from ..replay import Logs, Moment, Replay, Summary, size_of
from ..settings import Settings
from . import options, show
from .replay_shown import Document, Lines, Screen, Shown
from .site import errors

IN_A_LOG = {"auth", "ip", "visitor", "user-agent"}
HEADERS_IN_A_LOG = {"referer", "user-agent"}


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="LOG...",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
)
@options.window
@click.option("--chart", metavar="FILE", type=click.Path(dir_okay=False), help="Write an SVG.")
@options.as_json
def replay(paths: tuple[str, ...], window: str | None, chart: str | None, as_json: bool) -> None:
    """Show what the site would have shown, from its access logs; no Redis is needed.

    Logs are in the common or combined format, also gzip; - is standard input. Several are merged
    by time. Who is a user, a guest, a bot or no visit is what PRESENCE_* says, as on the site. A
    log has neither cookies nor headers but Referer and User-Agent.

    In a pipe, a line for each minute: its time, and how many of each kind were online.
    """
    if paths.count("-") > 1:
        raise click.UsageError("standard input can be read only once")
    settings = _settings(window)
    _warn_of_blind(settings)
    summary = Summary(settings.kinds)
    shown = _shown(settings, as_json)
    with _progress(size_of(paths), as_json) as tell:
        logs = Logs(paths, tell)
        _read(logs, settings, summary, shown)
    if not summary.requests and logs.unreadable:
        raise click.ClickException("no line is in the common or combined format")
    shown.end(summary)
    _warn(summary, logs)
    if chart:
        _write(chart, summary)
    sys.stdout.flush()  # here, where a pipe that is closed is no error


def _read(logs: Logs, settings: Settings, summary: Summary, shown: Shown) -> None:
    def tell(moment: Moment) -> None:
        summary.add(moment)
        shown.tell(moment)

    with errors():
        site = Replay(settings, tell)
    for line in logs:
        site.add(line)
    site.finish()
    summary.requests, summary.unreadable = logs.lines - logs.unreadable, logs.unreadable
    summary.late, summary.ahead, summary.refused = site.late, logs.ahead, site.refused


def _shown(settings: Settings, as_json: bool) -> Shown:
    if as_json:
        return Document(settings)
    return (Screen if show.is_terminal() else Lines)(settings)


def _settings(window: str | None) -> Settings:
    with errors():
        return Settings.from_env(enabled=True, **({"window": window} if window else {}))


@contextmanager
def _progress(size: int | None, as_json: bool) -> Iterator[Callable[[int], object]]:
    """A bar of the bytes that are read, where it is in nobody's way."""
    if not sys.stderr.isatty() or (as_json and show.is_terminal()):
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


def _warn_of_blind(settings: Settings) -> None:
    if blind := [str(rule) for rule in settings.identity if not _is_in_a_log(rule)]:
        click.echo(f"not in a log, finds nobody: {', '.join(blind)}", err=True)


def _is_in_a_log(rule: Rule) -> bool:
    """Whether a source may find anybody; of a function of the site's, nobody knows."""
    if rule.source == "header":
        return rule.argument.lower() in HEADERS_IN_A_LOG
    return rule.source in IN_A_LOG or ":" in rule.source


def _warn(summary: Summary, logs: Logs) -> None:
    warnings = {
        "in neither format": summary.unreadable,
        "out of order by more than the window, not counted": summary.late,
        "more than a day ahead of the log, set aside and not counted": summary.ahead,
        "of more guests than one address may have, not counted": summary.refused,
    }
    for what, lines in warnings.items():
        if lines:
            click.echo(f"{lines:,} line{'' if lines == 1 else 's'} {what}", err=True)
    for path, reason in logs.broken.items():
        click.echo(f"{show.printable(path)} ends early: {reason}", err=True)


def _write(path: str, summary: Summary) -> None:
    try:
        Path(path).write_text(summary.chart(), encoding="utf-8")
    except OSError as error:
        raise click.FileError(path, error.strerror) from error
