"""The data of each kind in Redis. Every operation is a plan: it yields commands and does no I/O."""

from collections.abc import Callable

from .agreement import Layout, SharedSettings, agree
from .changes import Act, Departure, Move, Seen, Write, Written
from .events import STREAM_SECONDS, Announcement, EventStream, Position, Reading
from .history import History, Sample
from .hyperloglog import HyperLogLog
from .in_room import NOWHERE, room_number
from .lease import Lease
from .minute_sets import MinuteSets
from .plan import Batch, Command, Plan, merge_plans, run_all
from .shards import Shards
from .sorted_set import SortedSet
from .store import Sighting, Store, moment_of
from .upkeep import UpkeepLease

STORES: dict[str, Callable[..., Store]] = {
    "sorted-set": SortedSet,
    "minute-sets": MinuteSets,
    "hyperloglog": HyperLogLog,
}
"""The stores by their names in `PRESENCE_STORE`. `Store` describes the arguments of each."""

__all__ = [
    "NOWHERE",
    "STORES",
    "STREAM_SECONDS",
    "Act",
    "Announcement",
    "Batch",
    "Command",
    "Departure",
    "EventStream",
    "History",
    "Layout",
    "Lease",
    "Move",
    "Plan",
    "Position",
    "Reading",
    "Sample",
    "Seen",
    "Shards",
    "SharedSettings",
    "Sighting",
    "SortedSet",
    "Store",
    "UpkeepLease",
    "Write",
    "Written",
    "agree",
    "merge_plans",
    "moment_of",
    "room_number",
    "run_all",
]
