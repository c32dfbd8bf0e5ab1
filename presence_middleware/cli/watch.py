"""`presence watch`: a screen that updates itself, or lines in a pipe."""

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import click

from .. import connections
from ..errors import PresenceUnavailable
from ..identity import known_kind
from ..presence import Presence
from ..settings import Settings
from ..stores import Sample
from . import context, output

if TYPE_CHECKING:
    from .screen import Screen

PAST_INTERVAL = timedelta(minutes=1)  # the site records a sample a minute


@dataclass(frozen=True)
class Past:
    """The history of the site: the samples of a kind, and the peaks by kind."""

    samples: list[Sample]
    peaks: dict[str, Sample]


@dataclass(frozen=True)
class Reading:
    """The counts of each kind at a moment, or the error that Redis caused."""

    at: datetime
    counts: dict[str, int] = field(default_factory=dict)
    past: Past | None = None
    error: str | None = None


class Poller:
    """Reads the counts of a site, and once a minute the history of a kind."""

    def __init__(
        self, settings: Settings, window: str | None, kind: str | None = None, hours: float = 1
    ) -> None:
        """Create a poller that reads counts within `window`, by default the site's.

        `kind` is the kind of the history, `hours` its length. Without a kind, no history is read.
        """
        self._settings, self._window = settings, window
        self._kind, self._hours = kind, hours
        self.past_due = datetime.min.replace(tzinfo=UTC)
        """The moment at which the history is read again."""

    def read(self) -> Reading:
        """Return a reading. In an outage, it contains an error and no counts.

        Raises `QueryError` for an invalid window.
        """
        at = datetime.now(UTC)
        try:
            reader = Presence(self._settings, client=context.site_client(self._settings))
            counts = reader.counts(window=self._window)
            if self._kind is None or at < self.past_due:
                return Reading(at, counts)
            peaks = {kind: reader.peak(kind) for kind in self._settings.kinds}
            samples = reader.history(self._hours, self._kind)
            self.past_due = at + PAST_INTERVAL
            past = Past(samples, {kind: peak for kind, peak in peaks.items() if peak})
            return Reading(at, counts, past)
        except PresenceUnavailable as error:
            # A restarted server may have another address.
            connections.forget(self._settings.redis_url)
            return Reading(at, error=str(error))


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
        can_draw = os.environ.get("TERM") not in {None, "", "dumb", "unknown"}
        if as_json or not (can_draw and output.is_terminal()):
            _print_readings(Poller(settings, window), interval, as_json)
            return
        from .screen import Recent, Screen

        poller = Poller(settings, window, kind, hours)
        _draw(poller, Screen(kind, Recent(hours)), interval)


def _print_readings(poller: Poller, interval: float, as_json: bool) -> None:
    """Print lines for each reading. Without JSON, an outage is reported when it begins and ends."""
    outage: str | None = None
    # Ctrl-C is how the command is meant to end.
    with suppress(KeyboardInterrupt):
        while True:
            due = time.monotonic() + interval
            reading = poller.read()
            at, error = output.iso(reading.at), reading.error
            if as_json:
                answer = {"error": error} if error else {"counts": reading.counts}
                click.echo(json.dumps({"at": at, **answer}))
            else:
                if error and not outage:
                    click.echo(f"presence: {error}", err=True)
                if outage and not error:
                    click.echo("presence: Redis answers again", err=True)
                outage = error
                for kind, count in reading.counts.items():
                    click.echo(f"{at}\t{kind}\t{count}")
            time.sleep(max(0.0, due - time.monotonic()))


def _draw(poller: Poller, screen: "Screen", interval: float) -> None:
    from rich.live import Live

    # A SimpleQueue is the only queue whose put() may be called by a signal handler.
    resized: SimpleQueue[None] = SimpleQueue()
    signal.signal(signal.SIGWINCH, lambda *_: resized.put(None))
    context.exit_on_signals()
    live = Live(screen, console=output.console(), screen=True, auto_refresh=False)
    try:
        live.start(refresh=True)
        while True:
            due = time.monotonic() + interval
            screen.update(poller.read())
            live.refresh()
            # Until the next reading, redraw whenever the terminal is resized.
            while (left := due - time.monotonic()) > 0:
                with suppress(Empty):
                    # A signal just before get() does not end it, so each wait is short.
                    resized.get(timeout=min(left, 1.0))
                    live.refresh()
    finally:
        live.stop()
