"""A HyperLogLog for each minute: it counts any number of ids in 12 kB a minute. No I/O."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..errors import UnsupportedQuery
from . import keys
from .plan import Batch, Command, Plan, score
from .record import (
    NO_MOVES,
    Move,
    Recorded,
    Stamped,
    Write,
    as_seconds,
    by_minute,
    chunks,
    send_in_trips,
)
from .store import Sighting, WithoutRooms, last_write


class HyperLogLog(WithoutRooms):
    """The store `hyperloglog`: it counts within about one per cent and stores no ids.

    It is meant for guests and bots. The minutes are the same as those of `MinuteSets`.
    """

    def __init__(
        self, prefix: str, kind: str, window: float, keep_seconds: float, max_members: int
    ) -> None:
        """Create a store as `Store` describes. `max_members` is unused: the size is constant."""
        self.name, self.keep_seconds = f"{prefix}:{kind}", keep_seconds
        self.ttl = keys.ttl(keep_seconds)
        self._prefix, self._kind = prefix, kind
        self._writers_key = keys.writers(prefix, kind)

    def record(
        self,
        sightings: Sequence[Stamped],
        write: Write | None = None,
        moves: Mapping[str, Move] = NO_MOVES,
    ) -> Plan[Recorded]:
        commands: list[Command] = []
        if write:
            commands += (
                ("ZSCORE", self._writers_key, write.process),
                ("ZADD", self._writers_key, as_seconds(write.moment), write.process),
                ("EXPIRE", self._writers_key, self.ttl),
            )
        for minute, seen in by_minute(sightings):
            for chunk in chunks(seen):
                commands += self._add(minute, [id for id, *_ in chunk])
        replies = yield from send_in_trips(commands)
        return Recorded(wrote_before=score(replies[0]) if write else None)

    def last_write(self, process: str) -> Plan[float | None]:
        return last_write(self._writers_key, process)

    def touch(self, id: str, now: float, latest: float) -> Plan[None]:
        yield Batch(self._add(keys.minute_of(now), [id]), atomic=True)

    def count(self, now: float, window: float) -> Plan[int]:
        minutes = [self._key(minute) for minute in keys.minutes_of(now, window)]
        (count,) = yield Batch((("PFCOUNT", *minutes),))
        return int(count)

    def online(
        self, now: float, window: float, limit: int | None, before: Sighting | None
    ) -> NoReturn:
        self._refuse("list who is online", "sorted-set and minute-sets can")

    def online_among(self, ids: list[str], now: float, window: float) -> NoReturn:
        self._refuse("look up whether an id is online", "sorted-set and minute-sets can")

    def online_friends(self, friends: str, now: float, window: float) -> NoReturn:
        self._refuse("look up which friends are online", "sorted-set and minute-sets can")

    def last_seen(self, ids: Sequence[str], now: float) -> NoReturn:
        self._refuse("look up when an id was seen", "sorted-set can, minute-sets to the minute")

    def depart(
        self, id: str, moment: float, *, is_server_time: bool = True, erase: bool = False
    ) -> Plan[float]:
        """Do nothing to erase an id, because none is stored; raise `UnsupportedQuery` otherwise."""
        if not erase:
            self._refuse("take an id offline", "sorted-set and minute-sets can")
        return self._do_nothing(moment)

    def _do_nothing(self, moment: float) -> Plan[float]:
        return moment
        yield

    def keys(self, now: float) -> list[str]:
        return [self._key(minute) for minute in keys.minutes_of(now, self.keep_seconds)]

    def keep_longer(self, seconds: float) -> None:
        self.ttl = keys.ttl(max(self.keep_seconds, seconds))

    def clean_up(self, now: float, *, is_server_time: bool = True) -> Plan[bool]:
        """Remove processes that have ended. The keys of minutes expire by themselves."""
        silent_since = now - self.keep_seconds - 2 * keys.SLACK
        yield Batch((("ZREMRANGEBYSCORE", self._writers_key, "-inf", silent_since),))
        return False

    def _refuse(self, operation: str, alternative: str) -> NoReturn:
        raise UnsupportedQuery(
            f"kind {self._kind!r} is stored as a hyperloglog, which cannot {operation}: "
            f"{alternative} (PRESENCE_STORE)"
        )

    def _add(self, minute: int, ids: list[str]) -> tuple[Command, ...]:
        key = self._key(minute)
        return (("PFADD", key, *ids), ("EXPIRE", key, self.ttl))

    def _key(self, minute: int) -> str:
        return keys.minute_log(self._prefix, self._kind, minute)
