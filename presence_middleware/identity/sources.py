"""Sources: the ways to read an id from a request, such as a cookie, a header or a session key.

A source is a function of the request that returns text or None. It is called when the id is needed,
which is at the latest when the response is complete.
"""

import base64
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from inspect import iscoroutine, iscoroutinefunction
from operator import attrgetter, methodcaller
from pkgutil import resolve_name
from typing import Any

from ..errors import SettingsError
from ..request import Request, token, variable
from . import sessions
from .addresses import client_address
from .ids import FindId, No, Secrets, as_id, cookie, member, session_user, user_id, walk

CREDENTIAL_HEADERS = frozenset(
    [
        *("authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token"),
        *("x-access-token", "x-forwarded-access-token", "x-csrf-token", "x-csrftoken"),
    ]
)
MAX_BASIC_LENGTH = 8192  # characters of the credentials of HTTP Basic; servers take about as many
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


class UnusableId(Exception):
    """A function of the site returned a value that is no id. The text is for the log."""


@dataclass(frozen=True)
class SourceType:
    """The meaning of a source name in `PRESENCE_IDENTITY`."""

    make: Callable[[str, Secrets], FindId]
    """Returns the source for an argument."""
    argument: str = ""
    """The name of its argument: in brackets if it is optional, empty if there is none."""
    example: str = ""
    """An argument to show in errors, if the argument is required."""
    set_by_app: bool = False
    """True if an inner layer may set the value that it reads until the response is complete."""
    shared_key: bool = False
    """True if its ids may be hashed without `PRESENCE_SECRET`."""
    client_supplied: bool = False
    """True if a client can choose the id. Then crawlers come first, and it proves no login.

    Its ids are hashed unless the rule ends with `:raw`. As a client can invent any number of them,
    also of addresses in its IPv6 network, each network has a quota.
    """
    checked: bool = False
    """True if its ids count only where the response accepts the login."""
    header: str = ""
    """The header that decides what it finds, with the client's address; empty if others may."""
    signed: str = ""
    """The name of a module that verifies its values with `PRESENCE_SESSION_SECRET`, or empty."""
    reads_nothing: bool = False
    """True if it finds no id in a request: its kind gets ids that other rules or a layer find."""
    absent: str = "no such cookie"
    """Why it finds no id, if it does not say."""
    extra: str = ""
    """The name of the extra of this package that installs the module `signed`."""


def auth(attribute: str, _: Secrets) -> FindId:
    """Return a reader of the logged-in user, as set by the server, a layer or a loaded session.

    With an `attribute` such as `username`, the id is that attribute of the user object. Without
    such an object, no id is found: the user may be text, a number, or only an id in a session.
    """
    if attribute:
        return lambda request: as_id(walk(request.user, attribute, member))

    def read(request: Request) -> str | None:
        user = user_id(request.user)
        return user if isinstance(user, No) else user or session_user(request.session)

    return read


def find_nothing(_: Request) -> None:
    """Return no id. The rule adds a kind for `Visit.identify`, or for ids that others find."""


def basic_user(request: Request) -> str | None:
    """Return the user of HTTP Basic (RFC 7617). The site itself checks the password.

    A client can claim any name. A status from 200 to 299 means that the site accepted it. So every
    counted page must check the password before it answers with such a status. On a page that does
    not, a client counts as the user that it claims to be.
    """
    scheme, _, credentials = (request.header("authorization") or "").partition(" ")
    if scheme.lower() != "basic" or len(credentials) > MAX_BASIC_LENGTH:
        return None
    try:
        user, colon, _ = base64.b64decode(credentials.strip(), validate=True).partition(b":")
    except ValueError:
        return None
    try:
        name = user.decode()
    except UnicodeDecodeError:
        name = user.decode("latin-1")
    # Ids are stripped, and " ann" must not count as "ann".
    return name if colon and not _CONTROL.search(name) and name == name.strip() else None


def header(name: str, _: Secrets) -> FindId:
    """Return a reader of a header that a front end sets and removes from incoming requests."""
    return methodcaller("header", token(name).lower())


def visitor(request: Request) -> str:
    """Return the address and the User-Agent, which distinguish guests."""
    return f"{client_address(request)}\n{request.user_agent or ''}"


def session(key: str, _: Secrets) -> FindId:
    """Return a reader of a key of the session that the framework has loaded."""
    return lambda request: as_id(walk(request.session, key))


def state(key: str, _: Secrets) -> FindId:
    """Return a reader of a key of the environ or scope that a server or another layer sets.

    A dotted key leads into mappings and to public attributes of objects. Nothing is called.
    """

    return lambda request: user_id(walk(request.state, key, member))


def environ(key: str, secrets: Secrets) -> FindId:
    """Return a reader of a key of the environ, as `state` does; what a server set is UTF-8."""
    read = state(key, secrets)
    return lambda request: variable(read(request) or "")


def function(path: str, __: Secrets) -> FindId:
    """Return a reader that calls a function of the site, `package.module:callable`.

    Raises `SettingsError` if it cannot be imported or cannot be called with a request.
    """
    call = site_function(path, "a request")

    def read(request: Request) -> str | None:
        value = call(request)
        id = as_id(value)
        if id is None and value is not None:
            if iscoroutine(value):
                value.close()  # or Python warns that it was never awaited
            raise UnusableId(
                f"returned a {type(value).__name__}; it must return text, a whole number, a UUID "
                "or None"
            )
        return id

    return read


def site_function(path: str, argument: str) -> Callable[[Any], Any]:
    """Return a function of the site, `package.module:callable`, that takes one `argument`.

    Raises `SettingsError` if it cannot be imported or cannot be called.
    """
    try:
        call = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        near = nearest_source(path.partition(":")[0])
        remedy = f"the source with the nearest name is {near}" if near else ACCEPTED
        problem = f"must be importable before the app is wrapped: {error}; {remedy}"
        raise SettingsError(f"PRESENCE_IDENTITY: {path} {problem}") from error
    if not callable(call):
        problem = f"cannot be called with {argument}"
    elif iscoroutinefunction(call) or iscoroutinefunction(type(call).__call__):
        problem = (
            "is an async function, but ids are read without awaiting: make it a plain function, "
            "or call identify() of the visit in a handler"
        )
    else:
        return call  # type: ignore[no-any-return]
    raise SettingsError(f"PRESENCE_IDENTITY: {path} {problem}")


def check_module(path: str) -> None:
    """Raise `SettingsError` if `package.module:callable` is in no module of this Python.

    The site's code is not imported.
    """
    name = path.partition(":")[0].partition(".")[0]
    if find_spec(name) is None:
        raise SettingsError(
            f"PRESENCE_IDENTITY: {path}: there is neither a source nor a module {name!r}; "
            f"{ACCEPTED}"
        )


def nearest_source(name: str) -> str | None:
    """Return the name of a source that is most similar to `name`, or None."""
    return next(iter(difflib.get_close_matches(name.replace("_", "-"), SOURCES, 1)), None)


_by_app = partial(SourceType, set_by_app=True)
_in_cookie = partial(SourceType, header="cookie")
_flask = partial(_in_cookie, signed="itsdangerous", extra="flask")
_chosen = partial(SourceType, client_supplied=True)
_agent = partial(_chosen, header="user-agent", shared_key=True, absent="no User-Agent")
_state = partial(_by_app, argument="KEY", absent="no such key")
SOURCES: Mapping[str, SourceType] = {
    "auth": _by_app(auth, "[ATTRIBUTE]", absent="nobody is logged in"),
    "identify": _by_app(
        lambda *_: find_nothing,
        "[FUNCTION]",
        header="user-agent",  # it reads none, and what other rules find in it stays remembered
        reads_nothing=True,
        absent="it reads nothing: the app names the user with visit.identify",
    ),
    "header": SourceType(header, "NAME", "X-User", absent="no such header"),
    "basic": SourceType(
        lambda *_: basic_user, checked=True, header="authorization", absent="no user of HTTP Basic"
    ),
    "session": _by_app(session, "KEY", "user_id", absent="the app has loaded no session"),
    "flask-session": _flask(sessions.flask_session, "KEY[@COOKIE]", "_user_id"),
    "starlette-session": _flask(
        sessions.starlette_session, "KEY[@COOKIE]", "user", extra="starlette"
    ),
    "pyramid-session": _in_cookie(
        sessions.pyramid_session, "KEY[@COOKIE]", "auth.userid", signed="webob", extra="pyramid"
    ),
    "auth-tkt": _in_cookie(sessions.auth_tkt, "[COOKIE]", signed="pyramid", extra="pyramid"),
    "bearer": SourceType(
        sessions.bearer, "CLAIM[@COOKIE]", "sub", signed="jwt", extra="jwt", absent="no such token"
    ),
    "signed": _flask(sessions.signed_cookie, "KEY@COOKIE[:SALT]", "a.id@ds_actor:actor"),
    "django-session": _chosen(
        lambda name, _: cookie(name or "sessionid", last=True), "[COOKIE]", header="cookie"
    ),
    "cookie": _chosen(lambda name, _: cookie(name), "NAME", "sessionid", header="cookie"),
    "user-agent": _agent(lambda *_: attrgetter("user_agent")),
    # It reads none, either.
    "ip": _chosen(lambda *_: client_address, header="user-agent", absent="no address"),
    "visitor": _agent(lambda *_: visitor),
    "environ": _state(environ, example="site.user"),
    "scope": _state(state, example="state.user.id"),
}
FUNCTION = _by_app(function, "callable", absent="it returned no id")
ACCEPTED = f"sources are {', '.join(SOURCES)} and package.module:callable"
"""The sources that a rule may have, for error messages."""
