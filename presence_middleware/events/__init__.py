"""Events: who comes online and who goes offline, for loops in threads and in coroutines.

The hub of a kind reads its streams, and puts the events into the subscription of each iterator.
"""

from .event import Event, cursor_of
from .hub import Hub
from .iterators import RELEASE_SECONDS, AsyncEvents, Events
from .named import NamedSubscription
from .streams import Streams
from .subscription import Subscription

__all__ = [
    "RELEASE_SECONDS",
    "AsyncEvents",
    "Event",
    "Events",
    "Hub",
    "NamedSubscription",
    "Streams",
    "Subscription",
    "cursor_of",
]
