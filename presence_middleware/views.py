"""How WSGI and ASGI answer what a source asks (`identity.View`), and the keys they share."""

from collections.abc import Mapping
from functools import cache
from typing import Any

VISIT = "presence_middleware.visit"
READER = "presence_middleware"
USER = "presence_middleware.user"  # a function of an inner layer's: whom it has logged in by now
UNREAD = "unread"  # by identity: no request says this object


class _View:
    """What a view has besides what it reads; `_agent` is read once, by bots and by guests."""

    __slots__ = ("_agent", "address", "counts")

    _agent: str | None
    address: str | None
    counts: bool

    @property
    def user_agent(self) -> str | None:
        if self._agent is UNREAD:
            self._agent = self.header("user-agent")
        return self._agent

    def header(self, name: str) -> str | None:
        raise NotImplementedError


class WsgiView(_View):
    """A WSGI environ; its text is bytes in the guise of latin-1 (PEP 3333)."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._environ = environ
        self.address = self.peer
        self._agent = UNREAD
        self.counts = True

    @property
    def method(self) -> str:
        return str(self._environ.get("REQUEST_METHOD", "GET"))

    @property
    def path(self) -> str:
        return text(self._environ.get("SCRIPT_NAME", "") + self._environ.get("PATH_INFO", ""))

    @property
    def peer(self) -> str | None:
        return self._environ.get("REMOTE_ADDR") or None

    @property
    def has_purpose(self) -> bool:
        environ = self._environ
        return (
            "HTTP_SEC_PURPOSE" in environ
            or "HTTP_PRESENCE" in environ
            or "HTTP_PURPOSE" in environ
            or "HTTP_X_MOZ" in environ
        )

    def header(self, name: str) -> str | None:
        value = self._environ.get(_environ_key(name))
        return value if value is None or value.isascii() else text(value)

    @property
    def user(self) -> object:
        if USER in self._environ:
            return self._environ[USER]()
        user = self._environ.get("REMOTE_USER")
        return text(user) if isinstance(user, str) else user

    @property
    def session(self) -> Mapping[str, Any] | None:
        session = self._environ.get("beaker.session")
        if session is None:
            return None
        # Beaker's session reads its store at the first look; what it has read is in its __dict__.
        return vars(session).get("_sess") if hasattr(session, "__dict__") else _mapping(session)

    def get(self, key: str) -> object:
        return self._environ.get(key)


class AsgiView(_View):
    """An ASGI scope of type `http` or `websocket`; its headers are bytes, mostly in lower case."""

    __slots__ = ("_read_headers", "_scope")

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope
        self._read_headers: dict[bytes, bytes] | None = None
        self.address = self.peer
        self._agent = UNREAD
        self.counts = True

    @property
    def method(self) -> str:
        return str(self._scope.get("method", "GET"))

    @property
    def path(self) -> str:
        return str(self._scope.get("path", ""))

    @property
    def peer(self) -> str | None:
        client = self._scope.get("client")
        return str(client[0]) if client and client[0] else None

    @property
    def has_purpose(self) -> bool:
        headers = self._headers
        return (
            b"sec-purpose" in headers
            or b"presence" in headers
            or b"purpose" in headers
            or b"x-moz" in headers
        )

    @property
    def _headers(self) -> dict[bytes, bytes]:
        if self._read_headers is None:
            self._read_headers = _by_name(self._scope.get("headers", ()))
        return self._read_headers

    def header(self, name: str) -> str | None:
        found = self._headers.get(_header_name(name))
        if found is None:
            return None
        return found.decode() if found.isascii() else found.decode("utf-8", "surrogateescape")

    @property
    def user(self) -> object:
        if USER in self._scope:
            return self._scope[USER]()
        return self._scope.get("user")

    @property
    def session(self) -> Mapping[str, Any] | None:
        return _mapping(self._scope.get("session"))

    def get(self, key: str) -> object:
        return self._scope.get(key)


def _by_name(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by their names in lower case, which not every server sends; repeated ones joined."""
    found = dict(headers)
    if len(found) == len(headers) and b"".join(found).islower():
        return found
    several: dict[bytes, list[bytes]] = {}
    for key, value in headers:
        several.setdefault(key.lower(), []).append(value)
    return {name: _separator(name).join(values) for name, values in several.items()}


def _separator(name: bytes) -> bytes:
    """Repeated fields are one list (RFC 9110 5.3); of cookies, one in a form of its own."""
    return b"; " if name == b"cookie" else b","


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if value is not None and isinstance(value, Mapping) else None


def text(latin: str) -> str:
    """What was sent as UTF-8, of a header or path as WSGI hands it on (PEP 3333: in Latin-1)."""
    if latin.isascii():
        return latin
    try:
        return latin.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return latin  # text proper, which a layer of the site's put there


@cache
def _environ_key(name: str) -> str:
    key = name.upper().replace("-", "_")
    return key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"


@cache
def _header_name(name: str) -> bytes:
    return name.lower().encode("latin-1")
