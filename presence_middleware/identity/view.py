"""What a source may ask of a request. `wsgi` and `asgi` each have a view that answers.

Text is UTF-8; bytes that are none stand as surrogate escapes, so that nothing is lost and two
different values never become one.
"""

from collections.abc import Mapping
from typing import Any, Protocol


class View(Protocol):
    """One request or connection, read-only."""

    @property
    def method(self) -> str:
        """`GET`, `POST` …; `GET` for a WebSocket."""

    @property
    def path(self) -> str:
        """The path as the application sees it, mount point included."""

    @property
    def peer(self) -> str | None:
        """The address at the other end of the connection; None for a unix socket."""

    address: str | None
    """The client's address, through trusted proxies only; the peer's where none are trusted."""

    counts: bool
    """Whether it counts as a visit."""

    @property
    def user_agent(self) -> str | None:
        """The User-Agent; None if absent."""

    @property
    def has_purpose(self) -> bool:
        """Whether Presence, Sec-Purpose, Purpose or X-Moz says what the request is for."""

    def header(self, name: str) -> str | None:
        """A header by its name in any case, repeated ones joined by commas; None if absent."""

    @property
    def user(self) -> object:
        """Whom a server or an inner layer logged in: `REMOTE_USER`, `scope["user"]`; or None."""

    @property
    def session(self) -> Mapping[str, Any] | None:
        """The session, where the framework has loaded it; never makes it load."""

    def get(self, key: str) -> object:
        """What a server or another layer put into the environ or scope under `key`, or None."""
