"""`presence events`: a line for each user who comes online or goes offline."""

import json
import os
import sys

import click

from ..errors import EventsLost, QueryError
from ..queries import MAX_AMONG
from ..stores import Batch, Command, Plan
from ..stores.plan import readable_texts, text
from . import context, output

# How to count and to read the members of a key, by its type.
_READS: dict[str, tuple[str, Command]] = {
    "set": ("SCARD", ("SMEMBERS",)),
    "zset": ("ZCARD", ("ZRANGE", 0, -1)),
}


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
                    click.echo(json.dumps(event._asdict() | {"at": output.iso(event.at)}))
                    continue
                state = "online" if event.online else "offline"
                output.table((), [(output.iso(event.at), event.kind, state, event.id)])
    except BrokenPipeError:
        # What waits for the closed pipe must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _members(key: str) -> Plan[list[str]]:
    """Return the members of a set or sorted set. Raises `QueryError` if there are too many."""
    (reply,) = yield Batch((("TYPE", key),))
    if (kind := text(reply)) not in _READS:
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
