"""`presence events` and `presence watch`, which print what happens until Ctrl-C."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import click

from ..errors import EventsLost, PresenceUnavailable, QueryError
from ..parsers import format_duration
from ..presence import Presence
from ..queries import MAX_AMONG, is_text
from ..stores import Batch, Command, Plan, Sample
from ..stores.plan import decoded, readable_texts
from . import context, output
from .output import Chart

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

# How to count and to read the members of a key, by its type.
_READS: dict[str, tuple[str, Command]] = {
    "set": ("SCARD", ("SMEMBERS",)),
    "zset": ("ZCARD", ("ZRANGE", 0, -1)),
}
HISTORY_INTERVAL = timedelta(minutes=1)  # the site records a sample a minute
_MIN_CHART_LINES = 5
_MIN_SPAN = timedelta(minutes=1)
_SLOTS = 1000  # more than a terminal has columns
REDRAW_EVERY = 0.25  # seconds


@click.command(params=[context.kind_argument])
@click.option(
    "--among",
    "key",
    metavar="KEY",
    help=f"Only ids of this Redis set or sorted set, read at the start; at most {MAX_AMONG}.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Of all commands and programs with this name, one at a time receives events.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each event.")
def events(kind_given: str | None, key: str | None, name: str | None, as_json: bool) -> None:
    """Print a line when somebody comes online or goes offline, until Ctrl-C.

    The kind must be in PRESENCE_EVENTS. Each line is written at once, so that another program can
    read it from a pipe.
    """
    reader, kind = context.site_reader(kind_given)
    reader.count(kind)  # fails at once if Redis does not answer
    ids = None if key is None else reader.run(_members(key))
    context.exit_on_signals()
    try:
        with reader.events(kind, among=ids, name=name) as stream:
            while True:
                try:
                    event = next(stream)
                except EventsLost as error:
                    click.echo(f"presence: {error}", err=True)
                    continue
                # `echo` flushes each line.
                if as_json:
                    click.echo(output.to_json(event._asdict()))
                    continue
                state = "online" if event.online else "offline"
                output.table((), [(event.at, event.kind, state, event.id)])
    except BrokenPipeError:
        # What waits for the closed pipe must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _members(key: str) -> Plan[list[str]]:
    """Return the members of a set or sorted set. Raises `QueryError` if there are too many."""
    if not is_text(key):
        raise QueryError(f"--among is {key!r}: pass the key of a set or sorted set, as text")
    (reply,) = yield Batch((("TYPE", key),))
    if (kind := decoded(reply)) not in _READS:
        state = "does not exist" if kind == "none" else f"is a {kind}"
        raise QueryError(f"--among {key!r} {state}: pass the key of a set or sorted set")
    count, (read, *rest) = _READS[kind]
    (size,) = yield Batch(((count, key),))
    if int(size) > MAX_AMONG:
        raise QueryError(
            f"--among {key!r} has {size} members: at most {MAX_AMONG} are possible; leave --among "
            "out, and choose in the program that reads the lines"
        )
    (members,) = yield Batch(((read, key, *rest),))
    return readable_texts(members)


@click.command(params=[context.kind_option, context.window_option])
@click.option(
    "--interval",
    metavar="DURATION",
    default="1s",
    type=context.duration,
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
    reader, kind = context.site_reader(kind_given)
    reader.backend.queries.kind(kind)  # fails at once if there is none
    can_draw = os.environ.get("TERM") not in {None, "", "dumb", "unknown"}
    if output.is_terminal() and can_draw and not as_json:
        draw(read_site(reader, window, interval, kind, hours), Screen(kind, hours))
    else:
        print_lines(read_site(reader, window, interval), as_json=as_json)


class Reading(NamedTuple):
    """The counts of each kind at a moment, or the error that Redis caused."""

    at: datetime
    counts: dict[str, int]
    samples: Sequence[Sample] = ()
    """The history that the site recorded; empty if it was not read this time."""
    peaks: Mapping[str, Sample | None] = {}
    """The recorded peaks by kind; empty if they were not read this time."""
    error: str | None = None


def read_site(
    reader: Presence,
    window: str | None,
    interval: float,
    kind: str | None = None,
    hours: float = 1,
) -> Iterator[Reading | None]:
    """Yield a reading every `interval` seconds, without an end, and None when to draw in between.

    Counts are those of `window`, by default the site's. `kind` is the kind of the history, and
    `hours` its length. Without a kind, no history is read. A reading in an outage has an error and
    no counts. Raises `QueryError` for an invalid window.
    """
    history_read = datetime.min.replace(tzinfo=UTC)
    while True:
        at, due = datetime.now(UTC), time.monotonic() + interval
        try:
            reading = Reading(at, reader.counts(window=window))
            if kind is not None and at - history_read >= HISTORY_INTERVAL:
                peaks = {each: reader.peak(each) for each in reading.counts}
                reading = reading._replace(samples=reader.history(hours, kind), peaks=peaks)
                history_read = at
        except PresenceUnavailable as error:
            reading = Reading(at, {}, error=str(error))
        yield reading
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, REDRAW_EVERY))
            yield None


class Screen:
    """The newest counts with their peaks, a chart of a kind, and the state of Redis."""

    def __init__(self, kind: str, hours: float) -> None:
        """Show a chart of the last `hours` of a kind."""
        self._kind, self._seconds = kind, hours * 3600
        self._at = datetime.now(UTC)
        self._counts: dict[str, int] = {}
        self._peaks: dict[str, Sample] = {}
        self._samples: dict[float, Sample] = {}
        """The highest of the recorded and the read counts of each slot of time."""
        self._outage: Reading | None = None

    def update(self, reading: Reading) -> None:
        """Show a new reading. In an outage, the last counts stay on the screen."""
        self._at = reading.at
        if reading.error:
            self._outage = self._outage or reading
            return
        self._outage, self._counts = None, reading.counts
        for sample in (*reading.samples, Sample(reading.at, reading.counts[self._kind])):
            slot = sample.at.timestamp() // (self._seconds / _SLOTS)
            former = self._samples.get(slot, sample)
            self._samples[slot] = max(former, sample, key=attrgetter("count"))
            if len(self._samples) > _SLOTS:
                del self._samples[min(self._samples)]
        for kind, count in reading.counts.items():
            # Of equal counts, the first is the peak.
            known = self._peaks.get(kind), reading.peaks.get(kind), Sample(reading.at, count)
            self._peaks[kind] = max(filter(None, known), key=attrgetter("count"))

    def chart(self, height: int) -> Chart:
        """Return a chart of the last hours, or since the first sample if that is shorter."""
        samples = sorted(self._samples.values(), key=attrgetter("at"))
        first = min(samples[0].at, self._at - _MIN_SPAN)
        return Chart(
            samples, max(self._at - timedelta(seconds=self._seconds), first), self._at, height
        )

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "Iterator[Text | Chart]":
        from rich.text import Text

        line = partial(Text.assemble, no_wrap=True, overflow="crop")
        state, style = ("Ctrl-C ends", "dim"), ""
        if self._outage is not None:
            since = f"{self._outage.at.astimezone():%H:%M:%S}"
            error = output.printable(str(self._outage.error))
            # Counts from before an outage are dim.
            state, style = (f"no answer since {since}: {error}", "bold red"), "dim"
        yield line(f"{self._at.astimezone():%H:%M:%S}  ", state)
        for kind, count in self._counts.items():
            peak = self._peaks[kind]
            highest = f"peak {peak.count}, {output.ago(peak.at)}" if peak.count else ""
            shown = f"{kind:>10}  ", (f"{count:<9}", "bold"), (highest, "dim")
            yield line(*shown, style=style)
        height = (options.height or console.height) - len(self._counts) - 3
        if self._counts and height >= _MIN_CHART_LINES:
            length = f"  in the last {format_duration(self._seconds)}"
            yield from (line(), line((f"{self._kind:>10}", "bold"), (length, "dim")))
            yield self.chart(height)


def print_lines(readings: Iterator[Reading | None], *, as_json: bool) -> None:
    """Print readings until Ctrl-C, which is how the command is meant to end."""
    is_outage = False
    with suppress(KeyboardInterrupt):
        for reading in filter(None, readings):
            at, error = reading.at, reading.error
            if as_json:
                answer = {"error": error} if error else {"counts": reading.counts}
                click.echo(output.to_json({"at": at, **answer}))
                continue
            if bool(error) != is_outage:
                # An outage is reported when it begins and when it ends.
                click.echo(f"presence: {error or 'Redis answers again'}", err=True)
                is_outage = not is_outage
            for kind, count in reading.counts.items():
                click.echo(f"{output.iso(at)}\t{kind}\t{count}")


def draw(readings: Iterator[Reading | None], screen: Screen) -> None:
    """Show readings until Ctrl-C."""
    from rich.live import Live

    context.exit_on_signals()
    # Without a thread, which would receive the signals that are blocked in this one.
    live = Live(screen, console=output.console(), screen=True, auto_refresh=False)
    try:
        live.start(refresh=True)
        for reading in readings:
            if reading is not None:
                screen.update(reading)
            live.refresh()  # also after the terminal was resized
    finally:
        live.stop()
