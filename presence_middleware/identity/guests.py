"""The guests that a process has seen lately, with a quota of new guests for each network.

A client can make up any number of cookies and User-Agents. So the new guests of each network are
counted in periods as long as the window, and those beyond its quota are refused. Guests seen before
are always refreshed. A guest is remembered by a hash, never by a value that the client sent.
"""

from collections.abc import Callable
from enum import Enum, auto

from ..request import Request
from .addresses import Proxies, client_address, is_silent_proxy, is_unnamed_proxy, networks
from .hashing import MAX_VALUE_LENGTH, Id

# New guests of a host in a window. A host is an IPv4 address or, because a host may use any number
# of IPv6 addresses, a /64.
QUOTA = 100
# New guests of an IPv6 site, a /48, in a window. A customer gets a /56 or a /48 (RFC 6177), so
# a forger has 256 to 65,536 quotas of a host. A campus is a /48 as well, and a carrier gives each
# phone in it a /64. A process that answers 200 requests a second has at most some 20,000 guests in
# a window of ten minutes; a tenth of them never comes from a single campus or region of a carrier.
# IPv4 has no such quota: a carrier puts thousands of people behind each address of a /24.
SITE_QUOTA = 2_000
# Guests of a period that are remembered exactly. The rest is in a filter.
REMEMBERED = 20_000
# A megabyte. With a million guests, the default of PRESENCE_MAX_MEMBERS, 2% are confused.
FILTER_BITS = 1 << 23
# Networks of a period that have a counter of their own. Further networks share these counters. It
# takes a million guests to fill them, which is the default of PRESENCE_MAX_MEMBERS.
COUNTED = 10_000

ToId = Callable[[str], Id]
"""Returns the id for a value of a request."""


class Crowd(Enum):
    """The origin of more new guests than a quota allows."""

    HOST = auto()
    """An address. Further guests are refused."""
    SITE = auto()
    """An IPv6 site. Further guests are refused."""
    SILENT_PROXY = auto()
    """A proxy that sends no client addresses. No guest is refused."""


Report = Callable[[Crowd], None]


def report_nothing(_: Crowd) -> None:
    """Do nothing; the default where nothing is logged."""


class _Known:
    """The guests of a period, by their hashes: the first exactly, the rest in a Bloom filter.

    It forgets no guest. Once the filter is in use, a few new guests are taken for earlier guests.
    """

    def __init__(self) -> None:
        self.first: set[int] = set()
        self._filter = bytearray()

    def __contains__(self, guest: int) -> bool:
        if guest in self.first:
            return True
        bits = self._filter
        return bool(bits) and all(bits[bit >> 3] & (1 << (bit & 7)) for bit in _filter_bits(guest))

    def add(self, guest: int) -> None:
        if len(self.first) < REMEMBERED:
            self.first.add(guest)
            return
        if not self._filter:
            self._filter = bytearray(FILTER_BITS // 8)
        for bit in _filter_bits(guest):
            self._filter[bit >> 3] |= 1 << (bit & 7)


def _filter_bits(guest: int) -> list[int]:
    """Return the four bits of a guest in the filter, from the two halves of its hash."""
    start, step = guest & 0xFFFFFFFF, (guest >> 32) | 1
    return [(start + turn * step) % FILTER_BITS for turn in range(4)]


class _Counts:
    """The guests of a period, counted by network."""

    def __init__(self) -> None:
        self._all: dict[int, int] = {}
        self._new: dict[int, int] = {}
        """The guests that the period before did not have."""

    def all(self, network: int) -> int:
        return self._all.get(self._counter(network), 0)

    def new(self, network: int) -> int:
        return self._new.get(self._counter(network), 0)

    def add(self, network: int, *, is_new: bool) -> None:
        counter = self._counter(network)
        self._all[counter] = self._all.get(counter, 0) + 1
        if is_new:
            self._new[counter] = self._new.get(counter, 0) + 1

    def _counter(self, network: int) -> int:
        has_its_own = network in self._all or len(self._all) < COUNTED
        return network if has_its_own else network % COUNTED


class _Period:
    """A stretch of time as long as the window, with its guests."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.guests = _Known()
        self.hosts, self.sites = _Counts(), _Counts()


class Guests:
    """The guests of the current period and of the period before.

    Threads may race for a count, so a few guests more than the quota may be admitted.
    """

    def __init__(self, window: float, proxies: Proxies, report: Report = report_nothing) -> None:
        """Count in periods of `window` seconds; call `report` when a quota is reached.

        The peer of a request has no quota if it seems to be a proxy with unknown clients, because
        `proxies` does not contain it or because it sends no header with their addresses.
        """
        self._window, self._proxies, self._report = window, proxies, report
        self._current = self._before = _Period(float("-inf"))
        self._ids: dict[int, Id] = {}

    def forget_ids(self) -> None:
        """Forget the ids, because they are made with another key from now on."""
        self._ids = {}

    def id(self, address: str | None, value: str, to_id: ToId) -> Id:
        """Return the id for `value` from `address`, and remember it by a hash of both."""
        value = value[:MAX_VALUE_LENGTH]
        known = hash((address, value, to_id))
        return self._ids.get(known) or self._make_id(known, value, to_id)

    def _make_id(self, known: int, value: str, to_id: ToId) -> Id:
        if len(self._ids) >= REMEMBERED:
            self._ids = {}
        ids = self._ids  # a new key, which replaces the dict, may arrive meanwhile
        id = ids[known] = to_id(value)
        return id

    def admit(self, request: Request, guest: Id, at: float) -> bool:
        """Return whether a guest counts: False if the quota of its network is used up.

        `at` is the time of the request, in seconds of any clock.
        """
        # A request that arrived in the period before and ends in this period counts in this period.
        current = self._current
        if not current.since - self._window <= at < current.since + self._window:
            self._turn(current, at)
        known = hash((request.address, guest))
        return known in self._current.guests.first or self._meet(request, guest)

    def _meet(self, request: Request, id: Id) -> bool:
        """Return whether a guest counts. The guest is not among the first of this period."""
        current, before = self._current, self._before
        # An address with a port or in the form `::ffff:192.0.2.1` is counted in its normal form.
        address = client_address(request)
        guest = hash((address, id))
        if guest in current.guests:
            return True
        host, site = networks(address)
        is_new = guest not in before.guests
        crowd = self._crowd(host, site) if is_new else None
        if crowd is not None and not self._may_bring_any(request):
            self._report(crowd)
            return False
        current.hosts.add(host, is_new=is_new)
        if site is not None:
            current.sites.add(site, is_new=is_new)
        current.guests.add(guest)
        return True

    def _crowd(self, host: int, site: int | None) -> Crowd | None:
        """Return the quota that is used up, or None if there is room for a new guest."""
        current, before = self._current, self._before
        if before.hosts.all(host) + current.hosts.new(host) >= QUOTA:
            return Crowd.HOST
        if site is not None and before.sites.all(site) + current.sites.new(site) >= SITE_QUOTA:
            return Crowd.SITE
        return None

    def _may_bring_any(self, request: Request) -> bool:
        """Return whether a request comes from a proxy with clients that cannot be distinguished."""
        if not isinstance(request.address, str | None):
            return True  # a mistake of the server, which no client can cause
        if is_silent_proxy(request):
            self._report(Crowd.SILENT_PROXY)
            return True
        return request.address is None or is_unnamed_proxy(request, self._proxies)

    def _turn(self, current: _Period, at: float) -> None:
        """Begin a period. `current` becomes the period before if it has just ended."""
        ended = current.since + self._window
        has_just_ended = ended <= at < ended + self._window
        self._before = current if has_just_ended else _Period(at)
        self._current = _Period(ended if has_just_ended else at)
