"""The streams of a kind in all shards, read as events."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..connections import Driver
from ..errors import EventsLost, PresenceUnavailable, QueryError
from ..stores import EventStream, Lease, Plan, Position, Reading, Shards, moment_of, run_all
from .event import Event, Item, cursor_of

# At most 19 digits, because a server refuses ids of entries that have more than 64 bits.
_POSITION = r"[0-9]{1,19}(?:-[0-9]{1,19})?\.[0-9]{1,15}"
_CURSOR = re.compile(f"{_POSITION}(?:,{_POSITION})*")

T = TypeVar("T")


class Streams:
    """Reads the streams of a kind."""

    def __init__(self, kind: str, shards: Shards, get_driver: Callable[[], Driver]) -> None:
        """Create the streams of `kind`. `get_driver` returns the driver of readers.

        Raises `UnsupportedQuery` if the kind announces nobody.
        """
        self._kind, self._get_driver = kind, get_driver
        self._names = [shard.name for shard in shards.all]
        self._streams: list[EventStream] = [shard.event_stream() for shard in shards.all]

    def run(self, plan: Plan[T]) -> T:
        """Run a plan. Raises `PresenceUnavailable`."""
        return self._get_driver().run(plan)

    def lease(self, name: str) -> Lease:
        """Return the lease of those who read under a name."""
        return self._streams[0].lease(name)

    def positions(self, age: float) -> list[Position]:
        """Return the positions of all shards of `age` seconds ago. Raises if one is away."""
        positions = self._read([stream.position(age) for stream in self._streams])
        failure = next((each for each in positions if isinstance(each, Exception)), None)
        if failure is not None:
            raise failure
        return positions

    def parse_cursor(self, cursor: str) -> list[Position]:
        """Return the positions of a cursor. Raises `QueryError` for any other text."""
        parts = cursor.split(",") if isinstance(cursor, str) and _CURSOR.fullmatch(cursor) else []
        if len(parts) != len(self._streams):
            raise QueryError(
                f"after is {str(cursor)[:100]!r}: pass the cursor of an event of this kind"
            )
        pairs = [part.rpartition(".")[::2] for part in parts]
        return [Position(entry, int(number)) for entry, number in pairs]

    def resume(self, cursor: str) -> list[Position]:
        """Return the positions of a cursor that a process stored.

        If the number of shards was changed since, they are too old to go on from.
        """
        try:
            return self.parse_cursor(cursor)
        except QueryError:
            return [Position("0", -1)] * len(self._streams)

    def read_on(self, positions: list[Position]) -> tuple[list[Item], bool]:
        """Return the events after `positions`, which it moves on, and whether there may be more.

        A shard that is away has no events for now. Where the events of a shard were lost, there is
        one `EventsLost`, and reading goes on after everything in that shard. Raises
        `PresenceUnavailable` if no shard can be read.
        """
        plans = [stream.read(after) for stream, after in zip(self._streams, positions, strict=True)]
        return self._events_of(self._read(plans), positions, self._last_position)

    def read_until(
        self, positions: list[Position], ends: Sequence[Position]
    ) -> tuple[list[Item], bool]:
        """Return the events between `positions` and `ends`, as `read_on` does."""
        plans = [
            stream.read(after, end)
            for stream, after, end in zip(self._streams, positions, ends, strict=True)
        ]
        return self._events_of(self._read(plans), positions, ends.__getitem__)

    def _events_of(
        self,
        readings: Sequence[Reading | Exception],
        positions: list[Position],
        next_position: Callable[[int], Position | None],
    ) -> tuple[list[Item], bool]:
        """Return the events in the readings of all shards, and whether there may be more.

        `next_position` returns the position of a shard that lost events; None if it is away.
        """
        events: list[Item] = []
        has_more = False
        failures: list[Exception] = []
        for number, reading in enumerate(readings):
            if isinstance(reading, EventsLost):
                position = next_position(number)
                if position is None:
                    failures.append(reading)  # reported as soon as the shard can be read
                else:
                    positions[number] = position
                    if not any(isinstance(event, EventsLost) for event in events):
                        events.append(reading)  # once, however many shards have lost some
            elif isinstance(reading, Exception):
                failures.append(reading)
            else:
                events += self._events_in(reading, number, positions)
                has_more = has_more or reading.has_more
        if len(failures) == len(readings):
            raise failures[0]
        return events, has_more

    def _events_in(self, reading: Reading, number: int, positions: list[Position]) -> list[Event]:
        events: list[Event] = []
        for announcement in reading.announcements:
            # Whoever goes on within an entry gets the whole entry again, rather than miss some.
            before = cursor_of(positions)
            positions[number] = announcement.position
            after = cursor_of(positions)
            last = len(announcement.changes) - 1
            events += [
                Event(
                    self._kind,
                    change.id,
                    change.is_online,
                    moment_of(change.moment),
                    after if index == last else before,
                )
                for index, change in enumerate(announcement.changes)
            ]
        positions[number] = reading.position
        return events

    def _last_position(self, number: int) -> Position | None:
        """Return the position after everything in a shard, or None if it cannot be read now."""
        try:
            return self.run(self._streams[number].last_position())
        except PresenceUnavailable:
            return None

    def _read(self, plans: list[Plan[Any]]) -> list[Any]:
        """Run a plan for each shard; return the results, or the errors.

        Each node is asked by itself, so that its outage stops no other.
        """
        driver = self._get_driver()
        nodes: dict[str, list[int]] = {}
        for number, name in enumerate(self._names):
            nodes.setdefault(driver.node_of(name), []).append(number)
        outcomes: list[Any] = [None] * len(plans)
        for numbers in nodes.values():
            try:
                results = driver.run(run_all([plans[number] for number in numbers]))
            except PresenceUnavailable as error:
                results = [error] * len(numbers)
            for number, result in zip(numbers, results, strict=True):
                outcomes[number] = result
        return outcomes
