"""The commands. Each reads the settings of the environment, as the site does."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from ..connections import driver
from ..connections.clients import sync_client
from ..doctor import examine, settings_in_force
from ..errors import PresenceError
from ..presence import Presence
from ..settings import Settings
from .replay import replay


@click.group()
@click.version_option(package_name="presence_middleware")
def presence() -> None:
    """Who is online on this site, right now? Settings are those of the environment: PRESENCE_*."""


@presence.command()
@click.argument("kind", required=False)
@click.option("--window", metavar="DURATION", help="Such as 15m; by default PRESENCE_WINDOW.")
def count(kind: str | None, window: str | None) -> None:
    """Print how many are online."""
    with _reader() as reader:
        click.echo(reader.count(kind, window=window))


@presence.command()
@click.argument("kind", required=False)
@click.option("--window", metavar="DURATION", help="Such as 15m; by default PRESENCE_WINDOW.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True)
def online(kind: str | None, window: str | None, limit: int) -> None:
    """Print who is online, newest first, with the seconds since they were seen."""
    with _reader() as reader:
        for sighting in reader.online(kind, window=window, limit=limit):
            click.echo(f"{_printable(sighting.id)}{_age(sighting.last_seen)}")


@presence.command()
@click.option(
    "--settings/--no-settings", "tell_settings", default=True, help="Tell those in force."
)
def doctor(tell_settings: bool) -> None:
    """Say what is right and what is not; exit with 1 if anything is not."""
    with _errors():
        settings = Settings.from_env()
        if tell_settings:
            for line in settings_in_force(settings, os.environ):
                click.echo(f"      {line}")
        sound = True
        for finding in examine(settings, driver(settings.redis_url, _client(settings))):
            sound = sound and finding.is_right
            click.echo(f"{'ok' if finding.is_right else 'WRONG':5} {finding.what}")
    if not sound:
        sys.exit(1)


@presence.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
def demo(host: str, port: int) -> None:
    """Serve a small site with two workers, to see the middleware at work."""
    try:
        from ..demo.server import serve
    except ModuleNotFoundError as error:
        raise click.ClickException("needs pip install 'presence_middleware[demo]'") from error
    with _errors():
        serve(host, port)


presence.add_command(replay)


@contextmanager
def _reader() -> Iterator[Presence]:
    """A reader that asks the site's server, and starts none where the site runs none."""
    with _errors():
        settings = Settings.from_env()
        yield Presence(settings, client=_client(settings))


def _client(settings: Settings) -> Any:
    if settings.redis_url.scheme == "memory":
        raise PresenceError("memory:// is inside the process of the site: ask there")
    return sync_client(settings.redis_url, start=False)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except PresenceError as error:
        raise click.ClickException(str(error)) from error


def _printable(id: str) -> str:
    """An id on one line, without what a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in id)


def _age(last_seen: datetime | None) -> str:
    if last_seen is None:
        return ""
    return f"\t{max(0, round((datetime.now(UTC) - last_seen).total_seconds()))}s"
