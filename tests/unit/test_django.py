"""The line of `MIDDLEWARE`, in Django under WSGI and ASGI, wrapped or not; and Channels."""

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from django.contrib import auth
from django.core import mail
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import re_path
from django.utils.functional import SimpleLazyObject

from presence_middleware import Identity, Presence, Settings, asgi, presence_of, visit_of, wsgi
from presence_middleware.asgi import ASGIApplication, Scope
from presence_middleware.connections.drivers import at_once
from presence_middleware.django import Account, IdentifyWebSocketUser, PresenceMiddleware
from presence_middleware.recorder import recorder_for
from tests.support.asking import in_loop
from tests.support.commands import run_program
from tests.support.statuses import FIREFOX
from tests.support.template_sites import LAYERS, LINE, configure_django
from tests.support.transports import AsgiTransport
from tests.unit.test_asgi import Gateway, silent

CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36"
SAME = {"Sec-Fetch-Site": "same-origin"}
DEFAULT = "user=auth, guest=visitor"
ACCOUNTS = f"{__name__}.Accounts"
View = Callable[[HttpRequest], Any]
configure_django()

views: dict[str, View] = {}
"""The pages of the site in a test."""
loads: list[int] = []
"""The users that were loaded."""


def page(request: HttpRequest) -> Any:
    return views[request.path_info](request)


async def async_page(request: HttpRequest) -> Any:
    answer = views[request.path_info.removeprefix("/async")](request)
    return await answer if asyncio.iscoroutine(answer) else answer


urlpatterns = [re_path("^async/", async_page), re_path("", page)]


class Accounts:
    """A backend of Django whose users are in no database."""

    def get_user(self, user_id: int) -> Any:
        from django.contrib.auth.models import User

        loads.append(user_id)
        return User(pk=user_id, username=f"user-{user_id}")


def only_sync(get_response: View) -> View:
    """A layer that has Django call the layers within it in a thread."""
    return get_response


class Kind(NamedTuple):
    """How a site with the line is served."""

    is_asgi: bool = False
    views: str = ""
    layers: tuple[str, ...] = (*LAYERS, LINE)
    is_wrapped: bool = False


SYNC, ASYNC = Kind(), Kind(is_asgi=True, views="/async")
OWN = {
    "sync": SYNC,
    "async": ASYNC,
    "async, sync view": Kind(is_asgi=True),
    "async behind a sync layer": Kind(is_asgi=True, layers=(f"{__name__}.only_sync", *SYNC.layers)),
    "twice": Kind(layers=(*SYNC.layers, LINE)),
    "first and last": ASYNC._replace(layers=(LINE, *SYNC.layers)),
}
WRAPPED = {
    "wrapped": SYNC._replace(is_wrapped=True),
    "async, wrapped": ASYNC._replace(is_wrapped=True),
}


def served(kinds: dict[str, Kind]) -> pytest.MarkDecorator:
    """Run a test with a site of each of these kinds."""
    return pytest.mark.parametrize("kind", kinds.values(), ids=kinds)


in_all = served({**OWN, **WRAPPED})


class Site:
    """A site with the line: how it is served, and whom it recorded."""

    def __init__(self, kind: Kind, settings: Settings) -> None:
        self.kind, self.views = kind, kind.views
        self.presence, self.recorder = Presence(settings), recorder_for(settings)
        app: Any = ASGIHandler() if kind.is_asgi else WSGIHandler()
        if kind.is_wrapped:
            wrapper: Any = asgi if kind.is_asgi else wsgi
            app = wrapper.PresenceMiddleware(app, settings=settings)
        self.transport: Any = (
            AsgiTransport(app, asyncio.run) if kind.is_asgi else httpx.WSGITransport(app)
        )
        self.client = httpx.Client(
            transport=self.transport, base_url="http://site.test", headers={"User-Agent": FIREFOX}
        )

    def get(self, path: str = "/", **headers: str) -> httpx.Response:
        return self.client.get(self.views + path, headers=headers)

    def log_in(self, id: str = "7") -> None:
        """Begin a session, with a response that is not recorded."""
        user = Accounts().get_user(int(id))
        login = {auth.SESSION_KEY: id, auth.BACKEND_SESSION_KEY: ACCOUNTS}
        login[auth.HASH_SESSION_KEY] = user.get_session_auth_hash()
        views["/login"] = lambda request: respond(request.session.update(login))
        self.get("/login", Presence="passive")

    def seen(self) -> list[str]:
        """Return the ids of the users online, and `guest` for each guest."""
        assert self.recorder.flush()
        users = [each.id for each in self.presence.online()]
        return users + ["guest"] * self.presence.count("guest")


Open = Callable[..., Site]


@pytest.fixture
def open_site(prefix: str, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> Open:
    """Opens a site of one of the kinds above, with settings in its environment."""
    views.clear()
    loads.clear()
    views["/"] = respond

    def make(kind: Kind = SYNC, **settings: object) -> Site:
        given = {"redis_url": f"memory://{prefix}", "enabled": 1, "secret": "s" * 16, **settings}
        for name, value in given.items():
            monkeypatch.setenv(f"PRESENCE_{name.upper()}", str(value))
        given = {"ROOT_URLCONF": __name__, "AUTHENTICATION_BACKENDS": [ACCOUNTS]}
        stack.enter_context(override_settings(MIDDLEWARE=kind.layers, **given))
        return Site(kind, Settings.from_env())

    return make


def respond(*_: object) -> HttpResponse:
    return HttpResponse("hello")


def uses_user(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(request.user.pk))


def uses_session(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(request.session.get("cart")))


def logs_out(request: HttpRequest) -> HttpResponse:
    auth.logout(request)
    return HttpResponse("bye", status=500 if "fails" in request.path else 200)


@in_all
@pytest.mark.parametrize(
    ("view", "identity", "id"),
    [
        (uses_user, DEFAULT, ["7"]),
        (uses_session, DEFAULT, ["7"]),
        (uses_user, "user=auth:username, guest=visitor", ["user-7"]),
        (uses_session, "user=auth:username, guest=visitor", []),
        (respond, DEFAULT, []),
        (respond, "user=header:x-user, guest=visitor", ["guest"]),
    ],
    ids=["user", "session", "name", "session without name", "neither", "no rule needs Django"],
)
def test_a_user_counts_as_the_page_knows_them_and_as_no_guest(
    kind: Kind, view: View, identity: str, id: list[str], open_site: Open
) -> None:
    site = open_site(kind, identity=identity)
    site.log_in()
    views["/"] = view
    loads.clear()
    response = site.get()
    assert site.seen() == id
    assert site.recorder.stats().recorded == len(id)
    assert not site.recorder.open_visits
    assert len(loads) == (view is uses_user)
    assert ("Vary" in response.headers) == (view is not respond)


@in_all
def test_a_guest_with_a_cart_counts_where_the_page_loads_it(kind: Kind, open_site: Open) -> None:
    site = open_site(kind)
    views["/add"] = lambda request: respond(request.session.update({"cart": "9"}))
    site.get("/add", Presence="passive")
    site.get()
    assert site.seen() == []  # the cookie may as well be a user's
    views["/"] = uses_session
    assert site.get().text == "9"
    assert site.seen() == ["guest"]


def own_session(get_response: View) -> View:
    """A layer of a site that has sessions of its own, such as those of an API key."""

    def named(request: HttpRequest) -> Any:
        request.session = {auth.SESSION_KEY: "7"}
        return get_response(request)

    return named


@pytest.mark.parametrize("kind", [SYNC, ASYNC])
def test_a_session_that_is_not_djangos_breaks_no_page(kind: Kind, open_site: Open) -> None:
    site = open_site(kind._replace(layers=(f"{__name__}.own_session", LINE)))
    assert site.get().text == "hello"
    assert site.seen() == ["guest"]


@served({"sync": SYNC, "async": ASYNC, **WRAPPED})
def test_a_view_that_asks_counts_itself(kind: Kind, open_site: Open) -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        counts = []
        for _ in range(2):
            answer = presence_of(request).counts()
            counts.append(await answer if kind.is_asgi else answer)
            assert request.user.pk == 7
        return HttpResponse(str(counts))

    site = open_site(kind)
    site.log_in()
    views["/"] = view if kind.is_asgi else lambda request: at_once(view(request))
    nobody, ann = {"user": 0, "guest": 0, "bot": 0}, {"user": 1, "guest": 0, "bot": 0}
    assert site.get().text == str([nobody, ann])


def flushes_session(request: HttpRequest) -> HttpResponse:
    """The end of a login of which Django gives no signal."""
    request.session.flush()
    return HttpResponse("bye")


# A path, what is done and who logs out there, and who is online then.
LOGOUTS: list[tuple[str, View, str, list[str]]] = [
    ("/logout", logs_out, "7", []),
    ("/excluded", logs_out, "8", []),
    ("/end", flushes_session, "6", []),
    ("/fails", logs_out, "9", ["9", "guest"]),
]


@in_all
def test_a_logout_counts_at_any_path_unless_it_fails(kind: Kind, open_site: Open) -> None:
    """By Django's signal, or at a path of `PRESENCE_LOGOUT`."""
    site = open_site(kind, exclude="/excluded, /async/excluded", logout="/end, /async/end")
    views["/me"] = uses_user
    for path, view, id, others in LOGOUTS:
        views[path] = view
        site.log_in(id)
        site.get("/me")
        assert site.seen() == [id]
        assert site.get(path).text == "bye"
        assert site.seen() == others
        assert site.presence.last_seen(id)


def test_a_logout_without_a_request_or_while_off_changes_nothing(open_site: Open) -> None:
    auth.user_logged_out.send(sender=None, request=None, user=object())
    site = open_site(enabled=0)
    views["/"] = logs_out
    site.log_in()
    assert site.get().text == "bye"
    assert site.recorder.stats().recorded == 0


@in_all
def test_a_streaming_response_is_open_until_it_is_closed(kind: Kind, open_site: Open) -> None:
    site, opened = open_site(kind), []

    def parts() -> Iterator[bytes]:
        opened.append(len(site.recorder.open_visits))
        yield b"hello"
        opened.append(len(site.recorder.open_visits))

    async def async_parts() -> Any:
        for part in parts():
            yield part

    views["/"] = lambda _: StreamingHttpResponse(async_parts() if site.kind.is_asgi else parts())
    site.get()
    assert opened == [1, 1]
    assert site.seen() == ["guest"]
    assert not site.recorder.open_visits


@in_loop
async def test_a_stream_that_fails_ends_its_visit_before_it_is_closed(open_site: Open) -> None:
    async def parts() -> Any:
        yield b"hello"
        raise OSError("no further part")

    site, view = open_site(), AsyncMock(return_value=StreamingHttpResponse(parts()))
    request = AsyncRequestFactory().get("/", headers={"user-agent": FIREFOX})
    response = await PresenceMiddleware(view)(request)
    with pytest.raises(OSError, match="no further part"):
        [part async for part in response]
    assert site.seen() == ["guest"]
    assert not site.recorder.open_visits  # though the error keeps the response
    response.close()


class Dropped:
    """A layer of which Django never closes the response."""

    def __init__(self, get_response: View) -> None:
        self._line = PresenceMiddleware(get_response)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        self._line(request)
        return HttpResponse("another")


@pytest.mark.usefixtures("no_collector")
def test_a_response_that_is_dropped_unclosed_ends_its_visit(open_site: Open) -> None:
    site = open_site(Kind(layers=(*LAYERS, f"{__name__}.Dropped")))
    views["/"] = lambda _: StreamingHttpResponse([b"hello"])
    assert site.get().text == "another"
    assert site.seen() == ["guest"]
    assert not site.recorder.open_visits


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_that_django_passes_on_ends_the_visit(open_site: Open, *, is_async: bool) -> None:
    site = open_site()
    layer = PresenceMiddleware((AsyncMock if is_async else Mock)(side_effect=KeyboardInterrupt))
    factory = AsyncRequestFactory() if is_async else RequestFactory()
    with pytest.raises(KeyboardInterrupt):
        at_once(layer(factory.get("/", headers={"user-agent": FIREFOX})))
    assert site.seen() == ["guest"]
    assert not site.recorder.open_visits


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("streams", [False, True])
def test_a_request_is_freed_without_a_garbage_collector(open_site: Open, *, streams: bool) -> None:
    site = open_site()
    response = StreamingHttpResponse([b"hello"]) if streams else HttpResponse("hello")
    layer = PresenceMiddleware(lambda request: response)
    request = RequestFactory().get("/")
    request.session = type("Session", (), {"session_key": "key"})()
    freed = weakref.ref(request)
    layer(request)
    del request
    assert freed() is None
    response.close()
    assert not site.recorder.open_visits


@served(OWN)
def test_the_board_needs_no_view_and_is_no_visit(kind: Kind, open_site: Open) -> None:
    site = open_site(kind, board_path="/board", board_token="the-token-of-the-board")
    site.get()
    views["/board"] = respond
    site.recorder.flush()
    counts = site.client.get("/board/counts")
    assert counts.json() == {"counts": {"user": 0, "guest": 1, "bot": 0}}
    known = {"If-None-Match": counts.headers["ETag"]}
    assert site.client.get("/board/counts", headers=known).status_code == 304
    assert site.client.post("/board/counts").status_code == 405
    token = httpx.BasicAuth("", "the-token-of-the-board")
    assert site.client.get("/board/online?kind=user", auth=token).json()["online"] == []
    assert site.client.get("/board/events", auth=token).status_code == 501
    assert site.recorder.stats().recorded == 1


@served({name: kind for name, kind in OWN.items() if kind.is_asgi})
def test_board_and_rooms_are_below_the_script_name_of_django(kind: Kind, open_site: Open) -> None:
    site = open_site(kind, board_path="/board", rooms="/{area}/t/{topic}, /t/{topic}")
    views["/t/7"] = respond
    with override_settings(FORCE_SCRIPT_NAME="/shop"):
        assert site.client.get(f"/shop{site.views}/t/7").text == "hello"
        site.recorder.flush()
        room = {"room": f"{site.views}/t/7"}
        answer = site.client.get("/shop/board/counts", params=room).json()
    assert answer == {**room, "counts": {"user": 0, "guest": 1}}


@served({**{name: OWN[name] for name in OWN if name != "first and last"}, **WRAPPED})
def test_a_pulse_is_that_of_the_user_who_is_logged_in(kind: Kind, open_site: Open) -> None:
    site = open_site(kind, pulse_path="/pulse", rooms="/t/{topic}")
    site.log_in()
    for said in ("here:/t/7", "bye", "here:/t/7"):
        answer = site.client.post(f"/pulse?presence={said}", headers=SAME)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Content-Type" not in answer.headers
        assert site.seen() == ["7"]
        assert site.presence.is_online("7", window="8m") == (said != "bye")
    assert site.presence.count(room="/t/7") == 1
    assert site.client.post("/pulse", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert "sendBeacon" in site.client.get("/pulse.js").text
    views["/like"] = respond
    site.client.post(f"{site.views}/like?presence=here:/t/8", headers=SAME)
    assert site.seen() == ["7"]
    assert site.presence.count(room="/t/8") == 1


def test_a_logout_is_that_of_djangos_user_and_not_of_the_servers(open_site: Open) -> None:
    """As on a site behind a front end that asks for a password of its own."""
    site = open_site(logout="/end")
    views.update({"/": uses_user, "/end": logs_out})
    site.log_in()
    site.get()
    site.presence.touch("ann")
    app = site.transport.app
    site.transport.app = lambda environ, start: app({**environ, "REMOTE_USER": "ann"}, start)
    site.get("/end")
    assert site.seen() == ["ann"]
    site.get("/end")  # when Django has no user
    assert "ann" in site.seen()


# Tests of a site, and its clients.


@served({"sync": SYNC, "async": ASYNC})
def test_no_layer_is_adapted_to_ours(
    kind: Kind, open_site: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Django would run a layer or view that is, or ours, in a thread."""
    with override_settings(DEBUG=True), caplog.at_level(logging.DEBUG, "django.request"):
        open_site(kind)
    assert LINE not in caplog.text


@pytest.mark.parametrize("is_on", [False, True])
def test_the_tests_of_a_site_record_only_what_they_ask_for(
    open_site: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_on: bool,
) -> None:
    site = open_site()
    monkeypatch.setattr(mail, "outbox", [], raising=False)  # by `setup_test_environment()`
    if not is_on:
        monkeypatch.setenv("PRESENCE_ENABLED", "")  # counts as unset
        monkeypatch.setenv("PRESENCE_REDIS_URL", "redis://127.0.0.1:1")  # nobody listens
    views["/"] = lambda request: HttpResponse(type(presence_of(request)).__name__)
    with caplog.at_level(logging.DEBUG, "presence_middleware"):
        wsgi_response = Client().get("/", headers={"user-agent": FIREFOX})
        asgi_response = asyncio.run(AsyncClient().get("/async/", headers={"user-agent": CHROME}))
    which = b"" if is_on else b"Unrecorded"
    assert wsgi_response.content == which + b"WsgiVisit"
    assert asgi_response.content == which + b"AsgiVisit"
    visit: Any = visit_of(wsgi_response.wsgi_request)
    assert visit.is_over
    assert site.recorder.stats().recorded == 2 * is_on
    assert site.seen() == ["guest", "guest"] * is_on
    if not is_on:
        assert visit.recorder.stats().recorded == 0
        assert not caplog.records


@pytest.mark.parametrize("given", [{}, {"window": "5m"}])
def test_a_setting_in_the_settings_of_django_is_reported(
    given: dict[str, str], open_site: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it is in the environment as well, as in a site that copies that into its settings."""
    with override_settings(PRESENCE_WINDOW="5m", PRESENCE_OF_MIND=1):
        for _ in range(2):
            open_site(**given)
    text = "the settings of Django contain PRESENCE_WINDOW, which is read from the environment"
    assert caplog.text.count(text) == (not given)
    assert "OF_MIND" not in caplog.text


# Users and sessions as Channels leaves them in the scope of a WebSocket.


ANN = SimpleNamespace(pk=7, is_authenticated=True)
NOBODY = SimpleNamespace(pk=None, is_authenticated=False)
DELETED = SimpleNamespace(pk=None, is_authenticated=True, username="ann")
KEY = "_auth_user_id"


def loaded(value: object) -> SimpleLazyObject:
    """As Channels has users and sessions in the scope."""
    lazy = SimpleLazyObject(lambda: value)
    lazy._setup()
    return lazy


def session(**values: str) -> SimpleLazyObject:
    return loaded(SimpleNamespace(_session_cache=values))


def identities(app: ASGIApplication, added: Scope, settings: Settings) -> list[Identity | None]:
    """Who is found on a WebSocket before the app runs and after, given what layers add."""
    found = []

    async def inner(scope: Scope, receive: Any, send: Any) -> None:
        found.append(scope["presence_middleware.visit"].identity)
        await app(scope, receive, send)
        found.append(scope["presence_middleware.visit"].identity)

    async def layer(scope: Scope, receive: Any, send: Any) -> None:
        await IdentifyWebSocketUser(inner)({**scope, **added}, receive, send)

    gateway = Gateway("websocket", user=None)
    asyncio.run(gateway.ask(asgi.PresenceMiddleware(layer, settings=settings)))
    return found


def kept(prefix: str, source: str = "auth") -> Settings:
    """Settings with which nothing is recorded, but everybody recognised."""
    return Settings.from_env(
        {}, redis_url=f"memory://{prefix}", enabled=0, identity=f"user={source}, guest=ip:raw"
    )


GUEST, USER = Identity("guest", "1.2.3.4"), Identity("user", "7")
NAME, EIGHT = Identity("user", "ann"), Identity("user", "8")
NAMED = SimpleNamespace(pk=7, is_authenticated=True, username="ann")
IN, OUT, BY_NAME = {KEY: "7"}, dict[str, str](), "auth:username"
Socket = tuple[str, object, dict[str, str] | None, dict[str, str], list[Identity]]
# The source, the user, the session before and after the consumer, and who is found then.
SOCKETS: dict[str, Socket] = {
    "a user": ("auth", ANN, None, OUT, [USER, USER]),
    "a lazy one": ("auth", loaded(ANN), None, OUT, [USER, USER]),
    "refused": ("auth", loaded(NOBODY), IN, IN, [GUEST, GUEST]),
    "nobody": ("auth", loaded(NOBODY), OUT, OUT, [GUEST, GUEST]),
    "deleted": ("auth", DELETED, None, OUT, [GUEST, GUEST]),
    "none": ("auth", None, None, OUT, [GUEST, GUEST]),
    "a login": ("auth", loaded(NOBODY), OUT, IN, [GUEST, USER]),
    "a logout": ("auth", loaded(ANN), IN, OUT, [USER, GUEST]),
    "another user": ("auth", loaded(ANN), IN, {KEY: "8"}, [USER, EIGHT]),
    "a cart": ("auth", loaded(ANN), IN, {**IN, "cart": "1"}, [USER, USER]),
    "a name": (BY_NAME, NAMED, OUT, OUT, [NAME, NAME]),
    "no name": (BY_NAME, ANN, OUT, OUT, [GUEST, GUEST]),
    "no user": (BY_NAME, NOBODY, OUT, OUT, [GUEST, GUEST]),
    "a login without a name": (BY_NAME, NOBODY, OUT, IN, [GUEST, GUEST]),
}


@pytest.mark.parametrize("name", SOCKETS)
def test_a_sockets_user_is_of_its_scope_then_session(name: str, prefix: str) -> None:
    source, user, before, after, expected = SOCKETS[name]

    async def consumer(scope: Scope, *_: object) -> None:
        own = {**scope, "user": "as login() and logout() leave it"}
        if before is not None:
            own["session"]._session_cache = after

    added = {"user": user} | ({} if before is None else {"session": session(**before)})
    assert identities(consumer, added, kept(prefix, source)) == expected


def test_identifying_a_loaded_account_makes_no_database_query() -> None:
    from django.contrib.auth.models import User

    account = Account(User.from_db("default", ["id", "username"], [7, "ann"]))
    unread = ("email", "groups", "get_full_name", "nothing")
    assert [account.identity, account.pk, account.username] == ["7", 7, "ann"]
    assert [getattr(account, name) for name in unread] == [None] * 4


def test_identifying_loads_neither_user_nor_session(prefix: str) -> None:
    load = Mock(side_effect=AssertionError("it was loaded"))
    added = {"user": SimpleLazyObject(load), "session": SimpleLazyObject(load)}
    assert identities(silent, added, kept(prefix)) == [GUEST, GUEST]


def test_a_socket_that_is_not_wrapped_reaches_its_app() -> None:
    app, gateway = AsyncMock(return_value="returned"), Gateway("websocket", user=ANN)
    call = (gateway.scope, gateway.receive, gateway.send)
    assert asyncio.run(IdentifyWebSocketUser(app)(*call)) == "returned"
    app.assert_awaited_once_with(*call)


IMPORTS = """
import sys, threading
from importlib.abc import MetaPathFinder
import asgiref.sync, django.contrib.auth.signals, django.core.mail, django.http  # take long

is_within, goes_on = threading.Event(), threading.Event()

class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "presence_middleware.lookup":
            is_within.set()
            goes_on.wait(0.5)
        elif name == "presence_middleware.asgi":
            goes_on.set()
            print("early" if sys.modules["presence_middleware"].__spec__._initializing else "late")

def urls():
    import presence_middleware

sys.meta_path.insert(0, Finder())
thread = threading.Thread(target=urls)
thread.start()
is_within.wait()
from presence_middleware.django import PresenceMiddleware
thread.join()
"""


def test_two_threads_may_import_the_package_at_once() -> None:
    """As `runserver` does, of which one then fails if Python meets a circle."""
    done = run_program(IMPORTS)
    assert done.stdout.split() == ["late"], done.stderr
