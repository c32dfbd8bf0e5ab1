"""Who is in a room, as the script in_room.lua reads it. Plans only, no I/O."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from .paging import PAGE
from .plan import Argument, Plan, texts
from .script import Script

NOWHERE = 0
"""The number for ids that are in no room."""
ROOM_BITS = 52  # a score is a double, which holds whole numbers of 53 bits
# Ids that a command looks up: at most 30 ms of server time.
LOOKED_UP = 30_000


def room_number(name: str) -> int:
    """Return the number by which a room is stored. No two names are likely to share it."""
    digest = blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - ROOM_BITS) or 1


@dataclass(frozen=True)
class InRoom:
    """The script in_room.lua of a kind in one shard: its arguments and its reply."""

    script: Script
    names: Sequence[str]
    """The keys of the script."""
    window: float
    sweep: Callable[[float], Plan[object]]
    """Returns the plan of a sweep at a moment."""

    def count(self, room: int, now: float) -> Plan[int]:
        """Return how many ids in a room are online."""
        return sum((yield from self._read(room, now, 0, LOOKED_UP)))

    def ids(self, room: int, now: float, limit: int | None) -> Plan[list[str]]:
        """Return the ids in a room that are online, sorted, at most `limit`."""
        wanted = limit or sys.maxsize
        found = yield from self._read(room, now, wanted, min(LOOKED_UP, 4 * max(wanted, PAGE)))
        return texts(found[:limit])

    def _read(self, room: int, now: float, wanted: int, most: int) -> Plan[list[Any]]:
        """Return the replies of all commands: ids, at least `wanted` of them, or else numbers."""
        found: list[Any] = []
        after: Argument = ""
        moments = repr(now), repr(now - self.window)
        while True:
            wanted_now = min(wanted, most)
            command = self.script.command(self.names, room, *moments, most, wanted_now, after)
            (reply,) = yield from self.script.send(command)
            if reply is None:
                yield from self.sweep(now)
                found, after = [], ""
                continue
            page, after = reply
            found += page if wanted else [page]
            if not after or 0 < wanted <= len(found):
                return found
