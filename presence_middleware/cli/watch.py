"""`presence watch`: a screen that keeps itself up to date, or in pipes a line each time."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NoReturn

import click

from ..identity import known_kind
from ..settings import Settings
from . import options, show
from .recent import Question, Reading, Recent
from .site import errors

if TYPE_CHECKING:
    from .screen import Screen


ENDS = (signal.SIGINT, signal.SIGTERM)


@click.command()
@options.kind
@options.window
@click.option(
    "--interval",
    metavar="DURATION",
    default="1s",
    show_default=True,
    callback=options.seconds,
    help="How often to ask.",
)
@click.option(
    "--hours",
    type=click.FloatRange(0.1, 168),
    default=1,
    show_default=True,
    help="How far back the chart goes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON each time.")
def watch(
    kind: str | None, window: str | None, interval: float, hours: float, as_json: bool
) -> None:
    """Show how many are online, live and with a chart of one kind, until Ctrl-C."""
    with errors():
        settings = Settings.from_env()
        crowd = known_kind(kind or settings.kinds[0], settings.kinds)
        if as_json:
            _print(Question(settings, window), _document, interval)
        elif not _is_screen():
            _print(Question(settings, window), _Lines(), interval)
        else:
            from .screen import Screen

            question = Question(settings, window, crowd, hours)
            _draw(question, Screen(crowd, Recent(hours)), interval)


def _is_screen() -> bool:
    return show.is_terminal() and os.environ.get("TERM") not in {None, "", "dumb", "unknown"}


def _print(question: Question, tell: Callable[[Reading], None], interval: float) -> None:
    try:
        while True:
            due = time.monotonic() + interval
            tell(question())
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        pass  # how it is meant to end


def _document(reading: Reading) -> None:
    known = {"error": reading.error} if reading.error else {"counts": reading.counts}
    click.echo(json.dumps({"at": show.iso(reading.at), **known}))


class _Lines:
    """A line a kind; an outage is told once, to whom reads the errors."""

    def __init__(self) -> None:
        self._error: str | None = None

    def __call__(self, reading: Reading) -> None:
        if reading.error and not self._error:
            click.echo(f"presence: {reading.error}", err=True)
        if self._error and not reading.error:
            click.echo("presence: Redis answers again", err=True)
        self._error = reading.error
        for kind, count in reading.counts.items():
            click.echo(f"{show.iso(reading.at)}\t{kind}\t{count}")


def _draw(question: Question, screen: "Screen", interval: float) -> None:
    from rich.live import Live

    resized: SimpleQueue[None] = SimpleQueue()  # its put() may come from a signal
    signal.signal(signal.SIGWINCH, lambda *_: resized.put(None))
    for signum in ENDS:
        signal.signal(signum, _end)
    live = Live(screen, console=show.console(), screen=True, auto_refresh=False)
    try:
        live.start(refresh=True)
        while True:
            due = time.monotonic() + interval
            screen.update(question())
            live.refresh()
            _wait(due, resized, live.refresh)
    finally:
        live.stop()


def _end(signum: int, _: object) -> NoReturn:
    # A second one must not keep the terminal from being put back.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    sys.exit(0 if signum == signal.SIGINT else 128 + signum)


def _wait(due: float, resized: SimpleQueue[None], redraw: Callable[[], None]) -> None:
    while (left := due - time.monotonic()) > 0:
        with suppress(Empty):
            # A signal that comes just before does not cut this short.
            resized.get(timeout=min(left, 1.0))
            redraw()
