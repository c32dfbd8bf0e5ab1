"""The `presence` command and its subcommands, except those of `live.py` and `logs.py`."""

import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from ..backend import Backend
from ..doctor import effective_settings, examine
from ..errors import PresenceError, PresenceUnavailable, SettingsError
from ..explain import environ_of, explain
from ..identity.sources import check_module
from ..presence import Presence
from ..queries import MAX_HISTORY_HOURS, PERIODS
from . import context
from .context import Chart, Report
from .live import events, watch
from .logs import follow, replay

STATUS = """\b
Exit status:
  0  done, or yes
  1  no: not online, a check failed, nothing recorded, or you declined
  2  the arguments or the settings are invalid
  3  Redis cannot answer
"""
_CHART_LINES = 14
ASK_EVERY = 1.0  # seconds
_STYLES = {"ok": "green", "warn": "yellow", "WRONG": "bold red"}


@click.group(
    cls=context.Commands,
    commands=[events, watch, replay, follow],
    epilog=STATUS,
    context_settings={"max_content_width": 100, "show_default": True},
)
@click.option("--ini", metavar="FILE[#NAME]", help="Paste ini file with settings in [filter:NAME].")
@click.version_option(package_name="presence_middleware")
@click.pass_context
def presence(site: click.Context, ini: str | None) -> None:
    """Show who is online on this site.

    Settings are PRESENCE_* variables of the environment. They override the file of --ini.
    """
    site.obj = ini


@presence.command(params=[context.kind_argument, context.window_option, context.room_option])
@context.answering
def count(reader: Presence, kind: str, window: str | None, room: str | None) -> Report:
    """Print how many are online."""
    number = reader.count(kind, window=window, room=room)
    return Report({"count": number}, [[number]])


@presence.command(params=[context.kind_argument, context.window_option, context.room_option])
@click.option("--limit", type=click.IntRange(1), default=100, help="How many at most.")
@context.answering
def online(reader: Presence, kind: str, window: str | None, room: str | None, limit: int) -> Report:
    """Print who is online, newest first, and how long ago.

    Who is in a room is sorted by id.
    """
    found = reader.online(kind, window=window, limit=limit, room=room)
    rows = [(id, context.brief_age(moment)) if moment else (id,) for id, moment in found]
    return Report({"online": [each._asdict() for each in found]}, rows, (kind, "last seen"))


@presence.command(params=[context.kind_option])
@click.argument("periods", metavar="[PERIOD]...", nargs=-1)
@context.answering
def active(reader: Presence, kind: str, periods: tuple[str, ...]) -> Report:
    """Print how many were seen in each PERIOD, also who logged out since.

    Periods are such as 12h; by default 1d, 7d and 30d, as far as the site can answer them.
    """
    numbers = {each: reader.active(each, kind) for each in periods}
    numbers = numbers or reader.run(reader.backend.queries.active_in_periods(kind))
    if not numbers:
        reader.active(PERIODS[0], kind)  # raises the reason
    return Report({"active": numbers}, numbers.items(), ("period", kind))


@presence.command(params=[context.kind_argument, context.room_option])
@click.option("--below", type=click.IntRange(1), default=1, help="Wait until fewer are online.")
@click.option(
    "--timeout", metavar="DURATION", type=context.duration, help="Wait no longer than this."
)
def wait(kind_given: str | None, room: str | None, below: int, timeout: float | None) -> None:
    """Wait until fewer than --below are online, by default until nobody is.

    Exit with 0 then, with 1 if --timeout passed before that, and with 3 if Redis cannot answer at
    the start or at the end.
    """
    context.exit_on_signals([signal.SIGTERM])  # Ctrl-C is no answer
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    reader, kind = context.site_reader(kind_given)
    number, failure, shown = reader.count(kind, room=room), None, 0
    while number >= below:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise failure or click.exceptions.Exit(context.NO)
        if number != shown:
            context.remark(f"{number} online")
            shown = number
        time.sleep(min(ASK_EVERY, remaining))
        try:
            number, failure = reader.count(kind, room=room), None
        except PresenceUnavailable as error:
            failure = error


@presence.command(params=[context.ids_argument, context.kind_option, context.window_option])
@context.answering
def seen(reader: Presence, kind: str, ids: tuple[str, ...], window: str | None) -> Report:
    """Print whether each ID is online and when it was last seen.

    Exit with 1 if an ID is not online.
    """
    online = set(reader.online_among(ids, kind, window=window))
    # By the id as it is stored, which may differ from the argument by blanks.
    moments = reader.last_seen_among(ids, kind)
    people, rows = list[dict[str, Any]](), list[Sequence[object]]()
    for id, moment in moments.items():
        state = "online" if id in online else "offline" if moment else "never seen"
        people.append({"id": id, "online": id in online, "last_seen": moment})
        rows.append((id, state, context.ago(moment), moment) if moment else (id, state))
    if len(ids) == 1:
        return Report(people[0], [rows[0][1:]], is_yes=bool(online))
    columns = (kind, "", "last seen", "")
    return Report({"seen": people}, rows, columns, len(online) == len(moments))


@presence.command(params=[click.Argument(["key"]), context.kind_option, context.window_option])
@context.answering
def friends(reader: Presence, kind: str, key: str, window: str | None) -> Report:
    """Print which ids of a Redis set or sorted set are online.

    KEY is the key of the set. The newest is printed first.
    """
    ids = reader.online_friends(key, kind, window=window)
    return Report({"key": key, "online": ids}, [(id,) for id in ids], (kind,))


@presence.command(params=[context.id_argument, context.kind_option])
def leave(id: str, kind_given: str | None) -> None:
    """Take ID offline at once, as a logout does."""
    reader, kind = context.site_reader(kind_given)
    reader.leave(id, kind)
    context.remark(f"{kind} {id} is offline.")


@presence.command(params=[context.id_argument, context.kind_option])
@context.yes_option
def forget(id: str, kind_given: str | None, yes: bool) -> None:
    """Erase ID and when it was last seen."""
    reader, kind = context.site_reader(kind_given)
    name = f"{kind} {context.printable(id)}"
    context.confirm(f"Erase {name}, and when they were last seen?", yes)
    reader.forget(id, kind)
    context.remark(f"{name} is erased.")


@presence.command(params=[context.kind_option])
@click.option(
    "--hours", type=click.FloatRange(0, MAX_HISTORY_HOURS, True), default=24, help="How far back."
)
@context.answering
def history(reader: Presence, kind: str, hours: float) -> Report:
    """Print how many were online in each minute.

    On a terminal, draw a chart.
    """
    samples = reader.history(hours, kind)
    rows = ((sample.at, sample.count) for sample in samples)
    now = datetime.now(UTC)
    chart = Chart(samples, now - timedelta(hours=hours), now, _CHART_LINES)
    return Report({"samples": list(map(asdict, samples))}, rows, picture=chart)


@presence.command(params=[context.kind_option])
@click.option("--reset", is_flag=True, help="Forget the peak and start a new record.")
@context.yes_option
@context.answering
def peak(reader: Presence, kind: str, reset: bool, yes: bool) -> Report:
    """Print the most that were ever online, and when.

    Exit with 1 if nothing is recorded.
    """
    if reset:
        context.confirm(f"Forget the peak of {context.printable(kind)}?", yes)
        reader.reset_peak(kind)
    highest = None if reset else reader.peak(kind)
    if highest is not None:
        return Report(asdict(highest), [(highest.count, context.ago(highest.at), highest.at)])
    text = f"The peak of {kind} is forgotten." if reset else "Nothing is recorded yet."
    return Report({"count": None, "at": None}, is_yes=reset, picture=text)


@presence.command()
@context.json_option
def config(as_json: bool) -> None:
    """Print every setting and where its value comes from."""
    site = context.site_settings()
    settings = effective_settings(site, context.ini_filter().settings)
    for rule in site.identity:
        if rule.function:
            check_module(rule.function)
    rows = ((name, *each.values()) for name, each in settings.items())
    context.show(Report(settings, rows, ("setting", "value", "from")), as_json=as_json)


@presence.command()
@click.option(
    "--settings/--no-settings", default=True, show_default=False, help="Print settings too."
)
@context.json_option
def doctor(settings: bool, as_json: bool) -> None:
    """Check the server, its keys and the settings.

    Exit with 1 if a check fails.
    """
    try:
        site = context.site_settings()
        findings = examine(Backend(context.joining(site)))
        effective = effective_settings(site, context.ini_filter().settings) if settings else {}
    except PresenceError as error:
        # The exit status is 1, as for every other problem that the doctor finds.
        raise click.ClickException(str(error)) from error
    if not as_json:
        for name, each in effective.items():
            context.line(f"      {name}={each['value']} ({each['from']})")
    # Each finding is printed as soon as its check has run.
    reports = []
    for finding in findings:
        reports.append(finding._asdict())
        if not as_json:
            context.line(f"{finding.mark:5} {finding.what}", _STYLES[finding.mark])
    is_right = all(report["is_right"] for report in reports)
    answer = {"is_right": is_right, "settings": effective, "findings": reports}
    context.show(Report(answer, is_yes=is_right), as_json=as_json)


@presence.command("explain")
@click.argument("source", metavar="[-]", required=False, type=click.Choice(["-"]))
@click.option("--header", "headers", metavar="HEADER", multiple=True, help="Such as 'Cookie: a=b'.")
@click.option("--path", default="/", help="The path, perhaps with a query.")
@click.option("--method", default="GET", help="Such as POST.")
@click.option("--address", default="127.0.0.1", help="The client's address, or a proxy's.")
@context.json_option
def explain_command(
    *,
    source: str | None,
    headers: tuple[str, ...],
    path: str,
    method: str,
    address: str,
    as_json: bool,
) -> None:
    """Print who a request counts as, and why.

    With -, read the request from standard input: its first line and its headers. The settings
    (PRESENCE_*) apply as on the site. Neither the app nor Redis is asked. No secret is shown, and
    of cookies and tokens only names of keys.
    """
    if not path.startswith("/"):
        raise click.UsageError("--path begins with /, such as /t/42, without the host")
    request = f"{method} {path} HTTP/1.1"
    if source:
        request = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    try:
        environ = environ_of(request, headers, address)
    except ValueError as error:
        raise click.UsageError(f"the request cannot be read: {error}") from error
    answer = explain(context.site_settings(), environ)
    if as_json:
        context.document(answer)
        return
    context.line(answer["request"])
    width = max(len(rule["name"]) for rule in answer["rules"])
    for number, rule in enumerate(answer["rules"], 1):
        context.line(f"{number} {rule['name']:{width}}  {rule['result']}")
    context.line(answer["conclusion"], "bold")
    for hint in answer["hints"]:
        context.line(hint)


@presence.command()
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, context.MAX_PORT), default=8000, help="Port to listen on."
)
@click.option(
    "--crowd", type=click.IntRange(0, 500), default=40, help="Number of simulated visitors."
)
def demo(host: str, port: int, crowd: int) -> None:
    """Serve a small site that shows the middleware at work.

    Simulated visitors come and go on it. With --crowd 0, only real visitors count.
    """
    try:
        from ..demo.server import serve
    except ModuleNotFoundError as error:
        raise SettingsError("needs pip install 'presence_middleware[demo]'") from error
    serve(host, port, crowd)
