"""The guests of each address: remembered, so that each is hashed once, and never too many.

A forger of cookies or User-Agents cannot fill the house. A process knows the guests of this window
and of the one before; past its quota an address brings nobody new, and those it brought go on. What
is kept of a request is a hash of what it said, beside the id.
"""

from collections.abc import Callable
from ipaddress import IPv6Address

from .addresses import cut, is_behind_proxy, parse_address
from .hashing import LONGEST
from .view import View

QUOTA = 100  # guests of one address, in a window
REMEMBERED = 20_000  # guests a window; past them, nobody new is remembered or held to a quota
NETWORK = (32, 64)  # a host has a /64 of IPv6 to itself, and as many addresses as it likes

Found = str | bytes
"""An id; as bytes, one that waits for the shared key."""

Keep = Callable[[str], Found]
"""Makes an id of what a request said."""


class _Period:
    """What is known of one window."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.ids: dict[int, Found] = {}
        self.guests: dict[int, int] = {}
        """How many each network has."""
        self.new: dict[int, int] = {}
        """How many of those were not there in the period before."""


class Guests:
    """Tells the ids of guests. Threads may race for a count: it is not kept to the last one."""

    def __init__(
        self,
        window: float,
        now: Callable[[], float],
        refused: Callable[[], None],
        is_exempt: Callable[[View], bool] = is_behind_proxy,
    ) -> None:
        """`refused` hears of everybody who is too many; some addresses are exempt."""
        self._window, self._now = window, now
        self._refused, self._is_exempt = refused, is_exempt
        self.forget()

    def forget(self) -> None:
        """Begins anew: ids are made with another key."""
        self._current, self._before = _Period(self._now()), _Period(self._now())

    def id(self, view: View, said: str, keep: Keep) -> Found | None:
        """The id of whoever said so; None for one too many."""
        said = said[:LONGEST]
        known = hash((view.address, said, keep))
        return self._current.ids.get(known) or self._meet(view, known, said, keep)

    def _meet(self, view: View, known: int, said: str, keep: Keep) -> Found | None:
        self._turn()
        current, before = self._current, self._before
        id = before.ids.get(known)
        is_new = id is None
        id = id or keep(said)
        if not (id and view.address and view.counts) or len(current.ids) >= REMEMBERED:
            return id
        network = hash(_network(view.address))
        if is_new:
            new = current.new.get(network, 0)
            if before.guests.get(network, 0) + new >= QUOTA and not self._is_exempt(view):
                self._refused()
                return None
            current.new[network] = new + 1
        current.guests[network] = current.guests.get(network, 0) + 1
        current.ids[known] = id
        return id

    def _turn(self) -> None:
        """Begins a period when one is over."""
        now = self._now()
        age = now - self._current.since
        if not 0 <= age < self._window:
            self._before = self._current if 0 <= age < 2 * self._window else _Period(now)
            self._current = _Period(now)


def _network(address: str) -> str:
    parsed = parse_address(address) if ":" in address else None
    return cut(parsed, NETWORK) if isinstance(parsed, IPv6Address) else address
