"""Identity sources: each reads the same id from a WSGI and an ASGI request."""

import base64
import inspect
import re
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.authentication import BaseUser, SimpleUser, UnauthenticatedUser

from presence_middleware import Identity, Settings, SettingsError, asgi, wsgi
from presence_middleware import Request as Asked
from presence_middleware.identity.reading import walk
from presence_middleware.identity.rules import parse_chain, user_kinds
from presence_middleware.request import WsgiRequest
from tests.support.asking import Request, State, ask_asgi, ask_wsgi, ids
from tests.support.pulsing import PROTOCOLS, App, PulsingSite

HASHED = re.compile(r"[0-9a-f]{32}")
HERE = "tests.unit.test_identity"
HIDING = "tests.support.hiding"
SECRET = "a secret of the test's own"
SAID = "it may be what a client said"


def chain(identity: str, secret: str = SECRET) -> Settings:
    """Settings that need no Redis."""
    return Settings.from_env({}, identity=identity, secret=secret, enabled=False, bots="off")


def cookies(*lines: str) -> Request:
    return Request([("Cookie", line.encode()) for line in lines])


def said(value: bytes | str) -> Request:
    return Request([("X-User", value.encode() if isinstance(value, str) else value)])


NESTED = {"auth": {"user": {"id": 7}}, "id": 42, "list": [1], "empty": "", "no": None, "yes": True}


class Property:
    """A user of a site, with what must not be called and what is private."""

    email = "ann@site.example"
    _secret = "private"

    def method(self) -> str:
        raise AssertionError

    @property
    def broken(self) -> str:
        raise NotImplementedError


def of(**attributes: object) -> SimpleNamespace:
    return SimpleNamespace(**attributes)


DOTTED: list[tuple[str, Request, Any]] = [
    ("scope:user.name", Request(state={"user": of(name="ann")}), "ann"),
    ("scope:user.name", Request(state={"user": {"name": "ann"}}), "ann"),
    ("scope:user.name", Request(state={"user": of(name="ann", is_authenticated=True)}), "ann"),
    ("scope:user.name", Request(state={"user": of(name="ann", is_authenticated=False)}), None),
    ("scope:user.name", Request(state={"user": "ann"}), None),
    ("scope:user.real", Request(state={"user": 42}), None),
    ("scope:user.name", Request(), None),
    ("scope:state.user.email", Request(state={"state": {"user": Property()}}), Property.email),
    ("scope:a.method", Request(state={"a": Property()}), None),
    ("scope:a._secret", Request(state={"a": Property()}), None),
    ("scope:a._secret", Request(state={"a": {"_secret": "key"}}), "key"),
    ("scope:a.__class__.__name__", Request(state={"a": Property()}), None),
    ("scope:a.broken", Request(state={"a": Property()}), None),
    ("scope:a.b", Request(state={"a": {"b": of(pk=7)}}), "7"),
    ("scope:a.b", Request(state={"a": {"b": ["x"]}}), None),
    ("environ:site.user.id", Request(state={"site.user": {"id": 7}}), "7"),
    ("environ:site.user.id", Request(state={"site.user.id": 1, "site.user": {"id": 2}}), "1"),
    (
        "environ:site.user.id",
        Request(state={"site.user": {"x": 1}, "site": of(user=of(id=3))}),
        "3",
    ),
    (
        "environ:repoze.who.identity.repoze.who.userid",
        Request(state={"repoze.who.identity": {"repoze.who.userid": "ann"}}),
        "ann",
    ),
    ("session:a.b.c", Request(session={"a.b": {"c": 1}, "a": {"b": {"c": 2}}}), "1"),
    ("session:a.b.c", Request(session={"a": {"b.c": 1}}), "1"),
    ("session:a.pk", Request(session={"a": of(pk=1)}), None),
    ("auth:username", Request(user=of(pk=42, username="ann")), "ann"),
    ("auth:username", Request(user=SimpleUser("ann")), "ann"),
    ("auth:username", Request(user=UnauthenticatedUser()), None),
    ("auth:username", Request(user=of(username="ann", is_authenticated=False)), None),
    ("auth:username", Request(user="ann"), None),
    ("auth:username", Request(user=of(pk=42)), None),
    ("auth:username", Request(), None),
    ("auth:username", Request(session={"user_id": 7}), None),
    ("auth:profile.nick", Request(user=of(profile={"nick": "ann"})), "ann"),
    ("auth:username:hashed", Request(user=of(username="ann")), HASHED),
]


@pytest.mark.parametrize(
    ("source", "request_", "id"),
    [
        ("auth", Request(user="ann"), "ann"),
        ("auth", Request(), None),
        ("auth", Request(user=""), None),
        ("auth", Request([("Remote-User", b"mallory")]), None),
        ("auth", Request([("User", b"mallory"), ("Remote_User", b"mallory")]), None),
        ("header:X-User", said("ann"), "ann"),
        ("header:x-user", said("j\xfcrgen"), "j\xfcrgen"),
        ("header:X-User", said(" \t ann "), "ann"),
        ("header:X-User", said("   "), None),
        ("header:X-User", said(""), None),
        ("header:X-User:hashed", said("  "), None),
        ("header:X-User", Request(), None),
        ("header:X-User", said("a" * 256), "a" * 256),
        ("header:X-User", said("a" * 257), HASHED),
        ("header:X-User", said("\xfc" * 128), "\xfc" * 128),
        ("header:X-User", said("\xfc" * 129), HASHED),
        ("header:X-User", said(b"\xff\xfe"), HASHED),
        ("header:X-User:hashed", said("ann"), HASHED),
        ("header:Authorization:hashed", Request([("Authorization", b"Bearer x")]), HASHED),
        ("cookie:sid:raw", cookies("sid=abc"), "abc"),
        ("cookie:sid:raw", cookies("a=1; sid=abc; b=2"), "abc"),
        ("cookie:sid:raw", cookies("a=1", "sid=abc"), "abc"),
        ("cookie:sid:raw", cookies('a=1;sid="abc" ;b'), "abc"),
        ("cookie:sid:raw", cookies("sid=first; sid=second"), "first"),
        ("cookie:sid:raw", cookies("xsid=1; SID=2; sid2=3; a=sid=4"), None),
        ("cookie:sid:raw", cookies("sid="), None),
        ("cookie:sid", cookies("sid=abc"), HASHED),
        ("cookie:sid", cookies("sid="), None),
        ("cookie:s.d:raw", cookies("sxd=1; s.d=2"), "2"),
        ("user-agent:raw", Request([("User-Agent", b"curl/8")]), "curl/8"),
        ("user-agent", Request([("User-Agent", b"curl/8")]), HASHED),
        ("user-agent", Request(), None),
        ("ip:raw", Request(), "192.0.2.7"),
        ("ip", Request(), HASHED),
        ("ip", Request([("X-Forwarded-For", b"192.0.2.1")], peer=None), None),
        ("visitor", Request([("User-Agent", b"curl/8")]), HASHED),
        ("visitor", Request(), HASHED),
        ("session:id", Request(session=NESTED), "42"),
        ("session:auth.user.id", Request(session=NESTED), "7"),
        ("session:auth.user", Request(session=NESTED), None),
        ("session:auth.user.id.more", Request(session=NESTED), None),
        ("session:list", Request(session=NESTED), None),
        ("session:empty", Request(session=NESTED), None),
        ("session:no", Request(session=NESTED), None),
        ("session:yes", Request(session=NESTED), None),
        ("session:id", Request(session="id"), None),
        ("session:id", Request(), None),
        ("session:id:hashed", Request(session=NESTED), HASHED),
        ("environ:site.user", Request(state={"site.user": "ann"}), "ann"),
        ("scope:site.user", Request(state={"site.user": 42}), "42"),
        ("environ:site.user", Request(state={"site.user": SimpleNamespace(pk=42)}), "42"),
        ("scope:site.user", Request(state={"site.user": ["ann"]}), None),
        ("environ:site.user", Request(), None),
        *DOTTED,
        (f"{HERE}:number", Request(), "42"),
        (f"{HERE}:of_view", said("ann"), "GET /at/a 192.0.2.7 ann"),
        (
            f"{HERE}:Functions.user_and_session",
            Request(user="a", session={}),
            "a {}",
        ),
        (f"{HERE}:state", Request(state={"k": "v"}), "v"),
        (f"{HERE}:state", Request(), None),
        (f"{HERE}:raising", Request(), None),
        (f"{HERE}:number:hashed", Request(), HASHED),
    ],
)
def test_each_source_finds_its_id(
    source: str, request_: Request, id: str | re.Pattern[str] | None
) -> None:
    found = ids(chain(f"user={source}"), request_)
    if isinstance(id, re.Pattern):
        assert found is not None
        assert id.fullmatch(found)
    else:
        assert found == id


def number(_: Asked) -> int:
    return 42


def of_view(view: Asked) -> str:
    assert view.header("X-USER") == view.header("x-user")
    assert view.header("x-none") is None
    return f"{view.method} {view.path} {view.peer} {view.header('X-User')}"


class Functions:
    @staticmethod
    def user_and_session(view: Asked) -> str:
        return f"{view.user} {view.session}"


def state(view: Asked) -> object:
    return view.get("k")


def raising(_: Asked) -> str:
    raise LookupError(SAID)


class HalfUser(BaseUser):
    """A user of Starlette's that names itself only as a person reads it."""

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return "Ann"


@pytest.mark.parametrize(
    ("user", "id"),
    [
        (SimpleUser("ann"), "ann"),
        (HalfUser(), "Ann"),
        (UnauthenticatedUser(), None),
        (SimpleNamespace(pk=42, is_authenticated=True, username="ann"), "42"),
        (SimpleNamespace(pk=0, is_authenticated=True), "0"),
        (SimpleNamespace(pk=7, is_authenticated=False), None),
        (SimpleNamespace(pk=None, is_authenticated=False, username=""), None),
        (SimpleNamespace(pk=uuid.UUID(int=7), is_authenticated=True), str(uuid.UUID(int=7))),
        (SimpleNamespace(id=42), "42"),
        (object(), None),
        (42, "42"),
        (True, None),
        (b"ann", "ann"),
        ("zoë".encode(), "zoë"),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_the_user_of_a_framework_is_identified(user: object, id: str | None) -> None:
    found = ask_asgi(chain("user=auth"), Request(user=user))
    assert found == (id and Identity("user", id))


@pytest.mark.parametrize(
    ("identity", "request_", "identity_found"),
    [
        ("a=header:X-User, b=ip:raw", said("ann"), ("a", "ann")),
        ("a=header:X-User, b=ip:raw", Request(), ("b", "192.0.2.7")),
        ("a=ip:raw, b=header:X-User", said("ann"), ("a", "192.0.2.7")),
        ("a=auth, b=ip:raw", Request(), ("b", "192.0.2.7")),
        ("a=auth, b=ip:raw", Request(user="ann"), ("a", "ann")),
        ("a=ip:raw, b=auth", Request(user="ann"), ("a", "192.0.2.7")),
        ("a=auth, b=header:X-User, c=session:id", Request(session=NESTED), ("c", "42")),
        ("a=session:no, b=auth, c=header:X-User", Request(user="ann"), ("b", "ann")),
        ("a=auth, a=header:X-User", said("ann"), ("a", "ann")),
    ],
)
def test_the_first_source_that_answers_wins(
    identity: str, request_: Request, identity_found: tuple[str, str]
) -> None:
    for ask in (ask_wsgi, ask_asgi):
        assert ask(chain(identity), request_) == identity_found


@pytest.mark.parametrize(
    ("source", "key", "value"),
    [
        ("environ:site.user", "site.user", "ann"),
        (f"{HERE}:state", "k", "ann"),
    ],
)
def test_values_set_by_an_inner_layer_are_read_after_it_ran(
    source: str, key: str, value: str
) -> None:
    settings = chain(f"user={source}, guest=ip:raw")
    assert ids(settings, Request(), lambda state: state.update({key: value})) == value
    assert ids(settings, Request()) == "192.0.2.7"


def test_different_values_never_share_an_id() -> None:
    raw, hashed = chain("user=header:X-User"), chain("user=header:X-User:hashed")
    values = [b"\xff\xfe", b"\xfe\xff", b"\xc3\xbf", b"\xff", b"a" * 257, b"a" * 258, b"A", b"a"]
    for settings in (raw, hashed):
        assert len({ids(settings, said(value)) for value in values}) == len(values)


def test_hashed_ids_differ_by_secret_and_do_not_hold_the_value() -> None:
    one, other = chain("user=cookie:sid"), chain("user=cookie:sid", "another secret, long enough")
    found = ids(one, cookies("sid=abc"))
    assert found == ids(one, cookies("sid=abc"))
    assert found != ids(other, cookies("sid=abc"))
    assert b"abc".hex() not in f"{found}"


class LazySession:
    """As Beaker's: looking into it loads it; what it has loaded is in its `__dict__`."""

    def __init__(self, loaded: object) -> None:
        self.__dict__["_sess"] = loaded

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the session was made to load, by {name}")

    __getitem__ = __iter__ = __contains__ = __len__ = __getattr__


@pytest.mark.parametrize(("loaded", "id"), [(None, None), ({"id": 42}, "42")])
def test_a_lazy_session_is_read_only_when_it_is_loaded(loaded: object, id: str | None) -> None:
    found = ask_wsgi(chain("user=session:id"), Request(session=LazySession(loaded)))
    assert found == (id and Identity("user", id))


def test_a_source_that_raises_finds_no_id_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = chain(f"user={HERE}:raising, guest=ip:raw")
    app = wsgi.PresenceMiddleware(lambda *_: [b""], settings=settings)
    for _ in range(3):
        environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.7"}
        app(environ, lambda *_: list[bytes]().append)
        assert environ["presence_middleware.visit"].identity == ("guest", "192.0.2.7")
    (record,) = caplog.records
    line = inspect.getsourcelines(raising)[1] + 1
    assert record.getMessage() == (
        f"PRESENCE_IDENTITY: {HERE}:raising raised LookupError at {__file__}:{line} in raising; "
        "such requests go to the next rule (logged once)"
    )
    assert SAID not in caplog.text


@pytest.mark.parametrize("wrong", [True, 1.5, b"\xff", ["ann"], {"id": 1}, object()])
def test_a_function_that_returns_no_id_is_logged_once(
    wrong: object, caplog: pytest.LogCaptureFixture
) -> None:
    # Equal settings share a recorder, and with it what is logged once.
    settings = chain(f"user={HERE}:state, guest=ip:raw", f"{SECRET} {type(wrong).__name__}")
    middleware = wsgi.PresenceMiddleware(lambda *_: [b""], settings=settings)
    for _ in range(3):
        environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.7", "k": wrong}
        middleware(environ, lambda *_: list[bytes]().append)
        assert environ["presence_middleware.visit"].identity == ("guest", "192.0.2.7")
    (record,) = caplog.records
    assert record.getMessage() == (
        f"PRESENCE_IDENTITY: {HERE}:state returned a {type(wrong).__name__}; it must return text, "
        "a whole number, a UUID or None; such requests go to the next rule (logged once)"
    )


def test_a_function_that_returns_a_coroutine_is_logged_without_a_runtime_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def awaited() -> str:
        raise AssertionError

    settings = chain(f"user={HERE}:state, guest=ip:raw", f"{SECRET} coroutine")
    assert ask_wsgi(settings, Request(state={"k": awaited()})) == ("guest", "192.0.2.7")
    assert "returned a coroutine" in caplog.text


async def asynchronous(_: Asked) -> str:
    raise AssertionError


class Asynchronous:
    async def __call__(self, _: Asked) -> str:
        raise AssertionError


asynchronous_object = Asynchronous()


@pytest.mark.parametrize("name", ["asynchronous", "asynchronous_object"])
def test_an_async_function_is_refused_when_the_app_is_wrapped(name: str) -> None:
    with pytest.raises(SettingsError, match="is an async function, but ids are read without"):
        wsgi.PresenceMiddleware(lambda *_: [b""], settings=chain(f"user={HERE}:{name}"))


def cookies_of(view: Asked) -> str:
    with pytest.raises(ValueError, match="not a valid name of a header or cookie"):
        view.cookie("a b")
    found = (view.cookie("sid"), view.cookie("sid", last=True), view.cookie("none"))
    return " ".join(map(str, found))


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((), "None None None"),
        (("sid=a%20b",), "a%20b a%20b None"),
        (('sid="first"; x=1; sid=second ',), "first second None"),
        (("sid=1", "sid=2"), "1 2 None"),
        (("xsid=1; SID=2",), "None None None"),
    ],
)
def test_a_function_reads_cookies(lines: tuple[str, ...], found: str) -> None:
    assert ids(chain(f"user={HERE}:cookies_of"), cookies(*lines)) == found


@pytest.mark.parametrize(
    ("source", "request_"),
    [
        ("auth", Request(user="42")),
        ("auth", Request(session={"_user_id": "42"})),
        ("auth:username", Request(user=of(username="42"))),
        ("header:X-User", said("42")),
        ("header:X-User:raw:checked", said("42")),
        ("cookie:sid:raw", cookies("sid=42")),
        ("session:id", Request(session=NESTED)),
        ("environ:site.user", Request(state={"site.user": 42})),
        ("scope:state.user.id", Request(state={"state": {"user": of(id=42)}})),
        (f"{HERE}:number", Request()),
    ],
)
def test_a_user_whom_the_site_hides_is_of_the_kind_that_hides(
    source: str, request_: Request
) -> None:
    """The logins of frameworks are tried on real sites: tests/servers/test_logins.py."""
    settings = chain(f"user={source}, invisible=identify:{HIDING}:is_hidden, guest=ip:raw")
    hidden = Identity("invisible", "42")
    is_checked = source.endswith("checked")
    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, request_) == (None if is_checked else hidden)


BASIC = "Basic " + base64.b64encode(b"42:password").decode()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("source", "headers"),
    [("basic", {"Authorization": BASIC}), ("header:X-User:raw:checked", {"X-User": "42"})],
)
def test_a_hidden_user_whom_the_site_checks_counts_only_if_it_accepts_the_login(
    protocol: str, source: str, headers: dict[str, str], prefix: str
) -> None:
    identity = f"user={source}, invisible=identify:{HIDING}:is_hidden, guest=ip:raw"
    settings = Settings.from_env({}, redis_url=f"memory://{prefix}", identity=identity)
    guest = ("guest", "192.0.2.7")
    for status, seen in ((200, [("invisible", "42")]), (401, [guest]), (500, []), (302, [])):
        site = PulsingSite(protocol, settings, App(status=status))
        site.recorder.people.recent.clear()
        site.recorder.reset()
        site.ask("GET", "/", headers=headers)
        assert site.seen == seen, status


def test_a_user_whom_code_names_is_hidden_as_well_and_others_are_not() -> None:
    settings = chain(f"user=auth, invisible=identify:{HIDING}:is_hidden, guest=ip:raw")

    def names(id: str, kind: str | None = None) -> Any:
        return lambda state: state["presence_middleware.visit"].identify(id, kind)

    for ask in (ask_wsgi, ask_asgi):
        assert ask(settings, Request(), names("42")) == Identity("invisible", "42")
        assert ask(settings, Request(), names("42", "user")) == Identity("invisible", "42")
        assert ask(settings, Request(), names("42", "guest")) == Identity("guest", "42")
        assert ask(settings, Request(), names("7")) == Identity("user", "7")
        assert ask(settings, Request(user="7")) == Identity("user", "7")
        assert ask(settings, Request()) == Identity("guest", "192.0.2.7")


def test_if_the_function_that_hides_fails_users_are_hidden_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = chain(f"user=auth, invisible=identify:{HIDING}:fails, guest=ip:raw")
    for _ in range(2):
        assert ask_wsgi(settings, Request(user="7")) == Identity("invisible", "7")
    assert ask_wsgi(settings, Request()) == Identity("guest", "192.0.2.7")
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"PRESENCE_IDENTITY: {HIDING}:fails raised ValueError at ")
    assert said.endswith("; such ids count as invisible (logged once)")


@pytest.mark.parametrize("argument", ["is_hidden", "a.b", ":f", "shop.presence:", "x y:f"])
def test_what_hides_must_be_a_function_with_its_module(argument: str) -> None:
    with pytest.raises(SettingsError, match="names no function; write package"):
        chain(f"user=auth, invisible=identify:{argument}")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (f"identify:{HIDING}:nobody", "must be importable before the app is wrapped"),
        (f"identify:{HIDING}:HIDDEN", "cannot be called with an id"),
        (f"identify:{HIDING}:asynchronous", "is an async function"),
        ("no.such.module:id", "must be importable before the app is wrapped: No module named 'no'"),
        ("foo:bar", "No module named 'foo'; sources are auth, .* and package.module:callable"),
        ("cooky:sid", "No module named 'cooky'; the source with the nearest name is cookie"),
        (f"{HERE}:nobody", "nobody"),
        (f"{HERE}:SECRET", "cannot be called"),
    ],
)
def test_a_missing_function_is_an_error_when_the_app_is_wrapped(source: str, problem: str) -> None:
    settings = chain(f"user={source}")
    app: Any = print
    for middleware in (wsgi.PresenceMiddleware, asgi.PresenceMiddleware):
        with pytest.raises(SettingsError, match=problem) as caught:
            middleware(app, settings=settings)
        assert source.removeprefix("identify:") in str(caught.value)
        assert "PRESENCE_IDENTITY" in str(caught.value)


@pytest.mark.parametrize(("user", "id"), [(b"ann", "ann"), ("zoë".encode(), "zoë"), (b"", None)])
@pytest.mark.parametrize("source", ["auth", "environ:k", "header:X-User"])
def test_bytes_of_a_layer_are_utf_8(source: str, user: bytes, id: str | None) -> None:
    def layer(environ: State) -> None:
        environ.update({"REMOTE_USER": user, "k": user, "HTTP_X_USER": user})

    found = ask_wsgi(chain(f"user={source}"), Request(), layer)
    assert found == (id and Identity("user", id))


@pytest.mark.parametrize("user", ["j\xfcrgen".encode().decode("latin-1"), "j\u0171rgen"])
def test_a_server_gives_its_user_as_latin_1_and_a_layer_as_text(user: str) -> None:
    """PEP 3333 decodes bytes as latin-1; a layer of the site may store real text."""
    view = WsgiRequest({"REMOTE_USER": user})
    assert view.user in {"j\xfcrgen", "j\u0171rgen"}


@pytest.mark.parametrize(
    "source", ["header:Authorization", "environ:HTTP_COOKIE", "environ:HTTP_PROXY_AUTHORIZATION"]
)
def test_credentials_cannot_be_stored_raw_under_any_spelling_of_their_name(source: str) -> None:
    with pytest.raises(SettingsError, match="is a credential: it must be hashed"):
        chain(f"user={source}")
    assert chain(f"user={source}:hashed").identity[0].hashed


def test_parsed_values_are_checked_as_their_text_is() -> None:
    good = chain("user=auth, guest=visitor")
    assert Settings(identity=good.identity, store=good.store) == Settings()
    every = chain("a=uuid:getnode, b=uuid:uuid1:hashed, c=session:x.y, d=cookie:s:raw").identity
    assert Settings(identity=every, secret=SECRET).identity == every
    with pytest.raises(SettingsError):
        Settings(identity=())
    with pytest.raises(SettingsError):
        Settings(store=())


def test_a_key_with_many_dots_is_walked_in_bounded_time() -> None:
    """Each way to split the key is tried once; eight parts allow 128 ways."""
    steps = 0

    class Deep(dict[str, object]):
        """A mapping that has everything but the end."""

    def step(value: object, name: str) -> object:
        nonlocal steps
        steps += 1
        return None if name.endswith("h") else value

    assert walk(Deep(), "a.b.c.d.e.f.g.h", step) is None
    assert steps <= 256


@pytest.mark.parametrize(
    ("chain", "users"),
    [
        ("user=cookie:uid:raw, invisible=identify, guest=visitor", {"user", "invisible"}),
        ("user=auth, invisible=identify, guest=visitor", {"user", "invisible"}),
        ("guest=visitor, invisible=identify:os.path:isabs", {"invisible"}),
        ("user=identify, guest=visitor", {"user"}),
        ("user=cookie:uid:raw, guest=visitor", {"user"}),
    ],
)
def test_a_kind_that_is_only_named_leaves_the_others_users(chain: str, users: set[str]) -> None:
    assert user_kinds(parse_chain(chain)) == users
