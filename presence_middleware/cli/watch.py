"""`presence watch`: a screen that updates itself, or lines in a pipe."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress

import click

from ..identity import known_kind
from . import context, output
from .readings import Poller, Reading


@click.command()
@context.kind_option
@context.window_option
@click.option(
    "--interval",
    metavar="DURATION",
    default="1s",
    show_default=True,
    callback=context.interval,
    help="How often to read the counts.",
)
@click.option(
    "--hours",
    type=click.FloatRange(0.1, 168),
    default=1,
    show_default=True,
    help="How far back the chart goes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each reading.")
def watch(
    kind_given: str | None, window: str | None, interval: float, hours: float, as_json: bool
) -> None:
    """Show how many are online, live, until Ctrl-C.

    A terminal also shows a chart of a kind. A pipe receives a line for each kind.
    """
    with context.exit_on_error():
        settings = context.site_settings()
        kind = known_kind(kind_given or settings.kinds[0], settings.kinds)
        if as_json:
            _print_readings(Poller(settings, window), _print_json, interval)
        elif not _can_draw():
            _print_readings(Poller(settings, window), _LinePrinter().print, interval)
        else:
            from .screen import Recent, Screen, draw

            poller = Poller(settings, window, kind, hours)
            draw(poller, Screen(kind, Recent(hours)), interval)


def _can_draw() -> bool:
    return output.is_terminal() and os.environ.get("TERM") not in {None, "", "dumb", "unknown"}


def _print_readings(
    poller: Poller, print_reading: Callable[[Reading], None], interval: float
) -> None:
    # Ctrl-C is how the command is meant to end.
    with suppress(KeyboardInterrupt):
        while True:
            due = time.monotonic() + interval
            print_reading(poller.read())
            time.sleep(max(0.0, due - time.monotonic()))


def _print_json(reading: Reading) -> None:
    answer = {"error": reading.error} if reading.error else {"counts": reading.counts}
    click.echo(json.dumps({"at": output.iso(reading.at), **answer}))


class _LinePrinter:
    """Prints a line for each kind, and on standard error the start and the end of an outage."""

    def __init__(self) -> None:
        self._error: str | None = None

    def print(self, reading: Reading) -> None:
        if reading.error and not self._error:
            click.echo(f"presence: {reading.error}", err=True)
        if self._error and not reading.error:
            click.echo("presence: Redis answers again", err=True)
        self._error = reading.error
        for kind, count in reading.counts.items():
            click.echo(f"{output.iso(reading.at)}\t{kind}\t{count}")
