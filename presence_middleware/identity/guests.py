"""The guests of each address: remembered, so that each is hashed once, and never too many.

A forger of cookies or User-Agents cannot fill the house. A process knows the guests of this period,
which is as long as the window, and of the one before; past its quota an address brings nobody new,
and those it brought go on. What is kept of a request is a hash of what it said, beside the id.
"""

from collections.abc import Callable
from ipaddress import IPv6Address

from ..request import Request
from .addresses import Proxies, cut, is_unnamed_proxy, parse_address
from .hashing import LONGEST, Id

QUOTA = 100  # guests of one address, in a window
REMEMBERED = 20_000  # guests a period; past them, nobody new is remembered or held to a quota
NETWORK = (32, 64)  # a host has a /64 of IPv6 to itself, and as many addresses as it likes

ToId = Callable[[str], Id]
"""Makes an id of what a request said."""


class _Period:
    """Who came in it."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.guests: set[int] = set()
        self.of: dict[int, int] = {}
        """How many of them each network brought."""
        self.new: dict[int, int] = {}
        """How many of those had not come in the period before."""


class Guests:
    """Tells the ids of guests, and whether they are too many.

    Threads may race for a count: a quota is not kept to the last one.
    """

    def __init__(self, window: float, proxies: Proxies) -> None:
        """Exempt is the address of a proxy that is none of `proxies`: that of all behind it."""
        self._window, self._proxies = window, proxies
        self._current = self._before = _Period(float("-inf"))
        self._ids: dict[int, Id] = {}

    def forget_ids(self) -> None:
        """From now on, ids are made with another key."""
        self._ids = {}

    def id(self, address: str | None, value: str, to_id: ToId) -> Id:
        """Return the id of whoever sent `value` from `address`; remember it by a hash of both."""
        value = value[:LONGEST]
        known = hash((address, value, to_id))
        return self._ids.get(known) or self._make_id(known, value, to_id)

    def _make_id(self, known: int, value: str, to_id: ToId) -> Id:
        if len(self._ids) >= REMEMBERED:
            self._ids = {}
        ids = self._ids  # not those of another key that comes meanwhile
        id = ids[known] = to_id(value)
        return id

    def admit(self, request: Request, guest: Id, at: float) -> bool:
        """Whether a guest counts, who came at a moment of any clock; refused is one too many."""
        # One that arrived in the period before and is told of late counts in this one.
        current = self._current
        if not current.since - self._window <= at < current.since + self._window:
            self._turn(current, at)
        known = hash((request.address, guest))
        return known in self._current.guests or self._meet(request, known)

    def _meet(self, request: Request, guest: int) -> bool:
        current, before = self._current, self._before
        if not isinstance(request.address, str) or len(current.guests) >= REMEMBERED:
            return True
        network = hash(_network(request.address))
        if guest not in before.guests:
            new = current.new.get(network, 0)
            if before.of.get(network, 0) + new >= QUOTA and not is_unnamed_proxy(
                request, self._proxies
            ):
                return False
            current.new[network] = new + 1
        current.of[network] = current.of.get(network, 0) + 1
        current.guests.add(guest)
        return True

    def _turn(self, current: _Period, at: float) -> None:
        """Begins a period; the one before is that which has just ended, if any has."""
        ended = current.since + self._window
        has_just_ended = ended <= at < ended + self._window
        self._before = current if has_just_ended else _Period(at)
        self._current = _Period(ended if has_just_ended else at)


def _network(address: str) -> str:
    parsed = parse_address(address) if ":" in address else None
    return cut(parsed, NETWORK) if isinstance(parsed, IPv6Address) else address
