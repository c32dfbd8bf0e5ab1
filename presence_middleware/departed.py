"""Who left or was erased through this process lately.

A process compares its own stamps, which are exact, where the server's clock leaves some doubt: so
who comes in again right after leaving counts. Where a server lost data, departures are repeated.
"""

from collections.abc import Iterator
from typing import NamedTuple

from .identity import Who


class Departure(NamedTuple):
    """One logout, or one erasure."""

    stamp: float
    """When it was asked for, by the process's clock."""
    moment: float
    """The same in seconds since the epoch, as the server has it."""
    erase: bool


class Departed:
    """The departures of the last window, by kind and id. Bounded."""

    def __init__(self, window: float, most: int) -> None:
        """`window` is in seconds; of more than `most` departures, the oldest are forgotten."""
        self._window, self._most = window, most
        self._departures: dict[Who, Departure] = {}

    def __bool__(self) -> bool:
        return bool(self._departures)

    def note(self, who: Who, departure: Departure) -> None:
        """Note that somebody has departed."""
        departures = self._departures
        departures.pop(who, None)
        departures[who] = departure
        for oldest in list(departures)[: max(0, len(departures) - self._most)]:
            departures.pop(oldest, None)

    def get(self, who: Who) -> Departure | None:
        """Return somebody's last departure, if it was lately."""
        return self._departures.get(who)

    def forget_before(self, stamp: float) -> None:
        """Forget departures that were asked for more than a window before `stamp`."""
        for who, departure in list(self._departures.items()):
            if departure.stamp > stamp - self._window:
                break
            self._departures.pop(who, None)

    def __iter__(self) -> Iterator[tuple[Who, Departure]]:
        return iter(list(self._departures.items()))
