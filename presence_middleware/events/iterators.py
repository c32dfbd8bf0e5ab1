"""Endless iterators over events: for threads, and for coroutines of asyncio and trio."""

import threading
from queue import SimpleQueue
from typing import Self

from ..connections import Waiter, in_thread
from ..errors import QueryError
from .event import Event
from .hub import Hub
from .named import NamedSubscription
from .subscription import Sleeper, Subscription

RELEASE_SECONDS = 2.0  # for which `close` waits until the lease is given up


class _Iterator:
    """What both iterators share: a subscription, and its end."""

    def __init__(self, hub: Hub, subscription: Subscription | NamedSubscription) -> None:
        self._hub, self._subscription = hub, subscription
        hub.subscribe(subscription)

    @property
    def is_ended(self) -> bool:
        """Whether the iterator was closed, or the web server stops."""
        return self._subscription.is_ended

    def _take(self, sleeper: Sleeper) -> Event | None:
        """Return the next event, or None. Raises `QueryError` after a fork, and what was added."""
        if not self._hub.serves(self._subscription) and not self.is_ended:
            raise QueryError("this iterator was opened before a fork: open it in each process")
        return self._subscription.take(sleeper)

    def _close(self) -> threading.Event | None:
        """End the iteration. Return what is set once the lease is given up, if it was held."""
        self._subscription.end()
        return self._hub.unsubscribe(self._subscription)


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
    server stops.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while not self.is_ended:
            sleep = Sleep()
            event = self._take(sleep)
            if event is not None:
                return event
            if not self.is_ended:
                sleep.wait()
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
        event = self._take(waiter)
        if event is not None or self.is_ended:
            return event
        await waiter.wait(seconds)
        return None if self.is_ended else self._take(waiter)

    async def aclose(self) -> None:
        """End the iteration. If it has a name, another process goes on at once."""
        released = self._close()
        if released is not None:
            await in_thread(released.wait, RELEASE_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
