"""`presence_of`, `visit_of` and the helpers of each framework."""

import asyncio
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Protocol, assert_type
from wsgiref.types import WSGIEnvironment
from wsgiref.util import setup_testing_defaults

import flask
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from fastapi import FastAPI, WebSocket
from pyramid.config import Configurator
from pyramid.events import BeforeRender
from pyramid.request import Request as PyramidRequest
from starlette.requests import HTTPConnection, Request
from starlette.types import Scope

import presence_middleware
from presence_middleware import (
    AsyncPresence,
    Identity,
    NotWrapped,
    Presence,
    PresenceError,
    QueryError,
    Settings,
    Visit,
    asgi,
    presence_of,
    visit_of,
    wsgi,
)
from presence_middleware.connections.clients import close_async_clients
from presence_middleware.flask import init_app
from presence_middleware.lookup import HasEnviron, HasScope
from presence_middleware.starlette import Here, get_presence, presence_context
from presence_middleware.template import TemplatePresence, template_presence
from tests.support.template_sites import configure_django, over_wsgi
from tests.unit.test_asgi import Gateway


@pytest.fixture
def memory(prefix: str) -> Settings:
    return Settings.from_env(
        {}, redis_url=f"memory://{prefix}", identity="user=auth, guest=ip:raw", secret="s" * 16
    )


@pytest.fixture
def environ(memory: Settings) -> WSGIEnvironment:
    """The environ of a request that is open, of a user of the server."""
    environ = plain_environ()
    environ["REMOTE_USER"] = "ann"
    app = wsgi.PresenceMiddleware(lambda *_: iter(()), settings=memory)
    app.recorder.background = False  # no thread samples the history
    environ["test.body"] = app(environ, lambda *_: list[bytes]().append)
    return environ


def plain_environ() -> WSGIEnvironment:
    environ: WSGIEnvironment = {}
    setup_testing_defaults(environ)
    return environ


def plain_scope(type: str = "http") -> dict[str, Any]:
    return {
        **{"type": type, "method": "GET", "path": "/", "query_string": b"", "headers": []},
        **{"client": ("1.2.3.4", 5), "user": "ann"},
    }


def scope_of(settings: Settings, type: str = "http") -> dict[str, Any]:
    """Return the scope of a request that is over."""
    scope = plain_scope(type)

    async def app(*_: object) -> None:
        """Send nothing."""

    asyncio.run(asgi.PresenceMiddleware(app, settings=settings)(scope, never, never))
    return scope


async def never(*_: object) -> Any:
    raise AssertionError("called")


# presence_of and visit_of


def wsgi_sources(environ: WSGIEnvironment) -> Iterator[Any]:
    configure_django()
    yield environ
    yield SimpleNamespace(environ=environ)
    yield flask.Request(environ)
    yield PyramidRequest(environ)
    yield WSGIRequest(environ)


def asgi_sources(scope: dict[str, Any]) -> Iterator[Any]:
    configure_django()
    yield scope
    yield SimpleNamespace(scope=scope)
    yield HTTPConnection(scope)
    yield Request(scope)
    yield ASGIRequest(scope, None)
    consumer = AsyncWebsocketConsumer()
    consumer.scope = scope
    yield consumer
    yield WebSocket({**scope, "type": "websocket"}, never, never)


def test_every_wsgi_request_leads_to_its_reader_and_visit(environ: WSGIEnvironment) -> None:
    visit: Any = environ["presence_middleware.visit"]
    for source in wsgi_sources(environ):
        assert visit_of(source) is presence_of(source) is visit
    assert isinstance(visit, wsgi.WsgiVisit)
    assert visit.identity == Identity("user", "ann")


def test_every_asgi_request_leads_to_its_reader_and_visit(memory: Settings) -> None:
    scope = scope_of(memory)
    visit = scope["presence_middleware.visit"]
    for source in asgi_sources(scope):
        assert visit_of(source) is presence_of(source) is visit
    assert isinstance(visit, AsyncPresence)


def test_a_request_that_is_not_wrapped_is_reported_with_the_remedy() -> None:
    for source in wsgi_sources(plain_environ()):
        for lookup in (presence_of, visit_of):
            with pytest.raises(NotWrapped, match=r"wsgi\.PresenceMiddleware: wrap the app"):
                lookup(source)
    for source in asgi_sources(plain_scope()):
        for lookup in (presence_of, visit_of):
            with pytest.raises(NotWrapped, match=r"asgi\.PresenceMiddleware: wrap the app"):
                lookup(source)
    assert issubclass(NotWrapped, PresenceError)


@pytest.mark.parametrize("source", [None, "environ", 7, object(), SimpleNamespace(scope=None)])
def test_an_object_that_is_no_request_is_refused(source: Any) -> None:
    with pytest.raises(QueryError, match="is no request: pass a WSGI environ"):
        presence_of(source)
    with pytest.raises(QueryError, match=type(source).__name__):
        visit_of(source)


class Typed(Protocol):
    """What handlers have, by its type."""

    environ: WSGIEnvironment
    scope: Scope
    mapping: Mapping[str, Any]
    flask: flask.Request
    starlette: Request
    socket: WebSocket
    has_environ: HasEnviron
    has_scope: HasScope


def check_types(typed: Typed) -> None:
    """Only mypy runs this."""
    assert_type(presence_of(typed.environ), Presence)
    assert_type(presence_of(typed.flask), Presence)
    assert_type(presence_of(typed.has_environ), Presence)
    assert_type(presence_of(typed.scope), AsyncPresence)
    assert_type(presence_of(typed.mapping), AsyncPresence)
    assert_type(presence_of(typed.starlette), AsyncPresence)
    assert_type(presence_of(typed.socket), AsyncPresence)
    assert_type(presence_of(typed.has_scope), AsyncPresence)
    assert_type(visit_of(typed.environ), Visit)
    assert_type(visit_of(typed.starlette), Visit)
    assert_type(visit_of(typed.flask), Visit)


def test_a_synchronous_view_under_asgi_calls_the_reader_with_async_to_sync(
    memory: Settings,
) -> None:
    """As Django runs such a view: in a thread, beside the event loop."""
    counts = []

    def view(scope: Scope) -> None:
        counts.append(async_to_sync(presence_of(scope).count)())

    async def app(scope: Scope, *_: object) -> None:
        await sync_to_async(view)(scope)

    middleware = asgi.PresenceMiddleware(app, settings=memory)
    asyncio.run(middleware(plain_scope(), never, never))
    assert counts == [1]


# The reader for templates


def test_all_templates_of_a_request_share_a_reader(environ: WSGIEnvironment) -> None:
    reader = template_presence(environ)
    assert template_presence(SimpleNamespace(environ=environ)) is reader
    assert reader.count() == 1


def test_an_environ_that_is_used_again_has_a_new_reader(
    environ: WSGIEnvironment, memory: Settings
) -> None:
    reader = template_presence(environ)
    environ["test.body"].close()
    wsgi.PresenceMiddleware(lambda *_: iter(()), settings=memory)(environ, lambda *_: print)
    assert template_presence(environ) is not reader


def test_each_template_of_a_websocket_has_a_reader_of_its_own(memory: Settings) -> None:
    scope = scope_of(memory, "websocket")
    assert template_presence(scope) is not template_presence(scope)


def test_a_template_has_the_answers_of_the_site(environ: WSGIEnvironment, memory: Settings) -> None:
    reader, presence = template_presence(environ), Presence(memory)
    assert reader.count() == reader.count("user", window="1m") == 1
    assert reader.counts() == {"user": 1, "guest": 0, "bot": 0}
    assert [seen.id for seen in reader.online(limit=5) or []] == ["ann"]
    assert [reader.is_online("ann"), reader.is_online("bob")] == [True, False]
    assert reader.last_seen("ann") == presence.last_seen("ann") is not None
    assert reader.last_seen_among(["bob", "ann"]) == {
        "bob": None,
        "ann": presence.last_seen("ann"),
    }
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


def test_flask_is_wrapped_and_has_presence_in_templates(memory: Settings) -> None:
    app = flask.Flask(__name__)
    middleware = init_app(app, settings=memory)
    assert app.wsgi_app is middleware is app.extensions["presence_middleware"]

    @app.get("/")
    def home() -> str:
        visit_of(flask.request).identify("ann")
        return flask.render_template_string("{{ presence.online()[0].id }}")

    assert app.test_client().get("/").text == "ann"
    assert middleware.presence.count() == 1


def test_a_mail_that_flask_renders_outside_of_a_request_has_no_numbers(memory: Settings) -> None:
    app = flask.Flask(__name__)
    init_app(app, settings=memory)
    with app.app_context():
        assert flask.render_template_string("{{ presence.count() }}") == "None"


# Starlette and FastAPI


def test_the_dependency_of_fastapi_serves_requests_and_websockets(memory: Settings) -> None:
    app = FastAPI()

    @app.get("/")
    async def home(presence: Here) -> dict[str, int]:
        return await presence.counts()

    @app.websocket("/live")
    async def live(websocket: WebSocket, presence: Here) -> None:
        await websocket.accept()
        await websocket.send_json(await presence.counts())

    http, socket = Gateway("http", user=None), Gateway("websocket", user=None)
    http.scope.update(method="GET", query_string=b"")
    socket.scope.update(path="/live", query_string=b"")
    socket.messages = [{"type": "websocket.connect"}]

    async def ask() -> None:
        middleware = asgi.PresenceMiddleware(app, settings=memory)
        await http.ask(middleware)
        await socket.ask(middleware)
        await close_async_clients()

    asyncio.run(ask())
    counts = {"user": 0, "guest": 1, "bot": 0}
    assert json.loads(http.sent[-1]["body"]) == counts
    assert [json.loads(message["text"]) for message in socket.sent if "text" in message] == [counts]


def test_the_dependency_works_without_fastapi(memory: Settings) -> None:
    scope = scope_of(memory)
    assert asyncio.run(get_presence(Request(scope))) is scope["presence_middleware.visit"]


def test_a_context_processor_of_starlette_has_the_reader_of_the_request(memory: Settings) -> None:
    request = Request(scope_of(memory))
    assert presence_context(request) == {"presence": template_presence(request)}


# Pyramid


def test_pyramid_has_the_reader_in_its_request_and_in_templates(memory: Settings) -> None:
    def view(request: Any) -> dict[str, Any]:
        assert request.presence is request.presence is presence_of(request)
        return {"mine": request.presence.count()}

    def factory(_: object) -> Callable[[Any, Any], str]:
        return lambda value, system: f"{value['mine']} {system['presence'].count()}"

    with Configurator() as config:
        config.include("presence_middleware.pyramid")
        config.add_renderer("text", factory)
        config.add_route("home", "/")
        config.add_view(view, route_name="home", renderer="text")
        app = config.make_wsgi_app()
    get = over_wsgi(wsgi.PresenceMiddleware(app, settings=memory))
    Presence(memory).touch("ann")
    assert get("/").text == "1 1"


@pytest.mark.parametrize("values", [{"request": None}, {}])
def test_a_page_that_pyramid_renders_outside_of_a_request_has_no_numbers(
    values: dict[str, Any],
) -> None:
    event = BeforeRender(values)
    with Configurator() as config:
        config.include("presence_middleware.pyramid")
        config.commit()
        config.registry.notify(event)
    assert event["presence"].count() is None


# Without a framework


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("flask", ["flask"], "flask"),
        ("starlette", ["starlette", "starlette.requests"], "starlette"),
        ("pyramid", ["pyramid", "pyramid.events"], "pyramid"),
        ("django", ["django"], "django"),
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


@pytest.mark.parametrize("name", ["starlette", "django"])
def test_a_name_that_a_module_lacks_is_an_attribute_error(name: str) -> None:
    module = importlib.import_module(f"presence_middleware.{name}")
    with pytest.raises(AttributeError, match="nobody"):
        _ = module.nobody


def test_the_package_itself_imports_no_framework() -> None:
    assert presence_middleware.presence_of is presence_of
    assert isinstance(template_presence(None), TemplatePresence)
