"""The commands about the site itself: its settings, and whether all is well."""

import os
from collections.abc import Iterable

import click

from ..backend import Backend
from ..doctor import Finding, InForce, examine, in_force
from ..errors import PresenceError
from ..settings import Settings
from . import options, show
from .site import client, errors, say_no


@click.command()
@options.as_json
def config(as_json: bool) -> None:
    """Print every setting in force and where it comes from."""
    with errors():
        told = list(in_force(Settings.from_env(), os.environ))
    if as_json:
        show.document(_by_name(told))
    else:
        show.table(("setting", "value", "from"), told)


@click.command()
@click.option(
    "--settings/--no-settings", "tell_settings", default=True, help="Tell those in force."
)
@options.as_json
def doctor(tell_settings: bool, as_json: bool) -> None:
    """Say what is right and what is not; exit with 1 if anything is not."""
    try:
        settings = Settings.from_env()
        findings = examine(Backend(settings, client=client(settings)))
    except PresenceError as error:
        raise click.ClickException(str(error)) from error  # its status is 1, as of all it finds
    told = list(in_force(settings, os.environ)) if tell_settings else []
    is_right = _document(told, findings) if as_json else _lines(told, findings)
    if not is_right:
        say_no()


def _document(told: Iterable[InForce], findings: Iterable[Finding]) -> bool:
    found = [finding._asdict() for finding in findings]
    is_right = all(finding["is_right"] for finding in found)
    show.document({"is_right": is_right, "settings": _by_name(told), "findings": found})
    return is_right


def _lines(told: Iterable[InForce], findings: Iterable[Finding]) -> bool:
    """Tells each as it is found."""
    for setting in told:
        show.line(f"      {setting}")
    is_right = True
    for finding in findings:
        is_right = is_right and finding.is_right
        mark, style = ("ok", "green") if finding.is_right else ("WRONG", "bold red")
        show.line(f"{mark:5} {finding.what}", style)
    return is_right


def _by_name(told: Iterable[InForce]) -> dict[str, dict[str, str]]:
    return {each.name: {"value": each.value, "from": each.origin} for each in told}
