"""Identity sources and headers: what is read of a request is the same over WSGI and ASGI."""

import inspect
import re
import string
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from starlette.authentication import BaseUser, SimpleUser, UnauthenticatedUser
from starlette.datastructures import Headers

from presence_middleware import Identity, Settings, SettingsError, asgi, wsgi
from presence_middleware import Request as Asked
from presence_middleware.request import AsgiRequest, WsgiRequest
from tests.support.asking import Inner, Request, ask_asgi, ask_wsgi, ids, names, nothing

HASHED = re.compile(r"[0-9a-f]{32}")
HERE = "tests.unit.test_identity"
HIDING = "tests.support.hiding"
SECRET = "a secret of the test's own"
SAID = "it may be what a client said"


def chain(identity: str, secret: str = SECRET) -> Settings:
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


class Displayed(BaseUser):
    """A user without an `identity`, which Starlette leaves to the site."""

    is_authenticated, display_name = True, "ann"


class AccountId(uuid.UUID):
    """An id of a type that a site has made of a usual one."""


def of(**attributes: object) -> SimpleNamespace:
    return SimpleNamespace(**attributes)


def state_of(**state: object) -> Request:
    return Request(state=state)


SITE_USER: dict[str, object] = {"site.user": {"id": 2}}
# By source: requests, and the id that each has.
FOUND: dict[str, list[tuple[Request, str | re.Pattern[str] | None]]] = {
    "auth": [
        *((Request(user="ann"), "ann"), (Request(), None), (Request(user=""), None)),
        *((Request(user=SimpleUser("ann")), "ann"), (Request(user=UnauthenticatedUser()), None)),
        (Request(user=Displayed()), "ann"),
        (Request(user=of(pk=42, is_authenticated=True, username="ann")), "42"),
        (Request(user=of(pk=7, is_authenticated=False)), None),
        (Request(user=of(pk=None, is_authenticated=False, username="")), None),
        (Request(user=of(pk=uuid.UUID(int=7), is_authenticated=True)), str(uuid.UUID(int=7))),
        (Request(user=of(id=AccountId(int=7))), str(uuid.UUID(int=7))),
        *((Request(user=object()), None), (Request(user=42), "42"), (Request(user=True), None)),
        (Request([("User", b"mallory"), ("Remote_User", b"mallory")]), None),
        *((Request(session={"user": user}), id) for user, id in (({"id": 42}, "42"), ({}, None))),
        (Request(session={"user": {}, "user_id": "7"}), "7"),
    ],
    "header:x-user": [
        *((said("j\xfcrgen"), "j\xfcrgen"), (said(" \t ann "), "ann"), (said("   "), None)),
        *((Request(), None), (said(b"\xff\xfe"), HASHED)),
        *((said("\xfc" * 128), "\xfc" * 128), (said("\xfc" * 129), HASHED)),
    ],
    "header:Authorization:hashed": [
        (Request([("Authorization", b"Bearer x")]), HASHED),
        (Request([("Authorization", b" \t ")]), None),
    ],
    "cookie:sid:raw": [
        *((cookies("a=1; sid=abc; b=2"), "abc"), (cookies("a=1", "sid=abc"), "abc")),
        *((cookies('a=1;sid="abc" ;b'), "abc"), (cookies("sid=first; sid=second"), "first")),
        *((cookies("xsid=1; SID=2; sid2=3; a=sid=4"), None), (cookies("sid="), None)),
    ],
    "cookie:sid": [(cookies("sid=abc"), HASHED), (cookies("sid="), None)],
    "cookie:s.d:raw": [(cookies("sxd=1; s.d=2"), "2")],
    "user-agent": [(Request([("User-Agent", b"curl/8")]), HASHED), (Request(), None)],
    "ip:raw": [(Request(), "192.0.2.7")],
    "ip": [
        (Request(), HASHED),
        (Request([("X-Forwarded-For", b"192.0.2.1")], peer=None), None),
    ],
    "visitor": [(Request([("User-Agent", b"curl/8")]), HASHED), (Request(), HASHED)],
    "session:id": [(Request(session=NESTED), "42"), (Request(session="id"), None)],
    "session:auth.user.id": [(Request(session=NESTED), "7")],
    **{
        f"session:{key}": [(Request(session=NESTED), None)]
        for key in ("auth.user", "auth.user.id.more", "list", "empty", "no", "yes")
    },
    "session:a.b.c": [
        (Request(session={"a.b": {"c": 1}, "a": {"b": {"c": 2}}}), "1"),
        (Request(session={"a": {"b.c": 1}}), "1"),
    ],
    "environ:site.user": [
        *((Request(state={"site.user": "ann"}), "ann"), (Request(), None)),
        (Request(state={"site.user": of(pk=42)}), "42"),
    ],
    "scope:site.user": [
        *((Request(state={"site.user": 42}), "42"), (Request(state={"site.user": ["ann"]}), None)),
    ],
    "environ:site.user.id": [
        (Request(state=SITE_USER), "2"),
        (Request(state={"site.user.id": 1, **SITE_USER}), "1"),
        (Request(state={"site.user": {"x": 1}, "site": of(user=of(id=3))}), "3"),
    ],
    "environ:repoze.who.identity.repoze.who.userid": [
        (Request(state={"repoze.who.identity": {"repoze.who.userid": "ann"}}), "ann")
    ],
    "scope:user.name": [
        *((state_of(user=of(name="ann")), "ann"), (state_of(user={"name": "ann"}), "ann")),
        (state_of(user=of(name="ann", is_authenticated=True)), "ann"),
        (state_of(user=of(name="ann", is_authenticated=False)), None),
        *((state_of(user="ann"), None), (Request(), None)),
    ],
    "scope:state.user.email": [(state_of(state={"user": Property()}), Property.email)],
    **{
        f"scope:a.{name}": [(state_of(a=Property()), None)]
        for name in ("method", "__class__.__name__", "broken")
    },
    "scope:a._secret": [(state_of(a=Property()), None), (state_of(a={"_secret": "key"}), "key")],
    "scope:a.b": [(state_of(a={"b": of(pk=7)}), "7"), (state_of(a={"b": ["x"]}), None)],
    "auth:username": [
        (Request(user=of(pk=42, username="ann")), "ann"),
        *((Request(user=SimpleUser("ann")), "ann"), (Request(user=UnauthenticatedUser()), None)),
        *((Request(user="ann"), None), (Request(user=of(pk=42)), None), (Request(), None)),
        (Request(session={"user_id": 7}), None),
    ],
    "auth:profile.nick": [(Request(user=of(profile={"nick": "ann"})), "ann")],
    f"{HERE}:number": [(Request(), "42")],
    f"{HERE}:of_view": [(said("ann"), "GET /at/a 192.0.2.7 ann")],
    f"{HERE}:Functions.user_and_session": [(Request(user="a", session={}), "a {}")],
    f"{HERE}:state": [(state_of(k="v"), "v"), (Request(), None)],
    f"{HERE}:raising": [(Request(), None)],
    f"{HERE}:cookies_of": [
        *((Request(), "None None None"), (cookies("xsid=1; SID=2"), "None None None")),
        *((cookies("sid=a%20b"), "a%20b a%20b None"), (cookies("sid=1", "sid=2"), "1 2 None")),
        (cookies('sid="first"; x=1; sid=second '), "first second None"),
        (cookies('sid={"a":"b"} ; x=1'), '{"a":"b"} {"a":"b"} None'),
    ],
}


@pytest.mark.parametrize("source", FOUND)
def test_each_source_finds_its_id(source: str) -> None:
    for request, id in FOUND[source]:
        found = ids(chain(f"user={source}"), request)
        is_hash = found is not None and HASHED.fullmatch(found) is not None
        assert is_hash if isinstance(id, re.Pattern) else found == id, request


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


def cookies_of(view: Asked) -> str:
    with pytest.raises(ValueError, match="not a valid name of a header or cookie"):
        view.cookie("a b")
    found = (view.cookie("sid"), view.cookie("sid", last=True), view.cookie("none"))
    return " ".join(map(str, found))


def state(view: Asked) -> object:
    return view.get("k")


def raising(_: Asked) -> str:
    raise LookupError(SAID)


def test_hashed_ids_differ_by_value_and_secret_and_do_not_hold_the_value() -> None:
    values = [b"\xff\xfe", b"\xfe\xff", b"\xc3\xbf", b"\xff", b"a" * 257, b"a" * 258, b"A", b"a"]
    for source in ("header:X-User", "header:X-User:hashed"):
        assert len({ids(chain(f"user={source}"), said(value)) for value in values}) == len(values)
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


async def awaited() -> str:
    raise AssertionError


RETURNED = "returned a {}; it must return text, a whole number, a UUID or None"


@pytest.mark.parametrize(
    ("function", "value", "problem"),
    [
        ("raising", lambda: None, f"raised LookupError at {__file__}:LINE in raising"),
        ("state", lambda: True, RETURNED.format("bool")),
        ("state", lambda: 1.5, RETURNED.format("float")),
        ("state", lambda: b"\xff", RETURNED.format("bytes")),
        ("state", lambda: ["ann"], RETURNED.format("list")),
        ("state", awaited, RETURNED.format("coroutine")),  # and no runtime warning
    ],
)
def test_a_function_that_finds_no_id_is_logged_once(
    function: str, value: Callable[[], object], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Equal settings share a recorder, and with it what is logged once.
    settings = chain(f"user={HERE}:{function}, guest=ip:raw", f"{SECRET}, for {problem}")
    for _ in range(3):
        assert ask_wsgi(settings, state_of(k=value())) == ("guest", "192.0.2.7")
    (record,) = caplog.records
    problem = problem.replace("LINE", str(inspect.getsourcelines(raising)[1] + 1))
    assert record.getMessage() == (
        f"PRESENCE_IDENTITY: {HERE}:{function} {problem}; "
        "such requests go to the next rule (logged once)"
    )


async def asynchronous(_: Asked) -> str:
    raise AssertionError


HIDDEN, ANYBODY = Identity("invisible", "42"), Identity("user", "7")
HIDES = f"invisible=identify:{HIDING}:is_hidden, guest=ip:raw"
# The source of users, a request, what a layer does, and who it is.
OF_HIDDEN: list[tuple[str, Request, Inner, Identity | None]] = [
    ("auth", Request(user="42"), nothing, HIDDEN),
    ("auth", Request(session={"_user_id": "42"}), nothing, HIDDEN),
    ("header:X-User:raw:checked", said("42"), nothing, None),
    ("session:id", Request(session=NESTED), nothing, HIDDEN),
    ("environ:site.user", Request(state={"site.user": 42}), nothing, HIDDEN),
    (f"{HERE}:number", Request(), nothing, HIDDEN),
    ("auth", Request(), names("42"), HIDDEN),
    ("auth", Request(), names("42", "user"), HIDDEN),
    ("auth", Request(), names("42", "guest"), Identity("guest", "42")),
    ("auth", Request(), names("7"), ANYBODY),
    ("auth", Request(user="7"), nothing, ANYBODY),
    ("header:X-Other, member=header:X-User", said("42"), nothing, HIDDEN),
    ("cookie:sid, member=header:X-User", Request(), names("42"), HIDDEN),
    ("auth", Request(), nothing, Identity("guest", "192.0.2.7")),
]


@pytest.mark.parametrize(("source", "request_", "code", "who"), OF_HIDDEN)
def test_a_user_whom_the_site_hides_is_of_the_kind_that_hides_and_others_are_not(
    source: str, request_: Request, code: Inner, who: Identity | None
) -> None:
    """The logins of frameworks are tried on real sites: tests/servers/test_logins.py."""
    settings = chain(f"user={source}, {HIDES}")
    assert ask_wsgi(settings, request_, code) == ask_asgi(settings, request_, code) == who


def test_if_a_function_that_hides_fails_users_are_hidden(caplog: pytest.LogCaptureFixture) -> None:
    settings = chain(f"user=auth, invisible=identify:{HIDING}:fails, guest=ip:raw")
    for _ in range(2):
        assert ask_wsgi(settings, Request(user="7")) == Identity("invisible", "7")
    assert ask_wsgi(settings, Request()) == Identity("guest", "192.0.2.7")
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"PRESENCE_IDENTITY: {HIDING}:fails raised ValueError at ")
    assert said.endswith("; such ids count as invisible (logged once)")


MISSING = {
    f"identify:{HIDING}:nobody": "must be importable before the app is wrapped",
    f"identify:{HIDING}:HIDDEN": "cannot be called with an id",
    f"identify:{HIDING}:asynchronous": "is an async function",
    "no.such.module:id": "must be importable before the app is wrapped: No module named 'no'",
    "foo:bar": "No module named 'foo'; sources are auth, .* and package.module:callable",
    "cooky:sid": "No module named 'cooky'; the source with the nearest name is cookie",
    f"{HERE}:nobody": "nobody",
    f"{HERE}:SECRET": "cannot be called",
    f"{HERE}:asynchronous": "is an async function, but ids are read without",
}


@pytest.mark.parametrize("middleware", [wsgi.PresenceMiddleware, asgi.PresenceMiddleware])
@pytest.mark.parametrize("source", MISSING)
def test_a_missing_function_is_an_error_as_the_app_is_wrapped(source: str, middleware: Any) -> None:
    with pytest.raises(SettingsError, match=MISSING[source]) as caught:
        middleware(print, settings=chain(f"user={source}"))
    assert source.removeprefix("identify:") in str(caught.value)
    assert "PRESENCE_IDENTITY" in str(caught.value)


@pytest.mark.parametrize(("user", "id"), [(b"ann", "ann"), ("zoë".encode(), "zoë"), (b"", None)])
@pytest.mark.parametrize("source", ["auth", "environ:k", "header:X-User"])
def test_bytes_of_a_layer_are_utf_8(source: str, user: bytes, id: str | None) -> None:
    given = {"REMOTE_USER": user, "k": user, "HTTP_X_USER": user}
    found = ask_wsgi(chain(f"user={source}"), Request(), lambda state: state.update(given))
    assert found == (id and Identity("user", id))


def test_no_client_can_choose_a_value_with_the_hash_of_another_source() -> None:
    of_client = ("cookie:device", "cookie:other", "header:X-Api-Key", "environ:HTTP_AUTHORIZATION")
    hashed = [f"user={source}:hashed" for source in ("auth", "header:X-User", *of_client, "ip")]
    value = "192.0.2.7"
    keys = [Request([(name, value.encode())]) for name in ("X-Api-Key", "Authorization")]
    requests = [said(value), cookies(f"device={value}"), cookies(f"other={value}"), *keys]
    settings = chain(", ".join(hashed))
    logins = Request(user=value), Request(peer=value)
    found = [ask_wsgi(settings, each) for each in (*requests, *logins)]
    assert len({each and each.id for each in found}) == 7


def test_a_server_gives_its_user_as_latin_1_and_a_layer_as_text() -> None:
    """PEP 3333 decodes bytes as latin-1; a layer of the site may store real text."""
    of_server = "j\xfcrgen".encode().decode("latin-1")
    for user, read in (
        (of_server, "j\xfcrgen"),
        *((text, text) for text in ("j\u0171r", "j\xfcr")),
    ):
        assert WsgiRequest({"REMOTE_USER": user}).user == read
        for source in ("auth", "environ:REMOTE_USER", "environ:SSL_CLIENT_S_DN_CN"):
            asked = Request(state={"REMOTE_USER": user, "SSL_CLIENT_S_DN_CN": user})
            assert ask_wsgi(chain(f"user={source}"), asked) == Identity("user", read), source


def test_parsed_values_are_checked_as_their_text_is() -> None:
    good = chain("user=auth, guest=visitor")
    assert Settings(identity=good.identity, store=good.store) == Settings()
    every = chain("a=uuid:getnode, b=uuid:uuid1:hashed, c=session:x.y, d=cookie:s:raw").identity
    assert Settings(identity=every, secret=SECRET).identity == every
    with pytest.raises(SettingsError):
        Settings(identity=())
    with pytest.raises(SettingsError):
        Settings(store=())


# Headers, read by this package and by Starlette.


# An underscore is none of a name that a front end lets through: WSGI takes `X_User` for `X-User`.
field_names = st.one_of(
    st.sampled_from(["Cookie", "X-User", "user-agent", "FORWARDED", "1"]),
    st.text(string.ascii_letters + string.digits + "-", min_size=1, max_size=8),
).filter(lambda name: name.lower() not in {"content-type", "content-length"})
field_values = st.binary(max_size=12).map(lambda value: re.sub(rb"[\r\n\0]", b"", value))


@examples(max_examples=200)
@given(st.lists(st.tuples(field_names, field_values), max_size=5), field_names, st.randoms())
def test_headers_are_read_as_starlette_reads_them(
    fields: list[tuple[str, bytes]], absent: str, random: Any
) -> None:
    raw = [(name.encode(), value) for name, value in fields]
    environ, scope = WsgiRequest(Request(fields).environ()), AsgiRequest({"headers": raw})
    starlette = Headers(raw=[(name.lower(), value) for name, value in raw])
    for name in [*(name for name, _ in fields), absent]:
        asked = "".join(random.choice((c.lower(), c.upper())) for c in name)
        joint = b"; " if name.lower() == "cookie" else b","
        said = [value.encode("latin-1") for value in starlette.getlist(name)]
        expected = joint.join(said).decode("utf-8", "surrogateescape") if said else None
        assert environ.header(asked) == scope.header(asked) == expected


def test_the_two_headers_that_wsgi_keeps_elsewhere_are_headers_as_well() -> None:
    read = WsgiRequest({"CONTENT_TYPE": "text/plain", "CONTENT_LENGTH": "5"}).header
    assert (read("Content-Type"), read("content-length")) == ("text/plain", "5")
