"""`PRESENCE_APP` and the Paste entry points: a site that changes no code."""

import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from presence_middleware import Presence, Settings, SettingsError, asgi, loading, paste, wsgi

from .conftest import Server, wait_until
from .servers import ROOT, Command, WebServer, environment, free_port, gunicorn, uvicorn, waitress

SITE = '''
async def respond(scope, receive, send):
    if scope["type"] == "lifespan":
        raise NotImplementedError
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})

class places:
    """An app may be an attribute of something in the module."""
    @staticmethod
    def app(environ, start_response):
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]

def create_app():
    return places.app

def create_asgi_app():
    return respond

def failing():
    return places.no_such_app
'''
BROKEN = "import os\n\nos.no_such_thing  # the site's own line"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a site's modules."""
    folder = tmp_path / "site"
    (folder / "our").mkdir(parents=True)
    (folder / "our" / "__init__.py").touch()
    (folder / "our" / "site.py").write_text(SITE)
    (folder / "our" / "broken.py").write_text(BROKEN)
    (folder / "our" / "missing.py").write_text("import not_installed_here")
    return folder


WSGI, ASGI = "presence_middleware.wsgi:application", "presence_middleware.asgi:application"
SERVERS = [gunicorn(WSGI), uvicorn(ASGI), waitress(WSGI)]
NAMES = ["gunicorn", "uvicorn", "waitress"]


@pytest.mark.parametrize(
    ("command", "app"),
    [
        (gunicorn(WSGI), "our.site:places.app"),
        (gunicorn(WSGI), "our.site:create_app()"),
        (uvicorn(ASGI), "our.site:respond"),
        (uvicorn(ASGI), "our.site:create_asgi_app()"),
        (waitress(WSGI), "our.site:create_app()"),
    ],
    ids=["gunicorn", "gunicorn, factory", "uvicorn", "uvicorn, factory", "waitress"],
)
def test_a_server_serves_the_app_that_is_named_and_who_asks_is_counted(
    command: Command, app: str, site: Path, valkey: Server, prefix: str
) -> None:
    variables = {"PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": prefix}
    presence = Presence(Settings.from_env(variables))
    log = site / "log"
    with WebServer(command, site, log, PRESENCE_APP=app, **variables) as server:
        for agent in ("Lynx/2", "Firefox", "Lynx/2"):
            with server.client(agent) as client:
                assert client.get("/hello").text == "/hello"
        wait_until(lambda: presence.count("guest") == 2)


def start(command: Command, site: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a server that cannot start."""
    return subprocess.run(
        [sys.executable, "-m", *command(free_port())],
        cwd=site,
        env=environment(XDG_RUNTIME_DIR=str(site), **variables),
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.mark.parametrize("command", SERVERS, ids=NAMES)
def test_an_attribute_error_of_the_sites_own_is_shown_as_it_is(
    command: Command, site: Path
) -> None:
    done = start(command, site, PRESENCE_APP="our.broken:app")
    assert done.returncode != 0
    assert f'File "{site}/our/broken.py", line 3' in done.stderr
    assert "os.no_such_thing  # the site's own line" in done.stderr
    assert "AttributeError: module 'os' has no attribute 'no_such_thing'" in done.stderr


@pytest.mark.parametrize("command", SERVERS, ids=NAMES)
@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("our.missing:app", "No module named 'not_installed_here'"),
        ("our.nothing:app", "No module named 'our.nothing'"),
        ("our.site:nobody", "our/site.py) has no nobody"),
        ("our.site", "PRESENCE_APP='our.site': wants package.module:app"),
        ("", "PRESENCE_APP is not set: wants package.module:app"),
    ],
)
def test_an_app_that_is_not_there_is_a_clear_error(
    command: Command, app: str, said: str, site: Path
) -> None:
    assert said in start(command, site, PRESENCE_APP=app).stderr


@pytest.fixture
def here(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """This process in the site's folder; returns a function that names the app."""
    monkeypatch.chdir(site)
    monkeypatch.setattr(sys, "path", [*sys.path])
    loading.load_wrapped.cache_clear()
    yield lambda app: monkeypatch.setenv("PRESENCE_APP", app)
    loading.load_wrapped.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "our"]:
        del sys.modules[name]


def test_the_app_is_loaded_once_and_wrapped_for_each_protocol(here: Callable[[str], None]) -> None:
    here("our.site:create_app()")
    app = wsgi.application
    assert isinstance(app, wsgi.PresenceMiddleware)
    assert wsgi.application is app
    assert app.app.__name__ == "app"
    here("our.site:create_asgi_app()")
    assert isinstance(asgi.application, asgi.PresenceMiddleware)
    assert pkgutil.resolve_name(WSGI) is app


@pytest.mark.parametrize("module", [wsgi, asgi])
def test_an_attribute_error_of_a_factory_does_not_pass_for_no_application(
    module: Any, here: Callable[[str], None]
) -> None:
    here("our.site:failing()")
    with pytest.raises(RuntimeError, match="no_such_app") as caught:
        module.application  # noqa: B018
    assert isinstance(caught.value.__cause__, AttributeError)
    assert caught.traceback[-1].name == "load_wrapped"


@pytest.mark.parametrize("module", [wsgi, asgi])
def test_other_names_are_missing_as_usual(module: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'app'"):
        module.app  # noqa: B018


def test_the_paste_entry_points_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group in ("filter_app_factory", "filter_factory"):
        entry = pkgutil.resolve_name(declared[f"paste.{group}"]["main"])
        assert entry is getattr(paste, group)


def filtered(app: Any, **ini: str) -> wsgi.PresenceMiddleware:
    return paste.filter_factory({"here": "/", "__file__": "x.ini"}, **ini)(app)


def app_filtered(app: Any, **ini: str) -> wsgi.PresenceMiddleware:
    return paste.filter_app_factory(app, {"here": "/", "__file__": "x.ini"}, **ini)


@pytest.mark.parametrize("wrap", [filtered, app_filtered])
def test_an_ini_gives_settings_that_the_environment_wins_over(
    wrap: Callable[..., wsgi.PresenceMiddleware], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESENCE_PREFIX", "from-the-environment")

    def site(*_: object) -> list[bytes]:
        return []

    app = wrap(site, window="15m", prefix="from-the-ini", redis_url="memory://")
    assert app.app is site
    assert (app.recorder.settings.window, app.recorder.settings.prefix) == (
        900,
        "from-the-environment",
    )
    with pytest.raises(SettingsError, match="no ini setting 'windwo'; the nearest is window"):
        wrap(site, windwo="15m")
    with pytest.raises(SettingsError, match="PRESENCE_WINDOW='x'"):
        wrap(site, window="x")
