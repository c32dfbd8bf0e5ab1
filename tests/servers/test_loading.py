"""`PRESENCE_APP` and the Paste entry points: a site that changes no code."""

import operator
import pkgutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import web
from bottle import Bottle
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from fastapi import FastAPI
from flask import Flask, current_app
from pyramid.config import Configurator
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from webob.dec import wsgify

from presence_middleware import Settings, SettingsError, asgi, paste, wsgi
from presence_middleware.loading import check_app, load_app
from tests.support.servers import ASGI, ROOT, WSGI, Command, WebServer, gunicorn, uvicorn, waitress

SITE = '''
class places:
    """An app may be an attribute of something in the module."""
    @staticmethod
    def app(environ, start_response):
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]

def create_app():
    return places.app

def failing():
    return places.no_such_app
'''
BROKEN = "import os\n\nos.no_such_thing  # the site's own line"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "our").mkdir(parents=True)
    (folder / "our" / "__init__.py").touch()
    (folder / "our" / "site.py").write_text(SITE)
    (folder / "our" / "broken.py").write_text(BROKEN)
    (folder / "our" / "missing.py").write_text("import not_installed_here")
    return folder


BROKEN_LINES = [
    '/our/broken.py", line 3',
    "os.no_such_thing  # the site's own line",
    "AttributeError: module 'os' has no attribute 'no_such_thing'",
]


SERVERS = {"gunicorn": gunicorn(WSGI), "uvicorn": uvicorn(ASGI), "waitress": waitress(WSGI)}


@pytest.mark.parametrize("command", SERVERS.values(), ids=SERVERS)
def test_a_server_shows_why_it_loads_no_app(command: Command, site: Path, tmp_path: Path) -> None:
    server = WebServer(command, site, tmp_path / "log", PRESENCE_APP="our.broken:app")
    with suppress(AssertionError), server:  # gunicorn listens before its worker loads the app
        server.process.wait(50)
    assert [line for line in BROKEN_LINES if line not in server.output] == [], server.output


@pytest.fixture
def load(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    monkeypatch.chdir(site)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def load(app: str) -> Any:
        monkeypatch.setenv("PRESENCE_APP", app)
        return load_app()

    yield load
    for name in [name for name in sys.modules if name.split(".")[0] == "our"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("app", "arguments"),
    [
        ("our.making", None),
        ("our.making:app", "app"),
        (" our.making:inside.app ", "inside"),
        ("our.making:make()", ((), {})),
        ("our.making:inside.make()", ((), {})),
        ("our.making:make('prod', 2, debug=False)", (("prod", 2), {"debug": False})),
        ("our.making: make( -1.5, {'a': [None, (1, )]} )", ((-1.5, {"a": [None, (1,)]}), {})),
        ('our.making:make(":", b"x")', ((":", b"x"), {})),
        ("our.making:wrapped('prod')", (("prod",), {})),
    ],
)
def test_an_app_is_named_as_for_gunicorn_and_also_with_dots(
    app: str, arguments: object, load: Callable[[str], Any]
) -> None:
    Path("our/making.py").write_text(MAKING)
    assert load(app) == arguments


MAKING = """
import functools
application = None
app = "app"
def make(*arguments, **options): return arguments, options
class inside:
    app = "inside"
    make = make

@functools.wraps(lambda: None)
def wrapped(*arguments): return make(*arguments)
"""


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("our", "our/__init__.py) has no application"),
        ("our.site:create_app(1)", "too many positional arguments"),
        ("our.site:create_app(secret())", "create_app(secret())': expected package.module"),
        ("our.making:make_one()", "missing a required argument: 'name'"),
        ("our.making:app()", "not a callable object"),
        ("our.making:inside.app", "has no inside.app"),
        ("our.nothing:app", "PRESENCE_APP=our.nothing:app: No module named 'our.nothing' in "),
        ("nosuch", "PRESENCE_APP=nosuch: No module named 'nosuch' in "),
        ("our.site:nobody", "our/site.py) has no nobody"),
        ("", "PRESENCE_APP is not set: name the app to wrap, such as package.module:app"),
    ],
)
def test_an_app_that_cannot_load_is_named(app: str, said: str, load: Callable[[str], Any]) -> None:
    Path("our/making.py").write_text("app = 'app'\ndef make_one(name): pass")
    with pytest.raises(SettingsError) as caught:
        load(app)
    assert said in str(caught.value)
    assert app in str(caught.value)


def test_an_error_of_a_factory_is_shown_as_it_is(load: Callable[[str], Any]) -> None:
    with pytest.raises(RuntimeError, match="no_such_app") as caught:
        load("our.site:failing()")
    assert isinstance(caught.value.__cause__, AttributeError)  # which servers would hide
    Path("our/making.py").write_text("def make(): return 1 + 'a'")
    with pytest.raises(TypeError, match="unsupported operand"):
        load("our.making:make()")
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        load("our.missing:app")


def test_the_paste_entry_points_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group in ("filter_app_factory", "filter_factory"):
        assert pkgutil.resolve_name(declared[f"paste.{group}"]["main"]) is getattr(paste, group)


INI = {"here": "/", "__file__": "x.ini"}
FILTERS: list[Callable[..., wsgi.PresenceMiddleware]] = [
    lambda app, **ini: paste.filter_factory(INI, **ini)(app),
    lambda app, **ini: paste.filter_app_factory(app, INI, **ini),
]


@pytest.mark.parametrize("wrap", FILTERS)
def test_the_environment_overrides_the_settings_of_an_ini_file(
    wrap: Callable[..., wsgi.PresenceMiddleware], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESENCE_PREFIX", "from-the-environment")
    app = wrap(plain, window="15m", prefix="from-the-ini", redis_url="memory://")
    assert app.app is plain
    settings = app.recorder.settings
    assert (settings.window, settings.prefix) == (900, "from-the-environment")
    with pytest.raises(SettingsError, match=r"x\.ini windwo: unknown setting; did you mean window"):
        wrap(plain, windwo="15m")
    with pytest.raises(SettingsError, match=r"x\.ini window='x': expected a duration"):
        wrap(plain, window="x")


# What is no app


def plain(environ: Any, start_response: Any) -> list[bytes]:
    return []


async def plain_asgi(scope: Any, receive: Any, send: Any) -> None: ...


def anything(*arguments: Any) -> Any:
    return arguments


class Callable2:
    def __call__(self, environ: Any, start_response: Any) -> Any: ...

    method = __call__


class Callable3:
    async def __call__(self, *arguments: Any) -> None: ...


class Pep3333:
    """The class is an app: its instances are the responses."""

    def __init__(self, environ: Any, start_response: Any) -> None: ...

    def __iter__(self) -> Iterator[bytes]:
        return iter([])


class Respond:
    """A class that makes something else."""

    def __new__(cls, environ: Any, start_response: Any) -> Any:
        return []


class Answers(type):
    """The classes of this class are apps."""

    def __call__(cls, environ: Any, start_response: Any) -> Any:
        return []


class Answer(metaclass=Answers): ...


class Recording:
    """A wrapper that has every attribute, also what Python takes for a signature."""

    def __getattr__(self, name: str) -> Any:
        return anything

    def __call__(self, environ: Any, start_response: Any) -> Any: ...


class Endpoint(HTTPEndpoint):
    """The class is an app: its instances are awaited."""


# Django's instances need the settings of a site, their classes do not.
BARE_DJANGO = object.__new__(WSGIHandler)
WSGI_APPS = [
    *(Flask("site"), BARE_DJANGO, Configurator().make_wsgi_app(), Bottle()),
    *(plain, partial(lambda name, environ, start_response: [], "site")),
    *(Callable2(), Callable2().method, wraps(plain_asgi)(lambda environ, start_response: [])),
]
ASGI_APPS = [
    *(Starlette(), FastAPI(), object.__new__(ASGIHandler), plain_asgi, Callable3()),
    *(partial(lambda name, scope, receive, send: None, "site"), Callable3().__call__),
    wraps(plain)(lambda scope, receive, send: None),
]
UNKNOWN = [
    *(anything, Mock(), operator.call, Pep3333, Respond, wsgify(lambda _: None), current_app),
    *(Answer, Recording()),
]
"""Those of which it cannot be known, or not before a request."""


def test_apps_are_detected_and_those_for_another_protocol_are_refused() -> None:
    memory = Settings.from_env({}, redis_url="memory://")
    protocols: dict[str, list[Any]] = {
        "wsgi": [*WSGI_APPS, wsgi.PresenceMiddleware(plain, settings=memory)],
        "asgi": [*ASGI_APPS, asgi.PresenceMiddleware(plain_asgi, settings=memory)],
    }
    orders: Any = (("wsgi", "asgi"), ("asgi", "wsgi"))
    for kind, other in orders:
        refusal = rf"is for {kind.upper()}, not for {other.upper()}: .*presence_middleware\.{kind},"
        for app in protocols[kind]:
            check_app(app, kind)
            with pytest.raises(SettingsError, match=refusal):
                check_app(app, other)
    for app in UNKNOWN:
        check_app(app, "wsgi")
    check_app(Endpoint, "asgi")


IN_MIDDLEWARE = "in MIDDLEWARE of Django, write presence_middleware.django.PresenceMiddleware"


def create_app() -> Any:
    return plain


@pytest.mark.parametrize(
    ("app", "protocol", "remedy"),
    [
        (Flask, "wsgi", "is a class: pass an instance of it, Flask(...)"),
        (FastAPI, "asgi", "is a class: pass an instance of it, FastAPI(...)"),
        (Bottle, "wsgi", "is a class"),
        (create_app, "wsgi", "cannot be called with (environ, start_response)"),
        (create_app, "wsgi", "if it makes the app, call it: create_app()"),
        (lambda argument: plain, "asgi", "it cannot be called with (scope, receive, send)"),
        (None, "wsgi", "None is not callable"),
        ("shop:app", "wsgi", "an instance of builtins.str is not callable"),
        (operator, "wsgi", "the module operator is not callable: pass the WSGI app"),
        (web.application(("/", "page"), {}), "wsgi", "call its wsgifunc()"),
        (Configurator(), "wsgi", "call its make_wsgi_app()"),
        *((BARE_DJANGO._get_response, each, IN_MIDDLEWARE) for each in ("wsgi", "asgi")),
    ],
)
def test_what_is_no_app_is_refused_with_the_remedy(app: Any, protocol: Any, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_app(app, protocol)
    assert remedy in str(caught.value)
    assert (app is create_app) == ("if it makes the app" in str(caught.value))
