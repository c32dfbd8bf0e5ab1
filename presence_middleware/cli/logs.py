"""`presence replay` and `presence follow`: the access logs of a site, whole or as they grow."""

import logging
import os
import signal
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO, Any
from wsgiref.types import StartResponse

import click

from ..board.routes import Board
from ..errors import SettingsError
from ..identity.rules import Rule
from ..parsers import format_duration
from ..presence import Presence
from ..replay.files import GZIP, GrowingLog, Pipe, read_logs, size_of
from ..replay.lines import FIELDS, Tally
from ..replay.site import Follower, Summary, count_online
from ..settings import Settings
from ..stores import Sample, moment_of
from . import context
from .context import Chart

POLL_SECONDS = 0.2  # between two looks at logs that do not grow
BOARD_PATH = "/presence"  # unless PRESENCE_BOARD_PATH is set
MOST_READERS = 100  # of the board at once
# Seconds for which a connection without a request may be one of these.
_PATIENCE = {"channel_timeout": 10, "cleanup_interval": 5}
SOURCES_IN_A_LOG = {"auth", "ip", "visitor", "user-agent"}
_CHART_LINES = 8
# Why a line of a whole log does not count.
WHY_UNCOUNTED = {
    "unreadable": "in no known format, such as: {example}",
    "late": "out of order by more than the window, not counted",
    "ahead": "more than a day ahead of the log, not counted",
    "refused": "past the quota of new guests per address, not counted",
}
_say = partial(click.echo, err=True)

logs_argument = click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="LOG...",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
)


@click.command(params=[context.window_option])
@logs_argument
@click.option(
    "--chart", metavar="FILE", type=click.File("w", "utf-8", lazy=True), help="Write an SVG."
)
@context.json_option
def replay(
    paths: tuple[str, ...], window: str | None, chart: IO[str] | None, as_json: bool
) -> None:
    """Show how many were online, from the access logs of a site.

    No Redis is needed. Logs are in the common, combined or a JSON format, also gzip; - is standard
    input.
    Several logs are merged by time. The settings (PRESENCE_*) apply as on the site: they decide
    which requests are visits, and of which kind. A log has no cookies, and no headers except
    Referer and User-Agent.

    In a pipe, print a line for each minute: its time, and how many of each kind were online.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    if paths.count("-") > 1:
        raise click.UsageError("standard input (-) can be read only once")
    has_charts = context.is_terminal()
    # Minutes are printed as they come, so that none stays in memory.
    before_minute = '{"minutes": [\n'
    settings = context.site_settings(**({"window": window} if window else {}))
    tally, summary = Tally(), Summary(settings.kinds)
    bar = Progress(
        *(BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn()),
        console=Console(stderr=True, force_terminal=True),
        transient=True,
        disable=(as_json and context.is_terminal()) or not sys.stderr.isatty(),
    )
    report = partial(bar.advance, bar.add_task("", total=size_of(paths)))
    minutes = count_online(read_logs(paths, tally, report), settings, tally)
    if blind := blind_rules(settings):
        click.echo(f"never matches, because a log has no such field: {', '.join(blind)}", err=True)
    with bar:
        for moment in minutes:
            summary.add(moment)
            at = moment_of(moment.at)
            if as_json:
                counts = dict(zip(settings.kinds, moment.counts, strict=True))
                print(before_minute + context.to_json({"at": at, "counts": counts}), end="")
                before_minute = ",\n"
            elif not has_charts:
                print(context.iso(at), *moment.counts, sep="\t")
    requests = tally.lines - tally.odd["unreadable"]
    if tally.lines and not requests:
        raise click.ClickException(
            f"no line is in the common, the combined or a JSON format: the first is {tally.example}"
        )
    if as_json:
        peaks = {kind: peak and asdict(peak) for kind, peak in summary.peaks.items()}
        rest = {"window": settings.window, "peak": peaks, "requests": requests}
        rest |= {reason: tally.odd[reason] for reason in WHY_UNCOUNTED}
        print(f"{'' if summary.points else before_minute}\n], {context.to_json(rest)[1:]}")
    elif has_charts:
        context.line(
            f"{requests:,} requests, each online for {format_duration(settings.window)}", "bold"
        )
        _print_charts(summary)
    for reason, sentence in WHY_UNCOUNTED.items():
        if lines := tally.odd[reason]:
            said = sentence.format(example=tally.example)
            _say(f"{lines:,} line{'' if lines == 1 else 's'} {said}")
    for path, reason in tally.broken.items():
        _say(f"{context.printable(path)} ends early: {reason}")
    if chart:
        chart.write(summary.chart())
    # Flushed here, where a closed pipe ends the command without an error.
    sys.stdout.flush()


def _print_charts(summary: Summary) -> None:
    for place, (kind, peak) in enumerate(summary.peaks.items()):
        if peak is None:
            context.line(f"{kind}: nobody", "bold")
            continue
        context.line(f"{kind}: {peak.count:,} at most, {context.iso(peak.at)}", "bold")
        points = summary.points.items()
        samples = [Sample(moment_of(at), counts[place]) for at, counts in points]
        end = samples[-1].at + timedelta(seconds=summary.step)
        context.console().print(Chart(samples, samples[0].at, end, _CHART_LINES, peak))


def blind_rules(settings: Settings) -> list[str]:
    """Return the rules of `PRESENCE_IDENTITY` that find nobody in a log."""

    def may_match(rule: Rule) -> bool:
        header = f"HTTP_{rule.argument.upper().replace('-', '_')}"
        field = {"header": header, "environ": rule.argument}.get(rule.source)
        is_in_log = field in FIELDS or (rule.source in SOURCES_IN_A_LOG and not rule.argument)
        # A function of the site (package.module:callable) may read any field of a log, or any user.
        return not rule.checked and (is_in_log or bool(rule.function))

    return [str(rule) for rule in settings.identity if not may_match(rule)]


@click.command()
@logs_argument
@click.option(
    "--since",
    metavar="DURATION",
    type=context.duration,
    help="Begin with the lines of the last 10m, for example, not at the end.",
)
@click.option("--board", metavar="HOST:PORT", help="Serve the board at this address.")
def follow(paths: tuple[str, ...], since: float | None, board: str | None) -> None:
    """Record who is online on any site, from its access log as it grows, until Ctrl-C.

    Logs are those of nginx, Apache or Caddy: common, combined or JSON. They may be rotated by
    renaming or by truncation; - is a pipe, such as from journalctl -f. Each line counts at its own
    time, by this host's clock, and the settings (PRESENCE_*) apply as on a site. Guests are
    addresses with a User-Agent; users are those that the log names.
    """
    settings = context.site_settings()
    if not settings.enabled:
        raise SettingsError("PRESENCE_ENABLED=0: follow would record nothing")
    if not hasattr(os, "pread"):  # Windows
        raise SettingsError("follow needs Linux or macOS; replay reads whole logs on any system")
    if not board:
        context.joining(settings)  # nobody could read memory://
    elif not settings.board_path:
        settings = context.site_settings(board_path=BOARD_PATH)
    if blind := blind_rules(settings):
        raise SettingsError(
            f"PRESENCE_IDENTITY: {', '.join(blind)} can find nobody, because a log has no such "
            "field; set rules with auth, ip, visitor or user-agent, such as the default "
            "user=auth, guest=visitor"
        )
    begin = None if since is None else time.time() - since
    tally = Tally(_say)
    follower = Follower(settings, tally)
    if board:
        _serve_board(settings, board)
    try:
        sources = [_source(path, begin) for path in dict.fromkeys(paths)]
    except OSError as error:
        raise click.FileError(str(error.filename), error.strerror) from error
    stopped: list[int] = []
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda signum, _: stopped.append(signum))
    _say(f"following {', '.join(paths)}; Ctrl-C ends")
    while not stopped and not all(source.has_ended for source in sources):
        lines = [line for source in sources for line in source.read()]
        for line in filter(None, map(tally.parse, lines)):
            follower.add(line)
        if not follower.write_if_due() and not lines:
            time.sleep(POLL_SECONDS)
    follower.recorder.close()
    _say(
        f"lines: {tally.lines:,}; in no known format: {tally.odd['unreadable']:,}; older than the "
        f"window: {tally.odd['old']:,}; of the future: {tally.odd['ahead']:,}; past the quota of "
        f"new guests per address: {tally.odd['refused']:,}"
    )
    if not follower.recorder.people.is_empty:
        raise click.exceptions.Exit(context.UNAVAILABLE)


def _source(path: str, since: float | None) -> GrowingLog | Pipe:
    if not Path(path).is_file():
        return Pipe(0 if path == "-" else os.open(path, os.O_RDONLY))
    with Path(path).open("rb") as log:
        if log.read(len(GZIP)) == GZIP:
            raise click.UsageError(f"{path} is compressed and will not grow: use presence replay")
    return GrowingLog(path, since, _say, time.monotonic)


def _serve_board(settings: Settings, address: str) -> None:
    """Serve the board in a thread; other paths lead to it. Raises `SettingsError` if it cannot."""
    from waitress import create_server

    board = Board(Presence(settings).backend)

    def app(environ: dict[str, Any], start_response: StartResponse) -> Any:
        if board.below(environ["PATH_INFO"]) is not None:
            return board.wsgi(environ, start_response)
        start_response("303 See Other", [("Location", settings.board_path)])
        return []

    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) <= context.MAX_PORT):
        raise SettingsError(f"--board {address}: expected HOST:PORT, such as 127.0.0.1:8001")
    try:
        server = create_server(app, listen=address, connection_limit=MOST_READERS, **_PATIENCE)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--board {address}: cannot listen ({error})") from error
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # readers may wait for each other
    Thread(target=server.run, name="presence-board", daemon=True).start()
    _say(f"the board: http://{address}{settings.board_path}")
