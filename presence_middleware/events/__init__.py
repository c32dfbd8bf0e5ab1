"""Events: who comes online and who goes offline, for loops in threads and in coroutines.

The feed of a kind reads its streams. Each iterator takes events from its own place.
"""

from .feed import Feed, NameLease
from .iterators import RELEASE_SECONDS, AsyncEvents, Events
from .streams import Chunk, Event, Streams, cursor_of

__all__ = [
    "RELEASE_SECONDS",
    "AsyncEvents",
    "Chunk",
    "Event",
    "Events",
    "Feed",
    "NameLease",
    "Streams",
    "cursor_of",
]
