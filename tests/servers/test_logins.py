"""Sites with the logins of their frameworks, configured only by variables."""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any

import httpx
import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib import auth
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.db import connections
from django.http import parse_cookie
from django.test import override_settings

from presence_middleware import Identity, Presence, Settings, SettingsError, asgi, wsgi
from presence_middleware.flask import init_app
from presence_middleware.recorder import recorder_for
from tests.support import login_sites as sites
from tests.support.asking import Request, ids
from tests.support.login_sites import NOBODY, SECRET
from tests.support.servers import NEVER
from tests.support.template_sites import LAYERS, LINE, configure_django
from tests.support.timed_site import Clock
from tests.support.transports import AsgiTransport

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:{0}.0) Gecko/20100101 Firefox/{0}.0"
USER = "42"
BEFORE, LOGGED_IN, AFTER = 140, 141, 142  # versions of browsers, so guests of their own


@dataclass(frozen=True)
class Site:
    """A site, and what the variables of its environment say of its logins."""

    make: Callable[[], Any]
    """A function that makes the app."""
    wrap: Callable[..., Any] | None
    """What wraps the app; None if a line in Django's settings does."""
    source: str = ""
    """That of users in `PRESENCE_IDENTITY`; empty: no variable says how they log in."""
    signed: bool = False
    """Whether that source wants to know with what the site signs."""
    has_signals: bool = False
    """Whether the middleware learns of logins and logouts when they happen, at any path."""
    gives_token: bool = False
    """Whether a login answers with a token for the header Authorization, and sets no cookie."""
    views: str = "/"
    """Where its pages are."""

    @property
    def variables(self) -> dict[str, str]:
        chain = {"PRESENCE_IDENTITY": f"user={self.source}, guest=visitor"} if self.source else {}
        return chain | ({"PRESENCE_SESSION_SECRET": SECRET} if self.signed else {})


OVER_WSGI, OVER_ASGI = wsgi.PresenceMiddleware, asgi.PresenceMiddleware
DJANGO: dict[str, Site] = {
    "django": Site(WSGIHandler, None, has_signals=True),
    "django, coroutines": Site(ASGIHandler, None, has_signals=True, views="/async/"),
}
SITES: dict[str, Site] = {
    "flask": Site(sites.flask_site, init_app, has_signals=True),
    "flask, nested, in a cookie of its own": Site(
        lambda: sites.flask_site(cookie="shop"),
        OVER_WSGI,
        "flask-session:account.user.id@shop",
        signed=True,
    ),
    "flask-login": Site(sites.flask_login_site, init_app, has_signals=True),
    "flask-session": Site(sites.flask_session_site, init_app, has_signals=True),
    "starlette-session": Site(
        sites.starlette_site, OVER_ASGI, "starlette-session:member", signed=True
    ),
    "starlette, session": Site(sites.starlette_site, OVER_ASGI, "session:member"),
    "starlette auth": Site(sites.starlette_auth_site, OVER_ASGI),
    "fastapi, HS256": Site(
        sites.bearer_site, OVER_ASGI, "bearer:sub", signed=True, gives_token=True
    ),
    "pyramid": Site(sites.pyramid_site, OVER_WSGI, "pyramid-session:auth.userid", signed=True),
    "auth-tkt": Site(sites.ticket_site, OVER_WSGI, "auth-tkt", signed=True),
    "beaker": Site(sites.beaker_site, OVER_WSGI, "session:user"),
    **DJANGO,
}
EVERYWHERE = pytest.mark.parametrize("site", SITES.values(), ids=SITES)


class Browser:
    """Somebody at a site in this process, and whom the middleware took each request for."""

    def __init__(self, site: Site, settings: Settings | None, stack: ExitStack) -> None:
        """Without settings, the app is left as it is. `stack` closes what was opened."""
        self.runner = stack.enter_context(asyncio.Runner())
        self.last: dict[str, Any] = {}
        """The environ or scope of the last request."""
        self.site, self.app = site, site.make()
        if settings is not None:
            self.recorder = recorder_for(settings)
            if site.wrap is not None:
                self.app = site.wrap(self.app, settings=settings)
                self.recorder = self.app.recorder

        def noting(state: dict[str, Any], *rest: Any) -> Any:
            self.last = state
            return self.app(state, *rest)

        is_asgi = iscoroutinefunction(self.app.__call__)
        transport = (
            AsgiTransport(noting, self.runner.run) if is_asgi else httpx.WSGITransport(noting)
        )
        self.client = httpx.Client(
            transport=transport, base_url=f"http://site.test{site.views.rstrip('/')}"
        )
        self.use(BEFORE)

    def use(self, version: int) -> None:
        """Another version, which makes him another guest where he is none known."""
        self.client.headers["User-Agent"] = FIREFOX.format(version)

    def see(self, page: str) -> str:
        return self.client.get(page).raise_for_status().text

    def log_in(self, user: str = USER) -> httpx.Response:
        response = self.client.post(f"/login?user={user}").raise_for_status()
        if self.site.gives_token:
            self.client.headers["Authorization"] = f"Bearer {response.text}"
        return response

    def log_out(self) -> None:
        self.client.post("/logout").raise_for_status()
        self.client.headers.pop("Authorization", None)

    @property
    def identity(self) -> Identity | None:
        found: Identity | None = self.last["presence_middleware.visit"].identity
        return found


Open = Callable[..., Browser]


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> None:
    configure_django()
    connections.settings["default"]["NAME"] = tmp_path_factory.mktemp("django") / "site.sqlite3"
    call_command("migrate", verbosity=0)


@pytest.fixture
def users(database: None) -> Any:
    users = auth.get_user_model().objects
    for user in (USER, "43"):
        users.update_or_create(pk=user, defaults={"username": user, "is_active": True})
    return users


@pytest.fixture
def open_site(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, stack: ExitStack
) -> Open:
    """Opens a site, with variables in its environment; without any, it is left as it is."""

    def opened(site: Site, variables: Mapping[str, str] | None) -> Browser:
        for name, value in (variables or {}).items():
            monkeypatch.setenv(name, value)
        if site in DJANGO.values() or site.make is sites.channels_site:
            request.getfixturevalue("users")
            middleware = [*LAYERS, LINE] if variables is not None else LAYERS
            stack.enter_context(
                override_settings(
                    MIDDLEWARE=middleware,
                    ROOT_URLCONF=sites.__name__,
                    SESSION_ENGINE="django.contrib.sessions.backends.db",
                )
            )
            stack.callback(connections.close_all)
        settings = None if variables is None else Settings.from_env(variables)
        return Browser(site, settings, stack)

    return opened


OFFLINE = {"PRESENCE_REDIS_URL": "memory://logins"}


@EVERYWHERE
def test_a_login_makes_a_guest_a_user_and_a_logout_a_guest_again(
    site: Site, open_site: Open, variables: dict[str, str], presence: Presence
) -> None:
    browser = open_site(site, {**variables, **site.variables, "PRESENCE_FLUSH_INTERVAL": NEVER})

    def counted(user: int, guest: int) -> None:
        assert browser.recorder.flush()
        assert presence.counts() == {"user": user, "guest": guest, "bot": 0}

    assert browser.see("") == "hello"
    assert browser.see("me") == NOBODY
    counted(user=0, guest=1)

    browser.log_in()
    is_loaded = site.source.startswith("session:")  # and read after the response
    counted(user=int(site.has_signals or is_loaded), guest=1)
    browser.use(LOGGED_IN)
    assert browser.see("me") == USER
    counted(user=1, guest=1)
    assert [seen.id for seen in presence.online()] == [USER]

    browser.use(AFTER)
    browser.log_out()
    assert browser.see("me") == NOBODY
    # He was here, and nobody else says that he left.
    counted(user=int(not site.has_signals), guest=2)

    browser.log_in()
    assert browser.see("me") == USER
    browser.log_out()
    presence.leave(USER)
    # The process has still to write that it saw him.
    assert browser.see("me") == NOBODY
    counted(user=0, guest=2)
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


@EVERYWHERE
def test_reading_presence_during_a_request_touches_no_session_that_the_page_leaves_alone(
    site: Site, open_site: Open, variables: dict[str, str]
) -> None:
    """A page that reads presence makes the middleware identify the user before the response."""
    answers = []
    for given, paths in ((None, ("/",)), ({**variables, **site.variables}, ("/", "/online"))):
        here = open_site(site, given)
        for logs_in in (False, True):
            if logs_in:
                here.log_in()
            for path in paths:
                response = here.client.get(path).raise_for_status()
                answers.append((headers_of(response), has_touched_session(here.last)))
    guest, user, *others = answers
    assert others == [guest, guest, user, user]


@pytest.mark.parametrize("site", DJANGO.values(), ids=DJANGO)
def test_a_user_deactivated_in_django_is_a_guest_despite_a_valid_session(
    site: Site, open_site: Open, variables: dict[str, str], presence: Presence, users: Any
) -> None:
    browser = open_site(site, {**variables, "PRESENCE_FLUSH_INTERVAL": NEVER})
    browser.log_in()
    assert browser.recorder.flush()
    assert presence.is_online(USER)
    users.filter(pk=USER).update(is_active=False)
    presence.leave(USER)
    assert browser.see("me") == NOBODY
    assert browser.recorder.flush()
    assert presence.counts() == {"user": 0, "guest": 1, "bot": 0}


def test_a_channels_socket_keeps_a_user_online(open_site: Open, variables: dict[str, str]) -> None:
    clock = Clock()
    site = Site(sites.channels_site, partial(asgi.PresenceMiddleware, clock=clock), views="/async/")
    variables |= {"PRESENCE_FLUSH_INTERVAL": NEVER}
    browser = open_site(site, variables)
    browser.recorder.background = False
    presence = Presence(Settings.from_env(variables), clock=clock)
    browser.log_in()

    def counts_a_window_later() -> tuple[int, int]:
        for _ in range(11):
            clock.now += 60
            browser.recorder.run_once()
        return presence.count(), presence.count("guest")

    async def talk() -> None:
        cookie = f"sessionid={browser.client.cookies['sessionid']}"
        headers = [(b"cookie", cookie.encode()), (b"user-agent", FIREFOX.format(BEFORE).encode())]
        scope: Any = {"type": "websocket", "path": "/socket", "headers": headers}
        scope["client"] = ("127.0.0.1", 1)
        socket: Any = ApplicationCommunicator(browser.app, scope)  # type: ignore[no-untyped-call]
        await socket.send_input({"type": "websocket.connect"})
        assert (await socket.receive_output(5))["type"] == "websocket.accept"
        for command, user, counts in (
            *(("me", USER, (1, 0)), ("me", USER, (1, 0))),
            *(("logout", NOBODY, (0, 1)), (USER, USER, (1, 0))),
        ):
            await socket.send_input({"type": "websocket.receive", "text": command})
            assert (await socket.receive_output(5))["text"] == user
            assert await asyncio.to_thread(counts_a_window_later) == counts
        await socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await socket.wait(5)

    browser.runner.run(talk())
    assert counts_a_window_later() == (0, 0)


FOUND = {"", "session:user"}
"""What the default chain finds as well: a user of the framework, or a usual key of a session."""


@EVERYWHERE
def test_the_default_chain_finds_users_without_any_variable(site: Site, open_site: Open) -> None:
    here = open_site(site, OFFLINE)
    here.log_in()
    assert here.see("me") == USER
    assert (here.identity == ("user", USER)) is (site.source in FOUND)


@pytest.mark.parametrize("name", [name for name, site in SITES.items() if not site.gives_token])
def test_of_two_cookies_of_a_name_the_frameworks_choice_wins(name: str, open_site: Open) -> None:
    """A site that changed the path or domain of its cookie gets both for a while."""
    site = SITES[name]
    here = open_site(site, OFFLINE | site.variables)
    cookies = []
    for user in (USER, "43"):
        response = here.log_in(user)
        cookies.append(response.headers.get_list("set-cookie")[0].partition(";")[0])
        here.client.cookies.clear()
    [cookie, _, _] = cookies[0].partition("=")
    one, other = cookies
    chosen = []
    for pair in ((one, other), (other, one), (one, f"{cookie}="), (f"{cookie}=", one)):
        response = here.client.get("/me", headers={"Cookie": "; ".join(("a=1", *pair, "b=2"))})
        chosen.append(response.text)
        user_id = here.identity.id if here.identity and here.identity.kind == "user" else NOBODY
        assert user_id == chosen[-1]
        here.client.cookies.clear()
    assert set(chosen[:2]) == {USER, "43"}


@pytest.mark.parametrize("header", ["sessionid=a; sessionid=b", "sessionid=b; x=1; sessionid=a"])
def test_of_two_django_sessions_the_last_counts_as_in_django(header: str) -> None:
    identity = {"PRESENCE_IDENTITY": "user=django-session", "PRESENCE_SECRET": SECRET}
    django_key = parse_cookie(header)["sessionid"]
    settings = Settings.from_env(OFFLINE | identity)
    found, expected = (
        ids(settings, Request([("Cookie", cookie.encode())]))
        for cookie in (header, f"sessionid={django_key}")
    )
    assert found
    assert found == expected


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
    monkeypatch.setattr(
        "presence_middleware.settings.find_spec",
        lambda name: None if name == library else find_spec(name),
    )
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({}, identity=f"user={source}", session_secret=SECRET)
    assert f"{source}:raw needs pip install 'presence_middleware[{extra}]'" in str(refused.value)
    assert SECRET not in str(refused.value)
