"""The commands about people: how many, who, since when, and taking one out."""

import click

from .. import values
from ..stores import Sighting
from . import options, show
from .site import reader, say_no


@click.command()
@options.kind_argument
@options.window
@options.as_json
def count(kind: str | None, window: str | None, as_json: bool) -> None:
    """Print how many are online."""
    with reader(kind) as (presence, crowd):
        number = presence.count(crowd, window=window)
    if as_json:
        show.document({"kind": crowd, "count": number})
    else:
        click.echo(number)


@click.command()
@options.kind_argument
@options.window
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="How many at most."
)
@options.as_json
def online(kind: str | None, window: str | None, limit: int, as_json: bool) -> None:
    """Print who is online, newest first, with the seconds since they were seen."""
    with reader(kind) as (presence, crowd):
        found = presence.online(crowd, window=window, limit=limit)
    if as_json:
        people = [{"id": each.id, "last_seen": show.iso(each.last_seen)} for each in found]
        show.document({"kind": crowd, "online": people})
    else:
        show.table((crowd, "last seen"), map(_row, found))


def _row(sighting: Sighting) -> tuple[str, ...]:
    if sighting.last_seen is None:
        return (sighting.id,)
    seconds = show.age(sighting.last_seen)
    return (
        sighting.id,
        f"{values.format_duration(seconds)} ago" if show.is_terminal() else f"{seconds}s",
    )


@click.command()
@options.id_argument
@options.kind
@options.window
@options.as_json
def seen(id: str, kind: str | None, window: str | None, as_json: bool) -> None:
    """Print whether one is online and when last seen; exit with 1 if not online."""
    with reader(kind) as (presence, crowd):
        is_online = presence.is_online(id, crowd, window=window)
        moment = presence.last_seen(id, crowd)
    if as_json:
        known = {"online": is_online, "last_seen": show.iso(moment)}
        show.document({"kind": crowd, "id": id, **known})
    else:
        words = ["online" if is_online else "offline" if moment else "never seen"]
        words += [show.ago(moment), str(show.iso(moment))] if moment else []
        show.words(*words)
    if not is_online:
        say_no()


@click.command()
@click.argument("key")
@options.kind
@options.window
@options.as_json
def friends(key: str, kind: str | None, window: str | None, as_json: bool) -> None:
    """Print which members of the set or sorted set at KEY are online, newest first."""
    with reader(kind) as (presence, crowd):
        ids = presence.online_friends(key, crowd, window=window)
    if as_json:
        show.document({"kind": crowd, "key": key, "online": ids})
    else:
        show.table((crowd,), ((id,) for id in ids))


@click.command()
@options.id_argument
@options.kind
def leave(id: str, kind: str | None) -> None:
    """Take one offline at once, as a logout does."""
    with reader(kind) as (presence, crowd):
        presence.leave(id, crowd)
    show.remark(f"{crowd} {show.printable(id)} is offline.")


@click.command()
@options.id_argument
@options.kind
@options.yes
def forget(id: str, kind: str | None, yes: bool) -> None:
    """Erase one, last-seen time included."""
    with reader(kind) as (presence, crowd):
        name = f"{crowd} {show.printable(id)}"
        options.confirm(f"Erase {name}, and when they were last seen?", yes)
        presence.forget(id, crowd)
    show.remark(f"{name} is forgotten.")
