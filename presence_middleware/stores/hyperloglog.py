"""A HyperLogLog for every minute: a count of any number in 12 kB a minute. Plans only, no I/O."""

from collections.abc import Sequence
from typing import NoReturn

from ..errors import UnsupportedQuery
from . import keys
from .plan import Batch, Command, Plan, score
from .record import Recorded, Stamped, Write, by_minute, chunks, seconds, send_all
from .store import Sighting, last_write


class HyperLogLog:
    """Counts, within about one per cent, and keeps no ids: for guests and bots.

    The minutes are those of `MinuteSets`, with the same promise.
    """

    def __init__(self, prefix: str, kind: str, window: float, keep: float, most: int) -> None:
        """`most` is no matter: any number takes the same room."""
        self.name, self.keep, self.ttl = f"{prefix}:{kind}", keep, keys.ttl(keep)
        self._prefix, self._kind = prefix, kind
        self._writers = keys.writers(prefix, kind)

    def record(self, sightings: Sequence[Stamped], write: Write | None = None) -> Plan[Recorded]:
        noted = self._note(write) if write else ()
        added = [
            command
            for minute, seen in by_minute(sightings)
            for chunk in chunks(seen)
            for command in self._add(minute, [id for id, *_ in chunk])
        ]
        replies = yield from send_all([*noted, *added])
        return Recorded(wrote_before=score(replies[0]) if write else None)

    def _note(self, write: Write) -> tuple[Command, ...]:
        return (
            ("ZSCORE", self._writers, write.process),
            ("ZADD", self._writers, seconds(write.moment), write.process),
            ("EXPIRE", self._writers, self.ttl),
        )

    def last_write(self, process: str) -> Plan[float | None]:
        return last_write(self._writers, process)

    def touch(self, id: str, now: float) -> Plan[None]:
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
        self._refuse("tell whether somebody is online", "sorted-set and minute-sets can")

    def online_friends(self, friends: str, now: float, window: float) -> NoReturn:
        self._refuse("tell which friends are online", "sorted-set and minute-sets can")

    def last_seen(self, id: str, now: float) -> NoReturn:
        self._refuse("tell when somebody was seen", "sorted-set can, minute-sets to the minute")

    def depart(
        self, id: str, moment: float, *, is_server_time: bool = True, erase: bool = False
    ) -> Plan[float]:
        """Erase nothing: a HyperLogLog keeps no ids. It can take nobody offline either."""
        if not erase:
            self._refuse("take somebody offline", "sorted-set and minute-sets can")
        return self._do_nothing(moment)

    def _do_nothing(self, moment: float) -> Plan[float]:
        return moment
        yield

    def keys(self, now: float) -> list[str]:
        return [self._key(minute) for minute in keys.minutes_of(now, self.keep)]

    def keep_longer(self, seconds: float) -> None:
        self.ttl = keys.ttl(max(self.keep, seconds))

    def clean_up(self, now: float, *, is_server_time: bool = True) -> Plan[bool]:
        """Remove processes that have gone; every minute expires by itself."""
        silent = now - self.keep - 2 * keys.SLACK
        yield Batch((("ZREMRANGEBYSCORE", self._writers, "-inf", silent),))
        return False

    def _refuse(self, what: str, who_can: str) -> NoReturn:
        raise UnsupportedQuery(
            f"kind {self._kind!r} is kept as a hyperloglog, which cannot {what}: {who_can} "
            "(PRESENCE_STORE)"
        )

    def _add(self, minute: int, ids: list[str]) -> tuple[Command, ...]:
        key = self._key(minute)
        return (("PFADD", key, *ids), ("EXPIRE", key, self.ttl))

    def _key(self, minute: int) -> str:
        return keys.minute_log(self._prefix, self._kind, minute)
