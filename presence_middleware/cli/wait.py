"""`presence wait`: until few enough are online, such as for a restart."""

import math
import threading
import time

import click

from ..errors import EventsLost, PresenceUnavailable
from ..events import Events
from . import context, output

ASK_EVERY = 5.0  # seconds; with events, also when somebody goes


@click.command(params=[context.kind_argument, context.room_option])
@click.option("--below", type=click.IntRange(1), default=1, help="Wait until fewer are online.")
@click.option(
    "--timeout", metavar="DURATION", callback=context.interval, help="Wait no longer than this."
)
def wait(kind_given: str | None, room: str | None, below: int, timeout: float | None) -> None:
    """Wait until fewer than --below are online, by default until nobody is.

    Exit with 0 then, with 1 if --timeout passed before that, and with 3 if Redis cannot answer at
    the start or at the end.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    reader, kind = context.site_reader(kind_given)
    number, failure, shown = reader.count(kind, room=room), None, 0
    someone_went = threading.Event()
    if kind in reader.backend.settings.events:
        following = (reader.events(kind), someone_went)
        threading.Thread(target=_follow, args=following, daemon=True).start()
    while failure is not None or number >= below:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise failure or click.exceptions.Exit(context.NO)
        if number != shown:
            output.remark(f"{number} online")
            shown = number
        someone_went.wait(min(ASK_EVERY, remaining))
        someone_went.clear()
        try:
            number, failure = reader.count(kind, room=room), None
        except PresenceUnavailable as error:
            failure = error


def _follow(events: Events, someone_went: threading.Event) -> None:
    """Report who goes, also after events were lost or an outage."""
    while not events.is_ended:
        try:
            for event in events:
                if not event.online:
                    someone_went.set()
        except (EventsLost, PresenceUnavailable):
            someone_went.set()
