"""The ways to read an id off a request: a cookie, a header, a session key …

A source is a function of the view that returns text or None. It is read at arrival, or late when
an inner layer fills in what it reads.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter, methodcaller
from typing import Any

from ..errors import SettingsError
from .view import View

Read = Callable[[View], str | None]

CREDENTIAL_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token", "x-csrf-token"}
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 5.6.2, also of cookie names


@dataclass(frozen=True)
class SourceType:
    """What a source name in `PRESENCE_IDENTITY` stands for."""

    make: Callable[[str], Read]
    argument: str
    """What its argument is called in an error message; empty if it takes none."""
    late: bool = False
    hashed: bool = False
    """Whether what it reads is hashed unless the site says `:raw`."""
    shared_key: bool = False
    """Whether it may be hashed without `PRESENCE_SECRET`."""


def auth(_: str) -> Read:
    """Whom the server or an inner layer logged in."""
    return lambda view: user_id(view.user)


def user_id(user: object) -> str | None:
    """The id of what frameworks call a user: text, a number, or an object that is logged in."""
    if user is None or isinstance(user, (str, int)):
        return as_id(user)
    if not getattr(user, "is_authenticated", True):
        return None
    return next(filter(None, (as_id(_attribute(user, name)) for name in _USER_NAMES)), None)


_USER_NAMES = ("identity", "pk", "id", "username", "display_name")


def _attribute(user: object, name: str) -> object:
    try:
        return getattr(user, name, None)
    except NotImplementedError:  # Starlette's BaseUser has names that it leaves to the site
        return None


def as_id(value: object) -> str | None:
    """Text or a number as an id; anything else is nobody."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _as_text(value)


def _as_text(value: object) -> str | None:
    # uuid.UUID and its like name themselves; a None, a mapping or a list is no id.
    return str(value) if type(value).__name__ in {"UUID", "ObjectId", "ULID"} else None


def cookie(name: str) -> Read:
    """The first cookie of that name: browsers send the most specific path first (RFC 6265 5.4)."""
    find = re.compile(rf'(?:^|;)[ \t]*{re.escape(_token(name))}[ \t]*=[ \t]*"?([^;"]*)').search

    def read(view: View) -> str | None:
        cookies = view.header("cookie")
        found = find(cookies) if cookies else None
        return found[1].rstrip() if found else None

    return read


def header(name: str) -> Read:
    """A header that a front end sets, and that it does not let through from outside."""
    return methodcaller("header", _token(name).lower())


def user_agent(_: str) -> Read:
    """The User-Agent: what the classic recipe counts."""
    return methodcaller("header", "user-agent")


def ip(_: str) -> Read:
    """The client's address."""
    return attrgetter("peer")


def visitor(_: str) -> Read:
    """Address and User-Agent: a guest without a name."""
    return lambda view: f"{view.peer}\n{view.header('user-agent') or ''}"


def session(path: str) -> Read:
    """A value of the session, by key; dots go into nested mappings."""
    names = path.split(".")

    def read(view: View) -> str | None:
        value: Any = view.session
        for name in names:
            if not isinstance(value, Mapping):
                return None
            value = value.get(name)
        return as_id(value)

    return read


def state(key: str) -> Read:
    """What a server or another middleware put into the environ or scope."""
    return lambda view: user_id(view.get(key))


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
    return lambda view: as_id(call(view))


def _token(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a header or cookie")
    return name


SOURCES: Mapping[str, SourceType] = {
    "auth": SourceType(auth, "", late=True),
    "header": SourceType(header, "NAME"),
    "session": SourceType(session, "KEY", late=True),
    "cookie": SourceType(cookie, "NAME", hashed=True),
    "user-agent": SourceType(user_agent, "", hashed=True, shared_key=True),
    "ip": SourceType(ip, "", hashed=True),
    "visitor": SourceType(visitor, "", hashed=True, shared_key=True),
    "environ": SourceType(state, "KEY", late=True),
    "scope": SourceType(state, "KEY", late=True),
}
FUNCTION = SourceType(function, "callable", late=True)
