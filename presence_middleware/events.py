"""Events: who comes online and who goes offline, for loops in threads and in coroutines.

A thread reads the streams of a kind once a second, however many iterators wait for events. It runs
only while there is an iterator. All iterators end when the web server stops, which would otherwise
wait for the responses that wait for events.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from os import getpid
from secrets import token_hex
from typing import Any, NamedTuple, Protocol, Self
from weakref import WeakSet

from .connections import Driver, Waiter, in_thread, is_server_stopping
from .errors import EventsLost, PresenceError, PresenceUnavailable, QueryError
from .stores import EventStream, Plan, Position, Reading, Shards, moment_of, run_all

READ_EVERY = 1.0  # seconds
OUTAGE_SECONDS = 10.0  # after which iterators report an outage
MAX_QUEUED = 10_000  # events that wait for a slow iterator
LEASE_SECONDS = 10.0  # after which another process takes the place of one that died
RELEASE_SECONDS = 2.0  # for which `close` waits until the lease is given up
ENOUGH_QUEUED = 1000  # a named iterator reads no more while so many events wait

# At most 19 digits, because a server refuses ids of entries that have more than 64 bits.
_POSITION = r"[0-9]{1,19}(?:-[0-9]{1,19})?\.[0-9]{1,15}"
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


class _Outage:
    """How long Redis has not answered."""

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether Redis did not answer the last time."""
        return self._since is not None

    def error_for(self, failure: Exception) -> PresenceUnavailable | None:
        """Note a failure; return an error every `OUTAGE_SECONDS` of an outage, else None."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since < OUTAGE_SECONDS:
            return None
        self._since = now
        return PresenceUnavailable(f"no events can be read: {failure}")

    def is_over(self) -> None:
        """Note that Redis answers."""
        self._since = None


class Sleeper(Protocol):
    """An iterator that waits for an event."""

    def wake(self) -> None:
        """Let it look for events again. For any thread."""


class _Subscription:
    """What both subscriptions share: a queue, and the iterator that waits for it."""

    def __init__(self, among: frozenset[str] | None) -> None:
        self.began = time.monotonic()
        self.is_ended = False
        """Whether nothing will be added any more."""
        self._among = among
        self._queue: deque[Event | PresenceError] = deque()
        self._lock = threading.Lock()
        self._sleeper: Sleeper | None = None

    def end(self) -> None:
        """End the iteration. For any thread."""
        with self._lock:
            self.is_ended = True
            sleeper = self._sleeper
        if sleeper is not None:
            sleeper.wake()

    def _wanted(self, items: Sequence[Event | PresenceError]) -> list[Event | PresenceError]:
        among = self._among
        if among is None:
            return list(items)
        return [item for item in items if isinstance(item, PresenceError) or item.id in among]


class Subscription(_Subscription):
    """The events that wait for an iterator."""

    def __init__(
        self, among: frozenset[str] | None = None, after: list[Position] | None = None
    ) -> None:
        """Create a subscription for events of the ids `among`, or of all.

        `after` are the positions to begin at, one for each shard; None to begin now.
        """
        super().__init__(among)
        self.after = after
        """The positions to go on from, until the hub has delivered what came since."""

    def put(self, items: Sequence[Event | PresenceError]) -> None:
        """Add events and errors, and wake the iterator."""
        with self._lock:
            self._queue += self._wanted(items)
            if len(self._queue) > MAX_QUEUED:
                self._queue.clear()
                self._queue.append(EventsLost("this reader is too slow: too many events wait"))
            sleeper = self._sleeper if self._queue else None
        if sleeper is not None:
            sleeper.wake()

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


class NamedSubscription(_Subscription):
    """The events that wait for a named iterator, while it holds the lease of the name.

    The iterators of all processes that use a name share its lease. An event counts as handled when
    its iterator is asked for the next one.
    """

    def __init__(self, name: str, among: frozenset[str] | None = None) -> None:
        """Create a subscription for events of the ids `among`, or of all, under a name."""
        super().__init__(among)
        self.name = name
        self.who = token_hex(8)
        """Identifies this iterator in the lease."""
        self.start = ""
        """Where the name begins if it is not known yet: the cursor of when this was created."""
        self.positions: list[Position] | None = None
        """Up to where events have been read. None unless it holds the lease."""
        self.outage = _Outage()
        self.is_released = threading.Event()
        """Set when the lease has been given up, after the iterator was closed."""
        self._failure: PresenceUnavailable | None = None
        self._held_until = 0.0
        self._handled = ""
        self._in_hand = ""
        """The cursor of the event that the iterator returned last."""
        self._is_waiting = False

    def take(self, sleeper: Sleeper) -> Event | None:
        """Note that the last event is handled; return the next, or None as `Subscription.take`.

        Returns None also at the end, and if the lease was not renewed in time, because another
        process may hold it by now. Raises `PresenceUnavailable` in an outage, and `EventsLost`.
        """
        with self._lock:
            self._handled, self._in_hand = self._in_hand or self._handled, ""
            self._is_waiting = False
            failure, self._failure = self._failure, None
            if self.is_ended:
                return None  # what waits is for the process that holds the lease next
            if failure is not None:
                raise failure
            if not self._queue or time.monotonic() >= self._held_until:
                self._is_waiting, self._sleeper = True, sleeper
                return None
            item = self._queue.popleft()
            if isinstance(item, PresenceError):
                raise item
            self._in_hand = item.cursor
            return item

    @property
    def handled(self) -> str:
        """The cursor up to which events are handled; empty unless it holds the lease."""
        with self._lock:
            if self.positions is not None and self._is_waiting and not self._queue:
                return cursor_of(self.positions)  # also after events of ids that are not wanted
            return self._handled

    @property
    def has_room(self) -> bool:
        """Whether to read more events: a slow iterator leaves them in the stream."""
        return len(self._queue) < ENOUGH_QUEUED

    def begin(self, positions: list[Position]) -> None:
        """Go on from `positions`, because it holds the lease from now on."""
        with self._lock:
            self.positions = positions
            self._queue.clear()
            self._handled, self._in_hand = cursor_of(positions), ""

    def lose(self) -> None:
        """Drop what is not handled, because another process holds the lease."""
        with self._lock:
            self.positions = None
            self._queue.clear()
            self._handled = self._in_hand = ""
            self._held_until = 0.0

    def renew(self, until: float) -> None:
        """Let the iterator go on until a time of `time.monotonic()`."""
        with self._lock:
            self._held_until = until
        self._wake()

    def put(self, items: Sequence[Event | PresenceError], positions: list[Position]) -> None:
        """Add events and errors, which end at `positions`, and wake the iterator."""
        with self._lock:
            self._queue += self._wanted(items)
            self.positions = positions
        self._wake()

    def fail(self, failure: PresenceUnavailable) -> None:
        """Report an outage to the iterator."""
        with self._lock:
            self._failure = failure
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            sleeper = self._sleeper if self._queue or self._failure else None
        if sleeper is not None:
            sleeper.wake()


class Hub:
    """Reads the streams of a kind once a second, and gives the events to all subscriptions."""

    def __init__(
        self,
        kind: str,
        shards: Shards,
        get_driver: Callable[[], Driver],
        sweep: Callable[[Driver], None],
    ) -> None:
        """Create the hub of `kind`. `get_driver` returns the driver of readers.

        `sweep` announces who has gone, unless another process does: of a site that is asleep, this
        process may be the only one that runs. Raises `UnsupportedQuery` if the kind announces
        nobody.
        """
        self._kind, self._get_driver, self._sweep = kind, get_driver, sweep
        self._names = [shard.name for shard in shards.all]
        self._streams: list[EventStream] = [shard.event_stream() for shard in shards.all]
        self._reset()

    def _reset(self) -> None:
        self._pid = getpid()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._named: WeakSet[NamedSubscription] = WeakSet()
        self._leaving: list[NamedSubscription] = []
        self._thread: threading.Thread | None = None
        self._positions: list[Position] = []
        self._outage = _Outage()

    def subscribe(self, subscription: Subscription | NamedSubscription) -> None:
        """Deliver events to a subscription from now on, as long as something refers to it."""
        if self._pid != getpid():
            self._reset()  # in a forked child, there is no thread of the parent
        with self._lock:
            if isinstance(subscription, NamedSubscription):
                self._named.add(subscription)
            else:
                self._subscriptions.add(subscription)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="presence-events")
                self._thread.daemon = True
                self._thread.start()
        self._woken.set()

    def unsubscribe(self, subscription: Subscription | NamedSubscription) -> None:
        """Deliver no more events to a subscription. The thread gives up the lease of a name."""
        if self._pid != getpid():
            return  # a forked child: the subscription is the parent's
        with self._lock:
            if not isinstance(subscription, NamedSubscription):
                self._subscriptions.discard(subscription)
            elif subscription in self._named:
                self._named.remove(subscription)
                self._leaving.append(subscription)
        self._woken.set()

    def close(self) -> None:
        """End all iterators of this process. Others may begin afterwards."""
        if self._pid != getpid():
            return  # a forked child has none yet
        with self._lock:
            subscriptions: list[Subscription | NamedSubscription] = [*self._subscriptions]
            subscriptions += self._named
        for subscription in subscriptions:
            subscription.end()
            self.unsubscribe(subscription)

    def _run(self) -> None:
        has_more: bool | None = False
        while has_more is not None:
            began = time.monotonic()
            has_more = self._run_once()
            if has_more is False:
                self._woken.wait(max(0.0, began + READ_EVERY - time.monotonic()))
                self._woken.clear()

    def _run_once(self) -> bool | None:
        """Serve everybody; return whether there may be more. Return None if the thread ends.

        Iterators are referred to only in here, so that those which are dropped can go.
        """
        if is_server_stopping():
            self.close()
        with self._lock:
            subscriptions, named = list(self._subscriptions), list(self._named)
            leaving, self._leaving = self._leaving, []
            if not subscriptions:
                self._positions = []
            if not (subscriptions or named or leaving):
                self._thread = None
                return None
        for each in leaving:
            self._release(each)
        if subscriptions or named:
            self._sweep_unless_away(subscriptions, named)
        has_more = self._serve(subscriptions)
        for each in named:
            has_more = self._serve_named(each) or has_more
        return has_more

    def _sweep_unless_away(
        self, subscriptions: list[Subscription], named: list[NamedSubscription]
    ) -> None:
        is_away = self._outage.is_on if subscriptions else all(each.outage.is_on for each in named)
        if not is_away:
            with suppress(Exception):  # a user that may only read, for example
                self._sweep(self._get_driver())

    def _serve(self, subscriptions: list[Subscription]) -> bool:
        """Give everything new to the subscriptions without a name; return if there may be more."""
        try:
            has_more = bool(subscriptions) and self.deliver(subscriptions)
        except Exception as failure:
            error = self._outage.error_for(failure)
            if error is not None:
                for subscription in subscriptions:
                    subscription.put([error])
            return False
        self._outage.is_over()
        return has_more

    def _serve_named(self, subscription: NamedSubscription) -> bool:
        """Renew the lease of a subscription, and read for it; return if there may be more."""
        try:
            has_more = self._hold(subscription) and self._read_on(subscription)
        except Exception as failure:
            error = subscription.outage.error_for(failure)
            if error is not None:
                subscription.fail(error)
            return False
        subscription.outage.is_over()
        return has_more

    def _hold(self, subscription: NamedSubscription) -> bool:
        """Take or renew the lease of a subscription; return False if another process holds it.

        Raises `PresenceUnavailable`.
        """
        asked_at = time.monotonic()
        if not subscription.start:
            subscription.start = cursor_of(self.now(asked_at - subscription.began))
        lease = self._streams[0].lease(subscription.name)
        handled = subscription.handled
        start = handled or subscription.start  # a server that lost its data knows no name
        plan = lease.take(subscription.who, LEASE_SECONDS, handled, start)
        held = self._get_driver().run(plan)
        if held is None:
            subscription.lose()
            return False
        if subscription.positions is None or not held.is_renewed:
            subscription.begin(self._places_in(held.place))
        subscription.renew(asked_at + LEASE_SECONDS)
        return True

    def _places_in(self, cursor: str) -> list[Position]:
        try:
            return self.parse_cursor(cursor)
        except QueryError:
            # The number of shards was changed: these places are too old to go on from.
            return [Position("0", -1)] * len(self._streams)

    def _read_on(self, subscription: NamedSubscription) -> bool:
        """Read for a subscription that holds its lease; return whether there may be more.

        Raises `PresenceUnavailable` if no shard can be read.
        """
        positions = subscription.positions
        if positions is None or not subscription.has_room:
            return False
        plans = [stream.read(after) for stream, after in zip(self._streams, positions, strict=True)]
        positions = list(positions)
        events, has_more = self._events_of(self._read(plans), positions, self._last_position)
        subscription.put(events, positions)
        return has_more

    def _release(self, subscription: NamedSubscription) -> None:
        """Give up the lease of a subscription that was closed. Without Redis, it runs out."""
        lease = self._streams[0].lease(subscription.name)
        with suppress(PresenceError):
            self._get_driver().run(lease.give_up(subscription.who, subscription.handled))
        subscription.is_released.set()

    def now(self, age: float) -> list[Position]:
        """Return the positions of all shards of `age` seconds ago. Raises if one is away."""
        positions = self._read([stream.position(age) for stream in self._streams])
        failure = next((each for each in positions if isinstance(each, Exception)), None)
        if failure is not None:
            raise failure
        return positions

    def deliver(self, subscriptions: list[Subscription]) -> bool:
        """Give everything new to the subscriptions; return whether there may be more.

        Raises `PresenceUnavailable` if no shard can be read.
        """
        if not self._positions:
            age = max(time.monotonic() - subscription.began for subscription in subscriptions)
            self._positions = self.now(age)
        plans = [
            stream.read(after) for stream, after in zip(self._streams, self._positions, strict=True)
        ]
        events, has_more = self._events_of(self._read(plans), self._positions, self._last_position)
        behind: list[tuple[Subscription, list[Position]]] = []
        for subscription in subscriptions:
            if subscription.after is None:
                subscription.put(events)
            else:
                behind.append((subscription, subscription.after))
        if not has_more:
            # Another process may have read further, so this one has to be up to date first.
            for subscription, positions in behind:
                self._catch_up(subscription, positions)
        return has_more

    def _catch_up(self, subscription: Subscription, positions: list[Position]) -> None:
        """Give a subscription what was announced between its `positions` and those of this hub.

        If a shard is away, the rest is given another time.
        """
        has_more = True
        while has_more:
            plans = [
                stream.read(after, until)
                for stream, after, until in zip(
                    self._streams, positions, self._positions, strict=True
                )
            ]
            events, has_more = self._events_of(
                self._read(plans), positions, self._positions.__getitem__
            )
            subscription.put(events)
        if all(a.number == b.number for a, b in zip(positions, self._positions, strict=True)):
            subscription.after = None

    def _last_position(self, number: int) -> Position | None:
        """Return the position after everything in a shard, or None if it cannot be read now."""
        (position,) = self._read([self._streams[number].last_position()], only=number)
        return position if isinstance(position, Position) else None

    def _events_of(
        self,
        readings: Sequence[Reading | Exception],
        positions: list[Position],
        next_position: Callable[[int], Position | None],
    ) -> tuple[list[Event | PresenceError], bool]:
        """Return the events in the readings of all shards, and whether there may be more.

        Moves `positions` on. A shard that is away for now has no events; if all are, raises the
        error of one. Where the events of a shard were lost, reading goes on at its
        `next_position`.
        """
        events: list[Event | PresenceError] = []
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
            cursor = cursor_of(positions)
            *earlier, last = announcement.changes
            events += [_event(self._kind, change, cursor) for change in earlier]
            positions[number] = announcement.position
            events.append(_event(self._kind, last, cursor_of(positions)))
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


def _event(kind: str, change: Any, cursor: str) -> Event:
    return Event(kind, change.id, change.is_online, moment_of(change.moment), cursor)


def cursor_of(positions: Sequence[Position]) -> str:
    """Return the cursor of the positions in all shards."""
    return ",".join(f"{position.entry}.{position.number}" for position in positions)


class _Iterator:
    """What both iterators share: a subscription, and its end."""

    def __init__(self, hub: Hub, subscription: Subscription | NamedSubscription) -> None:
        self._hub, self._subscription = hub, subscription
        self._pid = getpid()
        hub.subscribe(subscription)

    @property
    def is_ended(self) -> bool:
        """Whether the iterator was closed, or the web server stops."""
        return self._subscription.is_ended

    def _close(self) -> threading.Event | None:
        """End the iteration. Return what is set once the lease is given up, if it was held."""
        subscription = self._subscription
        subscription.end()
        self._hub.unsubscribe(subscription)
        if not isinstance(subscription, NamedSubscription) or self._pid != getpid():
            return None
        return subscription.is_released if subscription.positions is not None else None


class Sleep(threading.Event):
    """Lets a thread wait until another wakes it."""

    def wake(self) -> None:
        """Let the thread go on."""
        self.set()


class Events(_Iterator):
    """An endless iterator over events, for a thread.

    It raises `EventsLost` where events were missed, and `PresenceUnavailable` if Redis stays away.
    After each of them, it can go on. `close` ends it, from any thread. It also ends when the web
    server stops.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while not self.is_ended:
            sleep = Sleep()
            event = self._subscription.take(sleep)
            if event is not None:
                return event
            if not self.is_ended:
                sleep.wait()
        raise StopIteration

    def close(self) -> None:
        """End the iteration. If it has a name, another process goes on at once."""
        is_released = self._close()
        if is_released is not None:
            is_released.wait(RELEASE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncEvents(_Iterator):
    """An endless iterator over events, for a coroutine of asyncio or trio.

    The errors and its end are as for `Events`. `aclose` ends it.
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self.is_ended:
            event = await self.wait()
            if event is not None:
                return event
        raise StopAsyncIteration

    async def wait(self, seconds: float | None = None) -> Event | None:
        """Return the next event, or None if there is none for `seconds`, or if this is at its end.

        With `seconds` of None, wait as long as it takes. Raises the errors of the iterator.
        """
        if self.is_ended:
            return None
        waiter = Waiter()
        event = self._subscription.take(waiter)
        if event is not None or self.is_ended:
            return event
        await waiter.wait(seconds)
        return None if self.is_ended else self._subscription.take(waiter)

    async def aclose(self) -> None:
        """End the iteration. If it has a name, another process goes on at once."""
        is_released = self._close()
        if is_released is not None:
            await in_thread(is_released.wait, RELEASE_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
