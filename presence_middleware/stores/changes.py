"""What people did, as a store writes it: ids and moments of the server. No I/O."""

from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple


class Act(IntEnum):
    """What somebody did. Of two departures at once, the greater counts."""

    SEEN = 0
    GOODBYE = 1
    """A page was closed: the user is offline soon, unless another page or device is in use."""
    LEFT = 2
    """The user logged out: offline at once."""
    ERASED = 3
    """The user is erased."""


Move = tuple[int, int]
"""The number of the room that an id entered (0: it left its room), and the moment of that.

The moment is in microseconds since the epoch.
"""

Seen = tuple[str, int, int, Move | None]
"""An id, the time it was seen, the time it arrived, and the room that it entered, if any.

The times are in microseconds since the epoch. They differ for a connection that stays open: it is
seen repeatedly but arrived once.
"""

Departure = tuple[Act, str, int, int | None]
"""The act, the id, the moment of the act, and the last-seen time of the id if it is known.

The times are in microseconds since the epoch.
"""


class Write(NamedTuple):
    """A write of a process, noted in Redis so that the process notices lost data."""

    process: str
    moment: int
    """Microseconds since the epoch."""


class Written(NamedTuple):
    """The outcome of a write."""

    refused: Collection[int] = ()
    """The positions of sightings whose ids left, or were erased, after they arrived."""
    full: int = 0
    """The number of new ids refused because the kind has its maximum number of members."""
    wrote_before: float | None = None
    """The previous write of this process in Redis, in seconds since the epoch, or None."""
    came: int = 0
    """The number of ids that came online, where this is announced."""
    went: int = 0
    """The number of ids that went offline, where this is announced."""
