"""The `presence` command and its subcommands, except `events`, `watch` and `replay`."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import click

from .. import parsers
from ..backend import Backend
from ..doctor import EffectiveSetting, Finding, effective_settings, examine
from ..errors import PresenceError
from ..stores import Sighting
from . import context, output
from .chart import Span
from .events import events
from .replay import replay
from .watch import watch

STATUS = """\b
Exit status:
  0  done, or yes
  1  no: not online, a check failed, nothing recorded, or you declined
  2  the arguments or the settings are invalid
  3  Redis cannot answer
"""
_MAX_HOURS = 10 * 366 * 24
_CHART_LINES = 14


@click.group(epilog=STATUS, context_settings={"max_content_width": 100})
@click.option(
    "--ini",
    metavar="FILE[#NAME]",
    callback=context.remember_ini,
    expose_value=False,
    help="Paste ini file with settings in [filter:NAME].",
)
@click.version_option(package_name="presence_middleware")
def presence() -> None:
    """Show who is online on this site.

    Settings are PRESENCE_* variables of the environment. They override the file of --ini.
    """


@presence.command()
@context.kind_argument
@context.window_option
@context.room_option
@context.json_option
def count(kind_given: str | None, window: str | None, room: str | None, as_json: bool) -> None:
    """Print how many are online."""
    with context.site_reader(kind_given) as (reader, kind):
        number = reader.count(kind, window=window, room=room)
    if as_json:
        output.document({"kind": kind, **_room(room), "count": number})
    else:
        click.echo(number)


@presence.command()
@context.kind_argument
@context.window_option
@context.room_option
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="How many at most."
)
@context.json_option
def online(
    kind_given: str | None, window: str | None, room: str | None, limit: int, as_json: bool
) -> None:
    """Print who is online, newest first, and how long ago.

    Who is in a room is sorted by id.
    """
    with context.site_reader(kind_given) as (reader, kind):
        sightings = reader.online(kind, window=window, limit=limit, room=room)
    if as_json:
        people = [{"id": each.id, "last_seen": output.iso(each.last_seen)} for each in sightings]
        output.document({"kind": kind, **_room(room), "online": people})
    else:
        output.table((kind, "last seen"), map(_row, sightings))


def _room(room: str | None) -> dict[str, str]:
    return {} if room is None else {"room": room}


def _row(sighting: Sighting) -> tuple[str, ...]:
    if sighting.last_seen is None:
        return (sighting.id,)
    seconds = output.age(sighting.last_seen)
    if output.is_terminal():
        return (sighting.id, f"{parsers.format_duration(seconds)} ago")
    return (sighting.id, f"{seconds}s")


@presence.command()
@context.ids_argument
@context.kind_option
@context.window_option
@context.json_option
def seen(ids: tuple[str, ...], kind_given: str | None, window: str | None, as_json: bool) -> None:
    """Print whether each ID is online and when it was last seen.

    Exit with 1 if an ID is not online.
    """
    with context.site_reader(kind_given) as (reader, kind):
        online = set(reader.online_among(ids, kind, window=window))
        moments = reader.last_seen_among(ids, kind)
    people = [
        {"id": id, "online": id in online, "last_seen": output.iso(moment)}
        for id, moment in moments.items()
    ]
    if as_json:
        output.document({"kind": kind, **(people[0] if len(ids) == 1 else {"seen": people})})
    else:
        # By the id as it is stored, which may differ from the argument by blanks.
        rows = [(id, *_state(id in online, moment)) for id, moment in moments.items()]
        if len(ids) == 1:
            output.fields(*rows[0][1:])
        else:
            output.table((kind, "", "last seen", ""), rows)
    if len(online) < len(moments):
        context.exit_no()


def _state(is_online: bool, moment: datetime | None) -> tuple[str, ...]:
    if moment is None:
        return ("online" if is_online else "never seen",)
    return ("online" if is_online else "offline", output.ago(moment), str(output.iso(moment)))


@presence.command()
@click.argument("key")
@context.kind_option
@context.window_option
@context.json_option
def friends(key: str, kind_given: str | None, window: str | None, as_json: bool) -> None:
    """Print which ids of a Redis set or sorted set are online.

    KEY is the key of the set. The newest is printed first.
    """
    with context.site_reader(kind_given) as (reader, kind):
        ids = reader.online_friends(key, kind, window=window)
    if as_json:
        output.document({"kind": kind, "key": key, "online": ids})
    else:
        output.table((kind,), ((id,) for id in ids))


@presence.command()
@context.id_argument
@context.kind_option
def leave(id: str, kind_given: str | None) -> None:
    """Take ID offline at once, as a logout does."""
    with context.site_reader(kind_given) as (reader, kind):
        reader.leave(id, kind)
    output.remark(f"{kind} {output.printable(id)} is offline.")


@presence.command()
@context.id_argument
@context.kind_option
@context.yes_option
def forget(id: str, kind_given: str | None, yes: bool) -> None:
    """Erase ID and when it was last seen."""
    with context.site_reader(kind_given) as (reader, kind):
        name = f"{kind} {output.printable(id)}"
        context.confirm(f"Erase {name}, and when they were last seen?", yes)
        reader.forget(id, kind)
    output.remark(f"{name} is erased.")


@presence.command()
@context.kind_option
@click.option(
    "--hours",
    type=click.FloatRange(0, _MAX_HOURS, min_open=True),
    default=24,
    show_default=True,
    help="How far back.",
)
@context.json_option
def history(kind_given: str | None, hours: float, as_json: bool) -> None:
    """Print how many were online in each minute.

    On a terminal, draw a chart.
    """
    with context.site_reader(kind_given) as (reader, kind):
        samples = reader.history(hours, kind)
    if as_json:
        points = [{"at": output.iso(sample.at), "count": sample.count} for sample in samples]
        output.document({"kind": kind, "samples": points})
    elif output.is_terminal():
        now = datetime.now(UTC)
        output.print_chart(samples, Span(now - timedelta(hours=hours), now), _CHART_LINES)
    else:
        for sample in samples:
            click.echo(f"{output.iso(sample.at)}\t{sample.count}")


@presence.command()
@context.kind_option
@click.option("--reset", is_flag=True, help="Forget the peak and start a new record.")
@context.yes_option
@context.json_option
def peak(kind_given: str | None, reset: bool, yes: bool, as_json: bool) -> None:
    """Print the most that were ever online, and when.

    Exit with 1 if nothing is recorded.
    """
    with context.site_reader(kind_given) as (reader, kind):
        if reset:
            context.confirm(f"Forget the peak of {output.printable(kind)}?", yes)
            reader.reset_peak(kind)
            output.remark(f"The peak of {kind} is forgotten.")
            return
        highest = reader.peak(kind)
    if as_json:
        at, most = (highest.at, highest.count) if highest else (None, None)
        output.document({"kind": kind, "count": most, "at": output.iso(at)})
    elif highest:
        output.fields(str(highest.count), output.ago(highest.at), str(output.iso(highest.at)))
    else:
        output.remark("Nothing is recorded yet.")
    if not highest:
        context.exit_no()


@presence.command()
@context.json_option
def config(as_json: bool) -> None:
    """Print every setting and where its value comes from."""
    with context.exit_on_error():
        settings = _effective_settings()
    if as_json:
        output.document(_by_name(settings))
    else:
        output.table(("setting", "value", "from"), settings)


@presence.command()
@click.option("--settings/--no-settings", "with_settings", default=True, help="Print settings too.")
@context.json_option
def doctor(with_settings: bool, as_json: bool) -> None:
    """Check the server, its keys and the settings.

    Exit with 1 if a check fails.
    """
    try:
        settings = context.site_settings()
        findings = examine(Backend(settings, client=context.site_client(settings)))
        effective = _effective_settings() if with_settings else []
    except PresenceError as error:
        # The exit status is 1, as for every other problem that the doctor finds.
        raise click.ClickException(str(error)) from error
    is_right = _as_document(effective, findings) if as_json else _as_lines(effective, findings)
    if not is_right:
        context.exit_no()


def _effective_settings() -> list[EffectiveSetting]:
    section = context.ini_filter()
    ini = section.settings if section else {}
    return list(effective_settings(context.site_settings(), os.environ, ini))


def _as_document(effective: Iterable[EffectiveSetting], findings: Iterable[Finding]) -> bool:
    reports = [finding._asdict() for finding in findings]
    is_right = all(finding["is_right"] for finding in reports)
    output.document({"is_right": is_right, "settings": _by_name(effective), "findings": reports})
    return is_right


def _as_lines(effective: Iterable[EffectiveSetting], findings: Iterable[Finding]) -> bool:
    """Print each finding as soon as its check has run. Return True if all are right."""
    for setting in effective:
        output.line(f"      {setting}")
    is_right = True
    for finding in findings:
        is_right = is_right and finding.is_right
        mark, style = ("ok", "green") if finding.is_right else ("WRONG", "bold red")
        output.line(f"{mark:5} {finding.what}", style)
    return is_right


def _by_name(effective: Iterable[EffectiveSetting]) -> dict[str, dict[str, str]]:
    return {each.name: {"value": each.value, "from": each.origin} for each in effective}


@presence.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on.",
)
@click.option(
    "--crowd",
    type=click.IntRange(0, 500),
    default=40,
    show_default=True,
    help="Number of simulated visitors.",
)
def demo(host: str, port: int, crowd: int) -> None:
    """Serve a small site that shows the middleware at work.

    Simulated visitors come and go on it. With --crowd 0, only real visitors count.
    """
    try:
        from ..demo.server import serve
    except ModuleNotFoundError as error:
        raise context.UsageError("needs pip install 'presence_middleware[demo]'") from error
    with context.exit_on_error():
        serve(host, port, crowd)


presence.add_command(events)
presence.add_command(watch)
presence.add_command(replay)
