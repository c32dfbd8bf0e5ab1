"""`presence_of`, `visit_of` and the helpers of each framework.

Those of FastAPI and Pyramid are followed in tests/servers/test_start_pages.py, and the templates
of all in tests/redis/test_templates.py.
"""

import asyncio
import importlib
import sys
import weakref
from collections import UserDict
from collections.abc import Awaitable, Callable, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any, assert_type
from uuid import UUID
from wsgiref.types import WSGIEnvironment

import flask
import httpx
import pytest
from anyio import from_thread
from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest
from fastapi import FastAPI, WebSocket
from flask.sessions import SessionInterface, SessionMixin
from flask_login import LoginManager, UserMixin, current_user, login_required
from pyramid.request import Request as PyramidRequest
from starlette.requests import HTTPConnection, Request
from starlette.types import Scope
from werkzeug.test import EnvironBuilder

from presence_middleware import (
    AsyncPresence,
    Identity,
    NotWrapped,
    Presence,
    PresenceError,
    QueryError,
    Settings,
    SettingsError,
    Visit,
    asgi,
    presence_of,
    visit_of,
    wsgi,
)
from presence_middleware.flask import init_app
from presence_middleware.lookup import HasEnviron, template_presence
from presence_middleware.recorder.setup_hints import FEW_VISITS, SECONDS
from presence_middleware.starlette import Here
from tests.support.asking import never, plain_environ
from tests.support.statuses import FIREFOX
from tests.support.template_sites import configure_django
from tests.support.transports import AsgiTransport
from tests.unit.test_asgi import Gateway, silent

CHAIN = "user=auth, guest=ip:raw"


@pytest.fixture
def memory(prefix: str) -> Settings:
    return Settings.from_env({}, redis_url=f"memory://{prefix}", identity=CHAIN, secret="s" * 16)


@pytest.fixture
def environ(memory: Settings) -> WSGIEnvironment:
    environ = plain_environ(REMOTE_USER="ann")
    app = wsgi.PresenceMiddleware(lambda *_: iter(()), settings=memory)
    app.recorder.background = False  # no thread samples the history
    environ["test.body"] = app(environ, lambda *_: list[bytes]().append)
    return environ


def plain_scope() -> Any:
    return Gateway("http", method="GET", query_string=b"").scope


# presence_of and visit_of


class MuffinRequest:
    """Like a request of Muffin, which shows the keys of its scope as attributes."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope

    def __getattr__(self, name: str) -> Any:
        return self.scope[name]


def sources(environ: WSGIEnvironment, scope: dict[str, Any]) -> dict[str, list[Any]]:
    """All that leads to an environ or to a scope, by protocol."""
    configure_django()
    consumer = AsyncWebsocketConsumer()
    consumer.scope = scope
    falcon, cherrypy = SimpleNamespace(env=environ), SimpleNamespace(wsgi_environ=environ)
    return {
        "wsgi": [
            *(environ, SimpleNamespace(environ=environ), falcon, cherrypy),
            *(made(environ) for made in (flask.Request, PyramidRequest, WSGIRequest)),
        ],
        "asgi": [
            *(scope, SimpleNamespace(scope=scope), consumer, ASGIRequest(scope, None)),
            *(HTTPConnection(scope), Request(scope), MuffinRequest(scope)),
            SimpleNamespace(asgi_scope=scope),  # of Microdot
            SimpleNamespace(_scope=scope),  # of Emmett
            WebSocket({**scope, "type": "websocket"}, never, never),
        ],
    }


def test_each_request_has_its_reader_and_visit(environ: WSGIEnvironment, memory: Settings) -> None:
    scope = plain_scope()  # of a request that is over
    asyncio.run(asgi.PresenceMiddleware(silent, settings=memory)(scope, never, never))
    visit: Any
    for state, reader, found in zip(
        (environ, scope), (Presence, AsyncPresence), sources(environ, scope).values(), strict=True
    ):
        visit = state["presence_middleware.visit"]
        assert visit.identity == Identity("user", "ann")
        assert isinstance(visit, reader)
        for source in found:
            assert visit_of(source) is presence_of(source) is visit


def test_a_request_that_is_not_wrapped_is_reported_with_the_remedy() -> None:
    for protocol, found in sources(plain_environ(), plain_scope()).items():
        for lookup, source in product((presence_of, visit_of), found):
            remedy = rf"{protocol}\.PresenceMiddleware: wrap the app"
            if isinstance(source, HttpRequest):
                remedy = r"django\.PresenceMiddleware: add that at the end of MIDDLEWARE"
            with pytest.raises(NotWrapped, match=remedy):
                lookup(source)
    assert issubclass(NotWrapped, PresenceError)


@pytest.mark.parametrize("source", [None, "environ", 7, object(), SimpleNamespace(scope=None)])
def test_an_object_that_is_no_request_is_refused(source: Any) -> None:
    with pytest.raises(QueryError, match="is no request: pass a WSGI environ"):
        presence_of(source)
    with pytest.raises(QueryError, match=type(source).__name__):
        visit_of(source)


class DjangoRequest:
    """Django's `HttpRequest`, as django-stubs declares it: neither `environ` nor `scope`."""

    META: dict[str, Any]


async def django_asgi(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[Mapping[str, Any]]],
    send: Callable[[Mapping[str, Any]], Awaitable[None]],
) -> None:
    """Django's `ASGIHandler`, as django-stubs declares it."""


def check_types(
    environ: WSGIEnvironment, own: HasEnviron, scope: Scope, starlette: Request, socket: WebSocket
) -> None:
    """Only mypy runs this."""
    assert_type(presence_of(DjangoRequest()), Any)
    assert_type(visit_of(DjangoRequest()), Visit)
    assert_type(asgi.PresenceMiddleware(django_asgi).presence, AsyncPresence)
    assert_type(presence_of(environ), Presence)
    assert_type(presence_of(own), Presence)
    assert_type(presence_of(scope), AsyncPresence)
    assert_type(presence_of(starlette), AsyncPresence)
    assert_type(presence_of(socket), AsyncPresence)
    assert_type(visit_of(environ), Visit)


# The reader for templates


def test_a_template_has_the_answers_of_the_site(environ: WSGIEnvironment, memory: Settings) -> None:
    reader, presence = template_presence(environ), Presence(memory)
    assert template_presence(SimpleNamespace(environ=environ)).visit is reader.visit
    again = {**environ, "presence_middleware.visit": None}  # of a server that uses it again
    assert template_presence(again).visit is None
    assert reader.count() == reader.count("user", window="1m") == 1
    assert reader.counts() == {"user": 1, "guest": 0, "bot": 0}
    assert [seen.id for seen in reader.online(limit=5) or []] == ["ann"]
    assert [reader.is_online("ann"), reader.is_online("bob")] == [True, False]
    assert reader.last_seen("ann") == presence.last_seen("ann") is not None
    assert reader.last_seen_among(["bob", "ann"]) == {"bob": None, "ann": reader.last_seen("ann")}
    assert reader.online_among(["bob", "ann"]) == ["ann"]
    assert reader.online_friends("nobody") == []
    assert reader.history(1) == []
    assert reader.peak() is None
    with pytest.raises(QueryError):
        reader.count("nobody")


def test_a_template_of_a_request_that_is_not_wrapped_shows_nothing() -> None:
    for reader in (template_presence(plain_environ()), template_presence(None)):
        assert reader.visit is None
        assert [reader.count(), reader.online(), reader.counts()] == [None, None, None]


# Flask


@pytest.mark.parametrize("app", [flask.Flask("shop").wsgi_app, flask.Flask, None])
def test_what_is_no_flask_app_is_refused(app: Any) -> None:
    with pytest.raises(SettingsError, match="init_app needs the Flask app itself"):
        init_app(app)


def test_flask_is_wrapped_and_has_presence_in_templates(memory: Settings) -> None:
    app = flask.Flask(__name__)
    middleware = init_app(app, settings=memory)
    assert app.wsgi_app is middleware is app.extensions["presence_middleware"]
    middleware.presence.touch("ann")
    app.get("/")(lambda: flask.render_template_string("{{ presence.online()[0].id }}"))
    assert app.test_client().get("/").text == "ann"
    with app.app_context():  # as a mail is rendered, outside of a request
        assert flask.render_template_string("{{ presence.count() }}") == "None"


class Basket(UserDict[str, Any], SessionMixin):
    """A session of the site's own, which is no dict."""


class Unreadable(Basket):
    def __bool__(self) -> bool:
        raise OSError


class Baskets(SessionInterface):
    """Keeps the session of the only browser."""

    def __init__(self, kept: type[Basket] = Basket) -> None:
        self.kept = kept()

    def open_session(self, *_: object) -> Basket:
        return type(self.kept)(self.kept)

    def save_session(self, _: flask.Flask, session: Any, __: flask.Response) -> None:
        self.kept = session


KEY = "later than init_app"
SESSIONS = ("session", "flask-session")


class FlaskSite:
    """A site that logs in with `session["_user_id"]`, and its only browser."""

    def __init__(self, settings: Settings, interface: SessionInterface | None = None) -> None:
        self.app: Any = flask.Flask(__name__)
        self.app.testing = True
        self.recorder = init_app(self.app, settings=settings).recorder
        self.recorder.background = False
        self._presence = Presence(settings)

        @self.app.get("/")
        def home() -> str:
            return str(visit_of(flask.request).identity)

        @self.app.get("/login/<id>")
        def login(id: str) -> str:
            flask.session.update(_user_id=id, _fresh=True)
            return home()

        @self.app.get("/logout")
        def logout() -> flask.Response:
            presence_of(flask.request).count()  # which records the user
            flask.session.clear()
            return flask.Response(status=flask.request.args.get("status", 302, int))

        self.app.secret_key = KEY
        self.app.session_interface = interface or self.app.session_interface
        self.client = self.app.test_client()
        self.get = self.client.get

    def begins(self, session: Mapping[str, object]) -> None:
        """Let the session of the browser have these values."""
        with self.client.session_transaction() as stored:
            stored.update(session)

    @property
    def presence(self) -> Presence:
        """A reader elsewhere, once everything is written."""
        assert self.recorder.flush()
        return self._presence


@pytest.mark.parametrize("interface", [None, Baskets()], ids=["Flask's own", "the site's own"])
def test_flask_shows_the_user_of_the_session_that_is_open(
    interface: SessionInterface | None, memory: Settings
) -> None:
    site = FlaskSite(memory, interface)
    user, guest = str(Identity("user", "ann")), str(Identity("guest", "127.0.0.1"))
    assert site.get("/").text == guest
    assert site.get("/login/ann").text == user, "in the request of the login"
    if "SECRET_KEY_FALLBACKS" in site.app.config:  # from Flask 3.1 on
        site.app.config["SECRET_KEY_FALLBACKS"], site.app.secret_key = [KEY], "rotated"
    page = site.get("/")
    assert (page.text, "Vary" in page.headers) == (user, False)
    assert site.presence.counts()["user"] == 1
    site.get("/logout")
    assert site.presence.counts() == {"user": 0, "guest": 1, "bot": 0}
    assert site.get("/").text == guest


BOUND, MEMBER = {"_user_id": "ann"}, {"member": {"id": "ann"}}
SERVERS = {"REMOTE_USER": "the server's"}
Login = tuple[dict[str, str], dict[str, Any], dict[str, str]]
# Settings, the session that logs in, and what the server says.
LOGINS: list[Login] = [
    *(({"exclude": excluded}, BOUND, {}) for excluded in ("none", "*, !/")),
    # Behind a front end that asks for a password of its own.
    *(({"logout": path}, BOUND, SERVERS) for path in ("none", "/logout")),
    *(({"identity": f"user={source}:_user_id"}, BOUND, {}) for source in SESSIONS),
    ({"identity": "user=session:member.id"}, MEMBER, {}),
    ({"identity": "user=flask-session:id"}, {**MEMBER, "id": "ann"}, {}),
]


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize(
    ("status", "stays"), [(200, []), (302, []), (403, ["ann"]), (500, ["ann"])]
)
def test_a_logout_of_flask_takes_the_user_of_its_session_offline_unless_it_fails(
    login: Login, status: int, stays: list[str], prefix: str
) -> None:
    given, session, environ = login
    given = {"identity": CHAIN, "session_secret": KEY, **given}
    site = FlaskSite(Settings.from_env({}, redis_url=f"memory://{prefix}", **given))

    def online_after(path: str) -> list[str]:
        site.get(path, environ_base=environ)
        return sorted(seen.id for seen in site.presence.online())

    others = list(environ.values())
    for id in others:
        site.presence.touch(id)
    site.begins(session)
    assert online_after("/") == ["ann", *others]
    assert online_after(f"/logout?status={status}") == [*stays, *others]
    assert sum(site.presence.counts().values()) == len([*stays, *others])


def test_a_user_whom_flask_tells_that_a_page_is_missing_is_no_guest(memory: Settings) -> None:
    """Also where the values of the URL are looked up, before all functions before a request."""
    site = FlaskSite(memory)
    site.app.url_value_preprocessor(lambda endpoint, _: endpoint != "home" or flask.abort(404))
    site.get("/login/ann")
    assert site.get("/").status_code == 404
    assert site.presence.counts() == {"user": 1, "guest": 0, "bot": 0}


def test_flask_login_shows_a_user_without_a_session(memory: Settings) -> None:
    """As an API does: the user comes with each request, and is only loaded where it matters."""

    class Token(UserMixin):  # type: ignore[misc]  # Flask-Login has no types
        def get_id(self) -> str:
            flask.current_app.name  # noqa: B018  # as an ORM that has to load it
            return "ann"

    site = FlaskSite(memory)
    LoginManager(site.app).request_loader(lambda request: Token() if request.args else None)

    def api() -> str:
        return str(presence_of(flask.request).count()) if "ask" in flask.request.args else ""

    site.app.get("/api")(login_required(api))
    assert site.get("/api").status_code == 401
    assert site.get("/api?key=1").status_code == 200
    assert [seen.id for seen in site.presence.online()] == ["ann"]
    site.presence.forget("ann")
    assert site.get("/api?key=1&ask=1").text == "1"


@pytest.mark.parametrize("account", [None, SimpleNamespace(is_authenticated=False)])
def test_a_user_refused_by_flask_login_is_a_guest(account: object, memory: Settings) -> None:
    """A deleted and a deactivated user. A site may have other users under another key."""
    site = FlaskSite(memory)
    LoginManager(site.app).user_loader(lambda _: account)

    def mine() -> list[object]:
        presence = presence_of(flask.request)
        return [current_user.is_authenticated, presence.counts(), presence.is_online("ann")]

    site.app.get("/mine")(mine)
    site.begins({"_user_id": "ann"})
    assert site.get("/mine").json == [False, {"user": 0, "guest": 1, "bot": 0}, False]
    site.get("/logout")
    site.begins({"user": "ann"})
    assert site.get("/mine").json == [False, {"user": 1, "guest": 1, "bot": 0}, True]


ANN = {"_user_id": "ann", "name": "Ann"}
# A session, and the id under its usual keys.
USUAL: list[tuple[dict[str, Any], str | None]] = [
    ({"_user_id": "7", "_auth_user_id": "8"}, "7"),
    ({"_auth_user_id": 8}, "8"),
    ({"auth.userid": "9", "user": "ann"}, "9"),
    ({"user_id": UUID(int=7)}, str(UUID(int=7))),
    ({"username": "ann"}, "ann"),
    ({"user": "ann", "username": ""}, "ann"),
    ({"user": {"id": 7, "sub": "x"}}, "7"),
    ({"user": {"sub": "google|7", "username": "ann", "email": "a@b.c"}}, "google|7"),
    ({"user": {"username": "ann", "is_authenticated": True}}, "ann"),
    ({"user": {"id": 7, "is_authenticated": False}}, None),
    ({"user": {"email": "a@b.c"}}, None),
    ({"user": {"id": True}}, None),
    ({"user_id": True, "user": ["ann"]}, None),
    ({"id": "7", "email": "a@b.c", "cart": "9"}, None),
    ({}, None),
]


@pytest.mark.parametrize(
    ("session", "id", "chain", "server"),
    [
        *((session, id, "user=auth", "") for session, id in [*USUAL, (ANN, "ann")]),
        (ANN, "ann", "user=auth", "bob"),
        ({}, "zo\xeb", "user=auth", "zo\xc3\xab"),
        (ANN, "Ann", "user=session:name, user=auth", ""),
        (ANN, "ann", "user=session:nickname, user=auth", "bob"),
        (ANN, "eve", "user=header:X-User, user=auth", ""),
        (ANN, "bob", "user=environ:REMOTE_USER, user=auth", "bob"),
    ],
)
def test_a_session_of_flask_shows_its_user_if_the_chain_has_no_other(
    session: dict[str, Any], id: str | None, chain: str, server: str, prefix: str
) -> None:
    chain += ", guest=ip:raw"
    site = FlaskSite(Settings.from_env({}, redis_url=f"memory://{prefix}", identity=chain))
    site.begins(session)
    environ = {"REMOTE_USER": server} if server else {}
    page = site.get("/", headers={"X-User": "eve"}, environ_overrides=environ)
    who = Identity("user", id) if id else Identity("guest", "127.0.0.1")
    assert page.text == str(who), "in the view"
    assert [seen.id for seen in site.presence.online(who.kind)] == [who.id]


def test_who_calls_init_app_is_not_told_to(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not even if no rule reads its session: that of a cart is no login."""
    chain = "user=header:X-User, guest=ip:raw"
    site = FlaskSite(Settings.from_env({}, redis_url=f"memory://{prefix}", identity=chain))
    site.begins({"cart": 1})
    for _ in range(FEW_VISITS):
        site.get("/")
    recorder = site.recorder
    assert recorder.flush()
    recorder.hints.check(recorder.stamp() + SECONDS, recorder.backend.driver)
    assert caplog.messages == []


def test_a_bad_session_breaks_no_page(memory: Settings, caplog: pytest.LogCaptureFixture) -> None:
    site = FlaskSite(memory, Baskets(Unreadable))
    assert site.get("/").text == str(Identity("guest", "127.0.0.1"))
    (message,) = caplog.messages
    assert message.startswith("PRESENCE_IDENTITY: user=auth:raw raised OSError at ")


def test_what_flask_runs_before_a_request_may_run_after_it(memory: Settings) -> None:
    """As a tool does that opens the context of a request again."""
    app, environ = FlaskSite(memory).app, EnvironBuilder("/").get_environ()
    for _ in app(environ, lambda *_: None):
        pass
    visit_of(environ).end()
    with app.request_context(environ):
        assert app.preprocess_request() is None


@pytest.mark.usefixtures("no_collector")
def test_a_request_of_flask_lives_no_longer_than_its_response(memory: Settings) -> None:
    app = FlaskSite(memory).app
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def watch() -> None:
        flask.g.request = flask.request._get_current_object()  # type: ignore[attr-defined]
        alive.update((flask.g.request, flask.g._get_current_object()))

    app.before_request(watch)
    environ = EnvironBuilder("/login/ann").get_environ()
    for path in ("/", "/login/ann", "/logout", "/login/bob"):
        body = app({**environ, "PATH_INFO": path}, lambda *_: None)
        list(body)
        body.close()
        del body
        assert len(alive) == 0, path


def test_a_handler_of_fastapi_in_a_thread_asks_the_loop(memory: Settings) -> None:
    app = FastAPI()
    app.add_middleware(asgi.PresenceMiddleware, settings=memory)

    @app.get("/")
    def home(presence: Here) -> int:
        return from_thread.run(presence.count, "guest")

    transport = AsgiTransport(app, asyncio.run)
    with httpx.Client(transport=transport, base_url="http://site.test") as client:
        assert client.get("/", headers={"User-Agent": FIREFOX}).json() == 1


# Without a framework


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("flask", ["flask"], "flask"),
        ("starlette", ["starlette", "starlette.requests"], "starlette"),
        ("pyramid", ["pyramid", "pyramid.events"], "pyramid"),
        ("django", ["django"], "django"),
        ("prometheus", ["prometheus_client"], "prometheus"),
    ],
)
def test_a_helper_without_its_framework_names_the_extra(
    module: str, missing: list[str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"presence_middleware.{module}"
    for framework in missing:
        monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(name)
    assert f"pip install 'presence_middleware[{extra}]'" in str(caught.value)
    assert caught.value.name == missing[-1]


def test_here_without_fastapi_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("presence_middleware.starlette")
    monkeypatch.delitem(vars(module), "Here", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(ModuleNotFoundError, match=r"presence_middleware\[fastapi\]"):
        _ = module.Here
    assert module.presence_context
