"""Endless iterators over events: for threads, and for coroutines.

An iterator is a place in the events, and a filter. It takes what comes after its place. If the feed
has that no longer, the iterator lets it be read from the streams, until it has caught up.
"""

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self
from weakref import WeakValueDictionary

from ..connections.loops import in_thread, require_asyncio
from ..errors import EventsLost, PresenceUnavailable, QueryError
from .feed import Era, Feed, NameLease, Waker
from .streams import Chunk, Event, Place, Positions, events_of, ids_of

MISSING = "events are missing: the reader was away for too long, or the server lost them"
RELEASE_SECONDS = 2.0  # for which `close` waits until the lease is given up
TURNS = 4  # iterators that take events in one turn of an event loop

# A semaphore refers to its loop, so it is here only while an iterator takes its turn.
_turns: WeakValueDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakValueDictionary()
_closed = Era()
_closed.is_over = True


class _Iterator:
    """What both iterators share: a place, and how it moves."""

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
        self._era = feed.open(lease)
        self._place = feed.page.end if after is None else Place(after)
        # The events that were taken and have not been returned.
        self._queue: Iterator[Event] = iter(())
        self._report = (lease or feed).outage.report
        self._waiter: Waker | None = None
        self._lock = threading.Lock()

    @property
    def is_ended(self) -> bool:
        """Whether the iterator was closed, or the web server stops."""
        return self._era.is_over

    def _look(self, waiter: Waker) -> Iterable[Event] | None:
        """Take the next events after the place: with a lease, one.

        Return None if there are none now, and let the feed wake the `waiter`, once, when there may
        be some. Return none if they are none of those that are followed: look again. Raises
        `EventsLost`, `PresenceUnavailable` in an outage, and `QueryError` after a fork.
        """
        self._feed.waiters.add(waiter)
        era, lease, among = self._era, self._lease, self._among
        if era.is_over:
            return ()  # it was closed just now
        if self._feed.pid != os.getpid():
            raise QueryError("this iterator was opened before a fork: open it in each process")
        before, self._report = self._report, (lease or self._feed).outage.report
        if self._report is not None and self._report is not before:
            raise PresenceUnavailable(*self._report.args)  # each has a traceback of its own
        if lease is not None:
            begin = lease.begin()
            if begin is not None:
                self._place, self._queue = Place(begin), iter(())
            handed = lease.hand_out(self._queue, self._place.positions)
            if handed is None or handed:
                return handed
        following = self._place.next  # the page may take it away at any moment
        if following is None:
            return None
        chunk, self._place = following
        if chunk.is_lost:
            if lease is not None:
                lease.hand_out(self._queue, self._place.positions)  # they are missing once
            raise EventsLost(MISSING)
        if among is not None and among.isdisjoint(ids_of(chunk)):
            return ()
        events = chunk if among is None else [each for each in chunk if each.id in among]
        if lease is None:
            return events
        self._queue = iter(events)
        return ()

    def _opened(self, batch: Iterable[Event]) -> Iterator[Event]:
        """Return events that were taken. Those that are not returned at once wait in the queue."""
        events = iter(events_of(batch) if isinstance(batch, Chunk) else batch)
        if self._lease is None:
            self._queue = events
        return events

    @contextmanager
    def _alone(self, waiter: Waker) -> Iterator[None]:
        """Let the feed, or the end of this iterator, wake a waiter.

        Refuse a second user at the same time: each would receive a part of the events.
        """
        if not self._lock.acquire(blocking=False):
            raise QueryError(
                "this iterator is in use by another thread or task: open one for each by events()"
            )
        self._waiter = waiter
        try:
            yield
        finally:
            self._waiter = None
            self._feed.waiters.discard(waiter)
            self._lock.release()

    def _close(self) -> threading.Event | None:
        """End the iteration. Return what is set once the lease is given up, if it was held."""
        # Without a lock: the garbage collector may end an iterator in a thread that holds it.
        era, self._era = self._era, _closed
        waiter, lease = self._waiter, self._lease
        if waiter is not None:
            waiter()
        if era is _closed or self._feed.pid != os.getpid():
            return None
        self._feed.release(lease)
        return lease.released if lease is not None and lease.is_held else None


class Events(_Iterator, Iterator[Event]):
    """An endless iterator over events, for a thread.

    It raises `EventsLost` where events were missed, and `PresenceUnavailable` if Redis stays away.
    After each of them, it can go on. `close` ends it, from any thread. It also ends when the web
    server stops. A second thread that uses it at the same time gets a `QueryError`.
    """

    def __next__(self) -> Event:
        if self._lease is None and not self._era.is_over:
            for taken in self._queue:  # the short way of most events
                return taken
        # An Event has a lock, which the garbage collector might take again in its thread.
        woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        wake = partial(woken.put, None)
        with self._alone(wake):
            while not self._era.is_over:
                batch = self._look(wake)
                page = self._feed.page
                if batch:
                    return next(self._opened(batch))
                if batch is not None:
                    continue
                if page.is_behind(self._place) and (place := page.catch_up(self._place)):
                    self._place = place
                else:
                    woken.get()
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


class AsyncEvents(_Iterator, AsyncIterator[Event]):
    """An endless iterator over events, for a coroutine.

    It raises `EventsLost` where events were missed, and `PresenceUnavailable` if Redis stays away.
    After each of them, it can go on. `aclose` ends it. It also ends when the web server stops.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Create an iterator. Raises `WouldBlock` under trio, which has no Redis client."""
        require_asyncio()
        super().__init__(*arguments, **named)

    async def __anext__(self) -> Event:
        if self._lease is None and not self._era.is_over:
            for taken in self._queue:  # the short way of most events
                return taken
        for event in self._opened(await self.wait_for_batch()):
            return event
        raise StopAsyncIteration

    async def wait_for_batch(self, seconds: float | None = None) -> Iterable[Event]:
        """Return the next events, none if there are none for `seconds`, or if this is at its end.

        Iterators at the same place without a filter get the same chunk. With a lease, this is one
        event. Raises the errors of the iterator.
        """
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        deadline = None if seconds is None else loop.time() + seconds

        def wake() -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(woken.set)

        with self._alone(wake):
            while not self._era.is_over:
                woken.clear()
                # In one turn of the loop, only some of its iterators take events.
                async with _turns.setdefault(loop, asyncio.Semaphore(TURNS)):
                    await asyncio.sleep(0)
                    batch = self._look(wake)
                page = self._feed.page
                if batch:
                    return batch
                if batch is not None:
                    continue
                behind = page.is_behind(self._place)
                if behind and (place := await in_thread(page.catch_up, self._place)):
                    self._place = place
                    continue
                try:
                    async with asyncio.timeout_at(deadline):
                        await woken.wait()
                except TimeoutError:
                    break
        return ()

    async def aclose(self) -> None:
        """End the iteration. If it has a name, another process goes on at once."""
        released = self._close()
        if released is not None:
            await in_thread(released.wait, RELEASE_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
