"""The commands about what was recorded: the number of each minute, and the peak."""

from datetime import UTC, datetime, timedelta

import click

from . import options, show
from .chart import Span
from .site import reader, say_no

_TEN_YEARS = 10 * 366 * 24  # in hours: the longest that a history may be
_LINES = 14


@click.command()
@options.kind
@click.option(
    "--hours",
    type=click.FloatRange(0, _TEN_YEARS, min_open=True),
    default=24,
    show_default=True,
    help="How far back.",
)
@options.as_json
def history(kind: str | None, hours: float, as_json: bool) -> None:
    """Print how many were online in each minute; a terminal shows a chart."""
    with reader(kind) as (presence, crowd):
        samples = presence.history(hours, crowd)
    if as_json:
        known = [{"at": show.iso(sample.at), "count": sample.count} for sample in samples]
        show.document({"kind": crowd, "samples": known})
    elif show.is_terminal():
        now = datetime.now(UTC)
        show.drawn(samples, Span(now - timedelta(hours=hours), now), _LINES)
    else:
        for sample in samples:
            click.echo(f"{show.iso(sample.at)}\t{sample.count}")


@click.command()
@options.kind
@click.option("--reset", is_flag=True, help="Forget it: it is counted from now on.")
@options.yes
@options.as_json
def peak(kind: str | None, reset: bool, yes: bool, as_json: bool) -> None:
    """Print the most that were ever online and when; exit with 1 before the first."""
    with reader(kind) as (presence, crowd):
        if reset:
            options.confirm(f"Forget the peak of {show.printable(crowd)}?", yes)
            presence.reset_peak(crowd)
            show.remark(f"The peak of {crowd} is forgotten.")
            return
        highest = presence.peak(crowd)
    at, count = (highest.at, highest.count) if highest else (None, None)
    if as_json:
        show.document({"kind": crowd, "count": count, "at": show.iso(at)})
    elif at:
        show.words(str(count), show.ago(at), str(show.iso(at)))
    else:
        show.remark("Nothing is recorded yet.")
    if not highest:
        say_no()
