"""Endless iterators over events: for threads, and for coroutines of asyncio and trio.

An iterator is a place in the events, and a filter. It takes the next events from the page of its
feed. If it is behind the page, it reads the streams from its own place, until it has reached the
page.
"""

import asyncio
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from queue import SimpleQueue
from typing import Any, Self
from weakref import WeakKeyDictionary

from ..connections import Waiter, in_thread
from ..connections.loops import is_trio
from ..errors import EventsLost, PresenceUnavailable, QueryError
from ..stores import MISSING
from .event import Event, EventBatch
from .feed import Era, Feed, Page, Sleeper
from .named import NameLease
from .streams import Chunk, Positions, Read, events_of

RELEASE_SECONDS = 2.0  # for which `close` waits until the lease is given up
TURNS = 4  # iterators that take events in one turn of an event loop
NOTHING = EventBatch()

_turns: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()


class Step(Enum):
    """What an iterator has to do before it can return an event."""

    LOOK = 1
    """Look at what it has taken."""
    READ = 2
    """Read the streams, because it is behind the page."""
    WAIT = 3
    """Wait until it is woken."""


class _Iterator:
    """What both iterators share: a place, and how it moves."""

    __slots__ = (
        "_among",
        "_batch",
        "_era",
        "_feed",
        "_lease",
        "_lock",
        "_next",
        "_outage",
        "_place",
        "_positions",
        "_reports",
        "_tick",
        "_unread",
        "_waiter",
    )

    def __init__(
        self,
        feed: Feed,
        among: frozenset[str] | None = None,
        after: Positions | None = None,
        lease: NameLease | None = None,
    ) -> None:
        """Create an iterator over the events of the ids `among`, or of all.

        It begins at the positions `after`, by default now, and with a lease where its name is.
        """
        self._feed, self._among, self._lease = feed, among, lease
        self._era: Era | None
        self._era, page = feed.open(lease)
        # The place on the page, or -1; and the positions after what was taken, if they are known.
        self._place = page.place if after is None else -1
        self._positions = page.end if after is None else after
        self._batch, self._next = NOTHING, 0
        self._unread: Sequence[Chunk] = ()
        self._outage = feed.outage if lease is None else lease.outage
        self._reports = self._outage.reports
        self._tick = -1
        self._waiter: Sleeper | None = None
        self._lock = threading.Lock()

    @property
    def is_ended(self) -> bool:
        """Whether the iterator was closed, or the web server stops."""
        era = self._era
        return era is None or (era.pid == os.getpid() and not self._feed.serves(era))

    def _take(self) -> Event | None:
        """Return the next of the events that were taken from the page, or None."""
        if self._next == len(self._batch):
            return None
        self._next += 1
        return self._batch[self._next - 1]

    def _pop(self) -> Event | None:
        """Return the next event that may be returned now, or None."""
        return self._take() if self._lease is None else self._lease.hand_out(self._take)

    def _look(self, waiter: Sleeper) -> Step:  # noqa: PLR0912
        """Take the next events from the page, if there are any; return what to do now.

        `waiter` is woken when there may be more. Raises `PresenceUnavailable` in an outage, and
        `QueryError` after a fork.
        """
        feed, lease, outage = self._feed, self._lease, self._outage
        era = self._era
        if era is None:
            return Step.LOOK  # it was closed just now
        if era.pid != os.getpid():
            raise QueryError("this iterator was opened before a fork: open it in each process")
        self._waiter = waiter
        feed.waiters.add(waiter)
        page = feed.page
        if self._reports != outage.reports:
            self._reports = outage.reports
            if outage.failure:
                raise PresenceUnavailable(outage.failure)
        if lease is not None:
            begin = lease.begin()
            if begin is not None:
                self._positions, self._place, self._unread = begin, -1, ()
                self._batch, self._next = NOTHING, 0
            if not lease.is_held:
                return Step.WAIT
        if self._next < len(self._batch):
            return Step.LOOK
        if self._unread:
            chunk, *self._unread = self._unread
        elif self._place < page.first:
            is_known = page.end is not None and self._tick != feed.ticks
            return Step.READ if is_known else Step.WAIT
        elif self._place == page.place:
            if lease is not None and self._positions is not None:
                lease.note_handled(self._positions)
            return Step.WAIT
        else:
            chunk = page.chunks[self._place - page.first]
            self._place += 1
            if self._positions is not None:
                chunk = chunk.beyond(self._positions)
            self._positions = chunk.end
        batch, among = events_of(chunk), self._among
        if among is not None:
            batch = EventBatch([event for event in batch if event.id in among])
        self._batch, self._next = batch, 0
        return Step.LOOK

    def _read(self) -> tuple[Page, Read | None]:
        """Read the streams from the own place; return the page of before, and what was read."""
        page = self._feed.page
        positions = self._positions or self._feed.start or ()
        try:
            return page, self._feed.streams.read(positions)
        except Exception:
            return page, None  # the feed reports outages

    def _move(self, page: Page, read: Read | None) -> None:
        """Go on with what was read. Raises `EventsLost`."""
        if read is not None:
            self._positions, self._unread = read.end, read.chunks
            if read.is_lost and self._lease is not None:
                self._lease.note_handled(read.start)
        if read is not None and read.reaches(page.end or ()):
            self._place = page.place
        elif read is None or not read.has_more:
            # A shard is away. Try again after the next read of the feed.
            self._tick, self._feed.has_retries = self._feed.ticks, True
        if read is not None and read.is_lost:
            raise EventsLost(MISSING)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second user at the same time: each would receive a part of the events."""
        if not self._lock.acquire(blocking=False):
            raise QueryError(
                "this iterator is in use by another thread or task: open one for each by events()"
            )
        try:
            yield
        finally:
            self._waiter = None
            self._lock.release()

    def _close(self) -> threading.Event | None:
        """End the iteration. Return what is set once the lease is given up, if it was held."""
        # Without a lock: the garbage collector may end an iterator in a thread that holds it.
        era, self._era = self._era, None
        waiter, lease = self._waiter, self._lease
        if waiter is not None:
            waiter.wake()
        if era is None or era.pid != os.getpid():
            return None
        was_held = lease is not None and lease.is_held
        self._feed.release(lease)
        return lease.released if lease is not None and was_held else None


class Sleep:
    """Lets a thread wait until another wakes it."""

    def __init__(self) -> None:
        # An Event has a lock, which the garbage collector might take a second time in a thread.
        self._woken: SimpleQueue[None] = SimpleQueue()

    def wake(self) -> None:
        """Let the thread go on."""
        self._woken.put(None)

    def wait(self) -> None:
        """Wait until `wake` is called."""
        self._woken.get()


class Events(_Iterator):
    """An endless iterator over events, for a thread.

    It raises `EventsLost` where events were missed, and `PresenceUnavailable` if Redis stays away.
    After each of them, it can go on. `close` ends it, from any thread. It also ends when the web
    server stops. A second thread that uses it at the same time gets a `QueryError`.
    """

    __slots__ = ()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        with self._alone():
            while not self.is_ended:
                event = self._pop()
                if event is not None:
                    return event
                sleep = Sleep()
                try:
                    step = self._look(sleep)
                    if step is Step.READ:
                        self._move(*self._read())
                    elif step is Step.WAIT and not self.is_ended:
                        sleep.wait()
                finally:
                    self._feed.waiters.discard(sleep)
        raise StopIteration

    def close(self) -> None:
        """End the iteration. If it has a name, another process goes on at once."""
        released = self._close()
        if released is not None:
            released.wait(RELEASE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncEvents(_Iterator):
    """An endless iterator over events, for a coroutine of asyncio or trio.

    The errors and its end are as for `Events`. `aclose` ends it.
    """

    __slots__ = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.wait()
        if event is None:
            raise StopAsyncIteration
        return event

    async def wait(self, seconds: float | None = None) -> Event | None:
        """Return the next event, or None if there is none for `seconds`, or if this is at its end.

        With `seconds` of None, wait as long as it takes. Raises the errors of the iterator.
        """
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        with self._alone():
            while not self.is_ended:
                event = self._pop()
                if event is not None:
                    return event
                if not await self._step(deadline):
                    break
        return None

    async def wait_for_batch(self, seconds: float) -> EventBatch:
        """Return the next events, none if there are none for `seconds`, or if this is at its end.

        Iterators at the same place without a filter get the same object. Raises the errors of the
        iterator.
        """
        deadline = time.monotonic() + seconds
        with self._alone():
            while not self.is_ended:
                event = self._pop()
                if event is not None:
                    if self._lease is not None:
                        return EventBatch([event])
                    start, self._next = self._next - 1, len(self._batch)
                    return self._batch if start == 0 else EventBatch(self._batch[start:])
                if not await self._step(deadline):
                    break
        return NOTHING

    async def _step(self, deadline: float) -> bool:
        """Take events, read, or wait; return False if it is too late to do any of these."""
        waiter = Waiter()
        try:
            async with _turn():
                step = self._look(waiter)
            if step is Step.READ:
                self._move(*await in_thread(self._read))
            elif step is Step.WAIT and not self.is_ended:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                await waiter.wait(None if left == math.inf else left)
        finally:
            self._feed.waiters.discard(waiter)
        return True

    async def aclose(self) -> None:
        """End the iteration. If it has a name, another process goes on at once."""
        released = self._close()
        if released is not None:
            await in_thread(released.wait, RELEASE_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


@asynccontextmanager
async def _turn() -> AsyncIterator[None]:
    """Wait for a turn of the event loop in which less than `TURNS` iterators take events."""
    if is_trio():
        import trio

        async with _turns.setdefault(trio.lowlevel.current_trio_token(), trio.Semaphore(TURNS)):
            await trio.lowlevel.checkpoint()
            yield
        return
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(TURNS)):
        await asyncio.sleep(0)
        yield
