"""Options and arguments that several commands share, and the question before what is final."""

import sys

import click

from .. import values

window = click.option(
    "--window", metavar="DURATION", help="Such as 15m; by default PRESENCE_WINDOW."
)
kind = click.option(
    "--kind", metavar="KIND", help="Such as guest; by default the first of PRESENCE_IDENTITY."
)
kind_argument = click.argument("kind", required=False)
id_argument = click.argument("id")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
yes = click.option("--yes", is_flag=True, help="Do not ask first.")


def seconds(_: click.Context, parameter: click.Parameter, value: str) -> float:
    """A duration of a tenth of a second or more, as an option's callback."""
    try:
        found = values.duration(value)
    except ValueError as error:
        raise click.BadParameter(f"wants {error}") from None
    if found < 0.1:
        raise click.BadParameter("wants at least 0.1s")
    return found


def confirm(question: str, yes: bool) -> None:
    """Asks on a terminal, unless `yes`; a script has to say it itself."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("there is nobody to ask: --yes does it")
    click.confirm(question, abort=True, err=True)
