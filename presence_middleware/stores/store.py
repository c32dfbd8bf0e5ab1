"""What every store can be asked. All times are seconds since the epoch, by the server's clock."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from .plan import Batch, Plan, score
from .record import Recorded, Stamped, Write


class Sighting(NamedTuple):
    """An id and when it was last seen, in UTC; None where the store keeps no times."""

    id: str
    last_seen: datetime | None


def moment_of(stamp: float) -> datetime:
    """A stamp as a datetime in UTC."""
    return datetime.fromtimestamp(stamp, UTC)


def last_write(writers: str, process: str) -> Plan[float | None]:
    """Return the moment of a process in the sorted set `writers`, or None."""
    (moment,) = yield Batch((("ZSCORE", writers, process),))
    return score(moment)


class Store(Protocol):
    """One kind of identity, or a shard of it, kept in Redis in one way.

    Methods return plans. Those that a store cannot answer raise `UnsupportedQuery`.
    """

    name: str
    """What its keys begin with."""
    ttl: int
    """For how many seconds a key of it lives after it was written."""
    keep: float
    """For how many seconds after its last sighting an id can be asked for."""

    def record(self, sightings: Sequence[Stamped], write: Write | None = None) -> Plan[Recorded]:
        """Record sightings; note `write`, so that the process notices if they are lost."""

    def last_write(self, process: str) -> Plan[float | None]:
        """Return when a process last wrote here, in seconds since the epoch, or None."""

    def touch(self, id: str, now: float) -> Plan[None]:
        """Records one id as seen now, also if it left a moment ago, where there is room."""

    def count(self, now: float, window: float) -> Plan[int]:
        """How many were seen in the window."""

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> Plan[list[Sighting]]:
        """Who was seen in the window, newest first, from the one after `before`."""

    def online_among(self, ids: list[str], now: float, window: float) -> Plan[list[Sighting]]:
        """Those of `ids` that were seen in the window, in the order given."""

    def online_friends(self, friends: str, now: float, window: float) -> Plan[list[Sighting]]:
        """Those seen in the window that the set or sorted set `friends` holds too."""

    def last_seen(self, id: str, now: float) -> Plan[float | None]:
        """When an id was last seen, as far back as it is kept."""

    def depart(
        self, id: str, moment: float, *, is_server_time: bool = True, erase: bool = False
    ) -> Plan[float]:
        """Take an id offline, or erase it; return the moment at which that counts.

        What arrived up to then no longer counts, nor is it recorded; whoever was seen since stays.
        With `is_server_time` the moment is no later than the server's clock.
        """

    def keys(self, now: float) -> list[str]:
        """The keys in which those of the window are."""

    def keep_longer(self, seconds: float) -> None:
        """Remove nothing that is younger than `seconds`, where another process keeps it so long."""

    def clean_up(self, now: float, *, is_server_time: bool = True) -> Plan[bool]:
        """Remove a bounded number of the stale; return whether there may be more.

        What lies ahead of the server's time was written before its clock was set back, and is
        moved to now. A clock that a site passes may jump, so that says nothing there.
        """
