"""WSGI and ASGI middleware that records who is online in Redis or Valkey."""

from .errors import (
    EventsLost,
    NotWrapped,
    PresenceError,
    PresenceUnavailable,
    QueryError,
    SettingsError,
    UnsupportedQuery,
    WouldBlock,
)
from .events.streams import Event
from .identity.resolver import Identity
from .lookup import presence_of, visit_of
from .presence import AsyncPresence, Presence
from .recorder import Recorder, Stats, Visit, recorder_for
from .request import Request
from .settings import Settings
from .stores import Sample, Sighting

__version__ = "0.1.0"

__all__ = [
    "AsyncPresence",
    "Event",
    "EventsLost",
    "Identity",
    "NotWrapped",
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
    "WouldBlock",
    "__version__",
    "presence_of",
    "recorder_for",
    "visit_of",
]
