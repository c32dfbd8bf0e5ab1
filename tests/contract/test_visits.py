"""The visit of a request in a handler: its identity, `identify`, and the recorded id."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import HTTPConnection
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Route

from presence_middleware import Identity, Presence, QueryError, Settings, asgi
from presence_middleware.embedded import find_server
from presence_middleware.recorder import Recorder, Visit, recorder_for
from presence_middleware.request import AsgiRequest, WsgiRequest
from tests.support.asking import Request, State, ask_asgi, ask_wsgi, ids, opened
from tests.support.backends import Server, wait_until
from tests.support.servers import environment
from tests.support.transports import AsgiTransport


@pytest.fixture
def settings(valkey: Server, prefix: str) -> Iterator[Settings]:
    """Of a site without a secret."""
    settings = Settings.from_env({}, redis_url=valkey.url, prefix=prefix)
    yield settings
    recorder_for(settings).close()


def visit_in(state: State) -> Visit:
    visit = state["presence_middleware.visit"]
    assert isinstance(visit, Visit)
    return visit


@pytest.mark.parametrize(("said", "id"), [("ann", "ann"), (42, "42"), (" ann ", "ann"), (0, "0")])
def test_the_identity_of_an_inner_layer_wins(said: str | int, id: str, settings: Settings) -> None:
    def layer(state: State) -> None:
        visit_in(state).identify(said)

    assert ids(settings, Request(user="bob"), layer) == id
    assert recorder_for(settings).flush()
    assert Presence(settings).counts() == {"user": 1, "guest": 0, "bot": 0}
    assert Presence(settings).is_online(id)


@pytest.mark.parametrize("nothing", [None, "", "  "])
def test_identifying_nobody_withdraws_an_earlier_identity(
    nothing: str | None, settings: Settings
) -> None:
    def layer(state: State) -> None:
        visit_in(state).identify("ann")
        visit_in(state).identify(nothing)

    assert ids(settings, Request(user="bob"), layer) == "bob"


def test_an_identified_kind_must_be_configured(settings: Settings) -> None:
    def layer(state: State) -> None:
        visit_in(state).identify("ann", kind="guest")
        with pytest.raises(QueryError, match=r"unknown kind .robot.: .* user, guest"):
            visit_in(state).identify("ann", kind="robot")

    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request(user="bob"), layer) == Identity("guest", "ann")


@pytest.mark.parametrize(
    ("identity", "kind"),
    [
        ("a=user-agent, b=auth, c=visitor", "b"),
        ("a=user-agent, b=visitor", "a"),
        ("guest=ip:raw, user=session:id", "guest"),
        ("user=identify, invisible=identify, guest=ip:raw", "user"),
    ],
)
def test_the_default_kind_is_that_of_auth_or_else_the_first(
    identity: str, kind: str, prefix: str
) -> None:
    settings = Settings.from_env({}, identity=identity, prefix=prefix, enabled=False)

    def layer(state: State) -> None:
        visit_in(state).identify("ann")

    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request(), layer) == Identity(kind, "ann")


def test_a_guest_who_logs_in_during_the_request_is_recorded_as_user_alone(
    settings: Settings,
) -> None:
    ask_wsgi(settings, Request(), lambda environ: environ.update(REMOTE_USER="ann"))
    ask_asgi(settings, Request(), lambda scope: scope.update(user=SimpleUser("bob")))
    assert recorder_for(settings).flush()
    presence = Presence(settings)
    assert presence.counts() == {"user": 2, "guest": 0, "bot": 0}
    assert presence.online_among(["ann", "bob"]) == ["ann", "bob"]


def test_processes_without_a_secret_agree_on_a_guest(settings: Settings) -> None:
    views = (
        WsgiRequest({"REMOTE_ADDR": "192.0.2.7", "HTTP_USER_AGENT": "Lynx"}),
        AsgiRequest({"client": ["192.0.2.7", 1], "headers": [[b"user-agent", b"Lynx"]]}),
    )
    found = set()
    for view in views:
        recorder = Recorder(settings)  # each with a key of its own, until they agree
        visit = opened(recorder, view)
        visit.flush()
        visit.end()
        found.add(visit.identity)
        recorder.close()
    (guest,) = found
    assert guest is not None
    assert Presence(settings).is_online(guest.id, guest.kind)
    assert "192.0.2.7" not in guest.id


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that a test may stop."""
    server = Server(str(find_server()), Path(tmp_path_factory.mktemp("own")))
    yield server
    server.stop()


def test_a_guest_who_came_before_redis_could_be_reached_is_the_same(own_server: Server) -> None:
    view = WsgiRequest({"REMOTE_ADDR": "192.0.2.7"})
    settings = Settings.from_env({}, redis_url=own_server.url, flush_interval="0.05s")
    own_server.stop()
    early = Recorder(settings)
    visit = opened(early, view)
    visit.end()
    assert not early.flush()
    assert visit.identity is None
    assert early.stats().pending == 1
    own_server.start()
    other = Recorder(settings)
    late = opened(other, view)
    late.flush()
    wait_until(early.flush)
    assert visit.identity == late.identity is not None
    assert Presence(settings).counts() == {"user": 0, "guest": 1, "bot": 0}
    late.end()
    for recorder in (early, other):
        recorder.close()


class Backend(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        name = conn.headers.get("x-login")
        return (AuthCredentials(["authenticated"]), SimpleUser(name)) if name else None


def login(request: StarletteRequest) -> Response:
    request.session["user"] = {"id": 42}
    return Response()


@pytest.mark.parametrize(
    ("identity", "headers", "id"),
    [
        ("user=auth", {"x-login": "ann"}, "ann"),
        ("user=auth", {}, "42"),
        ("user=session:member", {}, None),
        ("user=session:user.id", {}, "42"),
        ("user=session:user.name, user=auth", {"x-login": "ann"}, "ann"),
    ],
)
def test_starlettes_own_users_and_sessions(
    identity: str, headers: dict[str, str], id: str | None, valkey: Server, prefix: str
) -> None:
    layers = [
        Middleware(SessionMiddleware, secret_key="a"),
        Middleware(AuthenticationMiddleware, backend=Backend()),
    ]
    site = Starlette(routes=[Route("/", login)], middleware=layers)
    settings = Settings.from_env({}, redis_url=valkey.url, prefix=prefix, identity=identity)
    app = asgi.PresenceMiddleware(site, settings=settings)
    with httpx.Client(transport=AsgiTransport(app, asyncio.run), base_url="http://site") as client:
        assert client.get("/", headers=headers).status_code == 200
    assert app.recorder.flush()
    assert [sighting.id for sighting in Presence(settings).online()] == ([id] if id else [])
    app.recorder.close()


def test_a_process_that_ends_right_after_its_first_request_has_recorded_it(
    settings: Settings, valkey: Server, prefix: str
) -> None:
    program = """
from presence_middleware.wsgi import PresenceMiddleware
PresenceMiddleware(lambda *_: [])({"REMOTE_USER": "ann"}, print)
"""
    variables = {"PRESENCE_REDIS_URL": valkey.url, "PRESENCE_PREFIX": prefix}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert Presence(settings).is_online("ann")
