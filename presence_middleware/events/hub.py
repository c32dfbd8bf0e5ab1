"""The hub of a kind: a thread that reads its streams for all iterators of the process.

It runs only while there is an iterator. All iterators end when the web server stops, which would
otherwise wait for the responses that wait for events.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from os import getpid
from weakref import WeakSet

from ..connections import is_server_stopping
from ..stores import Position
from .named import NamedSubscription
from .streams import Streams
from .subscription import Outage, Subscription

READ_EVERY = 1.0  # seconds


class Hub:
    """Reads the streams of a kind once a second, and gives the events to all subscriptions."""

    def __init__(self, streams: Streams, sweep: Callable[[], None]) -> None:
        """Create a hub.

        `sweep` announces who has gone, unless another process does: of a site that is asleep, this
        process may be the only one that runs.
        """
        self.streams = streams
        self._sweep = sweep
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
        self._outage = Outage()

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

    def unsubscribe(self, subscription: Subscription | NamedSubscription) -> threading.Event | None:
        """Deliver no more events to a subscription.

        If it holds the lease of a name, the thread gives it up; return the event that is set then.
        """
        if self._pid != getpid():
            return None  # a forked child: the subscription is the parent's
        released: threading.Event | None = None
        with self._lock:
            if not isinstance(subscription, NamedSubscription):
                self._subscriptions.discard(subscription)
            elif subscription in self._named:
                self._named.remove(subscription)
                self._leaving.append(subscription)
                released = subscription.released if subscription.positions is not None else None
        self._woken.set()
        return released

    def close(self, wait_seconds: float = 0.0) -> None:
        """End all iterators of this process. Others may begin afterwards.

        Wait for at most `wait_seconds` until the leases of names are given up.
        """
        if self._pid != getpid():
            return  # a forked child has none yet
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
            each.release(self.streams)
        if self._is_answering(subscriptions, named):
            with suppress(Exception):  # a user that may only read, for example
                self._sweep()
        has_more = bool(subscriptions) and self._serve(subscriptions)
        for each in named:
            has_more = each.serve(self.streams) or has_more
        return has_more

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
