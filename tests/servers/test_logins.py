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
from websockets.sync.client import ClientConnection, connect

from presence_middleware import Identity, Presence, Settings, SettingsError, asgi, wsgi
from presence_middleware.flask import init_app
from presence_middleware.identity.hashing import SecretHasher
from tests.support.asking import Request, ids
from tests.support.backends import matrix, wait_until
from tests.support.follower import Follower
from tests.support.servers import ROOT, Command, WebServer, environment, gunicorn, uvicorn, waitress
from tests.support.transports import AsgiTransport

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:{0}.0) Gecko/20100101 Firefox/{0}.0"
SECRET = "what this site signs with and nobody else"
OLD_SECRET = "what this site signed with a year ago"
WITH_COMMAS = "a secret, as it happens, with commas in it"
NEVER = "100s"  # until the next regular write: longer than any of these tests
USER = "42"
DATABASE = "site.sqlite3"
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
    everywhere: bool = True
    """Whether a page that does not look who is logged in shows it, too."""
    at_once: bool = False
    """Whether the request of the login itself shows it."""
    knows_logout: bool = False
    """Whether a logout takes its user offline although no variable names its path."""
    wraps_itself: bool = False
    runs_itself: bool = False
    """Whether it has a server of its own: it is Django's manage.py."""
    workers: int = 2
    """One for those that differ from another in what they sign or keep alone."""
    views: str = "/"
    """Where its pages are."""
    asking: str = "/"
    """Where those are that know of presence."""

    @property
    def variables(self) -> dict[str, str]:
        """Those of the site."""
        return {"SITE_SECRET": SECRET, **self.own}

    @property
    def settings(self) -> dict[str, str]:
        """Those of this package, as far as they are about logins."""
        chain = {"PRESENCE_IDENTITY": f"user={self.source}, guest=visitor"} if self.source else {}
        return chain | ({"PRESENCE_SESSION_SECRET": SECRET} if self.signed else {})

    @property
    def is_asgi(self) -> bool:
        return self.app.startswith(("starlette", "fastapi")) or self.app.endswith(":asgi")

    def command(self, workers: int, is_bare: bool) -> tuple[Command, dict[str, str]]:
        """How its server is started, and with which variable besides."""
        app = f"tests.support.login_sites.{self.app}"
        if self.runs_itself:
            manage = [app.partition(":")[0], "runserver", "--noreload"]
            return lambda port: [*manage, f"127.0.0.1:{port}"], {}
        if not (is_bare or self.wraps_itself):
            served = f"presence_middleware.{'asgi' if self.is_asgi else 'wsgi'}_app:application"
            serve = uvicorn if self.is_asgi else _wsgi_server
            return serve(served, workers), {"PRESENCE_APP": f"{app}()"}
        if self.is_asgi:
            return lambda port: [*uvicorn(app, workers)(port), "--factory"], {}
        if workers == 1:
            return lambda port: ["waitress", f"--listen=127.0.0.1:{port}", "--call", app], {}
        return gunicorn(f"{app}()", workers), {}

    @property
    def wrap(self) -> Any:
        """What wraps it in this process."""
        is_flask = self.wraps_itself and self.app.startswith("flask")
        return init_app if is_flask else MIDDLEWARE[self.is_asgi]

    def load(self) -> Any:
        """The app itself, in this process."""
        module, _, name = self.app.partition(":")
        return getattr(import_module(f"tests.support.login_sites.{module}"), name)()


def _wsgi_server(app: str, workers: int) -> Command:
    return waitress(app) if workers == 1 else gunicorn(app, workers)


FLASK, FASTAPI = "flask_site:create_app", "fastapi_site:create_app"
INIT_APP: dict[str, Any] = {
    **{"at_once": True, "knows_logout": True, "wraps_itself": True, "own": {"SITE_INIT": "1"}}
}
STARLETTE, STARLETTE_AUTH = "starlette_site:with_sessions", "starlette_site:with_authentication"
PYRAMID, TICKETS = "pyramid_site:with_session", "pyramid_site:with_tickets"
BEAKER, BEAKER_INSIDE = "bottle_site:create_app", "bottle_site:wrapped_inside"
WSGI, ASGI, CHANNELS = "django_site:wsgi", "django_site:asgi", "channels_site:asgi"
LINE: dict[str, Any] = {
    **{"everywhere": False, "at_once": True, "knows_logout": True, "wraps_itself": True}
}
SITES: dict[str, Site] = {
    "flask-login": Site("flask_site:with_flask_login", **INIT_APP),
    "flask": Site(FLASK, **INIT_APP),
    "flask, nested, in a cookie of its own": Site(
        FLASK,
        "flask-session:account.user.id@shop",
        signed=True,
        own={"SITE_COOKIE": "shop"},
        workers=1,
    ),
    "flask-session": Site("flask_site:with_sessions_on_the_server", **INIT_APP),
    "starlette auth": Site(STARLETTE_AUTH),
    "starlette-session": Site(STARLETTE, "starlette-session:member", signed=True),
    "starlette, session": Site(STARLETTE, "session:member", at_once=True),
    "fastapi, HS256": Site(FASTAPI, "bearer:sub", signed=True),
    "pyramid": Site(PYRAMID, "pyramid-session:auth.userid", signed=True),
    "auth-tkt": Site(TICKETS, "auth-tkt", signed=True),
    "beaker": Site(BEAKER, "session:user", everywhere=False, at_once=True),
    "beaker, wrapped within": Site(
        BEAKER_INSIDE, "session:user", wraps_itself=True, everywhere=False, at_once=True
    ),
    "django": Site(WSGI, **LINE),
    "django, ASGI": Site(ASGI, asking="/async/", **LINE),
    "django, coroutines": Site(ASGI, views="/async/", asking="/async/", **LINE),
    "django, runserver": Site(WSGI, runs_itself=True, workers=1, **LINE),
    "django, Channels": Site(CHANNELS, asking="/async/", **{**LINE, "wraps_itself": False}),
}
USUAL = {
    *("flask-login", "starlette-session", "fastapi, HS256", "pyramid", "django", "django, ASGI"),
}
EACH_SITE = pytest.mark.parametrize(
    "name", [*sorted(USUAL), *matrix(*(name for name in SITES if name not in USUAL))]
)
DJANGO = [name for name in SITES if name.startswith("django")]
LOCAL = [name for name in SITES if name not in (*DJANGO, "beaker, wrapped within")]
"""Those that can run in this process, where Django has one site a process."""


@pytest.fixture(scope="session")
def django_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database, migrated, with the user in it."""
    folder = tmp_path_factory.mktemp("django")
    code = "from tests.support.login_sites.django_site import prepare; prepare()"
    env = environment(SITE_FOLDER=str(folder), SITE_SECRET=SECRET)
    subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, check=True, timeout=60)
    return folder


class Browser:
    """Somebody at a site, and beside him a guest who asks each worker who is online."""

    def __init__(self, client: httpx.Client, site: Site, workers: int = 1) -> None:
        self.client, self.site, self._workers = client, site, workers
        self.use(BEFORE)
        client.headers["Connection"] = "close"  # so that any worker may get the next request

    def use(self, version: int) -> None:
        """Another version, which makes him another guest where he is none known."""
        self.client.headers["User-Agent"] = FIREFOX.format(version)

    def see(self, page: str) -> set[str]:
        """What all workers say on a page."""
        return self._on_all_workers(self.client, self.site.views + page)

    def log_in(self) -> httpx.Response:
        response = self.client.post(f"{self.site.views}login?user={USER}")
        assert response.is_success, response.text
        if "fastapi" in self.site.app:
            self.client.headers["Authorization"] = f"Bearer {response.text.split()[0]}"
        return response

    def log_out(self) -> httpx.Response:
        response = self.client.post(f"{self.site.views}logout")
        assert response.is_success, response.text
        self.client.headers.pop("Authorization", None)
        return response

    def ask(self) -> set[str]:
        """Who is online, as each worker says, which writes all that it knows before."""
        with httpx.Client(
            base_url=self.client.base_url, trust_env=False, verify=False, timeout=15
        ) as asker:
            asker.headers.update({"User-Agent": FIREFOX.format(ASKER), "Connection": "close"})
            return self._on_all_workers(asker, f"{self.site.asking}online")

    def _on_all_workers(self, client: httpx.Client, path: str) -> set[str]:
        answers: dict[str, str] = {}

        def all_answered() -> bool:
            response = client.get(path)
            assert response.is_success, response.text
            said, worker = response.text.split()
            answers[worker] = said
            return len(answers) == self._workers

        wait_until(all_answered, 30)
        return set(answers.values())


def journey(browser: Browser, *pages: str) -> list[httpx.Response]:
    """Pages as a guest sees them, a login, the pages again, a logout, and the pages again."""

    def seen() -> list[httpx.Response]:
        return [browser.client.get(page) for page in pages]

    return [*seen(), browser.log_in(), *seen(), browser.log_out(), *seen()]


Serve = Callable[..., AbstractContextManager[Browser]]


@contextmanager
def served(
    site: Site,
    request: pytest.FixtureRequest,
    folder: Path,
    variables: Variables,
    *,
    workers: int | None = None,
    is_bare: bool = False,
) -> Iterator[Browser]:
    """Start a site; at the end its server must have complained of nothing."""
    if site.app in (WSGI, ASGI, CHANNELS) and not (folder / DATABASE).exists():
        shutil.copy(request.getfixturevalue("django_folder") / DATABASE, folder)
    workers = workers or site.workers
    command, named = site.command(workers, is_bare)
    given = {**site.variables, "SITE_FOLDER": str(folder)}
    if is_bare:
        given["SITE_BARE"] = "1"
    else:
        given |= {"PRESENCE_FLUSH_INTERVAL": NEVER, **site.settings, **named, **variables}
    with WebServer(command, ROOT, folder / f"log{is_bare}", **given) as server:
        with server.client("") as client:
            yield Browser(client, site, workers)
        assert "Traceback" not in server.output, server.output


@pytest.fixture
def serve(request: pytest.FixtureRequest, tmp_path: Path, variables: dict[str, str]) -> Serve:
    def serving(
        site: Site, workers: int | None = None, is_bare: bool = False, **more: str
    ) -> AbstractContextManager[Browser]:
        given = {**variables, **more}
        return served(site, request, tmp_path, given, workers=workers, is_bare=is_bare)

    return serving


@EACH_SITE
def test_a_login_makes_a_guest_a_user_and_a_logout_a_guest_again(
    name: str, serve: Serve, presence: Presence
) -> None:
    def counted(user: int, guest: int) -> None:
        browser.ask()  # what each worker has seen is written now
        assert presence.counts() == {"user": user, "guest": guest, "bot": 0}

    site = SITES[name]
    with serve(site) as browser:
        assert browser.see("") == {"hello"}
        assert browser.see("me") == {"nobody"}
        counted(user=0, guest=2)  # with the one who asks

        browser.log_in()
        counted(user=int(site.at_once), guest=2)
        browser.use(LOGGED_IN)
        assert browser.see("me") == {USER}
        if site.everywhere:
            browser.see("")
        counted(user=1, guest=2)
        assert [seen.id for seen in presence.online()] == [USER]

        browser.use(AFTER)
        browser.log_out()
        assert browser.see("me") == {"nobody"}
        browser.see("")
        # He was here, and nobody else says that he left.
        counted(user=int(not site.knows_logout), guest=3)

        browser.log_in()
        assert browser.see("me") == {USER}
        browser.log_out()
        presence.leave(USER)
        # Each worker had still to write that it saw him, and does, before it answers.
        assert browser.ask() == {"nobody"}
        assert browser.see("me") == {"nobody"}
        counted(user=0, guest=3)
        assert presence.last_seen(USER) is not None


@EACH_SITE
def test_a_pulse_and_a_logout_at_a_named_path_are_those_of_the_user(
    name: str, serve: Serve, presence: Presence
) -> None:
    site, same = SITES[name], {"Sec-Fetch-Site": "same-origin"}
    is_late = "bottle" in site.app
    """Whether the session is loaded when the handler looks at it, and deleted by a logout then."""
    paths = {"PRESENCE_LOGOUT": f"{site.views}logout", "PRESENCE_PULSE_PATH": "/pulse"}
    with serve(site, 1, **paths) as browser:
        browser.log_in()
        assert browser.see("me") == {USER}
        for said in ("here:/", "bye", "here:/"):
            answer = browser.client.post(f"/pulse?presence={said}", headers=same)
            assert (answer.status_code, answer.content) == (204, b"")
            assert browser.ask() == {USER}
            # A goodbye leaves 75 seconds of ten minutes, so the user was seen nine minutes ago.
            assert presence.is_online(USER, window="8m") == (said != "bye" or is_late)
        browser.log_out()
        assert browser.ask() == ({USER} if is_late else {"nobody"})
        assert browser.see("me") == {"nobody"}
        browser.ask()
        assert presence.counts()["user"] == is_late
        browser.log_in()
        assert browser.see("me") == {USER}
        # Who comes back counts again, on another worker from some milliseconds after the logout on.
        wait_until(lambda: browser.ask() == {USER})


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DJANGO[:3], *matrix(*DJANGO[3:])])
def test_a_django_site_has_rooms_events_and_a_pulse(
    name: str, serve: Serve, variables: dict[str, str]
) -> None:
    site, same = SITES[name], {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    given = {
        **{"PRESENCE_ROOMS": "/me, /async/me, /t/{topic}", "PRESENCE_EVENTS": "user"},
        **{"PRESENCE_PULSE_PATH": "/pulse", "PRESENCE_WINDOW": "9s"},
        **{"PRESENCE_FLUSH_INTERVAL": "0.2s", **site.settings},
    }
    presence = Presence(Settings.from_env({**variables, **given}))
    with ExitStack() as stack, serve(site, **given) as browser:
        follower = Follower(presence)
        stack.callback(follower.close)

        def is_in(room: str) -> bool:
            return [each.id for each in presence.online(room=room)] == [USER]

        def pulses(said: str) -> None:
            answer = browser.client.post(f"/pulse?presence={said}", headers=same)
            assert (answer.status_code, answer.content) == (204, b"")

        browser.log_in()
        assert browser.see("me") == {USER}
        wait_until(lambda: follower.online == {USER})
        wait_until(lambda: is_in(f"{site.views}me"))
        pulses("here:/t/7")
        wait_until(lambda: is_in("/t/7"))
        pulses("here:/cart")
        wait_until(lambda: presence.count(room="/t/7") == 0)
        assert presence.is_online(USER)
        pulses("bye")  # takes the user offline after 3.75 seconds
        wait_until(lambda: follower.online == set())
        assert follower.names() == [f"+{USER}", f"-{USER}"]
        pulses("here:/t/7")
        wait_until(lambda: follower.online == {USER})


class Local:
    """A site in this process: whom the middleware took each request for, and what it answered."""

    def __init__(self, site: Site, settings: Settings | None) -> None:
        """Without settings, the app is left as it is."""
        self.last: dict[str, Any] = {}
        """The environ or scope of the last request."""
        self._runner, self._wrapped = asyncio.Runner(), None
        app = site.load()
        if settings is not None:
            app = self._wrapped = site.wrap(app, settings=settings)
        transport: httpx.BaseTransport
        if site.is_asgi:
            transport = AsgiTransport(self._noting_scope(app), self._runner.run)
        else:
            transport = httpx.WSGITransport(self._noting_environ(app))
        client = httpx.Client(transport=transport, base_url="http://site.test")
        self.browser = Browser(client, site)

    def close(self) -> None:
        """Ends what runs and is open."""
        if self._wrapped is not None:
            self._wrapped.recorder.close()
        if isinstance(self._wrapped, asgi.PresenceMiddleware):
            self._runner.run(self._wrapped.presence.aclose())
        self._runner.close()

    @property
    def identity(self) -> Identity | None:
        """Who the last request was."""
        found: Identity | None = self.last["presence_middleware.visit"].identity
        return found

    def _noting_environ(self, app: Any) -> Any:
        def noting(environ: dict[str, Any], start_response: Any) -> Any:
            self.last = environ
            return app(environ, start_response)

        return noting

    def _noting_scope(self, app: Any) -> Any:
        async def noting(scope: dict[str, Any], receive: Any, send: Any) -> None:
            self.last = scope
            await app(scope, receive, send)

        return noting


MIDDLEWARE: dict[bool, Any] = {True: asgi.PresenceMiddleware, False: wsgi.PresenceMiddleware}
Open = Callable[..., Local]


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Open]:
    """Opens a site in this process; it signs with `secret`, unless it has keys."""
    with ExitStack() as stack:

        def opened(site: Site, settings: Settings | None, secret: str = SECRET) -> Local:
            for name, value in {**site.variables, "SITE_SECRET": secret}.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("SITE_FOLDER", str(tmp_path))
            monkeypatch.setenv("SITE_BARE", "1")
            here = Local(site, settings)
            stack.callback(here.close)
            return here

        yield opened


def offline(variables: Variables) -> Settings:
    """Settings with which nothing is recorded, but everybody recognised."""
    return Settings.from_env({**variables, "PRESENCE_ENABLED": "0"})


def shown(response: httpx.Response) -> tuple[int, list[tuple[str, str]], object]:
    """All of a response but what is random in it or tells the time, and what the server adds."""
    headers = []
    for raw_name, raw_value in response.headers.raw:
        name, value = raw_name.decode().lower(), raw_value.decode()
        if name == "set-cookie":
            value = re.sub(r"(?i)^([^=]+)=[^;]+|(expires)=[^;]+", r"\1\2=", value)
        if name not in {"date", "server"}:
            headers.append((name, value))
    body = response.text.split()[:1] if response.is_success else response.text
    is_token = response.text.startswith("eyJ")  # of a JWT
    return response.status_code, headers, None if is_token else body


def headers_of(response: httpx.Response) -> list[tuple[str, str]]:
    """Those that do not tell of the body."""
    return [header for header in shown(response)[1] if header[0] != "content-length"]


def has_touched_session(state: dict[str, Any]) -> bool:
    """Whether somebody asked for the session of a request, in the frameworks that know."""
    beakers = state.get("beaker.session")
    if beakers is not None:
        return bool(beakers.accessed())
    return getattr(state.get("session"), "accessed", False)


@pytest.mark.parametrize("name", LOCAL)
def test_responses_are_the_same_as_those_of_the_unwrapped_site(name: str, local: Open) -> None:
    site = SITES[name]
    pages = ("/", "/me", "/nowhere")
    bare = journey(local(site, None).browser, *pages)
    wrapped = journey(local(site, offline(site.settings)).browser, *pages)
    for one, other in zip(bare, wrapped, strict=True):
        assert shown(other) == shown(one), one.request.url
    said = [response.text.split()[0] for response in wrapped]
    assert (said[1], said[5], said[9]) == ("nobody", USER, "nobody")


@pytest.mark.parametrize("name", LOCAL)
def test_reading_presence_during_a_request_touches_no_session_that_the_page_leaves_alone(
    name: str, local: Open, variables: dict[str, str]
) -> None:
    """A page that reads presence makes the middleware identify the user before the response."""
    site = SITES[name]
    bare = local(site, None)
    bare.browser.log_in()
    expected = headers_of(bare.browser.client.get("/")), has_touched_session(bare.last)
    settings = Settings.from_env({**variables, **site.settings})
    wrapped = local(site, settings)
    wrapped.browser.log_in()
    for path in ("/", "/online"):
        response = wrapped.browser.client.get(path)
        assert response.is_success
        assert (headers_of(response), has_touched_session(wrapped.last)) == expected


@pytest.mark.parametrize("name", ["django", "django, coroutines"])
def test_django_responses_and_queries_match_the_unwrapped_site(name: str, serve: Serve) -> None:
    """Each response contains the query count of its process, so the next one shows late queries."""
    site = SITES[name]
    with serve(site, 1, is_bare=True) as bare, serve(site, 1) as wrapped:
        pages = ("/", "/me", "/async/", "/async/me")
        for one, other in zip(journey(bare, *pages), journey(wrapped, *pages), strict=True):
            assert shown(other) == shown(one), one.request.url
        wrapped.log_in()
        seen = [wrapped.client.get(f"{site.asking}{page}") for page in ("", "", "online", "")]
        assert len({page.headers["X-Queries"] for page in seen}) == 1
        assert not any("Vary" in page.headers or "Set-Cookie" in page.headers for page in seen)


@pytest.mark.parametrize("name", ["django", "django, coroutines"])
def test_a_user_deactivated_in_django_is_a_guest_despite_a_valid_session(
    name: str, serve: Serve, presence: Presence, tmp_path: Path
) -> None:
    with serve(SITES[name], 1) as browser:
        browser.log_in()
        browser.ask()
        assert presence.is_online(USER)
        with closing(sqlite3.connect(tmp_path / DATABASE)) as database, database:
            database.execute("UPDATE auth_user SET is_active = 0")
        presence.leave(USER)
        assert browser.see("me") == {"nobody"}
        browser.ask()
        assert presence.counts() == {"user": 0, "guest": 2, "bot": 0}


SHORT = {"PRESENCE_WINDOW": "3s", "PRESENCE_FLUSH_INTERVAL": "0.2s"}


def socket_of(browser: Browser) -> ClientConnection:
    """A WebSocket of a site with Channels, with what cookies the browser has."""
    address = browser.client.base_url.netloc.decode()
    cookies = "; ".join(f"{name}={value}" for name, value in browser.client.cookies.items())
    return connect(
        f"ws://{address}/socket",
        additional_headers={"Cookie": cookies} if cookies else {},
        user_agent_header=FIREFOX.format(BEFORE),
        proxy=None,
    )


def says(socket: ClientConnection, command: str) -> str:
    socket.send(command)
    return str(socket.recv(10)).split()[0]


@pytest.mark.slow
def test_an_open_socket_of_channels_keeps_its_user_online(
    serve: Serve, variables: dict[str, str]
) -> None:
    presence = Presence(Settings.from_env({**variables, **SHORT}))
    with serve(SITES["django, Channels"], 1, **SHORT) as browser:
        browser.log_in()
        with socket_of(browser) as socket:
            assert says(socket, "me") == USER
            for _ in range(5):  # each a third of the window later than the one before
                before = presence.last_seen(USER)
                wait_until(lambda: presence.last_seen(USER) != before)  # noqa: B023
            assert presence.counts() == {"user": 1, "guest": 0, "bot": 0}
            says(socket, "logout")
            wait_until(lambda: presence.counts() == {"user": 0, "guest": 1, "bot": 0})
            assert says(socket, "login") == USER
            wait_until(lambda: presence.counts() == {"user": 1, "guest": 0, "bot": 0})
        wait_until(lambda: presence.count() == 0)


FOUND = {"", "session:user"}
"""What the default chain finds as well: a user of the framework, or a usual key of a session."""


# Django is found so, too: its sites in the journeys above are told nothing.
@pytest.mark.parametrize("name", LOCAL)
def test_the_default_chain_finds_users_without_any_variable(name: str, local: Open) -> None:
    here = local(SITES[name], offline({}))
    here.browser.log_in()
    response = here.browser.client.get("/me")
    assert response.text.split()[0] == USER
    assert (here.identity == KNOWN) is (SITES[name].source in FOUND)


@pytest.mark.parametrize(
    ("signs_with", "told", "is_known"),
    [
        (SECRET, f"{SECRET},{OLD_SECRET}", True),
        (OLD_SECRET, f"{SECRET}, {OLD_SECRET}", True),
        (WITH_COMMAS, WITH_COMMAS, True),
        (OLD_SECRET, SECRET, False),
        (SECRET + " more", SECRET, False),
    ],
    ids=["the new one", "the old one", "one with commas", "a foreign one", "a longer one"],
)
def test_only_configured_secrets_verify_a_session(
    signs_with: str, told: str, is_known: bool, local: Open
) -> None:
    site = SITES["flask, nested, in a cookie of its own"]
    settings = offline({**site.settings, "PRESENCE_SESSION_SECRET": told})
    here = local(site, settings, secret=signs_with)
    here.browser.log_in()
    response = here.browser.client.get("/me")
    assert response.text.split()[0] == USER
    assert (here.identity == KNOWN) is is_known


IN_COOKIES = [name for name in LOCAL if "fastapi" not in name]


@pytest.mark.parametrize("name", IN_COOKIES)
def test_of_two_cookies_with_the_same_name_the_choice_of_the_framework_wins(
    name: str, local: Open
) -> None:
    """A site that changed the path or domain of its cookie gets both for a while."""
    site = SITES[name]
    here = local(site, offline(site.settings))
    client = here.browser.client
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
        chosen.append(response.text.split()[0])
        user_id = here.identity.id if here.identity and here.identity.kind == "user" else "nobody"
        assert user_id == chosen[-1]
        client.cookies.clear()
    assert set(chosen[:2]) == {USER, "43"}


@pytest.mark.parametrize("header", ["sessionid=a; sessionid=b", "sessionid=b; x=1; sessionid=a"])
def test_of_two_django_sessions_the_last_counts_as_in_django(header: str) -> None:
    identity = {"PRESENCE_IDENTITY": "user=django-session", "PRESENCE_SECRET": SECRET}
    django_key = parse_cookie(header)["sessionid"]
    assert ids(offline(identity), Request([("Cookie", header.encode())])) == SecretHasher(SECRET)(
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
