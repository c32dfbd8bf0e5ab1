"""The site's app: find the one that `PRESENCE_APP` names, and refuse what is certainly none."""

import inspect
import sys
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Literal

from .errors import SettingsError
from .forms import app_reference
from .settings import Settings

Protocol = Literal["wsgi", "asgi"]
ARGUMENTS = {"wsgi": ("environ", "start_response"), "asgi": ("scope", "receive", "send")}
# A class is an app if its instances are responses: iterable in WSGI (PEP 3333), awaitable in ASGI.
RESPONSE = {"wsgi": "__iter__", "asgi": "__await__"}
MAKERS = ("wsgifunc", "make_wsgi_app")  # methods of web.py's and Pyramid's objects


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


def check_app(app: object, protocol: Protocol) -> None:
    """Raise `SettingsError`, with the remedy, if `app` is certainly no app of `protocol`.

    An app of the other protocol is refused, and so are a class in place of its instance and a
    function in place of the app that it makes. An object that may be an app passes.
    """
    try:
        problem = _problem_of(app, protocol)
    except Exception:  # a proxy, say, whose app is there only during a request
        return
    if problem:
        raise SettingsError(problem)


def _problem_of(app: Any, protocol: Protocol) -> str | None:
    if not callable(app):
        maker = next((name for name in MAKERS if hasattr(app, name)), None)
        remedy = f"call its {maker}()" if maker else f"pass the {protocol.upper()} app itself"
        return f"{_described(app)} cannot be called: {remedy}"
    if inspect.isclass(app):
        return _problem_of_class(app, protocol)
    is_async = iscoroutinefunction(app) or iscoroutinefunction(type(app).__call__)
    fits = {
        "wsgi": _accepts(app, ARGUMENTS["wsgi"]) and not is_async,
        "asgi": _accepts(app, ARGUMENTS["asgi"]),
    }
    if fits[protocol]:
        return None
    other = "asgi" if protocol == "wsgi" else "wsgi"
    if fits[other]:
        return (
            f"{_described(app)} is for {other.upper()}, not for {protocol.upper()}: wrap it with "
            f"presence_middleware.{other}, or serve presence_middleware.{other}_app:application"
        )
    makes_app = inspect.isfunction(app) and _accepts(app, ())
    remedy = f"; if it makes the app, call it: {app.__name__}()" if makes_app else ""
    return (
        f"{_described(app)} is no {protocol.upper()} app: it cannot be called with "
        f"({', '.join(ARGUMENTS[protocol])}){remedy}"
    )


def _problem_of_class(app: type, protocol: Protocol) -> str | None:
    call: object = type(app).__call__
    new: object = app.__new__
    if call is not type.__call__ or new is not object.__new__:
        return None  # to call it may make anything
    if hasattr(app, RESPONSE[protocol]):
        return None
    return f"{app.__name__} is a class: pass an instance of it, {app.__name__}(...)"


def _accepts(app: Any, arguments: tuple[str, ...]) -> bool:
    """Return False if `app` certainly cannot be called with so many arguments."""
    try:
        signature = inspect.signature(app, follow_wrapped=False)
    except (TypeError, ValueError):
        return True  # not every callable has a signature
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _described(app: object) -> str:
    if app is None:
        return "None"
    if inspect.ismodule(app):
        return f"the module {app.__name__}"
    kind = type(app)
    return getattr(app, "__qualname__", f"an instance of {kind.__module__}.{kind.__qualname__}")
