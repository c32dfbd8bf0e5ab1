"""The public API: exported, documented, and the same with and without await."""

import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterable
from datetime import timedelta
from inspect import getattr_static
from typing import Any, assert_type, get_type_hints
from uuid import UUID

import presence_middleware
from presence_middleware import AsyncPresence, Presence, Settings, Sighting, asgi, errors, wsgi
from presence_middleware.lookup import TemplatePresence
from presence_middleware.recorder import Recorder, Stats, Visit

HANDED_OUT: list[type] = [
    *(wsgi.PresenceMiddleware, asgi.PresenceMiddleware, Recorder, Stats, Visit, TemplatePresence),
    *(wsgi.WsgiVisit, asgi.AsgiVisit),
    *(value for value in vars(presence_middleware).values() if inspect.isclass(value)),
]
MODULES = [
    "presence_middleware",
    *(
        found.name
        for found in pkgutil.walk_packages(presence_middleware.__path__, "presence_middleware.")
        if not found.name.endswith(("__main__", "_app"))  # importing these runs a site
    ),
]


def public(of: Any) -> dict[str, Any]:
    return {name: getattr_static(of, name) for name in dir(of) if not name.startswith("_")}


def test_every_name_in_all_is_sorted_and_exists() -> None:
    names = presence_middleware.__all__
    assert names == sorted(names)
    modules = {
        name for name, value in public(presence_middleware).items() if inspect.ismodule(value)
    }
    assert set(public(presence_middleware)) - modules == set(names) - {"__version__"}


def test_presence_and_async_presence_are_twins() -> None:
    assert set(public(Presence)) == set(public(AsyncPresence)) - {"aclose"}
    for name, method in public(Presence).items():
        twin = public(AsyncPresence)[name]
        plain, awaited = inspect.unwrap(getattr(Presence, name)), getattr(AsyncPresence, name)
        assert inspect.signature(plain) == inspect.signature(awaited), name
        assert get_type_hints(plain) == get_type_hints(awaited), name
        if not isinstance(method, classmethod) and plain is not awaited:  # `events` does not wait
            assert not inspect.iscoroutinefunction(plain), name
            assert inspect.iscoroutinefunction(awaited), name
        assert inspect.getdoc(method) == inspect.getdoc(twin), name
    assert inspect.signature(Presence) == inspect.signature(AsyncPresence)
    assert inspect.signature(TemplatePresence.count).return_annotation == int | None
    assert list(inspect.signature(Presence.count).parameters) == ["self", "kind", "window", "room"]


async def check_types(
    plain: Presence, awaited: AsyncPresence, shown: TemplatePresence, visit: Visit, app: Any
) -> None:
    """Only mypy runs this."""
    assert_type(wsgi.PresenceMiddleware(app)({}, app), Iterable[bytes])
    visit.identify(UUID(int=7))
    visit.identify({"sub": "ann"})  # type: ignore[arg-type]
    plain.count(window=timedelta(minutes=5))
    plain.count(window=[300])  # type: ignore[arg-type]
    assert_type(Settings(window="5m", identity="user=auth").window, float)
    Settings(window=[300])  # type: ignore[arg-type]
    assert_type(plain.count("user", window=60), int)
    assert_type(shown.count(), int | None)
    assert_type(await awaited.count(), int)
    assert_type(plain.online(limit=1)[0], Sighting)
    plain.count("user", 60)  # type: ignore[call-arg]
    plain.leave()  # type: ignore[call-arg]
    plain.is_online(None)  # type: ignore[arg-type]


def test_every_error_can_be_sent_to_another_process() -> None:
    """As pools and task queues do: the caller hangs if it cannot read an error."""
    for kind in public(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.PresenceError):
            error = kind("the reason")
            again = pickle.loads(pickle.dumps(error))
            assert (type(again), str(again), vars(again)) == (kind, "the reason", vars(error))


def test_everything_public_has_a_docstring() -> None:
    for path in MODULES:
        module = importlib.import_module(path)
        assert module.__doc__, path
        for name, value in public(module).items():
            own = getattr(value, "__module__", None) == module.__name__
            is_defined = own and (inspect.isclass(value) or inspect.isfunction(value))
            if is_defined and value.__name__ == name:  # else a function has made it
                # What a dataclass writes of itself is no docstring.
                assert not (value.__doc__ or f"{name}(").startswith(f"{name}("), (path, name)
    for handed_out in HANDED_OUT:
        for name, value in public(handed_out).items():
            if callable(value) or isinstance(value, (classmethod, staticmethod, property)):
                assert inspect.getdoc(value), (handed_out, name)
