"""`presence events` and `presence watch`, which print what happens until Ctrl-C."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from ..errors import EventsLost, PresenceUnavailable, QueryError
from ..parsers import format_duration
from ..presence import Presence
from ..queries import MAX_AMONG, is_text
from ..stores import Batch, Plan, Sample
from ..stores.plan import decoded, readable_texts
from . import context
from .context import Chart

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_COUNTS = {"set": "SCARD", "zset": "ZCARD"}  # the command that counts the members, by type
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
    with reader.events(kind, among=ids, name=name) as stream:
        while not stream.is_ended:
            try:
                for event in stream:
                    # `echo` flushes each line.
                    if as_json:
                        click.echo(context.to_json(event._asdict()))
                    else:
                        state = "online" if event.online else "offline"
                        context.table((), [(event.at, event.kind, state, event.id)])
            except EventsLost as error:
                click.echo(f"presence: {error}", err=True)


def _members(key: str) -> Plan[list[str]]:
    """Return the members of a set or sorted set. Raises `QueryError` if there are too many."""
    if not is_text(key):
        raise QueryError(f"--among is {key!r}: pass the key of a set or sorted set, as text")
    (reply,) = yield Batch((("TYPE", key),))
    if (kind := decoded(reply)) not in _COUNTS:
        state = "does not exist" if kind == "none" else f"is a {kind}"
        raise QueryError(f"--among {key!r} {state}: pass the key of a set or sorted set")
    (size,) = yield Batch(((_COUNTS[kind], key),))
    if int(size) > MAX_AMONG:
        raise QueryError(
            f"--among {key!r} has {size} members: at most {MAX_AMONG} are possible; leave --among "
            "out, and choose in the program that reads the lines"
        )
    (members,) = yield Batch((("ZUNION", 1, key),))  # also of a set
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
    context.exit_on_signals()
    can_draw = os.environ.get("TERM") not in {None, "", "dumb", "unknown"}
    if context.is_terminal() and can_draw and not as_json:
        draw(Screen(reader, window, kind, hours), interval)
    else:
        print_lines(reader, window, interval, as_json=as_json)


class Screen:
    """The newest counts with their peaks, a chart of a kind, and the state of Redis."""

    def __init__(self, reader: Presence, window: str | None, kind: str, hours: float) -> None:
        """Show the counts of `window`, by default the site's, and the last `hours` of a kind."""
        self._reader, self._window, self._kind, self._hours = reader, window, kind, hours
        self._at, self._history_due = datetime.now(UTC), datetime.min.replace(tzinfo=UTC)
        self._counts: dict[str, int] = {}
        self._peaks: dict[str, Sample] = {}
        self._samples: dict[float, Sample] = {}
        """The highest of the recorded and the read counts of each slot of time."""
        self._outage: tuple[datetime, str] | None = None

    def update(self, at: datetime) -> None:
        """Read the counts and, once a minute, the history; `at` is the time.

        In an outage, the last counts stay on the screen. Raises `QueryError` for an invalid window.
        """
        self._at = at
        samples, peaks = list[Sample](), dict[str, Sample | None]()
        try:
            counts = self._reader.counts(window=self._window)
            if at >= self._history_due:
                samples = self._reader.history(self._hours, self._kind)
                peaks = {kind: self._reader.peak(kind) for kind in counts}
                self._history_due = at + HISTORY_INTERVAL
        except PresenceUnavailable as error:
            self._outage = self._outage or (at, str(error))
            return
        self._outage, self._counts = None, counts
        for sample in (*samples, Sample(at, counts[self._kind])):
            slot = sample.at.timestamp() // (self._hours * 3600 / _SLOTS)
            former = self._samples.get(slot, sample)
            self._samples[slot] = max(former, sample, key=attrgetter("count"))
            if len(self._samples) > _SLOTS:
                del self._samples[min(self._samples)]
        for kind, count in counts.items():
            # Of equal counts, the first is the peak.
            known = self._peaks.get(kind), peaks.get(kind), Sample(at, count)
            self._peaks[kind] = max(filter(None, known), key=attrgetter("count"))

    def chart(self, height: int) -> Chart:
        """Return a chart of the last hours, or since the first sample if that is shorter."""
        samples = sorted(self._samples.values(), key=attrgetter("at"))
        first = min(samples[0].at, self._at - _MIN_SPAN)
        return Chart(samples, max(self._at - timedelta(hours=self._hours), first), self._at, height)

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "Iterator[Text | Chart]":
        from rich.text import Text

        line = partial(Text.assemble, no_wrap=True, overflow="crop")
        state, style = ("Ctrl-C ends", "dim"), ""
        if self._outage is not None:
            since, error = self._outage
            told = f"no answer since {since.astimezone():%H:%M:%S}: {context.printable(error)}"
            # Counts from before an outage are dim.
            state, style = (told, "bold red"), "dim"
        yield line(f"{self._at.astimezone():%H:%M:%S}  ", state)
        for kind, count in self._counts.items():
            peak = self._peaks[kind]
            highest = f"peak {peak.count}, {context.ago(peak.at)}" if peak.count else ""
            shown = f"{kind:>10}  ", (f"{count:<9}", "bold"), (highest, "dim")
            yield line(*shown, style=style)
        height = (options.height or console.height) - len(self._counts) - 3
        if self._counts and height >= _MIN_CHART_LINES:
            length = f"  in the last {format_duration(self._hours * 3600)}"
            yield from (line(), line((f"{self._kind:>10}", "bold"), (length, "dim")))
            yield self.chart(height)


def print_lines(reader: Presence, window: str | None, interval: float, *, as_json: bool) -> None:
    """Print readings until Ctrl-C."""
    is_outage = False
    while True:
        at, due = datetime.now(UTC), time.monotonic() + interval
        counts, error = dict[str, int](), ""
        try:
            counts = reader.counts(window=window)
        except PresenceUnavailable as failure:
            error = str(failure)
        if as_json:
            answer = {"error": error} if error else {"counts": counts}
            click.echo(context.to_json({"at": at, **answer}))
        else:
            if bool(error) != is_outage:
                # An outage is reported when it begins and when it ends.
                click.echo(f"presence: {error or 'Redis answers again'}", err=True)
                is_outage = not is_outage
            for kind, count in counts.items():
                click.echo(f"{context.iso(at)}\t{kind}\t{count}")
        time.sleep(max(0.0, due - time.monotonic()))


def draw(screen: Screen, interval: float) -> None:
    """Show readings until Ctrl-C."""
    from rich.live import Live

    # Without a thread, which would receive the signals that are blocked in this one.
    live = Live(screen, console=context.console(), screen=True, auto_refresh=False)
    try:
        live.start(refresh=True)
        while True:
            due = time.monotonic() + interval
            screen.update(datetime.now(UTC))
            live.refresh()
            while (left := due - time.monotonic()) > 0:
                time.sleep(min(left, REDRAW_EVERY))
                live.refresh()  # the terminal may have been resized
    finally:
        live.stop()
