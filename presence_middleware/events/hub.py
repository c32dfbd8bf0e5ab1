"""The hub of a kind: a thread that reads its streams for all iterators of the process.

It runs only while there is an iterator. All iterators end when the web server stops, which would
otherwise wait for the responses that wait for events.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from weakref import WeakSet

from ..connections import is_server_stopping
from ..stores import Position
from .named import NamedSubscription
from .streams import Streams
from .subscription import Outage, Subscription

READ_EVERY = 1.0  # seconds

_hubs: "WeakSet[Hub]" = WeakSet()


class Hub:
    """Reads the streams of a kind once a second, and gives the events to all subscriptions."""

    def __init__(self, streams: Streams, upkeep: Callable[[], None]) -> None:
        """Create a hub.

        `upkeep` announces who has gone, unless another process does: of a site that is asleep, this
        process may be the only one that runs.
        """
        self.streams = streams
        self._upkeep = upkeep
        self.reset()
        _hubs.add(self)

    def reset(self) -> None:
        """Begin again: in a forked child, there are neither the thread nor its iterators."""
        self._lock = threading.Lock()
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._named: WeakSet[NamedSubscription] = WeakSet()
        self._ended: deque[Subscription | NamedSubscription] = deque()
        self._thread: threading.Thread | None = None
        self._positions: list[Position] = []
        self._next_read = -math.inf
        self._outage = Outage()

    def serves(self, subscription: Subscription | NamedSubscription) -> bool:
        """Return whether a subscription receives events."""
        return subscription in self._subscriptions or subscription in self._named

    def subscribe(self, subscription: Subscription | NamedSubscription) -> None:
        """Deliver events to a subscription from now on, as long as something refers to it."""
        with self._lock:
            if isinstance(subscription, NamedSubscription):
                self._named.add(subscription)
            else:
                self._subscriptions.add(subscription)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="presence-events", daemon=True)
                thread.start()
                self._thread = thread
        if isinstance(subscription, NamedSubscription):
            self._woken.put(None)  # it asks for its lease at once; others wait for the next read

    def unsubscribe(self, subscription: Subscription | NamedSubscription) -> threading.Event | None:
        """Deliver no more events to a subscription.

        If it holds the lease of a name, the thread gives it up; return the event that is set then.
        """
        if not self.serves(subscription):
            return None
        # Without the lock: the garbage collector may end an iterator in a thread that holds it.
        self._ended.append(subscription)
        self._woken.put(None)
        if isinstance(subscription, NamedSubscription) and subscription.positions is not None:
            return subscription.released
        return None

    def close(self, wait_seconds: float = 0.0) -> None:
        """End all iterators of this process. Others may begin afterwards.

        Wait for at most `wait_seconds` until the leases of names are given up.
        """
        deadline = time.monotonic() + wait_seconds
        with self._lock:
            subscriptions: list[Subscription | NamedSubscription] = [*self._subscriptions]
            subscriptions += self._named
        for subscription in subscriptions:
            subscription.end()
        for released in [self.unsubscribe(subscription) for subscription in subscriptions]:
            if released is not None:
                released.wait(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        has_more: bool | None = False
        while has_more is not None:
            has_more = self._run_once()
            if has_more:
                self._next_read = -math.inf
            elif has_more is False:
                with suppress(Empty):
                    self._woken.get(timeout=max(0.0, self._next_read - time.monotonic()))

    def _run_once(self) -> bool | None:
        """Serve everybody; return whether there may be more. Return None if the thread ends.

        Iterators are referred to only in here, so that those which are dropped can go.
        """
        if is_server_stopping():
            self.close()
        with self._lock:
            leaving = self._remove_ended()
            subscriptions, named = list(self._subscriptions), list(self._named)
            if not subscriptions:
                self._positions = []
            if not (subscriptions or named or leaving):
                self._thread = None
                return None
        for each in leaving:
            each.release(self.streams)
        now = time.monotonic()
        if now >= self._next_read:
            self._next_read = now + READ_EVERY
        else:
            # Iterators that come and go cause no read, but a new name asks for its lease at once.
            subscriptions, named = [], [each for each in named if each.is_new]
        if self._is_answering(subscriptions, named):
            with suppress(Exception):  # a user that may only read, for example
                self._upkeep()
        has_more = bool(subscriptions) and self._serve(subscriptions)
        for each in named:
            has_more = each.serve(self.streams) or has_more
        return has_more

    def _remove_ended(self) -> list[NamedSubscription]:
        """Remove the subscriptions that have ended; return those with a name."""
        leaving: list[NamedSubscription] = []
        while self._ended:
            subscription = self._ended.popleft()
            if not isinstance(subscription, NamedSubscription):
                self._subscriptions.discard(subscription)
            elif subscription in self._named:
                self._named.remove(subscription)
                leaving.append(subscription)
        return leaving

    def _is_answering(
        self, subscriptions: list[Subscription], named: Iterable[NamedSubscription]
    ) -> bool:
        if subscriptions:
            return not self._outage.is_on
        return any(not each.outage.is_on for each in named)

    def _serve(self, subscriptions: list[Subscription]) -> bool:
        """Give everything new to the subscriptions without a name; return if there may be more.

        A failure is reported to the iterators if it lasts.
        """
        try:
            has_more = self.deliver(subscriptions)
        except Exception as failure:
            error = self._outage.error_for(failure)
            if error is not None:
                for subscription in subscriptions:
                    subscription.put([error])
            return False
        self._outage.end()
        return has_more

    def deliver(self, subscriptions: list[Subscription]) -> bool:
        """Give everything new to the subscriptions; return whether there may be more.

        Raises `PresenceUnavailable` if no shard can be read.
        """
        if not self._positions:
            age = max(time.monotonic() - subscription.created_at for subscription in subscriptions)
            self._positions = self.streams.positions(age)
        events, has_more = self.streams.read_on(self._positions)
        for subscription in subscriptions:
            if subscription.after is None:
                subscription.put(events)
            elif not has_more:
                # Another process may have read further, so this one has to be up to date first.
                subscription.catch_up(self.streams, self._positions)
        return has_more


def _reset_all() -> None:
    for hub in _hubs:
        hub.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
