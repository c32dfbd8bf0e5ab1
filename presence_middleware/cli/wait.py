"""`presence wait`: until few enough are online, such as for a restart."""

import math
import time

import click

from ..errors import PresenceUnavailable
from . import context, output

ASK_EVERY = 1.0  # seconds


@click.command(params=[context.kind_argument, context.room_option])
@click.option("--below", type=click.IntRange(1), default=1, help="Wait until fewer are online.")
@click.option(
    "--timeout", metavar="DURATION", type=context.interval, help="Wait no longer than this."
)
def wait(kind_given: str | None, room: str | None, below: int, timeout: float | None) -> None:
    """Wait until fewer than --below are online, by default until nobody is.

    Exit with 0 then, with 1 if --timeout passed before that, and with 3 if Redis cannot answer at
    the start or at the end.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    reader, kind = context.site_reader(kind_given)
    number, failure, shown = reader.count(kind, room=room), None, 0
    while failure is not None or number >= below:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise failure or click.exceptions.Exit(context.NO)
        if number != shown:
            output.remark(f"{number} online")
            shown = number
        time.sleep(min(ASK_EVERY, remaining))
        try:
            number, failure = reader.count(kind, room=room), None
        except PresenceUnavailable as error:
            failure = error
