"""The logouts, erasures and goodbyes that this process performed lately.

A process can compare its own stamps exactly, but it can only estimate the clock of the server. So a
user who comes back right after leaving counts as online. If a server lost its data, the departures
of the last window are repeated.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from .identity import Who


class Manner(IntEnum):
    """How a user departs. Of two manners at once, the greater counts."""

    GOODBYE = 0
    """A page was closed: the user is offline soon, unless another page or device is in use."""
    LEAVE = 1
    """The user logged out: offline at once."""
    FORGET = 2
    """The user is erased."""


class Departure(NamedTuple):
    """A goodbye, a logout or an erasure."""

    stamp: float
    """The moment by the monotonic clock of this process, in seconds."""
    moment: float
    """The same moment by the server's clock, in seconds since the epoch."""
    manner: Manner


class Departed:
    """The departures of the last window, by kind and id. Bounded."""

    def __init__(self, window: float, max_departures: int) -> None:
        """Remember departures for `window` seconds.

        Beyond `max_departures`, the oldest are dropped.
        """
        self._window, self._max_departures = window, max_departures
        self._departures: dict[Who, Departure] = {}

    def __bool__(self) -> bool:
        return bool(self._departures)

    def note(self, who: Who, departure: Departure) -> None:
        """Remember the departure of a kind and id. It replaces an earlier departure.

        A goodbye replaces no logout, which may have to be repeated.
        """
        departures = self._departures
        earlier = departures.get(who)
        if earlier is not None and departure.manner == Manner.GOODBYE < earlier.manner:
            return
        departures.pop(who, None)
        departures[who] = departure
        for oldest in list(departures)[: max(0, len(departures) - self._max_departures)]:
            departures.pop(oldest, None)

    def get(self, who: Who) -> Departure | None:
        """Return the last departure of a kind and id, or None."""
        return self._departures.get(who)

    def forget_before(self, stamp: float) -> None:
        """Drop the departures from more than a window before `stamp`."""
        for who, departure in list(self._departures.items()):
            if departure.stamp > stamp - self._window:
                break
            self._departures.pop(who, None)

    def __iter__(self) -> Iterator[tuple[Who, Departure]]:
        return iter(list(self._departures.items()))
