"""Load the app that `PRESENCE_APP` names, and check that an object may be a WSGI or ASGI app."""

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from .errors import SettingsError
from .parsers import app_reference
from .settings import Settings

Protocol = Literal["wsgi", "asgi"]
ARGUMENTS = {"wsgi": ("environ", "start_response"), "asgi": ("scope", "receive", "send")}
# A class is an app if its instances are responses: iterable in WSGI (PEP 3333), awaitable in ASGI.
RESPONSE = {"wsgi": "__iter__", "asgi": "__await__"}
# Methods of web.py's and Pyramid's objects that make the app.
MAKERS = ("wsgifunc", "make_wsgi_app")
REMEDY = "name the app to wrap, such as package.module:app or package.module:create_app()"


def load_app() -> Any:
    """Return the app that `PRESENCE_APP` in the environment names.

    Raises `SettingsError` if a setting is invalid or there is no such app. Exceptions of the site's
    own code are passed on, except that an `AttributeError` becomes a `RuntimeError`.
    """
    app = Settings.from_env().app
    if not app:
        raise SettingsError(f"PRESENCE_APP is not set: {REMEDY}")
    named = f"PRESENCE_APP={app}"
    module, name, is_call, arguments, options = app_reference(app)
    if (here := str(Path.cwd())) not in sys.path:
        # Servers look for an app in the current directory, too.
        sys.path.insert(0, here)
    try:
        target: Any = import_module(module)
        for part in name.split("."):
            if not hasattr(target, part):
                where = getattr(import_module(module), "__file__", "built in")
                raise SettingsError(f"{named}: {module} ({where}) has no {name}")
            target = getattr(target, part)
        if is_call and (reason := _refusal(target, *arguments, **options)):
            raise SettingsError(f"{named}: {name} cannot be called with these arguments: {reason}")
        return target(*arguments, **options) if is_call else target
    except ModuleNotFoundError as error:
        # An import in the site's own code is passed on.
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise SettingsError(f"{named}: {error} in {Path.cwd()} or elsewhere: {REMEDY}") from error
    except AttributeError as error:
        # Servers take an AttributeError for "no such app", and hide the line that raised it.
        raise RuntimeError(f"{named}: AttributeError: {error}") from error


def check_app(app: object, protocol: Protocol) -> None:
    """Raise `SettingsError`, with the remedy, if `app` is certainly no app of `protocol`.

    Refused are apps of the other protocol, a class in place of its instance, and a function in
    place of the app that it makes. An object that may be an app is accepted.
    """
    try:
        problem = _problem_of(app, protocol)
    except Exception:
        # A proxy, for example, may have its app only during a request.
        return
    if problem:
        raise SettingsError(problem)


def _problem_of(app: Any, protocol: Protocol) -> str | None:
    if not callable(app):
        maker = next((name for name in MAKERS if hasattr(app, name)), None)
        remedy = f"call its {maker}()" if maker else f"pass the {protocol.upper()} app itself"
        return f"{_described(app)} is not callable: {remedy}"
    if inspect.isclass(app):
        # A call of a class with a metaclass or a `__new__` may return anything.
        makes_instance = type(app).__call__ is type.__call__ and app.__new__ is object.__new__
        if not makes_instance or hasattr(app, RESPONSE[protocol]):
            return None
        return f"{app.__name__} is a class: pass an instance of it, {app.__name__}(...)"
    fits = {each: not _refusal(app, *arguments) for each, arguments in ARGUMENTS.items()}
    if inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(type(app).__call__):
        fits["wsgi"] = False
    if fits[protocol]:
        return None
    other = "asgi" if protocol == "wsgi" else "wsgi"
    if fits[other]:
        return (
            f"{_described(app)} is for {other.upper()}, not for {protocol.upper()}: wrap it with "
            f"presence_middleware.{other}, or serve presence_middleware.{other}_app:application"
        )
    makes_app = inspect.isfunction(app) and not _refusal(app)
    remedy = f"; if it makes the app, call it: {app.__name__}()" if makes_app else ""
    if str(getattr(app, "__module__", "")).startswith("django."):
        remedy = "; in MIDDLEWARE of Django, write presence_middleware.django.PresenceMiddleware"
    subject, arguments = f"{_described(app)} is no {protocol.upper()} app", ARGUMENTS[protocol]
    return f"{subject}: it cannot be called with ({', '.join(arguments)}){remedy}"


def _refusal(app: Any, *arguments: object, **options: object) -> str | None:
    """Return why `app` certainly cannot be called with these arguments, or None."""
    if not callable(app):
        return f"{_described(app)} is not a callable object"
    try:
        signature = inspect.signature(app, follow_wrapped=False)
    except (TypeError, ValueError):
        # Not every callable has a signature.
        return None
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        return str(error)
    return None


def _described(app: object) -> str:
    if app is None:
        return "None"
    if inspect.ismodule(app):
        return f"the module {app.__name__}"
    kind = type(app)
    return getattr(app, "__qualname__", f"an instance of {kind.__module__}.{kind.__qualname__}")
