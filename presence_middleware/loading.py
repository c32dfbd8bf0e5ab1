"""`PRESENCE_APP`: finds the site's app and wraps it, so that its code need not change."""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from .errors import SettingsError
from .settings import Settings

Wrapped = TypeVar("Wrapped")


@cache
def load_wrapped(middleware: Callable[[Any], Wrapped]) -> Wrapped:
    """The app that `PRESENCE_APP` names, wrapped with the settings of the environment; loaded once.

    Raises `SettingsError` when it names none. What the site's own code raises is shown as it is.
    """
    app = Settings.from_env().app
    try:
        return middleware(load(app))
    except AttributeError as error:
        # A server that looks for our `application` would take this one for "there is none".
        raise RuntimeError(f"PRESENCE_APP={app}: AttributeError: {error}") from error


def load(app: str) -> Any:
    """The object that `package.module:app` or `package.module:create_app()` names."""
    if not app:
        raise SettingsError("PRESENCE_APP is not set: wants package.module:app or …:create_app()")
    path, _, name = app.removesuffix("()").partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # where servers look for an app, too
    found: Any = import_module(path)
    for part in name.split("."):
        if not hasattr(found, part):
            where = getattr(import_module(path), "__file__", "built in")
            raise SettingsError(f"PRESENCE_APP={app}: {path} ({where}) has no {name}")
        found = getattr(found, part)
    return found() if app.endswith("()") else found
