"""How many were online, a minute at a time, and the most there ever were. Plans only, no I/O.

A day of a kind is a hash: minute of the day by count. One process of all samples each minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from . import keys
from .plan import Batch, Command, Plan, text
from .store import moment_of

DAY = 1440  # minutes
PEAK_TTL = 366 * 24 * 3600  # from the last sample


@dataclass(frozen=True, slots=True)
class Sample:
    """How many were online, and when, in UTC."""

    at: datetime
    count: int


class History:
    """The samples and peaks of a site, by kind."""

    def __init__(self, prefix: str, keep: float) -> None:
        """Samples are kept for `keep` seconds."""
        self._prefix, self._keep = prefix, keep

    def claim(self, minute: int) -> Plan[bool]:
        """Whether the caller is the one who samples that minute since the epoch."""
        name = keys.sampled(self._prefix, minute)
        (is_first,) = yield Batch((("SET", name, 1, "NX", "EX", 2 * keys.MINUTE),))
        return bool(is_first)

    def record(self, minute: int, counts: Mapping[str, int]) -> Plan[None]:
        """Writes the samples of a minute."""
        day, within = divmod(minute, DAY)
        ttl = keys.ttl(self._keep) + DAY * keys.MINUTE
        writes: list[Command] = []
        for kind, count in counts.items():
            name = keys.history(self._prefix, kind, day)
            writes += (("HSET", name, within, count), ("EXPIRE", name, ttl))
        yield Batch(tuple(writes))
        for kind, count in counts.items():
            yield from self._raise_peak(kind, minute, count)

    def _raise_peak(self, kind: str, minute: int, count: int) -> Plan[None]:
        highest = yield from self.peak(kind)
        name = keys.peak(self._prefix, kind)
        commands: tuple[Command, ...] = (("EXPIRE", name, PEAK_TTL),)
        if count > (highest.count if highest else 0):
            commands = (("HSET", name, "count", count, "minute", minute), *commands)
        yield Batch(commands)

    def samples(self, kind: str, since: float, now: float) -> Plan[list[Sample]]:
        """The samples of a kind from `since` until `now`, in seconds since the epoch."""
        kept = max(since, now - self._keep - DAY * keys.MINUTE)
        first, last = keys.minute_of(kept), keys.minute_of(now)
        days = range(first // DAY, last // DAY + 1)
        names = [keys.history(self._prefix, kind, day) for day in days]
        found = yield Batch(tuple(("HGETALL", name) for name in names))
        counts = {
            day * DAY + int(within): int(count)
            for day, hash in zip(days, found, strict=True)
            for within, count in hash.items()
        }
        minutes = sorted(minute for minute in counts if first < minute <= last)
        return [Sample(moment_of(minute * keys.MINUTE), counts[minute]) for minute in minutes]

    def peak(self, kind: str) -> Plan[Sample | None]:
        """The most of a kind that were ever sampled, and when first."""
        name = keys.peak(self._prefix, kind)
        ((count, minute),) = yield Batch((("HMGET", name, "count", "minute"),))
        if count is None:
            return None
        return Sample(moment_of(int(text(minute)) * keys.MINUTE), int(text(count)))

    def reset_peak(self, kind: str) -> Plan[None]:
        """Forgets the peak: the next sample is the highest."""
        yield Batch((("DEL", keys.peak(self._prefix, kind)),))
