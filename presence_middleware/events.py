"""Events: who comes online and who goes offline, for loops in threads and in coroutines.

A thread reads the streams of a kind once a second, however many iterators wait for events. It runs
only while there is an iterator.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from os import getpid
from typing import Any, NamedTuple, Protocol, Self
from weakref import WeakSet

from .connections import Driver, Waiter
from .errors import EventsLost, PresenceError, PresenceUnavailable, QueryError
from .stores import EventStream, Plan, Position, Reading, Shards, moment_of, run_all

READ_EVERY = 1.0  # seconds
OUTAGE_SECONDS = 10.0  # after which iterators report an outage
MAX_QUEUED = 10_000  # events that wait for a slow iterator

_POSITION = r"[0-9]{1,20}(?:-[0-9]{1,20})?\.[0-9]{1,15}"
_CURSOR = re.compile(f"{_POSITION}(?:,{_POSITION})*")


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


class Sleeper(Protocol):
    """An iterator that waits for an event."""

    def wake(self) -> None:
        """Let it look for events again. For any thread."""


class Subscription:
    """The events that wait for an iterator."""

    def __init__(
        self, among: frozenset[str] | None = None, after: list[Position] | None = None
    ) -> None:
        """Create a subscription for events of the ids `among`, or of all.

        `after` are the positions to begin at, one for each shard; None to begin now.
        """
        self.after = after
        """The positions to go on from, until the hub has delivered what came since."""
        self.began = time.monotonic()
        self._among = among
        self._queue: deque[Event | PresenceError] = deque()
        self._lock = threading.Lock()
        self._sleeper: Sleeper | None = None

    def put(self, items: Sequence[Event | PresenceError]) -> None:
        """Add events and errors, and wake the iterator."""
        with self._lock:
            self._queue += [item for item in items if self._is_wanted(item)]
            if len(self._queue) > MAX_QUEUED:
                self._queue.clear()
                self._queue.append(EventsLost("this reader is too slow: too many events wait"))
            sleeper = self._sleeper if self._queue else None
        if sleeper is not None:
            sleeper.wake()

    def _is_wanted(self, item: Event | PresenceError) -> bool:
        return self._among is None or isinstance(item, PresenceError) or item.id in self._among

    def take(self, sleeper: Sleeper) -> Event | None:
        """Return the next event, or None if there is none: then `sleeper` is woken for the next.

        Raises an error that was added.
        """
        with self._lock:
            if not self._queue:
                self._sleeper = sleeper
                return None
            item = self._queue.popleft()
        if isinstance(item, PresenceError):
            raise item
        return item


class Hub:
    """Reads the streams of a kind once a second, and gives the events to all subscriptions."""

    def __init__(self, kind: str, shards: Shards, get_driver: Callable[[], Driver]) -> None:
        """Create the hub of `kind`. `get_driver` returns the driver of readers.

        Raises `UnsupportedQuery` if the kind announces nobody.
        """
        self._kind, self._get_driver = kind, get_driver
        self._names = [shard.name for shard in shards.all]
        self._streams: list[EventStream] = [shard.event_stream() for shard in shards.all]
        self._reset()

    def _reset(self) -> None:
        self._pid = getpid()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._thread: threading.Thread | None = None
        self._positions: list[Position] = []
        self._away_since: float | None = None

    def subscribe(self, subscription: Subscription) -> None:
        """Deliver events to a subscription from now on, as long as something refers to it."""
        if self._pid != getpid():
            self._reset()  # in a forked child, there is no thread of the parent
        with self._lock:
            self._subscriptions.add(subscription)
            if self._thread is None:
                self._positions = []
                self._thread = threading.Thread(target=self._run, name="presence-events")
                self._thread.daemon = True
                self._thread.start()
        self._woken.set()

    def unsubscribe(self, subscription: Subscription) -> None:
        """Deliver no more events to a subscription."""
        with self._lock:
            self._subscriptions.discard(subscription)
        self._woken.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                subscriptions = list(self._subscriptions)
                if not subscriptions:
                    self._thread = None
                    return
            began = time.monotonic()
            try:
                has_more = self._deliver(subscriptions)
            except Exception as error:
                has_more = False
                self._note_outage(subscriptions, error)
            del subscriptions  # this thread must not keep iterators alive while it waits
            if not has_more:
                self._woken.wait(max(0.0, began + READ_EVERY - time.monotonic()))
                self._woken.clear()

    def _note_outage(self, subscriptions: list[Subscription], error: Exception) -> None:
        """Report an outage that lasts to all iterators."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since >= OUTAGE_SECONDS:
            self._away_since = now
            failure = PresenceUnavailable(f"no events can be read: {error}")
            for subscription in subscriptions:
                subscription.put([failure])

    def _deliver(self, subscriptions: list[Subscription]) -> bool:
        """Give everything new to the subscriptions; return whether there may be more.

        Raises `PresenceUnavailable` if no shard can be read.
        """
        if not self._positions:
            age = max(time.monotonic() - subscription.began for subscription in subscriptions)
            positions = self._read([stream.position(age) for stream in self._streams])
            self._positions = [_or_raise(position) for position in positions]
        plans = [
            stream.read(after) for stream, after in zip(self._streams, self._positions, strict=True)
        ]
        events, self._positions, has_more = self._events_of(self._read(plans), self._positions)
        for subscription in subscriptions:
            if subscription.after is None and events:
                subscription.put(events)
            elif subscription.after is not None and not has_more:
                # Another process may have read further, so this one has to be up to date first.
                self._catch_up(subscription)
        return has_more

    def _catch_up(self, subscription: Subscription) -> None:
        """Give a subscription what was announced after its positions, which lie in the past.

        If a shard is away, the subscription goes on later: it must not miss the events of that
        shard.
        """
        has_more = True
        while has_more and subscription.after is not None:
            plans = [
                stream.read(after, until)
                for stream, after, until in zip(
                    self._streams, subscription.after, self._positions, strict=True
                )
            ]
            readings = self._read(plans)
            if any(isinstance(reading, PresenceUnavailable) for reading in readings):
                return
            events, subscription.after, has_more = self._events_of(
                readings, subscription.after, self._positions
            )
            subscription.put(events)
        subscription.after = None

    def _events_of(
        self,
        readings: Sequence[Reading | Exception],
        positions: Sequence[Position],
        until: Sequence[Position] | None = None,
    ) -> tuple[list[Event | PresenceError], list[Position], bool]:
        """Return the events in the readings, the positions after them, and whether there is more.

        There is a reading for each shard. `positions` are those of before. `until` are those up to
        which was read; None if everything was. A shard that is away for now has no events; if all
        are, raises `PresenceUnavailable`. Where events were lost, reading goes on with what comes
        next.
        """
        positions = list(positions)
        events: list[Event | PresenceError] = []
        has_more = False
        failures: list[PresenceUnavailable] = []
        for number, reading in enumerate(readings):
            if isinstance(reading, PresenceUnavailable):
                failures.append(reading)
            elif isinstance(reading, EventsLost):
                events.append(reading)
                if until is None:
                    (position,) = self._read([self._streams[number].position(0.0)], only=number)
                    positions[number] = _or_raise(position)
                else:
                    positions[number] = until[number]
            else:
                events += self._events_in(_or_raise(reading), number, positions)
                has_more = has_more or _or_raise(reading).has_more
        if len(failures) == len(readings):
            raise failures[0]
        self._away_since = None
        return events, positions, has_more

    def _events_in(self, reading: Reading, number: int, positions: list[Position]) -> list[Event]:
        events: list[Event] = []
        for announcement in reading.announcements:
            # Whoever goes on within an entry gets the whole entry again, rather than miss some.
            cursor = _cursor(positions)
            *earlier, last = announcement.changes
            events += [_event(self._kind, change, cursor) for change in earlier]
            positions[number] = announcement.position
            events.append(_event(self._kind, last, _cursor(positions)))
        positions[number] = reading.position
        return events

    def _read(self, plans: list[Plan[Any]], only: int | None = None) -> list[Any]:
        """Run a plan for each shard, or for the shard `only`; return the results or errors.

        Each node is asked by itself, so that its outage stops no other.
        """
        driver = self._get_driver()
        names = self._names if only is None else [self._names[only]]
        nodes: dict[str, list[int]] = {}
        for number, name in enumerate(names):
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

    def parse_cursor(self, cursor: str) -> list[Position]:
        """Return the positions of a cursor. Raises `QueryError` for any other text."""
        parts = cursor.split(",") if isinstance(cursor, str) and _CURSOR.fullmatch(cursor) else []
        if len(parts) != len(self._streams):
            raise QueryError("after is not the cursor of an event of this kind")
        pairs = [part.rpartition(".")[::2] for part in parts]
        return [Position(entry, int(number)) for entry, number in pairs]


def _or_raise(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _event(kind: str, change: Any, cursor: str) -> Event:
    return Event(kind, change.id, change.is_online, moment_of(change.moment), cursor)


def _cursor(positions: list[Position]) -> str:
    return ",".join(f"{position.entry}.{position.number}" for position in positions)


class _Iterator:
    """What both iterators share: a subscription, and its end."""

    def __init__(self, hub: Hub, subscription: Subscription) -> None:
        self._hub, self._subscription = hub, subscription
        self._is_closed = False
        self._sleeper: Sleeper | None = None
        hub.subscribe(subscription)

    def _close(self) -> None:
        self._is_closed = True
        self._hub.unsubscribe(self._subscription)
        if self._sleeper is not None:
            self._sleeper.wake()


class Sleep(threading.Event):
    """Lets a thread wait until another wakes it."""

    def wake(self) -> None:
        """Let the thread go on."""
        self.set()


class Events(_Iterator):
    """An endless iterator over events, for a thread.

    It raises `EventsLost` where events were missed, and `PresenceUnavailable` if Redis stays away.
    After each of them, it can go on. `close` ends it, from any thread.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while not self._is_closed:
            sleep = self._sleeper = Sleep()
            event = self._subscription.take(sleep)
            if event is not None:
                return event
            if not self._is_closed:
                sleep.wait()
        raise StopIteration

    def close(self) -> None:
        """End the iteration."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncEvents(_Iterator):
    """An endless iterator over events, for a coroutine of asyncio or trio.

    The errors are as for `Events`. `aclose` ends it.
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._is_closed:
            waiter = self._sleeper = Waiter()
            event = self._subscription.take(waiter)
            if event is not None:
                return event
            if not self._is_closed:
                await waiter.wait()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the iteration."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
