"""What sources are made of: reading a cookie, a key of a session, an id off what a site keeps."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..request import Request

Read = Callable[[Request], str | None]
"""A source at work: finds text in a request, or nothing."""


class Signing(NamedTuple):
    """How to verify what the site's framework signed."""

    secrets: tuple[str, ...]
    """Any of them may have signed it."""
    may_remember: bool = True
    """Whether the id that was signed may be kept in memory: not if it is to be hashed."""


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 5.6.2, also of cookie names


def token(name: str) -> str:
    """The name of a header or cookie. Raises `ValueError` for what cannot be one."""
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a header or cookie")
    return name


def cookie(name: str, *, last: bool = False) -> Read:
    """Return a reader of a cookie: of several with that name the first one, or the `last`.

    Browsers send the cookie of the most specific path first (RFC 6265 5.4), and Werkzeug takes that
    one. Starlette, Django, WebOb, web.py, Bottle and Beaker take the last one.
    """
    pair = rf'[ \t]*{re.escape(token(name))}[ \t]*=[ \t]*"?([^;"]*)'
    find = re.compile(rf"(?s:.*;)?{pair}").match if last else re.compile(rf"(?:^|;){pair}").search

    def read(request: Request) -> str | None:
        cookies = request.header("cookie")
        found = find(cookies) if cookies else None
        return found[1].rstrip() if found else None

    return read


def nested(value: object, key: str) -> object:
    """A value by its key, which may have dots in it; else dots go into nested mappings."""
    if (found := _item(value, key)) is not None or "." not in key:
        return found
    for name in key.split("."):
        value = _item(value, name)
    return value


def _item(value: Any, key: str) -> object:
    if isinstance(value, dict):
        return dict.get(value, key)  # the get of a session's own may note that it was asked
    return value.get(key) if isinstance(value, Mapping) else None


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
