"""The data of each kind in Redis. Every operation is a plan: it yields commands and does no I/O."""

from collections.abc import Callable

from .agreement import Lease, agree
from .events import Position
from .history import History, Sample
from .minutes import HyperLogLog, MinuteSets
from .plan import Batch, Command, Plan, merge_plans, run_all
from .shards import Shards
from .sorted_set import NOWHERE, SortedSet, room_number
from .store import Act, Departure, Seen, Sighting, Store, Write, moment_of

STORES: dict[str, Callable[..., Store]] = {
    "sorted-set": SortedSet,
    "minute-sets": MinuteSets,
    "hyperloglog": HyperLogLog,
}
"""The stores by their names in `PRESENCE_STORE`. `Store` describes the arguments of each."""

__all__ = [
    "NOWHERE",
    "STORES",
    "Act",
    "Batch",
    "Command",
    "Departure",
    "History",
    "Lease",
    "Plan",
    "Position",
    "Sample",
    "Seen",
    "Shards",
    "Sighting",
    "Store",
    "Write",
    "agree",
    "merge_plans",
    "moment_of",
    "room_number",
    "run_all",
]
