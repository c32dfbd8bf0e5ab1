"""The number of ids online in each minute, and the peak. Plans only, no I/O.

The samples of one kind and day are a hash: minute of the day by count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from . import keys
from .plan import Batch, Command, Plan, chunks, decoded
from .store import moment_of

MINUTES_A_DAY = 1440
DAYS_A_TRIP = 4  # an event loop parses them at once, in some 10 ms
PEAK_TTL = 366 * 24 * 3600  # seconds after the last sample


@dataclass(frozen=True, slots=True)
class Sample:
    """The number of ids online in one minute."""

    at: datetime
    """The start of the minute, in UTC."""
    count: int


class History:
    """The samples and peaks of a site, by kind."""

    def __init__(self, prefix: str, keep_seconds: float) -> None:
        """Create the history of a site; samples are stored for `keep_seconds`."""
        self._prefix, self._keep_seconds = prefix, keep_seconds
        self.renewed: int | None = None
        """The hour since the epoch in which this process renewed the lifetimes of all keys."""

    def record(self, minute: int, counts: Mapping[str, int]) -> Plan[None]:
        """Write the samples of a minute since the epoch, of those kinds that have none.

        `counts` has the number by kind.
        """
        day, minute_of_day = divmod(minute, MINUTES_A_DAY)
        hour = minute // 60
        ttl = keys.ttl(self._keep_seconds) + MINUTES_A_DAY * keys.MINUTE
        writes: list[Command] = []
        for kind, count in counts.items():
            key = keys.history(self._prefix, kind, day)
            writes.append(("HSETNX", key, minute_of_day, count))
            if hour != self.renewed:
                writes.append(("EXPIRE", key, ttl))
                writes.append(("EXPIRE", keys.peak(self._prefix, kind), PEAK_TTL))
        yield Batch(tuple(writes))
        self.renewed = hour
        for kind, count in counts.items():
            highest = (yield from self.peak(kind)) if count else None
            if count > (highest.count if highest else 0):
                key = keys.peak(self._prefix, kind)
                raised: Command = ("HSET", key, "count", count, "minute", minute)
                yield Batch((raised, ("EXPIRE", key, PEAK_TTL)))

    def samples(self, kind: str, since: float, now: float) -> Plan[list[Sample]]:
        """Return the samples of a kind between `since` and `now`, oldest first.

        Both are seconds since the epoch. Minutes without a sample are left out.
        """
        oldest = max(since, now - self._keep_seconds)
        first, last = keys.minute_of(oldest), keys.minute_of(now)
        days = range(first // MINUTES_A_DAY, last // MINUTES_A_DAY + 1)
        samples: list[Sample] = []
        for part in chunks(days, DAYS_A_TRIP):
            names = [keys.history(self._prefix, kind, day) for day in part]
            replies = yield Batch(tuple(("HGETALL", name) for name in names))
            counts = {
                day * MINUTES_A_DAY + int(minute_of_day): int(count)
                for day, of_day in zip(part, replies, strict=True)
                for minute_of_day, count in of_day.items()
            }
            minutes = sorted(minute for minute in counts if first < minute <= last)
            samples += [Sample(moment_of(each * keys.MINUTE), counts[each]) for each in minutes]
        return samples

    def peak(self, kind: str) -> Plan[Sample | None]:
        """Return the highest sample of a kind (of equal samples, the first), or None."""
        key = keys.peak(self._prefix, kind)
        ((count, minute),) = yield Batch((("HMGET", key, "count", "minute"),))
        if count is None:
            return None
        return Sample(moment_of(int(decoded(minute)) * keys.MINUTE), int(decoded(count)))

    def reset_peak(self, kind: str) -> Plan[None]:
        """Delete the peak of a kind; the next sample becomes the peak."""
        yield Batch((("DEL", keys.peak(self._prefix, kind)),))
