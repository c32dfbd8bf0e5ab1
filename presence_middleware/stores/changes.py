"""What people did, as stores write it, and the outcome of a write.

All moments are microseconds since the epoch, by the server's clock, unless they are seconds.
"""

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import NamedTuple

from . import keys


class Act(IntEnum):
    """What somebody did."""

    SEEN = 0
    """A request, or as a departure: the last departure of the id is undone."""
    GOODBYE = 1
    """A page was closed: the id is offline soon, unless another page or device is in use."""
    LEFT = 2
    """The user logged out: the id is offline at once."""
    ERASED = 3
    """The id is erased, and only a hash of it stays for a window."""


Move = tuple[int, int]
"""The number of the room that an id entered (0: it left its room), and the moment of that."""

Seen = tuple[str, int, int, Move | None]
"""An id, the moment at which it was seen, the moment at which it arrived, and the room it entered.

The moments differ for a connection that stays open: it is seen repeatedly but arrived once.
"""

Departure = tuple[Act, str, int, int | None]
"""An act, an id, the moment, and the last-seen time of the id if this process knows it.

The moment is an upper bound. The last-seen time is used if the server has lost it.
"""


class Write(NamedTuple):
    """A write of a process, noted in Redis so that the process notices lost data."""

    process: str
    moment: int


class Written(NamedTuple):
    """The outcome of a write."""

    refused: Collection[int]
    """The positions of the sightings whose ids left, or were erased, after they arrived."""
    full: int
    """The number of new ids refused because the kind has its maximum number of members."""
    wrote_before: float | None
    """The previous write of this process in the shard, in seconds since the epoch, or None."""
    came: int
    """The number of ids that the write announced to have come online."""
    went: int
    """The number of ids that the write announced to have gone offline."""
    is_shortened: bool = False
    """True if events of less than five minutes were removed, because there are too many."""


def to_microseconds(moment: float) -> int:
    """Return a moment in seconds as whole microseconds."""
    return int(moment * 1e6 + 0.5)


def as_seconds(microseconds: int) -> str:
    """Return a moment as Redis parses it, in seconds. This is four times as fast as `repr`."""
    return f"{microseconds}e-6"


def by_minute(seen: Sequence[Seen]) -> list[tuple[int, list[int]]]:
    """Return the positions of the sightings of each minute since the epoch, in order."""
    minutes: dict[int, list[int]] = {}
    for position, (_, moment, _, _) in enumerate(seen):
        minutes.setdefault(moment // (keys.MINUTE * 1_000_000), []).append(position)
    return sorted(minutes.items())
