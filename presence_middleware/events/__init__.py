"""Events: who comes online and who goes offline, for loops in threads and in coroutines.

The feed of a kind reads its streams. Each iterator takes events from its own place.
"""

from .event import Event, cursor_of
from .feed import Feed
from .iterators import RELEASE_SECONDS, AsyncEvents, Events
from .named import NameLease
from .streams import Chunk, Positions, Streams

__all__ = [
    "RELEASE_SECONDS",
    "AsyncEvents",
    "Chunk",
    "Event",
    "Events",
    "Feed",
    "NameLease",
    "Positions",
    "Streams",
    "cursor_of",
]
