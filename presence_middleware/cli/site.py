"""How a command reaches the site, and with which status it ends when it cannot."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from ..connections.clients import sync_client
from ..errors import PresenceError, PresenceUnavailable, SettingsError
from ..presence import Presence
from ..settings import Settings

NO, USAGE, UNAVAILABLE = 1, 2, 3


class Wrong(click.ClickException):
    """The usage or the settings are wrong."""

    exit_code = USAGE


class Away(click.ClickException):
    """Redis cannot answer."""

    exit_code = UNAVAILABLE


@contextmanager
def reader(kind: str | None = None) -> Iterator[tuple[Presence, str]]:
    """A reader of the site, and the kind that the question is about."""
    with errors():
        settings = Settings.from_env()
        yield Presence(settings, client=client(settings)), kind or settings.kinds[0]


def client(settings: Settings) -> Any:
    """A client of the site's server; none is started where the site runs none."""
    if settings.redis_url.scheme == "memory":
        raise SettingsError("memory:// is inside the process of the site: ask there")
    return sync_client(settings.redis_url, start=False)


@contextmanager
def errors() -> Iterator[None]:
    """Tells the package's errors, each with its status."""
    try:
        yield
    except PresenceUnavailable as error:
        raise Away(str(error)) from error
    except PresenceError as error:
        raise Wrong(str(error)) from error


def say_no() -> NoReturn:
    """Ends the command with the answer no."""
    raise click.exceptions.Exit(NO)
