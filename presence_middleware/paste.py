"""Paste ini files: filter factories for `pserve`, and the settings of a filter for the shell.

The keys of a filter section are settings without the prefix, such as `window = 15m`. `PRESENCE_*`
variables of the environment override them.
"""

import configparser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.types import WSGIApplication

from .errors import SettingsError
from .settings import Settings
from .wsgi import PresenceMiddleware

_PACKAGE = "presence_middleware"
_FACTORY_KEYS = ("paste.filter_factory", "paste.filter_app_factory")
# Keys of a section that are for Paste, not for the filter.
_PASTE_KEYS = {"use", "next", "filter-with", "require", *_FACTORY_KEYS}


def filter_factory(
    global_conf: dict[str, str], **local_conf: str
) -> Callable[[WSGIApplication], PresenceMiddleware]:
    """Return a function that wraps an app: the entry point `paste.filter_factory`.

    `global_conf` has the variables of the ini file, and `local_conf` the settings of the filter's
    section. Raises `SettingsError` with all invalid settings, by file, section and key.
    """
    settings = _settings(global_conf, local_conf)
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
    filters = list(_filters(file, {}))
    if name:
        filters = [each for each in filters if each.name == name]
    if len(filters) == 1:
        return filters[0]
    if filters:
        names = " or ".join(f"{file}#{each.name}" for each in filters)
        raise SettingsError(f"{file}: several filters use presence_middleware; choose {names}")
    section = f"section [filter:{name}]" if name else "filter section"
    raise SettingsError(f"{file}: no {section} with use = egg:presence_middleware")


def _settings(global_conf: Mapping[str, str], local_conf: Mapping[str, str]) -> Settings:
    file = global_conf.get("__file__", "ini")
    try:
        return Settings.from_env(None, local_conf, file)
    except SettingsError:
        section = _section_with(local_conf, file, global_conf)
        if section is None:
            raise
        return Settings.from_env(None, local_conf, section.where)


def _section_with(
    local_conf: Mapping[str, str], file: str, global_conf: Mapping[str, str]
) -> Filter | None:
    """Return the filter section that has these settings: Paste does not pass its name."""
    try:
        filters = list(_filters(file, global_conf))
    except SettingsError:
        return None
    return next((each for each in filters if each.settings == local_conf), None)


def _filters(file: str, variables: Mapping[str, str]) -> Iterator[Filter]:
    """Yield the sections of a file that use this middleware, in their order."""
    for section in _loader(file).get_sections():
        kind, _, name = section.partition(":")
        if kind in {"filter", "filter-app"}:
            settings = _read(file, section, variables)
            if _is_ours(settings):
                given = {key: value for key, value in settings.items() if key not in _PASTE_KEYS}
                yield Filter(name.strip(), f"{file} [{section}]", given)


def _read(
    file: str, section: str, variables: Mapping[str, str], users: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the keys of a section, merged with the keys of the section that its `use` names.

    `users` are the sections whose `use` led here.
    """
    where = f"{file} [{section}]"
    if where in users:
        raise SettingsError(f"{where}: use leads back to itself")
    try:
        keys: dict[str, str] = dict(_loader(file).get_settings(section, dict(variables)))
    except configparser.InterpolationError as error:
        # Its message repeats the value, which may be a secret.
        raise SettingsError(
            f"{where} {error.option}: expected %% for a percent sign, and %(key)s for the value "
            "of another key"
        ) from None
    except KeyError as error:
        raise SettingsError(f"{where}: get of {error.args[0]}, which is not set") from None
    use = keys.get("use", "")
    scheme, colon, target = use.partition(":")
    if use and not colon:
        base = _read(file, f"filter:{use}", variables, (*users, where))
    elif scheme == "config":
        path, _, name = target.partition("#")
        path = str(Path(file).parent / path)
        base = _read(path, f"filter:{name or 'main'}", variables, (*users, where))
    else:
        return keys
    return {**base, **keys, "use": base.get("use", "")}


def _is_ours(keys: Mapping[str, str]) -> bool:
    use = keys.get("use", "")
    if use.startswith("egg:"):
        return use.removeprefix("egg:").partition("#")[0].strip().replace("-", "_") == _PACKAGE
    functions = (use, *(keys.get(key, "") for key in _FACTORY_KEYS))
    return any(function.removeprefix("call:").startswith(f"{__name__}:") for function in functions)


def _loader(file: str) -> Any:
    """Return plaster's loader of a file: with `[DEFAULT]`, `%(here)s`, `set` and `get`."""
    try:
        import plaster
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{file}: to read Paste ini files, pip install plaster-pastedeploy"
        ) from error
    try:
        loader = plaster.get_loader(file, protocols=["wsgi"])
        loader.get_sections()
    except plaster.PlasterError as error:
        raise SettingsError(
            f"{file}: expected the path of an .ini file; to read those, "
            "pip install plaster-pastedeploy"
        ) from error
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    except configparser.Error as error:
        # Its message repeats lines of the file, which may have secrets.
        raise SettingsError(f"{file}: expected an ini file ({type(error).__name__})") from None
    return loader
