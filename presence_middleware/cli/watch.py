"""`presence watch`: a screen that updates itself, or lines in a pipe."""

import json
import os
import time
from contextlib import suppress

import click

from ..identity.rules import known_kind
from . import context, output
from .readings import read_site


@click.command(params=[context.kind_option, context.window_option])
@click.option(
    "--interval",
    metavar="DURATION",
    default="1s",
    type=context.interval,
    help="How often to read the counts.",
)
@click.option(
    "--hours", type=click.FloatRange(0.1, 168), default=1, help="How far back the chart goes."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each reading.")
def watch(
    kind_given: str | None, window: str | None, interval: float, hours: float, as_json: bool
) -> None:
    """Show how many are online, live, until Ctrl-C.

    A terminal also shows a chart of a kind. A pipe receives a line for each kind.
    """
    settings = context.site_settings()
    kind = known_kind(kind_given or settings.kinds[0], settings.kinds)
    can_draw = os.environ.get("TERM") not in {None, "", "dumb", "unknown"}
    if output.is_terminal() and can_draw and not as_json:
        from .screen import Recent, Screen, draw

        draw(read_site(settings, window, kind, hours), Screen(kind, Recent(hours)), interval)
    is_outage = False
    # Ctrl-C is how the command is meant to end.
    with suppress(KeyboardInterrupt):
        readings = read_site(settings, window)
        while True:
            due = time.monotonic() + interval
            reading = next(readings)
            at, error = output.iso(reading.at), reading.error
            if as_json:
                answer = {"error": error} if error else {"counts": reading.counts}
                click.echo(json.dumps({"at": at, **answer}))
            elif bool(error) != is_outage:
                # An outage is reported when it begins and when it ends.
                click.echo(f"presence: {error or 'Redis answers again'}", err=True)
                is_outage = not is_outage
            for each, count in reading.counts.items() if not as_json else ():
                click.echo(f"{at}\t{each}\t{count}")
            time.sleep(max(0.0, due - time.monotonic()))
