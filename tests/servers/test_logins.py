"""Sites with the logins of their frameworks, on real servers, configured only by variables."""

import asyncio
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.http import parse_cookie
from websockets.sync.client import connect

from presence_middleware import Identity, Presence, Settings, SettingsError, asgi, wsgi
from presence_middleware.flask import init_app
from presence_middleware.identity.ids import Hasher
from tests.support.asking import Request, ids
from tests.support.backends import wait_until
from tests.support.servers import ROOT, Command, WebServer, environment, gunicorn, uvicorn
from tests.support.transports import AsgiTransport

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:{0}.0) Gecko/20100101 Firefox/{0}.0"
SECRET = "what this site signs with and nobody else"
NEVER = "100s"  # until the next regular write: longer than any of these tests
USER = "42"
DATABASE = "site.sqlite3"
PLAIN = {"content-type", "content-length", "transfer-encoding", "connection", "date", "server"}
KNOWN = Identity("user", USER)
ASKER, BEFORE, LOGGED_IN, AFTER = 139, 140, 141, 142  # versions of browsers, so guests of their own

Variables = Mapping[str, str]

# WebOb's import of the `cgi` of Python 3.11 and 3.12.
pytestmark = pytest.mark.filterwarnings("ignore:'cgi' is deprecated:DeprecationWarning")


@dataclass(frozen=True)
class Site:
    """A site, and what the variables of its environment say of its logins."""

    app: str
    """A function within tests.support.login_sites that makes it."""
    source: str = ""
    """That of users in `PRESENCE_IDENTITY`; empty: no variable says how they log in."""
    signed: bool = False
    """Whether that source wants to know with what the site signs."""
    own: Variables = field(default_factory=dict)
    """Variables of the site itself."""
    has_signals: bool = False
    """Whether the middleware learns of logins and logouts when they happen, at any path."""
    views: str = "/"
    """Where its pages are."""

    @property
    def variables(self) -> dict[str, str]:
        return {"SITE_SECRET": SECRET, **self.own}

    @property
    def settings(self) -> dict[str, str]:
        chain = {"PRESENCE_IDENTITY": f"user={self.source}, guest=visitor"} if self.source else {}
        return chain | ({"PRESENCE_SESSION_SECRET": SECRET} if self.signed else {})

    @property
    def is_asgi(self) -> bool:
        return self.app.startswith(("starlette", "fastapi")) or self.app.endswith(":asgi")

    @property
    def command(self) -> Command:
        """How a server of a site is started that wraps itself."""
        app = f"tests.support.login_sites.{self.app}"
        return uvicorn(app, 1, "--factory") if self.is_asgi else gunicorn(f"{app}()")

    @property
    def wrap(self) -> Any:
        if self.has_signals:
            return init_app
        return asgi.PresenceMiddleware if self.is_asgi else wsgi.PresenceMiddleware

    def load(self) -> Any:
        module, _, name = self.app.partition(":")
        return getattr(import_module(f"tests.support.login_sites.{module}"), name)()


DJANGO: dict[str, Site] = {
    "django": Site("django_site:wsgi", has_signals=True),
    "django, coroutines": Site("django_site:asgi", has_signals=True, views="/async/"),
}
CHANNELS = Site("channels_site:asgi", views="/async/")
LOCAL: dict[str, Site] = {
    "flask": Site("flask_site:create_app", has_signals=True),
    "flask, nested, in a cookie of its own": Site(
        "flask_site:create_app",
        "flask-session:account.user.id@shop",
        signed=True,
        own={"SITE_COOKIE": "shop"},
    ),
    "flask-login": Site("flask_site:with_flask_login", has_signals=True),
    "flask-session": Site("flask_site:with_sessions_on_the_server", has_signals=True),
    "starlette-session": Site(
        "starlette_site:with_sessions", "starlette-session:member", signed=True
    ),
    "starlette, session": Site("starlette_site:with_sessions", "session:member"),
    "starlette auth": Site("starlette_site:with_authentication"),
    "fastapi, HS256": Site("fastapi_site:create_app", "bearer:sub", signed=True),
    "pyramid": Site("pyramid_site:with_session", "pyramid-session:auth.userid", signed=True),
    "auth-tkt": Site("pyramid_site:with_tickets", "auth-tkt", signed=True),
    "beaker": Site("bottle_site:create_app", "session:user"),
}
"""Those that can run in this process, where Django has one site a process."""
ON_DJANGO = pytest.mark.parametrize("site", DJANGO.values(), ids=DJANGO)


@pytest.fixture(scope="session")
def django_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("django")
    code = "from tests.support.login_sites.django_site import prepare; prepare()"
    env = environment(SITE_FOLDER=str(folder), SITE_SECRET=SECRET)
    subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, check=True, timeout=60)
    return folder


class Browser:
    """Somebody at a site, and beside him a guest who asks who is online."""

    def __init__(self, client: httpx.Client, site: Site) -> None:
        self.client, self.site = client, site
        self.use(BEFORE)

    def use(self, version: int) -> None:
        """Another version, which makes him another guest where he is none known."""
        self.client.headers["User-Agent"] = FIREFOX.format(version)

    def see(self, page: str) -> str:
        return self.client.get(self.site.views + page).raise_for_status().text

    def post(self, page: str) -> str:
        return self.client.post(self.site.views + page).raise_for_status().text

    def log_in(self) -> None:
        token = self.post(f"login?user={USER}")
        if "fastapi" in self.site.app:
            self.client.headers["Authorization"] = f"Bearer {token}"

    def log_out(self) -> None:
        self.post("logout")
        self.client.headers.pop("Authorization", None)

    def ask(self) -> str:
        """Who is online, as the site says, which writes all that it knows before."""
        headers = {"User-Agent": FIREFOX.format(ASKER), "Cookie": "", "Authorization": ""}
        asked = self.client.get(f"{self.site.views}online", headers=headers)
        return asked.raise_for_status().text


Serve = Callable[..., AbstractContextManager[Browser]]


@pytest.fixture
def serve(django_folder: Path, tmp_path: Path, variables: dict[str, str]) -> Serve:
    """Starts a site on Django; at the end its server must have complained of nothing."""

    @contextmanager
    def serving(site: Site, **more: str) -> Iterator[Browser]:
        shutil.copy(django_folder / DATABASE, tmp_path)
        given = {**site.variables, "SITE_FOLDER": str(tmp_path)}
        given |= {"PRESENCE_FLUSH_INTERVAL": NEVER, **variables, **more}
        with WebServer(site.command, ROOT, tmp_path / "log", **given) as server:
            with server.client("") as client:
                yield Browser(client, site)
            assert "Traceback" not in server.output, server.output

    return serving


class Local(Browser):
    """Somebody at a site in this process, and whom the middleware took each request for."""

    def __init__(self, site: Site, settings: Settings | None, stack: ExitStack) -> None:
        """Without settings, the app is left as it is. `stack` closes what was opened."""
        self.last: dict[str, Any] = {}
        """The environ or scope of the last request."""
        runner, app = stack.enter_context(asyncio.Runner()), site.load()
        if settings is not None:
            app = site.wrap(app, settings=settings)
            stack.callback(app.recorder.close)
            if site.is_asgi:
                stack.callback(lambda: runner.run(app.presence.aclose()))

        def noting(state: dict[str, Any], *rest: Any) -> Any:
            self.last = state
            return app(state, *rest)

        transport = (
            AsgiTransport(noting, runner.run) if site.is_asgi else httpx.WSGITransport(noting)
        )
        super().__init__(httpx.Client(transport=transport, base_url="http://site.test"), site)

    @property
    def identity(self) -> Identity | None:
        found: Identity | None = self.last["presence_middleware.visit"].identity
        return found


Open = Callable[..., Local]


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stack: ExitStack) -> Open:
    """Opens a site in this process."""

    def opened(site: Site, settings: Settings | None) -> Local:
        for name, value in {**site.variables, "SITE_FOLDER": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        return Local(site, settings, stack)

    return opened


def offline(variables: Variables) -> Settings:
    """Settings of a site without a server."""
    return Settings.from_env({**variables, "PRESENCE_REDIS_URL": "memory://logins"})


@pytest.fixture(params=[*LOCAL, *DJANGO])
def browser(request: pytest.FixtureRequest, variables: dict[str, str]) -> Iterator[Browser]:
    """Somebody at a site: in this process, and on a server at one of Django."""
    if request.param in DJANGO:
        with request.getfixturevalue("serve")(DJANGO[request.param]) as browser:
            yield browser
        return
    site = LOCAL[request.param]
    given = {**variables, **site.settings, "PRESENCE_FLUSH_INTERVAL": NEVER}
    yield request.getfixturevalue("local")(site, Settings.from_env(given))


def test_a_login_makes_a_guest_a_user_and_a_logout_a_guest_again(
    browser: Browser, presence: Presence
) -> None:
    def counted(user: int, guest: int) -> None:
        browser.ask()  # what each worker has seen is written now
        assert presence.counts() == {"user": user, "guest": guest, "bot": 0}

    assert browser.see("") == "hello"
    assert browser.client.get(browser.site.views).headers.keys() <= {*PLAIN, "vary"}
    assert browser.see("me") == "nobody"
    counted(user=0, guest=2)  # with the one who asks

    browser.log_in()
    is_loaded = browser.site.source.startswith("session:")  # and read after the response
    counted(user=int(browser.site.has_signals or is_loaded), guest=2)
    browser.use(LOGGED_IN)
    assert browser.see("me") == USER
    counted(user=1, guest=2)
    assert [seen.id for seen in presence.online()] == [USER]

    browser.use(AFTER)
    browser.log_out()
    assert browser.see("me") == "nobody"
    # He was here, and nobody else says that he left.
    counted(user=int(not browser.site.has_signals), guest=3)

    browser.log_in()
    assert browser.see("me") == USER
    browser.log_out()
    presence.leave(USER)
    # Each worker had still to write that it saw him, and does, before it answers.
    assert browser.ask() == "nobody"
    assert browser.see("me") == "nobody"
    counted(user=0, guest=3)
    assert presence.last_seen(USER) is not None


def headers_of(response: httpx.Response) -> list[tuple[str, str]]:
    """All headers of a response but the length, and what is random in a cookie."""
    headers = [(name.decode().lower(), value.decode()) for name, value in response.headers.raw]
    random = re.compile(r"(?i)^([^=]+)=[^;]+|(expires)=[^;]+")
    return [
        (name, random.sub(r"\1\2=", value) if name == "set-cookie" else value)
        for name, value in headers
        if name != "content-length"
    ]


def has_touched_session(state: dict[str, Any]) -> bool:
    """Whether somebody asked for the session of a request, in the frameworks that know."""
    beakers = state.get("beaker.session")
    if beakers is not None:
        return bool(beakers.accessed())
    return getattr(state.get("session"), "accessed", False)


@pytest.mark.parametrize("name", LOCAL)
def test_reading_presence_during_a_request_touches_no_session_that_the_page_leaves_alone(
    name: str, local: Open, variables: dict[str, str]
) -> None:
    """A page that reads presence makes the middleware identify the user before the response."""
    site = LOCAL[name]
    bare = local(site, None)
    bare.log_in()
    expected = headers_of(bare.client.get("/")), has_touched_session(bare.last)
    settings = Settings.from_env({**variables, **site.settings})
    wrapped = local(site, settings)
    wrapped.log_in()
    for path in ("/", "/online"):
        response = wrapped.client.get(path)
        assert response.is_success
        assert (headers_of(response), has_touched_session(wrapped.last)) == expected


@ON_DJANGO
def test_a_user_deactivated_in_django_is_a_guest_despite_a_valid_session(
    site: Site, serve: Serve, presence: Presence, tmp_path: Path
) -> None:
    with serve(site) as browser:
        browser.log_in()
        browser.ask()
        assert presence.is_online(USER)
        assert browser.client.get(site.views).headers.keys() <= PLAIN, "no session was loaded"
        with closing(sqlite3.connect(tmp_path / DATABASE)) as database, database:
            database.execute("UPDATE auth_user SET is_active = 0")
        presence.leave(USER)
        assert browser.see("me") == "nobody"
        browser.ask()
        assert presence.counts() == {"user": 0, "guest": 2, "bot": 0}


SHORT = {"PRESENCE_WINDOW": "3s", "PRESENCE_FLUSH_INTERVAL": "0.2s"}


@pytest.mark.slow
def test_an_open_socket_of_channels_keeps_its_user_online(
    serve: Serve, variables: dict[str, str]
) -> None:
    presence = Presence(Settings.from_env({**variables, **SHORT}))

    def says(command: str) -> str:
        socket.send(command)
        return str(socket.recv(10))

    with serve(CHANNELS, **SHORT) as browser:
        browser.log_in()
        url = f"ws://{browser.client.base_url.netloc.decode()}/socket"
        cookies = "; ".join(f"{name}={value}" for name, value in browser.client.cookies.items())
        agent = FIREFOX.format(BEFORE)
        with connect(
            url, additional_headers={"Cookie": cookies}, user_agent_header=agent, proxy=None
        ) as socket:
            assert says("me") == USER
            for _ in range(5):  # each a third of the window later than the one before
                before = presence.last_seen(USER)
                wait_until(lambda: presence.last_seen(USER) != before)  # noqa: B023
            assert presence.counts() == {"user": 1, "guest": 0, "bot": 0}
            says("logout")
            wait_until(lambda: presence.counts() == {"user": 0, "guest": 1, "bot": 0})
            assert says("login") == USER
            wait_until(lambda: presence.counts() == {"user": 1, "guest": 0, "bot": 0})
        wait_until(lambda: presence.count() == 0)


FOUND = {"", "session:user"}
"""What the default chain finds as well: a user of the framework, or a usual key of a session."""


# Django is found so, too: its sites in the journeys above are told nothing.
@pytest.mark.parametrize("name", LOCAL)
def test_the_default_chain_finds_users_without_any_variable(name: str, local: Open) -> None:
    here = local(LOCAL[name], offline({}))
    here.log_in()
    response = here.client.get("/me")
    assert response.text == USER
    assert (here.identity == KNOWN) is (LOCAL[name].source in FOUND)


IN_COOKIES = [name for name in LOCAL if "fastapi" not in name]


@pytest.mark.parametrize("name", IN_COOKIES)
def test_of_two_cookies_with_the_same_name_the_choice_of_the_framework_wins(
    name: str, local: Open
) -> None:
    """A site that changed the path or domain of its cookie gets both for a while."""
    site = LOCAL[name]
    here = local(site, offline(site.settings))
    client = here.client
    cookies = []
    for user in (USER, "43"):
        response = client.post(f"/login?user={user}")
        cookies.append(response.headers.get_list("set-cookie")[0].partition(";")[0])
        client.cookies.clear()
    [cookie, _, _] = cookies[0].partition("=")
    one, other = cookies
    chosen = []
    for pair in ((one, other), (other, one), (one, f"{cookie}="), (f"{cookie}=", one)):
        response = client.get("/me", headers={"Cookie": "; ".join(("a=1", *pair, "b=2"))})
        chosen.append(response.text)
        user_id = here.identity.id if here.identity and here.identity.kind == "user" else "nobody"
        assert user_id == chosen[-1]
        client.cookies.clear()
    assert set(chosen[:2]) == {USER, "43"}


@pytest.mark.parametrize("header", ["sessionid=a; sessionid=b", "sessionid=b; x=1; sessionid=a"])
def test_of_two_django_sessions_the_last_counts_as_in_django(header: str) -> None:
    identity = {"PRESENCE_IDENTITY": "user=django-session", "PRESENCE_SECRET": SECRET}
    django_key = parse_cookie(header)["sessionid"]
    assert ids(offline(identity), Request([("Cookie", header.encode())])) == Hasher(SECRET)(
        django_key
    )


@pytest.mark.parametrize(
    ("source", "library", "extra"),
    [
        ("flask-session:_user_id", "itsdangerous", "flask"),
        ("starlette-session:user", "itsdangerous", "starlette"),
        ("pyramid-session:user", "webob", "pyramid"),
        ("auth-tkt", "pyramid", "pyramid"),
        ("bearer:sub", "jwt", "jwt"),
    ],
)
def test_a_source_with_a_missing_library_names_the_extra_to_install(
    source: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"identity": f"user={source}", "session_secret": SECRET}
    Settings.from_env({}, **told)

    def without(name: str) -> object:
        return None if name == library else find_spec(name)

    monkeypatch.setattr("presence_middleware.settings.find_spec", without)
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({}, **told)
    assert f"{source}:raw needs pip install 'presence_middleware[{extra}]'" in str(refused.value)
    assert SECRET not in str(refused.value)
    Settings.from_env({}, identity="user=auth, guest=visitor")
