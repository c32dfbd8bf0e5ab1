"""An event, and the cursor from which a reader goes on after it."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from ..stores import Position


class Event(NamedTuple):
    """A user who came online or went offline."""

    kind: str
    id: str
    online: bool
    """True if the user came, False if they went."""
    at: datetime
    """When the user was first seen again, or last seen, in UTC."""
    cursor: str
    """The place from which `events(after=cursor)` goes on."""


def cursor_of(positions: Sequence[Position]) -> str:
    """Return the cursor of the positions in all shards."""
    return ",".join(f"{position.entry}.{position.number}" for position in positions)
