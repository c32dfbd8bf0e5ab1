"""The `Request` that identity rules read, for WSGI and for ASGI.

Text is UTF-8. Bytes that are not UTF-8 become surrogate escapes, so that nothing is lost and
different values stay different.
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol

VISIT = "presence_middleware.visit"
READER = "presence_middleware.presence"
USER = "presence_middleware.user"
"""The key of a function that an inner layer sets. It returns the user who is logged in now."""
SESSION = "presence_middleware.session"
"""The key of a session that an inner layer has opened, in an environ."""


# Names of headers and cookies for which the converted form is remembered. They come from the site's
# settings and functions. The bound protects against a function that invents names.
MOST_NAMES = 256
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 5.6.2, also of cookie names


class HeaderNames:
    """The names of some headers, in the forms of WSGI and of ASGI."""

    def __init__(self, names: Iterable[str]) -> None:
        """Convert names such as `user-agent`, each once."""
        each = sorted(set(names))
        self.environ_keys = _split("", [_environ_key(name) for name in each])
        self.raw = _split(b"", [_header_name(name) for name in each])


def _split(none: Any, names: list[Any]) -> tuple[Any, Any, list[Any]]:
    """Return two names, or `none` where there are fewer, and all others: most have no more."""
    first, second, *others = [*names, none, none]
    return first, second, others[:-2]


class Request(Protocol):
    """A read-only view of an HTTP request or a WebSocket connection.

    A function named in `PRESENCE_IDENTITY` receives it. No attribute or method does I/O, changes
    the request or raises, except that `cookie` refuses a name that no cookie can have. It is valid
    until the response has been sent. Afterwards, every value is absent.

    ```python
    from presence_middleware import Request

    def member(request: Request) -> str | None:  # PRESENCE_IDENTITY="user=site.logins:member"
        return request.header("x-member") if request.path.startswith("/members/") else None
    ```
    """

    state: Mapping[str, Any]
    """The environ or scope; empty when the request is over."""

    peer: str | None
    """The address at the other end of the connection; None for a unix socket."""

    @property
    def address(self) -> str | None:
        """Return the client's address, read through trusted proxies.

        It is the peer's if no proxy is trusted.
        """

    age: float = 0.0
    """For how many seconds the request has been open."""

    holds_until: float = math.inf
    """Until when its headers show the same user, as a time of `time.time()`. Sources lower it."""

    may_be_user: bool = False
    """True if it may show a user who cannot be found yet. Then it counts as no guest."""

    @property
    def method(self) -> str:
        """Return the method in capitals, such as `GET`; `GET` for a WebSocket."""

    @property
    def path(self) -> str:
        """Return the decoded path with the mount point, without the query string."""

    @property
    def app_path(self) -> str:
        """Return the decoded path below the mount point, which `PRESENCE_ROOMS` means."""

    def fingerprint(self, headers: "HeaderNames") -> int:
        """Return a hash of the client's address and of some headers."""

    @property
    def is_anonymous(self) -> bool:
        """Return whether neither `user` nor `session` is there."""

    @property
    def user_agent(self) -> str | None:
        """Return the User-Agent; None if absent."""
        return self.header("user-agent")

    def header(self, name: str) -> str | None:
        """Return a header, joined by commas if it is repeated; None if absent.

        `name` is in upper or lower case, such as `x-member`.
        """

    def cookie(self, name: str, *, last: bool = False) -> str | None:
        """Return the raw value of a cookie, without quotation marks around it; None if absent.

        Escapes such as `%20` are not decoded. If several cookies have this `name`, the first is
        returned, which browsers send for the most specific path; with `last`, the last. Raises
        `ValueError` if no cookie can have this name.
        """
        pattern, cookies = _cookie_pattern(name, last), self.header("cookie")
        match = pattern.search(cookies) if cookies else None
        # Quotation marks inside of it are its own: some sites store JSON.
        return match[1].strip().removeprefix('"').removesuffix('"').rstrip() if match else None

    @property
    def user(self) -> object:
        """Return the user that a server or a layer has logged in so far, or None.

        This is `REMOTE_USER` under WSGI and `scope["user"]` under ASGI. It is the id with
        `presence_middleware.flask`, and with `presence_middleware.django` an object with the `pk`
        and the loaded fields of the account.
        """

    @property
    def session(self) -> Mapping[str, Any] | None:
        """Return the session if the framework has loaded it; None otherwise.

        Reading it never makes the framework load the session.
        """

    def get(self, key: str) -> object:
        """Return the value of a key of the WSGI environ or the ASGI scope; None if absent."""
        return self.state.get(key)


State = Mapping[str, Any]
OVER: State = MappingProxyType({})
"""An empty mapping that replaces the environ or scope of a request that is over."""

Paths = Container[str]
Locate = Callable[["StateRequest"], str | None]
"""Returns the address of a request's client, or None if no address is reliable."""


class StateRequest(Request):
    """What requests over WSGI and over ASGI have in common."""

    peer: str | None = None
    locate: Locate | None = None
    forwarded: tuple[Any, Any] | None = None
    """The headers Forwarded and X-Forwarded-For on arrival, since inner layers may remove them."""
    raw_headers: dict[bytes, bytes] | None = None
    """The headers of a scope by lower-case name, once one of them was read."""

    def __init__(self, state: State, locate: Locate | None = None) -> None:
        self.arrive(state, locate)

    def arrive(self, state: State, locate: Locate | None, excluded: Paths | None = None) -> bool:
        """Begin with an environ or scope, and read what inner layers may change: who sent it.

        `locate` finds the client's address behind proxies; None if it is always the peer's. Return
        whether the request is certainly a visit, by its path, method and headers. `excluded` holds
        paths that are not visits; None if nobody asks. If it returns False, the request may still
        be a visit: a prefetch, for example, is decided by the value of its header. Never raises.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Drop the environ or scope and all values that were read from it."""
        self.state, self.peer, self.forwarded, self.raw_headers = OVER, None, None, None

    @property
    def address(self) -> str | None:
        return self.peer if self.locate is None else self.locate(self)


class WsgiRequest(StateRequest):
    """A request over WSGI. The text of its environ is bytes decoded as Latin-1 (PEP 3333)."""

    def arrive(self, state: State, locate: Locate | None, excluded: Paths | None = None) -> bool:
        self.state, self.locate = state, locate
        self.peer = state.get("REMOTE_ADDR") or None
        self.forwarded = None
        if locate is not None:
            self.forwarded = state.get("HTTP_FORWARDED"), state.get("HTTP_X_FORWARDED_FOR")
        try:
            path = state.get("SCRIPT_NAME", "") + state.get("PATH_INFO", "")
            return excluded is not None and not (
                path in excluded
                or "HTTP_SEC_PURPOSE" in state
                or "HTTP_PRESENCE" in state
                or "HTTP_PURPOSE" in state
                or "HTTP_X_MOZ" in state
                or state.get("HTTP_SEC_FETCH_SITE") == "cross-site"
                or state.get("REQUEST_METHOD") == "OPTIONS"
            )
        except Exception:  # an invalid environ, of which sources report the parts
            return False

    @property
    def method(self) -> str:
        return str(self.state.get("REQUEST_METHOD", "GET"))

    @property
    def path(self) -> str:
        return text(self.state.get("SCRIPT_NAME", "") + self.state.get("PATH_INFO", ""))

    @property
    def app_path(self) -> str:
        return text(self.state.get("PATH_INFO", ""))

    def fingerprint(self, headers: HeaderNames) -> int:
        environ, (first, second, others) = self.state, headers.environ_keys
        place = hash((self.peer, self.forwarded, environ.get(first), environ.get(second)))
        return hash((place, *map(environ.get, others))) if others else place

    @property
    def is_anonymous(self) -> bool:
        environ = self.state
        return not (
            "REMOTE_USER" in environ
            or USER in environ
            or "beaker.session" in environ
            or environ.get(SESSION)
        )

    def header(self, name: str) -> str | None:
        value: str | bytes | None = self.state.get(_environ_key(name))
        return None if value is None else text(value)

    @property
    def user(self) -> object:
        if USER in self.state:
            return self.state[USER]()
        user = self.state.get("REMOTE_USER")
        return variable(user) if isinstance(user, str) else user

    @property
    def session(self) -> Mapping[str, Any] | None:
        session = self.state.get(SESSION)
        # Access to Beaker's session makes it read its store. Its __dict__ has the loaded data.
        if session is None and hasattr(session := self.state.get("beaker.session"), "__dict__"):
            session = vars(session).get("_sess")
        return session if isinstance(session, Mapping) else None


class AsgiRequest(StateRequest):
    """A request over ASGI. Its scope has the type `http` or `websocket`, and headers of bytes."""

    def arrive(self, state: State, locate: Locate | None, excluded: Paths | None = None) -> bool:
        self.state, self.locate, client = state, locate, state.get("client")
        self.forwarded = None
        try:
            self.peer = str(client[0]) if client and client[0] else None
            if excluded is None and locate is None:
                return False
            headers = self._read_headers()
            if locate is not None:
                self.forwarded = headers.get(b"forwarded"), headers.get(b"x-forwarded-for")
            return excluded is not None and not (
                state.get("path", "") in excluded
                or b"sec-purpose" in headers
                or b"presence" in headers
                or b"purpose" in headers
                or b"x-moz" in headers
                or headers.get(b"sec-fetch-site") == b"cross-site"
                or state.get("method") == "OPTIONS"
            )
        except Exception:  # an invalid scope, of which sources report the parts
            return False

    @property
    def method(self) -> str:
        return str(self.state.get("method", "GET"))

    @property
    def path(self) -> str:
        return str(self.state.get("path", ""))

    @property
    def app_path(self) -> str:
        return below_root(self.state)

    def fingerprint(self, headers: HeaderNames) -> int:
        values, (first, second, others) = self.raw_headers or self._read_headers(), headers.raw
        place = hash((self.peer, self.forwarded, values.get(first), values.get(second)))
        return hash((place, *map(values.get, others))) if others else place

    @property
    def is_anonymous(self) -> bool:
        scope = self.state
        return not ("user" in scope or "session" in scope or USER in scope)

    def header(self, name: str) -> str | None:
        value = (self.raw_headers or self._read_headers()).get(_header_name(name))
        return None if value is None else text(value)

    @property
    def user(self) -> object:
        if USER in self.state:
            return self.state[USER]()
        return self.state.get("user")

    @property
    def session(self) -> Mapping[str, Any] | None:
        session = self.state.get("session")
        return session if isinstance(session, Mapping) else None

    def _read_headers(self) -> dict[bytes, bytes]:
        """Return headers by lower-case name, with repeated headers joined.

        Some servers pass names on as the client wrote them. Then none of them is `host`.
        """
        headers = self.state.get("headers", ())
        by_name = dict(headers)
        if len(by_name) < len(headers) or b"host" not in by_name:
            repeated: dict[bytes, list[bytes]] = {}
            for name, value in headers:
                repeated.setdefault(name.lower(), []).append(value)
            # The separator is a comma (RFC 9110 5.3), of cookies a semicolon.
            by_name = {
                name: (b"; " if name == b"cookie" else b",").join(values)
                for name, values in repeated.items()
            }
        self.raw_headers = by_name
        return by_name


def below_root(scope: Mapping[str, Any]) -> str:
    """Return the path of an ASGI scope below the mount point, like PATH_INFO under WSGI.

    Some layers leave the root path in front of it, others remove it.
    """
    path, root = str(scope.get("path", "")), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if f"{path}/".startswith(f"{root}/") else path


def request_of(state: Mapping[str, Any]) -> StateRequest:
    """Return the request of an environ or scope."""
    return AsgiRequest(state) if "type" in state else WsgiRequest(state)


def query_of(state: Mapping[str, Any]) -> str:
    """Return the query string of an environ or scope as text."""
    return text(state.get("query_string") or state.get("QUERY_STRING") or "")


def token(name: str) -> str:
    """Return the name of a header or cookie. Raises `ValueError` if `name` is not a valid name."""
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid name of a header or cookie")
    return name


@lru_cache(MOST_NAMES)
def _cookie_pattern(name: str, last: bool) -> re.Pattern[str]:
    """Return a pattern whose `search` finds the first or the `last` cookie `name`."""
    pair = rf"[ \t]*{re.escape(token(name))}[ \t]*=([^;]*)"
    return re.compile(rf"\A(?s:.*;)?{pair}" if last else rf"(?:^|;){pair}")


def text(latin: str | bytes) -> str:
    """Decode a WSGI header or path as UTF-8.

    Servers decode it as Latin-1 (PEP 3333). Some layers replace it with bytes.
    """
    if isinstance(latin, bytes):
        return latin.decode("utf-8", "surrogateescape")
    if latin.isascii():
        return latin
    try:
        return latin.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return latin  # already text, set by a layer of the site


def variable(latin: str) -> str:
    """Decode what a WSGI server says in its environ as UTF-8; the text of a layer is unchanged."""
    try:
        return latin.encode("latin-1").decode()
    except UnicodeError:
        return latin


@lru_cache(MOST_NAMES)
def _environ_key(name: str) -> str:
    key = name.upper().replace("-", "_")
    return key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"


@lru_cache(MOST_NAMES)
def _header_name(name: str) -> bytes:
    return name.lower().encode("latin-1")
