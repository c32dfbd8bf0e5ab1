"""WSGI and ASGI middleware that records who is online in Redis or Valkey."""

from .errors import (
    EventsLost,
    PresenceError,
    PresenceUnavailable,
    QueryError,
    SettingsError,
    UnsupportedQuery,
)
from .identity import Identity
from .presence import AsyncPresence, Presence
from .recorder import Recorder, Stats, Visit, recorder_for
from .request import Request
from .settings import Settings
from .stores import Sample, Sighting

__version__ = "0.1.0"

__all__ = [
    "AsyncPresence",
    "EventsLost",
    "Identity",
    "Presence",
    "PresenceError",
    "PresenceUnavailable",
    "QueryError",
    "Recorder",
    "Request",
    "Sample",
    "Settings",
    "SettingsError",
    "Sighting",
    "Stats",
    "UnsupportedQuery",
    "Visit",
    "__version__",
    "recorder_for",
]
