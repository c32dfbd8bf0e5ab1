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
from .stores import Sample, Sighting

__all__ = [
    "AsyncPresence",
    "Identity",
    "Presence",
    "PresenceError",
    "PresenceUnavailable",
    "QueryError",
    "Sample",
    "Settings",
    "SettingsError",
    "Sighting",
    "UnsupportedQuery",
]
