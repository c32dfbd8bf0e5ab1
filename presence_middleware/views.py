"""How WSGI and ASGI answer what a source asks (`identity.View`), and the keys they share."""

from collections.abc import Mapping
from functools import cache
from typing import Any

VISIT = "presence_middleware.visit"
READER = "presence_middleware"


class WsgiView:
    """A WSGI environ; its text is bytes in the guise of latin-1 (PEP 3333)."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._environ = environ

    @property
    def method(self) -> str:
        return str(self._environ["REQUEST_METHOD"])

    @property
    def path(self) -> str:
        return _text(self._environ.get("SCRIPT_NAME", "") + self._environ.get("PATH_INFO", ""))

    @property
    def peer(self) -> str | None:
        return self._environ.get("REMOTE_ADDR") or None

    def header(self, name: str) -> str | None:
        value = self._environ.get(_environ_key(name))
        return value if value is None or value.isascii() else _text(value)

    @property
    def user(self) -> object:
        user = self._environ.get("REMOTE_USER")
        return _text(user) if isinstance(user, str) else user

    @property
    def session(self) -> Mapping[str, Any] | None:
        session = self._environ.get("beaker.session")
        # Beaker's session reads its store at the first look; what it has read is in its __dict__.
        return vars(session).get("_sess") if hasattr(session, "__dict__") else _mapping(session)

    def get(self, key: str) -> object:
        return self._environ.get(key)


class AsgiView:
    """An ASGI scope of type `http` or `websocket`; its headers are bytes, mostly in lower case."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope

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

    def header(self, name: str) -> str | None:
        wanted = _header_name(name)
        found: bytes | None = None
        for key, value in self._scope.get("headers", ()):
            if key.lower() == wanted:  # not every server writes names in lower case
                found = value if found is None else found + _separator(wanted) + value
        return None if found is None else found.decode("utf-8", "surrogateescape")

    @property
    def user(self) -> object:
        return self._scope.get("user")

    @property
    def session(self) -> Mapping[str, Any] | None:
        return _mapping(self._scope.get("session"))

    def get(self, key: str) -> object:
        return self._scope.get(key)


def _separator(name: bytes) -> bytes:
    """Repeated fields are one list (RFC 9110 5.3); of cookies, one in a form of its own."""
    return b"; " if name == b"cookie" else b","


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _text(latin: str) -> str:
    if latin.isascii():
        return latin
    try:
        return latin.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return latin  # text proper, which a layer of the site's put there


@cache
def _environ_key(name: str) -> str:
    return "HTTP_" + name.upper().replace("-", "_")


@cache
def _header_name(name: str) -> bytes:
    return name.lower().encode("latin-1")
