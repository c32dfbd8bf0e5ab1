"""Regression tests for the defects that a review of logins, guests and bots found."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from presence_middleware import Presence, Settings, SettingsError, asgi, wsgi
from presence_middleware.identity.addresses import Proxies
from presence_middleware.identity.guests import Guests
from presence_middleware.identity.hashing import Who
from presence_middleware.identity.reading import user_id
from presence_middleware.people import People
from presence_middleware.recorder import Recorder
from presence_middleware.recorder.request_filter import matching_paths
from presence_middleware.request import AsgiRequest, WsgiRequest
from presence_middleware.wsgi import WsgiVisit
from tests.support.asking import Request, ids
from tests.support.backends import Server
from tests.support.servers import ENDED, WebServer, uvicorn
from tests.support.timed_site import Clock

# Pyramid imports what is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SECRET = "a secret of the test's own, long enough"


def test_requests_that_overlap_the_end_of_a_period_lose_no_known_guests() -> None:
    people = People(1000, 600)
    guests = Guests(people, 600, Proxies())
    view = WsgiRequest({"REMOTE_ADDR": "192.0.2.7"})

    def come(how: str, many: int, at: float) -> int:
        return sum(comes(("guest", f"{how}{n}"), at) for n in range(many))

    def comes(who: Who, at: float) -> bool:
        is_admitted = guests.admit(view, who, at)
        if is_admitted:
            people.note(who, at, at)
        return is_admitted

    assert come("known", 60, 0.0) == 60
    assert come("b", 1, 600.1) == 1
    assert come("a", 1, 599.9) == 1  # it arrived before, and ends last
    assert come("forged", 500, 601.0) == 100 - 60 - 2
    assert come("known", 60, 602.0) == 60


class Ends:
    """A late source while whose answer is awaited another thread ends the visit."""

    visit: Any = None

    @classmethod
    def read(cls, _: object) -> None:
        visit, cls.visit = cls.visit, None
        if visit is not None:
            visit.end()


def test_a_visit_that_ends_during_identification_is_still_identified(prefix: str) -> None:
    identity = f"member={__name__}:Ends.read, user=auth, guest=visitor"
    settings = Settings.from_env({}, redis_url=f"memory://{prefix}", identity=identity)
    recorder = Recorder(settings)
    visit = Ends.visit = WsgiVisit(recorder, {"REMOTE_USER": "ann", "REMOTE_ADDR": "192.0.2.7"})
    visit.note()
    assert visit.is_over
    recorder.flush()
    assert Presence(settings).counts() == {"member": 0, "user": 1, "guest": 0, "bot": 0}
    recorder.close()


@pytest.mark.parametrize(
    ("user", "id"),
    [
        (SimpleNamespace(pk=2, is_authenticated=True, username="1"), "2"),
        (SimpleNamespace(pk=None, is_authenticated=True, username="1"), None),  # it was deleted
        (SimpleNamespace(pk=2, is_authenticated=True, identity="passport"), "2"),
        (SimpleNamespace(pk=2, is_authenticated=False), None),
    ],
)
def test_a_django_user_is_identified_by_the_primary_key_only(user: object, id: str | None) -> None:
    from presence_middleware.django.middleware import _account_of

    assert user_id(_account_of(user)) == id


@pytest.mark.filterwarnings("ignore:Cookie value contains invalid bytes:RuntimeWarning")
def test_an_auth_tkt_ticket_with_tokens_is_accepted() -> None:
    from pyramid.authentication import AuthTktCookieHelper
    from pyramid.request import Request as PyramidRequest

    helper = AuthTktCookieHelper(SECRET)
    headers = helper.remember(PyramidRequest.blank("/"), "42", tokens=("editor", "staff"))
    cookie = headers[0][1].split(";", 1)[0]
    assert "\\054" in cookie
    chain = {"identity": "user=auth-tkt", "session_secret": SECRET, "enabled": False}
    settings = Settings.from_env({}, **chain)
    assert ids(settings, Request([("Cookie", cookie.encode())])) == "42"


async def never(*_: object) -> Any:
    raise AssertionError


@pytest.mark.parametrize("bad", [b"bytes", 5, None, ["list"]])
@pytest.mark.parametrize("key", ["HTTP_USER_AGENT", "REMOTE_ADDR", "HTTP_COOKIE", "PATH_INFO"])
def test_an_invalid_environ_is_passed_to_the_app(key: str, bad: object, prefix: str) -> None:
    given = {"redis_url": f"memory://{prefix}", "identity": "guest=cookie:sid:raw, guest=visitor"}
    app = wsgi.PresenceMiddleware(lambda *_: [b"ok"], settings=Settings.from_env({}, **given))
    environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.7", key: bad}
    assert app(environ, lambda *_: list[bytes]().append) == [b"ok"]
    app.recorder.close()


@pytest.mark.parametrize(
    "headers", [[("user-agent", "text")], [(b"a",)], None, {b"user-agent": b"x"}, [(b"a", b"b", 1)]]
)
def test_an_invalid_scope_is_passed_to_the_app(headers: Any, prefix: str) -> None:
    served = []

    async def app(scope: asgi.Scope, *_: object) -> None:
        served.append(scope["type"])

    settings = Settings.from_env({}, redis_url=f"memory://{prefix}")
    wrapped = asgi.PresenceMiddleware(app, settings=settings)
    asyncio.run(wrapped({"type": "http", "path": "/", "headers": headers}, never, never))
    assert served == ["http"]
    wrapped.recorder.close()


def test_every_path_and_header_is_inspected_quickly() -> None:
    """Each took a hundred milliseconds and more; a tenth of that is enough on any machine."""
    excluded = matching_paths(("/*/a/*.js", "/*a*b*c"))
    began = time.process_time()
    assert "/" + "a/" * 16_000 not in excluded
    headers = [(b"cookie", b"a=b")] * 10_000
    AsgiRequest({"headers": headers}).header("cookie")
    assert time.process_time() - began < 0.1


def test_repeated_headers_are_joined_in_turn() -> None:
    view = AsgiRequest(
        {"headers": [(b"A", b"1"), (b"a", b"2"), (b"cookie", b"x"), (b"cookie", b"y")]}
    )
    assert view.header("a") == "1,2"
    assert view.header("cookie") == "x; y"


def test_a_login_during_a_slow_request_does_not_record_a_guest(valkey: Server, prefix: str) -> None:
    clock = Clock()
    settings = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, flush_interval="0.05s")
    recorder = Recorder(settings, clock=clock, background=False)
    visit = WsgiVisit(recorder, {"REMOTE_ADDR": "192.0.2.7"})
    clock.now += 2.5
    recorder.run_once()
    assert recorder.stats().recorded == 0
    visit.identify("ann")
    recorder.run_once()
    visit.end()
    assert recorder.flush()
    assert Presence(settings, clock=clock).counts() == {"user": 1, "guest": 0, "bot": 0}

    guest = WsgiVisit(recorder, {"REMOTE_ADDR": "192.0.2.8"})
    clock.now += 6
    recorder.run_once()
    assert recorder.flush()
    assert Presence(settings, clock=clock).count("guest") == 1, "nobody waits for ever"
    guest.end()
    recorder.close()


def test_a_reused_environ_does_not_keep_its_user(prefix: str) -> None:
    seen = []

    def app(environ: dict[str, Any], _: object) -> list[bytes]:
        if environ["PATH_INFO"] == "/login":
            environ["presence_middleware.user"] = lambda: "ada"
        seen.append(environ["presence_middleware.visit"].identity)
        return []

    settings = Settings.from_env({}, redis_url=f"memory://{prefix}", identity="user=auth")
    wrapped = wsgi.PresenceMiddleware(app, settings=settings)
    environ: dict[str, Any] = {"PATH_INFO": "/login"}
    wrapped(environ, lambda *_: list[bytes]().append)
    environ["PATH_INFO"] = "/"
    wrapped(environ, lambda *_: list[bytes]().append)
    assert seen == [("user", "ada"), None]
    wrapped.recorder.close()


LAZY = """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from presence_middleware.asgi import PresenceMiddleware
from presence_middleware.wsgi import WsgiVisit
app = Starlette(middleware=[Middleware(PresenceMiddleware)])
"""


def test_a_framework_that_builds_its_layers_late_does_not_start_with_wrong_settings(
    tmp_path: Path,
) -> None:
    """Otherwise it would start to serve and fail on each request."""
    (tmp_path / "lazy_site.py").write_text(LAZY)
    settings = {"PRESENCE_IDENTITY": "user=bearer:sub", "PRESENCE_WINDOW": "soon"}
    server = WebServer(uvicorn("lazy_site:app"), tmp_path, tmp_path / "log", **settings)
    with pytest.raises(AssertionError, match="the server ended"):
        server.__enter__()
    assert server.process.returncode not in ENDED
    assert "PRESENCE_WINDOW='soon': expected" in server.output
    assert "startup failed" in server.output


def test_without_lifespan_a_request_raises_the_settings_error() -> None:
    async def late() -> None:
        app = asgi.PresenceMiddleware(never, settings=None)
        await app({"type": "http"}, never, never)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRESENCE_WINDOW", "soon")
        with pytest.raises(SettingsError, match="PRESENCE_WINDOW"):
            asyncio.run(late())
        with pytest.raises(SettingsError, match="PRESENCE_WINDOW"):
            asgi.PresenceMiddleware(never)


@pytest.mark.parametrize(
    "known", ["-----BEGIN", "MII" + "A" * 80, "ssh-rsa AAAA", '{"kty": "RSA"}']
)
def test_a_public_key_is_never_used_as_a_shared_secret(known: str) -> None:
    with pytest.raises(SettingsError, match="whole public keys"):
        Settings.from_env({}, session_secret=known)


def test_secrets_may_be_given_as_a_list_or_as_bytes() -> None:
    for given in ([SECRET, b"other"], (SECRET, "other")):
        assert Settings.from_env({}, session_secret=given).session_secret == (SECRET, "other")
    assert Settings.from_env({}, session_secret=SECRET.encode()).session_secret[0] == SECRET


def test_a_source_written_as_a_module_is_corrected_in_the_error() -> None:
    with pytest.raises(
        SettingsError, match="no source 'flask_session'; the nearest is flask-session"
    ):
        Settings.from_env({}, identity="user=flask_session:user")
