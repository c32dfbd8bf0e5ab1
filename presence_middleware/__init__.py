"""Who is online on this site, right now? WSGI and ASGI middleware over Redis or Valkey."""

from .errors import (
    PresenceError,
    PresenceUnavailable,
    QueryError,
    SettingsError,
    UnsupportedQuery,
)
from .identity import Identity
from .presence import AsyncPresence, Presence
from .settings import Settings
from .stores import Sighting

__all__ = [
    "AsyncPresence",
    "Identity",
    "Presence",
    "PresenceError",
    "PresenceUnavailable",
    "QueryError",
    "Settings",
    "SettingsError",
    "Sighting",
    "UnsupportedQuery",
]
