"""What identity rules may read of a request, and how WSGI and ASGI answer.

Text is UTF-8. Bytes that are no UTF-8 become surrogate escapes, so that nothing is lost and two
different values never become one.
"""

from collections.abc import Container, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol

VISIT = "presence_middleware.visit"
READER = "presence_middleware.presence"
USER = "presence_middleware.user"
"""A function that an inner layer sets; it returns the user who is logged in by now."""


class Request(Protocol):
    """One HTTP request or WebSocket connection, read-only."""

    peer: str | None
    """The address at the other end of the connection; None for a unix socket."""

    address: str | None
    """The client's address, through trusted proxies only; the peer's where none are trusted."""

    @property
    def method(self) -> str:
        """`GET`, `POST` …; `GET` for a WebSocket."""

    @property
    def path(self) -> str:
        """The path as the application sees it, mount point included."""

    def is_plain(self, excluded: Container[str]) -> bool:
        """Return whether neither path, method nor headers show that nobody may be looking.

        `excluded` holds paths that are no visit. What is not plain deserves a closer look.
        """

    @property
    def user_agent(self) -> str | None:
        """The User-Agent; None if absent."""

    def header(self, name: str) -> str | None:
        """Return a header by its name in lower case, repeated ones joined; None if absent."""

    @property
    def user(self) -> object:
        """Whoever a server or an inner layer logged in: `REMOTE_USER`, `scope["user"]`; or None."""

    @property
    def session(self) -> Mapping[str, Any] | None:
        """The session, where the framework has loaded it; reading it never makes it load."""

    def get(self, key: str) -> object:
        """Return what a server or another layer put into the environ or scope, or None."""


UNREAD = "unread"  # by identity: no request holds this object
OVER: Mapping[str, Any] = MappingProxyType({})
"""What a request holds in place of its environ or scope once it is over."""


class WsgiRequest:
    """A WSGI environ, whose text is bytes decoded as Latin-1 (PEP 3333)."""

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self.state = environ
        # Layers within may change the address, so it is read as the request arrives.
        self.peer: str | None = environ.get("REMOTE_ADDR") or None
        self.address = self.peer

    @property
    def method(self) -> str:
        return str(self.state.get("REQUEST_METHOD", "GET"))

    @property
    def path(self) -> str:
        return text(self.state.get("SCRIPT_NAME", "") + self.state.get("PATH_INFO", ""))

    def is_plain(self, excluded: Container[str]) -> bool:
        environ = self.state
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        return not (
            path in excluded
            or "HTTP_SEC_PURPOSE" in environ
            or "HTTP_PRESENCE" in environ
            or "HTTP_PURPOSE" in environ
            or "HTTP_X_MOZ" in environ
            or environ.get("REQUEST_METHOD") == "OPTIONS"
        )

    @property
    def user_agent(self) -> str | None:
        agent: str | None = self.state.get("HTTP_USER_AGENT")
        return agent if agent is None or agent.isascii() else text(agent)

    def header(self, name: str) -> str | None:
        value: str | None = self.state.get(_environ_key(name))
        return value if value is None or value.isascii() else text(value)

    @property
    def user(self) -> object:
        if USER in self.state:
            return self.state[USER]()
        user = self.state.get("REMOTE_USER")
        return text(user) if isinstance(user, str) else user

    @property
    def session(self) -> Mapping[str, Any] | None:
        session = self.state.get("beaker.session")
        if session is None:
            return None
        # Beaker's session reads its store at the first look; what it has read is in its __dict__.
        return vars(session).get("_sess") if hasattr(session, "__dict__") else _mapping(session)

    def get(self, key: str) -> object:
        return self.state.get(key)

    def release(self) -> None:
        """Let go of the environ, and of all that was read from it."""
        self.state, self.peer, self.address = OVER, None, None


class AsgiRequest:
    """An ASGI scope of type `http` or `websocket`, whose headers are bytes."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.state = scope
        self._headers: dict[bytes, bytes] | None = None
        self._user_agent: str | None = UNREAD
        client = scope.get("client")
        self.peer: str | None = str(client[0]) if client and client[0] else None
        self.address = self.peer

    @property
    def method(self) -> str:
        return str(self.state.get("method", "GET"))

    @property
    def path(self) -> str:
        return str(self.state.get("path", ""))

    def is_plain(self, excluded: Container[str]) -> bool:
        scope, headers = self.state, self._headers or self._read_headers()
        return not (
            scope.get("path", "") in excluded
            or b"sec-purpose" in headers
            or b"presence" in headers
            or b"purpose" in headers
            or b"x-moz" in headers
            or scope.get("method") == "OPTIONS"
        )

    @property
    def user_agent(self) -> str | None:
        if self._user_agent is UNREAD:  # crawlers are looked for by it, and guests are told by it
            self._user_agent = self.header("user-agent")
        return self._user_agent

    def header(self, name: str) -> str | None:
        value = (self._headers or self._read_headers()).get(_header_name(name))
        if value is None:
            return None
        return value.decode() if value.isascii() else value.decode("utf-8", "surrogateescape")

    @property
    def user(self) -> object:
        if USER in self.state:
            return self.state[USER]()
        return self.state.get("user")

    @property
    def session(self) -> Mapping[str, Any] | None:
        return _mapping(self.state.get("session"))

    def get(self, key: str) -> object:
        return self.state.get(key)

    def release(self) -> None:
        """Let go of the scope, and of all that was read from it."""
        self.state, self._headers, self._user_agent = OVER, None, None
        self.peer = self.address = None

    def _read_headers(self) -> dict[bytes, bytes]:
        headers = self._headers = _by_name(self.state.get("headers", ()))
        return headers


def _by_name(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return headers by name in lower case, which not every server sends; join repeated ones."""
    by_name = dict(headers)
    if len(by_name) == len(headers) and b"".join(by_name).islower():
        return by_name
    repeated: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        repeated.setdefault(name.lower(), []).append(value)
    return {name: _separator(name).join(values) for name, values in repeated.items()}


def _separator(name: bytes) -> bytes:
    """Repeated fields are one list (RFC 9110 5.3); cookies have a form of their own."""
    return b"; " if name == b"cookie" else b","


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if value is not None and isinstance(value, Mapping) else None


def text(latin: str) -> str:
    """Decode a WSGI header or path as the UTF-8 that was sent (PEP 3333: it comes as Latin-1)."""
    if latin.isascii():
        return latin
    try:
        return latin.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return latin  # already text, put there by a layer of the site


@cache
def _environ_key(name: str) -> str:
    key = name.upper().replace("-", "_")
    return key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"


@cache
def _header_name(name: str) -> bytes:
    return name.lower().encode("latin-1")
