"""The ways to read an id off a request: a cookie, a header, a session key …

A source is a function of the request that returns text or None. It is read at arrival, or late when
an inner layer fills in what it reads.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter, methodcaller
from typing import Any

from ..errors import SettingsError
from ..request import Request
from . import reading, sessions
from .addresses import client_address, normalize_address
from .reading import Read, Signing, as_id, nested, token, user_id

CREDENTIAL_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token", "x-csrf-token"}
)
LONGEST_BASIC = 8192  # characters of the credentials of HTTP Basic; servers take about as many
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
# Where frameworks keep who is logged in: Flask-Login, Django, Pyramid, and sites by themselves.
SESSION_USERS = ("_user_id", "_auth_user_id", "auth.userid", "user_id")


@dataclass(frozen=True)
class SourceType:
    """What a source name in `PRESENCE_IDENTITY` stands for."""

    make: Callable[[str, Signing], Read]
    argument: str = ""
    """What its argument is called; in brackets if it may be left out, empty if there is none."""
    late: bool = False
    hashed: bool = False
    """Whether what it reads is hashed unless the site says `:raw`."""
    shared_key: bool = False
    """Whether it may be hashed without `PRESENCE_SECRET`."""
    claimed: bool = False
    """Whether a client can make it up: then crawlers come before it, and it shows no login."""
    minted: bool = False
    """Whether a client can make up any number of them from one address."""
    checked: bool = False
    """Whether the site checks it: then it counts only where the response does not refuse it."""
    signed: bool = False
    """Whether it is verified with `PRESENCE_SESSION_SECRET`."""
    module: str = ""
    """What must be importable for it."""
    extra: str = ""
    """Which extra of this package brings that."""

    def written(self, name: str) -> str:
        """How it is written in a chain, such as `cookie:NAME`."""
        if self.argument.startswith("["):
            return f"{name}[:{self.argument[1:]}"
        return f"{name}:{self.argument}" if self.argument else name


def auth(_: str, __: Signing) -> Read:
    """Whom the server, an inner layer, or a session that is loaded has logged in."""

    def read(request: Request) -> str | None:
        user = request.user
        if user is not None and (id := user_id(user)):
            return id
        session = request.session
        return _session_user(session) if session else None

    return read


def _session_user(session: Mapping[str, Any]) -> str | None:
    return next(filter(None, (as_id(nested(session, key)) for key in SESSION_USERS)), None)


def basic(_: str, __: Signing) -> Read:
    """Return a reader of the user of HTTP Basic (RFC 7617), whose password the site checks itself.

    A client can claim any name, and only the response shows what the site thinks of it. So this
    source is for sites where every page that is counted checks the password, those that are not
    found included. On a page that does not, whoever sends a name counts as that user.
    """
    return _basic_user


def _basic_user(request: Request) -> str | None:
    scheme, _, credentials = (request.header("authorization") or "").partition(" ")
    if scheme.lower() != "basic" or len(credentials) > LONGEST_BASIC:
        return None
    try:
        user, colon, _ = base64.b64decode(credentials.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):  # the latter of text that is not ASCII
        return None
    if not colon:
        return None
    try:
        name = user.decode()
    except UnicodeDecodeError:
        name = user.decode("latin-1")
    # An id loses the blanks around it, and " ann" must not become "ann".
    return None if _CONTROL.search(name) or name != name.strip() else name


def cookie(name: str, _: Signing) -> Read:
    """A cookie of the site's own."""
    return reading.cookie(name)


def django_session(name: str, _: Signing) -> Read:
    """The key of a Django session: a login's as well as a guest's, and opaque."""
    return reading.cookie(name or "sessionid", last=True)


def header(name: str, _: Signing) -> Read:
    """A header that a front end sets, and that it does not let through from outside."""
    return methodcaller("header", token(name).lower())


def user_agent(_: str, __: Signing) -> Read:
    """The User-Agent: what the classic recipe counts."""
    return attrgetter("user_agent")


def ip(_: str, __: Signing) -> Read:
    """The client's address, through trusted proxies only."""
    return client_address


def visitor(_: str, __: Signing) -> Read:
    """Address and User-Agent: a guest without a name."""

    def read(request: Request) -> str:
        # As `client_address` does, without the call: most requests come here.
        address = request.address
        if isinstance(address, str) and ":" in address:
            address = normalize_address(address)
        return f"{address}\n{request.user_agent or ''}"

    return read


def session(key: str, _: Signing) -> Read:
    """A value of the session that the framework has loaded, by key."""
    return lambda request: as_id(nested(request.session, key))


def state(key: str, _: Signing) -> Read:
    """What a server or another middleware put into the environ or scope."""
    return lambda request: user_id(request.get(key))


def function(path: str) -> Read:
    """A function of the site's own, `package.module:callable`; it returns an id or None."""
    module, _, name = path.partition(":")
    try:
        call: Any = import_module(module)
        for part in name.split("."):
            call = getattr(call, part)
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"PRESENCE_IDENTITY: {path}: {error}; it must be there before the app is wrapped"
        ) from error
    if not callable(call):
        raise SettingsError(f"PRESENCE_IDENTITY: {path} cannot be called with a request")
    return lambda request: as_id(call(request))


SOURCES: Mapping[str, SourceType] = {
    "auth": SourceType(auth, late=True),
    "header": SourceType(header, "NAME"),
    "basic": SourceType(basic, checked=True),
    "session": SourceType(session, "KEY", late=True),
    "flask-session": SourceType(
        sessions.flask_session, "KEY[@COOKIE]", signed=True, module="itsdangerous", extra="flask"
    ),
    "starlette-session": SourceType(
        sessions.starlette_session,
        "KEY[@COOKIE]",
        signed=True,
        module="itsdangerous",
        extra="starlette",
    ),
    "pyramid-session": SourceType(
        sessions.pyramid_session, "KEY[@COOKIE]", signed=True, module="webob", extra="pyramid"
    ),
    "auth-tkt": SourceType(
        sessions.auth_tkt, "[COOKIE]", signed=True, module="pyramid", extra="pyramid"
    ),
    "bearer": SourceType(sessions.bearer, "CLAIM", signed=True, module="jwt", extra="jwt"),
    "django-session": SourceType(
        django_session, "[COOKIE]", hashed=True, claimed=True, minted=True
    ),
    "cookie": SourceType(cookie, "NAME", hashed=True, claimed=True, minted=True),
    "user-agent": SourceType(user_agent, hashed=True, shared_key=True, claimed=True, minted=True),
    "ip": SourceType(ip, hashed=True, claimed=True),
    "visitor": SourceType(visitor, hashed=True, shared_key=True, claimed=True, minted=True),
    "environ": SourceType(state, "KEY", late=True),
    "scope": SourceType(state, "KEY", late=True),
}
FUNCTION = SourceType(lambda path, _: function(path), "callable", late=True)
