"""Ids: find them in the values that requests lead to, and make them as they are stored.

A value that must not be stored, such as a cookie, an address or a User-Agent, is hashed with a key:
16 bytes of BLAKE2b, as 32 hexadecimal digits. A state with the key in it is prepared once and
copied for each value, which takes two thirds of the time of a new state.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from numbers import Number
from operator import methodcaller
from typing import Any
from uuid import UUID

from ..errors import QueryError
from ..request import Request, token

SIZE = 16
MAX_ID_BYTES = 256  # bytes
MAX_VALUE_LENGTH = 4096  # characters of a value that are hashed, which bounds the time
MAX_QUOTED = 100  # characters of an invalid argument in an error

Id = str | int | bytes | UUID
"""An id as the site's code passes it."""

PendingId = int
"""The digest of a value, as a number. `IdentityResolver.resolve_id` makes the id from it, with the
key of the moment. It is compared with ids, which for bytes is an error under `python -bb`.
"""

FoundId = str | PendingId

Who = tuple[str, FoundId]
"""A kind and an id."""

FindId = Callable[[Request], str | None]
"""A source, ready to use: returns the text that it finds in a request; else a `No`, or None."""

Secrets = tuple[str, ...]
"""`PRESENCE_SESSION_SECRET`: the keys with which the site's framework signs."""

Step = Callable[[object, str], object]
"""Returns what is below a value under a name, or None."""

MOST_PARTS = 8
"""The number of parts into which dots may divide a key. A longer key is refused at start-up."""

MOST_KEYS = 8
"""The number of keys of a session that a reason names, at most."""

# Where sites store the user: keys of a session or token, and fields of a user.
_LIKELY_KEYS = ("_user_id", "_auth_user_id", "auth.userid", "user_id", "username", "sub", "email")
_USERS = ("user", "account", "member", "profile")
_LIKELY_FIELDS = ("id", "sub", "username", "email", "name")
_SHOWN_NAME = re.compile(r"[\w.-]{1,40}")
_USER_NAMES = ("identity", "pk", "id", "username", "display_name")
# The keys of sessions under which Flask-Login, Django, Pyramid and most sites store the user. A
# session's `id` is often that of the browser, and an `email` is none that a site asks for.
SESSION_USERS = ("_user_id", "_auth_user_id", "auth.userid", "user_id", "username", "user")
_SESSION_USER_NAMES = ("id", "sub", "username")
_ID_TYPES = {"UUID", "ObjectId", "ULID"}


class No(str):
    """Empty text, with the reason why a source finds no id. It contains no value of a client."""

    reason: str
    remedy: str
    """What to do if the settings are wrong; empty if nothing shows that."""
    key: str
    """The key that probably holds the user, for an argument of the source; empty if unknown."""

    def __new__(cls, reason: str, remedy: str = "", key: str = "") -> "No":
        no = super().__new__(cls)
        no.reason, no.remedy, no.key = reason, remedy, key
        return no


def missing(what: str, found: object, key: str) -> No:
    """Return why a session or token has no id under a dotted `key`.

    `what` names it, `found` is its content. Without a `key`, the usual keys were tried. Names of
    keys are shown, but no values.
    """
    value = walk(found, key) if key else None
    if isinstance(value, Mapping):
        field = next((name for name in _LIKELY_FIELDS if as_id(item(value, name))), "")
        such = f", such as {key}.{field}" if field else ""
        reason = f'the key "{key}" of {what} is a dictionary: name a field{such}; it has '
        return No(reason + _names(value), f"name a field of {key}", field and f"{key}.{field}")
    if value not in (None, ""):
        return No(f'the key "{key}" of {what} is a {type(value).__name__}, which is no id')
    fields = (f"{user}.{field}" for user in _USERS for field in ("", *_LIKELY_FIELDS))
    likely = (*_LIKELY_KEYS, *(name.rstrip(".") for name in fields))
    better = next((name for name in likely if as_id(walk(found, name))), "")
    named = f'no key "{key}"' if key else "no usual key of a user"
    return No(f"{what} has {named}; it has {_names(found)}", key=better)


def _names(found: object) -> str:
    """Return the names of the keys of a mapping: the first of them, and only usual characters."""
    keys = sorted(map(str, found)) if isinstance(found, Mapping) else []
    shown = [key for key in keys if _SHOWN_NAME.fullmatch(key)][:MOST_KEYS]
    others = [f"{len(keys) - len(shown)} others"] if len(keys) > len(shown) else []
    return ", ".join(shown + others) or "none"


def cookie(name: str, *, last: bool = False) -> FindId:
    """Return a reader of the first or the `last` cookie with this `name`.

    Browsers send the cookie of the most specific path first (RFC 6265 5.4), and Werkzeug reads the
    first. Starlette, Django, WebOb, web.py, Bottle and Beaker read the last.
    Raises `ValueError` if no cookie can have this name.
    """
    return methodcaller("cookie", token(name), last=last)


def item(value: Any, name: str) -> object:
    """Return an item of a mapping; None for other objects."""
    if isinstance(value, dict):
        return dict.get(value, name)  # the `get` of a session may note that the session was read
    return value.get(name) if isinstance(value, Mapping) else None


def walk(value: object, key: str, step: Step = item) -> object:
    """Return the value under a dotted key, by default of nested mappings, or None.

    Names may contain dots. So the whole key is tried as a name first, then the longest beginning
    under which the rest of the key leads to a value.
    """
    end = len(key)
    while end > 0:
        below = step(value, key[:end])
        if below is not None and end < len(key):
            below = walk(below, key[end + 1 :], step)
        if below is not None:
            return below
        end = key.rfind(".", 0, end)
    return None


def member(value: Any, name: str) -> object:
    """Return an item of a mapping or a public attribute of an object, or None; call nothing.

    A user who is not logged in has no members.
    """
    if isinstance(value, (dict, Mapping)):  # most are a dict, which is found sooner
        return item(value, name)
    if name.startswith("_") or isinstance(value, (str, int)) or not _is_logged_in(value):
        return None
    return attribute(value, name)


def user_id(user: object) -> str | None:
    """Return the id of a user, or None.

    `user` is text, bytes, a number, or the user object of a framework.
    """
    if user is None or isinstance(user, (str, bytes, int)):
        return as_id(user)
    if not _is_logged_in(user):
        return None
    return next(filter(None, (as_id(attribute(user, name)) for name in _USER_NAMES)), None)


def session_user(session: Mapping[str, Any] | None) -> str | None:
    """Return the id of the user in a session, by the usual keys, or None.

    It is text, a number or a UUID, or what a mapping such as the claims of OpenID Connect has under
    one of its usual names.
    """
    for key in SESSION_USERS if session else ():
        value = item(session, key)
        if value is None:
            continue
        id = as_id(value)
        if isinstance(value, Mapping) and item(value, "is_authenticated") in (None, True):
            ids = (as_id(item(value, name)) for name in _SESSION_USER_NAMES)
            id = next(filter(None, ids), None)
        if id:
            return id
    return None


def _is_logged_in(user: object) -> bool:
    """Return False for the object with which a framework represents an anonymous user."""
    return bool(getattr(user, "is_authenticated", True))


def attribute(thing: object, name: str) -> object:
    """Return an attribute of a user or a request, or None."""
    try:
        return getattr(thing, name, None)
    # Starlette's BaseUser leaves some names to the site. A request of Muffin looks for names in its
    # scope, also for those that are not there.
    except (NotImplementedError, KeyError):
        return None


def as_id(value: object) -> str | None:
    """Return text, UTF-8 bytes, a number or a UUID as an id; None for everything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    # By name, because the packages of ObjectId and ULID may be absent. A class may inherit from one
    # of them, such as PydanticObjectId of Beanie, and a proxy names the class of its value.
    names = {each.__name__ for each in value.__class__.__mro__}
    return None if names.isdisjoint(_ID_TYPES) else str(value)


def normalize_id(value: str) -> str:
    """Return an id as it is stored: stripped text of at most 256 bytes.

    A longer value is cut to 4,096 characters and hashed. A value that is not valid Unicode is
    hashed as well.
    """
    value = value[:MAX_VALUE_LENGTH].strip()
    if len(value) <= MAX_ID_BYTES and value.isascii():
        return value
    # Surrogates are undecodable bytes of a header, or half a character of some JSON.
    with suppress(UnicodeEncodeError):
        if len(value.encode()) <= MAX_ID_BYTES:
            return value
    return blake2b(value.encode("utf-8", "surrogatepass"), digest_size=SIZE).hexdigest()


def stored_id(id: object) -> str:
    """Return an id that the site's code passes as it is stored.

    It is text, decoded bytes, or the text of a number or UUID. Raises `QueryError` for all else.
    """
    is_number = isinstance(id, Number) and not isinstance(id, bool)
    try:
        # A user object has a text, too, but that is not the id under which the user is counted.
        stored = normalize_id((str(id) if is_number else as_id(id)) or "")
    except ValueError:
        stored = ""  # a number with too many digits
    if not stored:
        raise QueryError(
            f"an id is {quoted(id)}: pass text that is not empty, a number or a UUID; of a user, "
            "pass the id"
        )
    return stored


def quoted(value: object) -> str:
    """Return text or a number for an error message, shortened; of all else the type.

    A user object, or the claims of a token, may hold what is in no log.
    """
    if isinstance(value, str | bytes | Number | None):
        with suppress(ValueError):  # a number with too many digits
            text = repr(value)
            return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"
    return f"a {type(value).__name__}"


class Hasher:
    """Hashes values with `PRESENCE_SECRET`, or with a key that processes share through Redis.

    A value is hashed without a key first, and that digest with the key. So a process never stores
    the value itself, also before it has received the key. A shared key may change, and whoever is
    known must not be new then: the process knows them by the first digest.
    """

    def __init__(self, secret: str) -> None:
        """Create a hasher; it has no key yet if `secret` is empty."""
        self._plain, self._is_shared = blake2b(digest_size=SIZE), not secret
        self.key: bytes | None = None
        if secret:
            self.learn(secret.encode())

    def learn(self, key: bytes) -> None:
        """Use a key from now on."""
        self._keyed = blake2b(key=blake2b(key, digest_size=32).digest(), digest_size=SIZE)
        self.key = key

    def __call__(self, value: str) -> FoundId:
        """Return the id of a value, as a `PendingId` if the key is shared."""
        state = self._plain.copy()
        state.update(value[:MAX_VALUE_LENGTH].encode("utf-8", "surrogatepass"))
        digest = state.digest()
        return int.from_bytes(digest) if self._is_shared else self.finish(digest)

    def finish(self, digest: bytes) -> str:
        """Return the id of a value from its digest without a key."""
        state = self._keyed.copy()
        state.update(digest)
        return state.hexdigest()
