"""`PRESENCE_APP`: finds the site's app, so that its code need not change."""

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from .errors import SettingsError
from .forms import app_reference
from .settings import Settings


def load_app() -> Any:
    """Return the app that `PRESENCE_APP` in the environment names.

    Raises `SettingsError` if a setting is wrong or there is no such app. What the site's own code
    raises is not caught.
    """
    app = Settings.from_env().app
    if not app:
        raise SettingsError(
            "PRESENCE_APP is not set: name the app to wrap, such as package.module:app or "
            "package.module:create_app()"
        )
    try:
        return _load(app)
    except AttributeError as error:
        # A server may take this one for "no such app", and show where it looked, not what failed.
        raise RuntimeError(f"PRESENCE_APP={app}: AttributeError: {error}") from error


def _load(app: str) -> Any:
    module, name, is_call, arguments, options = app_reference(app)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # where servers look for an app, too
    found: Any = import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            where = getattr(import_module(module), "__file__", "built in")
            raise SettingsError(f"PRESENCE_APP={app}: {module} ({where}) has no {name}")
        found = getattr(found, part)
    if not is_call:
        return found
    try:
        inspect.signature(found, follow_wrapped=False).bind(*arguments, **options)
    except TypeError as error:
        raise SettingsError(f"PRESENCE_APP={app}: {name} cannot be called so: {error}") from error
    except ValueError:
        pass  # a builtin without a signature
    return found(*arguments, **options)
