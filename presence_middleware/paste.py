"""Paste ini files: filter factories for `pserve`, and the settings of a filter for the shell.

The keys of a filter section are settings without the prefix, such as `window = 15m`. `PRESENCE_*`
variables of the environment override them.
"""

import configparser
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.types import WSGIApplication

from .errors import SettingsError
from .settings import Settings
from .wsgi import PresenceMiddleware

INSTALL = "pip install plaster-pastedeploy"
# Keys of a section that may name this middleware, and how they do it.
_FACTORY_KEYS = ("use", "paste.filter_factory", "paste.filter_app_factory")
_IS_OURS = re.compile(
    r"egg:\s*presence[-_]middleware\s*(#.*)?|(call:)?presence_middleware\.paste:.*"
).fullmatch
# Keys of a section that are for Paste, not for the filter.
_PASTE_KEYS = {"next", "filter-with", "require", *_FACTORY_KEYS}


def filter_factory(
    global_conf: dict[str, str], **local_conf: str
) -> Callable[[WSGIApplication], PresenceMiddleware]:
    """Return a function that wraps an app: the entry point `paste.filter_factory`.

    `global_conf` has the variables of the ini file, and `local_conf` the settings of the filter's
    section. Raises `SettingsError` with all invalid settings, by file, section and key.
    """
    where = global_conf.get("__file__", "ini")
    # Paste does not pass the name of the section. Errors name the one with these settings.
    with suppress(SettingsError):
        filters = _filters(where, global_conf)
        where = next((each.where for each in filters if each.settings == local_conf), where)
    settings = Settings.from_env(None, local_conf, where)
    return lambda app: PresenceMiddleware(app, settings=settings)


def filter_app_factory(
    app: WSGIApplication, global_conf: dict[str, str], **local_conf: str
) -> PresenceMiddleware:
    """Return `app`, wrapped: the entry point `paste.filter_app_factory`.

    `global_conf` has the variables of the ini file, and `local_conf` the settings of the filter's
    section. Raises `SettingsError` with all invalid settings, by file, section and key.
    """
    return filter_factory(global_conf, **local_conf)(app)


@dataclass(frozen=True)
class Filter:
    """A section of a Paste ini file that uses this middleware."""

    name: str
    where: str
    """The file and the section, as error messages name them."""
    settings: Mapping[str, str]


def find_filter(ini: str) -> Filter:
    """Return the filter section of a Paste ini file that uses this middleware.

    `ini` is the path of the file. A `#name` after the path selects among several such filters, and
    `?http_port=8080` sets variables of the file. The site's app is not imported.

    Raises `SettingsError` if the file cannot be read, or if it has no or several such sections.
    """
    file, _, name = ini.partition("#")
    filters = [each for each in _filters(file, {}) if name in ("", each.name)]
    if len(filters) == 1:
        return filters[0]
    if filters:
        names = " or ".join(f"{file}#{each.name}" for each in filters)
        raise SettingsError(f"{file}: several filters use presence_middleware; choose {names}")
    section = f"section [filter:{name}]" if name else "filter section"
    raise SettingsError(f"{file}: no {section} with use = egg:presence_middleware")


def _filters(file: str, variables: Mapping[str, str]) -> Iterator[Filter]:
    """Yield the sections of a file that use this middleware, in their order."""
    for section in _loader(file).get_sections():
        kind, _, name = section.partition(":")
        if kind in {"filter", "filter-app"}:
            settings = _read(file, section, variables)
            if any(_IS_OURS(settings.get(key, "")) for key in _FACTORY_KEYS):
                given = {key: value for key, value in settings.items() if key not in _PASTE_KEYS}
                yield Filter(name.strip(), f"{file} [{section}]", given)


def _read(
    file: str, section: str, variables: Mapping[str, str], before: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the keys of a section, merged with those of the sections that its `use` leads to."""
    where = f"{file} [{section}]"
    if where in before:
        raise SettingsError(f"{where}: use leads back to itself")
    try:
        found = _loader(file).get_settings(section, dict(variables))
    except configparser.InterpolationError as error:
        # Its message repeats the value, which may be a secret.
        raise SettingsError(
            f"{where} {error.option}: expected %% for a percent sign, and %(key)s for the "
            "value of another key"
        ) from None
    except KeyError as error:
        raise SettingsError(f"{where}: get of {error.args[0]}, which is not set") from None
    name = found.get("use", "")
    scheme, colon, target = name.partition(":")
    if scheme == "config":
        path, _, name = target.partition("#")
        file = str(Path(file).parent / path)
    elif colon or not name:
        return {**found}
    used = _read(file, f"filter:{name or 'main'}", variables, (*before, where))
    return {**used, **found, "use": used.get("use", "")}


def _loader(file: str) -> Any:
    """Return plaster's loader of a file: with `[DEFAULT]`, `%(here)s`, `set` and `get`."""
    try:
        import plaster
    except ModuleNotFoundError as error:
        raise SettingsError(f"{file}: to read Paste ini files, {INSTALL}") from error
    try:
        loader = plaster.get_loader(file, protocols=["wsgi"])
        loader.get_sections()
    except plaster.PlasterError as error:
        raise SettingsError(
            f"{file}: expected the path of an .ini file; to read those, {INSTALL}"
        ) from error
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    except configparser.Error as error:
        # Its message repeats lines of the file, which may have secrets.
        raise SettingsError(f"{file}: expected an ini file ({type(error).__name__})") from None
    return loader
