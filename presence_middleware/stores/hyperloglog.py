"""A HyperLogLog for each minute: it counts any number of ids in 12 kB a minute. No I/O."""

from collections.abc import Sequence

from . import keys
from .changes import Act, Departure, Seen, Write, Written, as_seconds, by_minute
from .plan import Batch, Command, Plan, score
from .script import COMMANDS_PER_TRIP, chunks
from .store import Store


class HyperLogLog(Store):
    """The store `hyperloglog`: it counts within about one per cent and stores no ids.

    It is meant for guests and bots. The minutes are the same as those of `MinuteSets`. Its size is
    constant: `max_members` is unused.
    """

    acts = Act.SEEN, Act.ERASED  # because no id is stored

    def write(
        self, seen: Sequence[Seen], departures: Sequence[Departure], write: Write | None = None
    ) -> Plan[Written]:
        commands: list[Command] = []
        if write:
            commands += (
                ("ZSCORE", self.key.writers, write.process),
                ("ZADD", self.key.writers, as_seconds(write.moment), write.process),
                ("EXPIRE", self.key.writers, self.ttl),
            )
        for minute, positions in by_minute(seen):
            key = f"{self.key.minute_log}{minute}"
            for part in chunks(positions):
                commands.append(("PFADD", key, *(seen[n][0] for n in part)))
                commands.append(("EXPIRE", key, self.ttl))
        replies: list[object] = []
        for trip in chunks(commands, COMMANDS_PER_TRIP):
            replies += yield Batch(tuple(trip))
        return Written((), 0, score(replies[0]) if write else None, 0, 0)

    def count(self, now: float, window: float) -> Plan[int]:
        (count,) = yield Batch((("PFCOUNT", *self._keys(now, window)),))
        return int(count)

    def keys(self, now: float) -> list[str]:
        return self._keys(now, self.keep_seconds)

    def _keys(self, now: float, window: float) -> list[str]:
        return [f"{self.key.minute_log}{minute}" for minute in keys.minutes_of(now, window)]
