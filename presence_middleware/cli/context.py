"""Common parts of the commands: settings of the site, a reader, exit statuses, options."""

import errno
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple, NoReturn

import click

from .. import parsers
from ..errors import PresenceError, PresenceUnavailable, SettingsError
from ..paste import Filter, find_filter
from ..presence import Presence
from ..settings import Settings
from . import output

NO, USAGE, UNAVAILABLE = 1, 2, 3
MIN_DURATION = 0.1  # seconds
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

kind_option = click.Option(
    ["--kind", "kind_given"],
    metavar="KIND",
    help="Such as guest; by default the first of PRESENCE_IDENTITY.",
)
kind_argument = click.Argument(["kind_given"], metavar="[KIND]", required=False)
id_argument = click.Argument(["id"])
ids_argument = click.Argument(["ids"], metavar="ID...", nargs=-1, required=True)
window_option = click.Option(
    ["--window"], metavar="DURATION", help="Such as 15m; by default PRESENCE_WINDOW."
)
room_option = click.Option(
    ["--room"], metavar="ROOM", help="Only in this room: its name, or a path such as /t/42."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


class Report(NamedTuple):
    """The answer of a command."""

    document: dict[str, Any]
    """The answer for `--json`, without the kind and the room."""
    rows: Iterable[Sequence[object]] = ()
    """The answer for people and scripts."""
    columns: Sequence[str] = ()
    """The names of the columns of a table; empty for lines."""
    is_yes: bool = True
    """If it is False, the exit status is 1."""
    draw: Callable[[], None] | None = None
    """Prints what a terminal shows in place of the rows."""


def answering(command: Callable[..., Report]) -> Callable[..., None]:
    """Return a command that prints what `command` answers, also with `--json`.

    `command` is called with a reader of the site, the kind, and the further options.
    """

    @json_option
    @wraps(command)
    def run(kind_given: str | None, as_json: bool, **options: Any) -> None:
        reader, kind = site_reader(kind_given)
        answer = command(reader, kind, **options)
        room = options.get("room")
        asked = {"kind": kind} if room is None else {"kind": kind, "room": room}
        show(answer._replace(document=asked | answer.document), as_json=as_json)

    return run


def show(answer: Report, *, as_json: bool) -> None:
    """Print an answer, and end the command with 1 if it is no."""
    if as_json:
        output.document(answer.document)
    elif answer.draw is not None and output.is_terminal():
        answer.draw()
    else:
        output.table(answer.columns, answer.rows)
    if not answer.is_yes:
        raise click.exceptions.Exit(NO)


def ini_filter() -> Filter:
    """Return the section that `--ini` names; one without settings if there is no such option.

    Raises `SettingsError` if there is no such file or section.
    """
    ini = click.get_current_context().obj
    return find_filter(ini) if ini else Filter("", "", {})


def site_settings(**overrides: Any) -> Settings:
    """Return the settings of the site: overrides, then the environment, then `--ini`.

    Raises `SettingsError` with all invalid settings.
    """
    section = ini_filter()
    return Settings.from_env(None, section.settings, section.where, **overrides)


def joining(settings: Settings) -> Settings:
    """Return the settings of a site for those who read it, and start no embedded server.

    Raises `SettingsError` for `memory://`, which only the process of the site can read.
    """
    if settings.redis_url.scheme == "memory":
        raise SettingsError(
            "memory:// is inside the process of the site, so a command cannot read it: use the "
            "readers of the site, or embedded:// in place of memory://"
        )
    return replace(settings, redis_url=settings.redis_url.joining())


def site_reader(kind: str | None = None) -> tuple[Presence, str]:
    """Return a reader of the site, and `kind` or the site's first kind.

    Raises `SettingsError`.
    """
    settings = site_settings()
    return Presence(joining(settings)), kind or settings.kinds[0]


class Commands(click.Group):
    """The commands. An error of the package ends each: with 3 if Redis cannot answer, or with 2.

    A full disk ends them with 1, as any file that cannot be written.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PresenceError as error:
            end = click.ClickException(str(error))
            status = UNAVAILABLE if isinstance(error, PresenceUnavailable) else USAGE
            end.exit_code = status  # type: ignore[misc]  # click reads it from the instance
            raise end from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise click.ClickException(f"cannot write the output: {error.strerror}") from error


def exit_on_signals() -> None:
    """End the command with its `finally` blocks: with 0 on Ctrl-C, with 143 on SIGTERM."""

    def end(signum: int, _: object) -> NoReturn:
        # A second signal must not interrupt the restoring of the terminal, nor the end of Python,
        # which resets the handlers. While it is blocked in this thread, another thread may receive
        # it. It is not set to SIG_IGN, because Python reports a signal that it received before.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for each in _SIGNALS:
            signal.signal(each, lambda *_: None)
        sys.exit(0 if signum == signal.SIGINT else 128 + signum)

    for signum in _SIGNALS:
        signal.signal(signum, end)


def duration(value: str) -> float:
    """Return a duration of at least `MIN_DURATION` in seconds; the type of an option."""
    try:
        seconds = parsers.duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: expected {error}") from None
    if seconds < MIN_DURATION:
        raise click.BadParameter(f"{value!r}: expected at least {MIN_DURATION}s")
    return seconds


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal, unless `yes`, and abort the command unless the answer is yes.

    Raises `click.UsageError` if standard input is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("standard input is not a terminal, so you cannot confirm: add --yes")
    click.confirm(question, abort=True, err=True)
