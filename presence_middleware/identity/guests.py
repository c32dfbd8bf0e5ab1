"""The guests that a process has seen lately: their ids, and how many each network may bring.

A client can make up any number of cookies and User-Agents. So each network has a quota of new
guests, counted in periods that are as long as the window: past it, the network brings nobody new.
Known guests are always refreshed. A guest is remembered by a hash, never by what the client sent.
"""

from collections.abc import Callable
from enum import Enum, auto

from ..request import Request
from .addresses import Proxies, client_address, is_silent_proxy, is_unnamed_proxy, networks
from .hashing import LONGEST, Id

# New guests of one host in a window: of an IPv4 address or, since a host has as many addresses of
# IPv6 as it likes, of a /64.
QUOTA = 100
# New guests of one site of IPv6, a /48, in a window. A customer gets a /56 or a /48 (RFC 6177), so
# a forger has 256 to 65,536 quotas of a host. A campus is a /48 as well, and a carrier gives each
# phone in it a /64. A process that answers 200 requests a second has at most some 20,000 guests in
# a window of ten minutes; a tenth of them never comes from one campus or one region of a carrier.
# IPv4 has no such quota: a carrier puts thousands of people behind each address of a /24.
SITE_QUOTA = 2_000
# Guests of a period that are remembered exactly. The rest is in a filter.
REMEMBERED = 20_000
# A megabyte: of a million guests, as many as PRESENCE_MAX_MEMBERS has room for, it confuses 2%.
FILTER_BITS = 1 << 23
# Networks of a period that have a counter of their own. Those beyond share as many counters: it
# takes a million guests to fill these, and that is where PRESENCE_MAX_MEMBERS ends it.
COUNTED = 10_000

ToId = Callable[[str], Id]
"""Returns the id for a value of a request."""


class Crowd(Enum):
    """Where more new guests come from than a quota allows."""

    HOST = auto()
    """One address: the rest is refused."""
    SITE = auto()
    """One site of IPv6: the rest is refused."""
    SILENT_PROXY = auto()
    """A proxy that sends no client addresses: nobody is refused."""


Report = Callable[[Crowd], None]


def report_nothing(_: Crowd) -> None:
    """Do nothing, where no log is kept."""


class _Known:
    """The guests of one period, by their hashes: the first exactly, the rest in a Bloom filter.

    It forgets no guest. Once the filter is in use, a few new guests pass for known ones.
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
    """The guests of one period, counted by network."""

    def __init__(self) -> None:
        self._all: dict[int, int] = {}
        self._new: dict[int, int] = {}
        """Those that were not there in the period before."""

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
    """A stretch of time as long as the window, and the guests who came in it."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.guests = _Known()
        self.hosts, self.sites = _Counts(), _Counts()


class Guests:
    """The guests of the current period and of the one before.

    Threads may race for a count, so a quota may be passed by a few.
    """

    def __init__(self, window: float, proxies: Proxies, report: Report = report_nothing) -> None:
        """Count in periods of `window` seconds; call `report` when a quota is reached.

        The peer of a request has no quota if it seems to be a proxy and its clients are unknown:
        because `proxies` does not name it, or because it sends no header about them.
        """
        self._window, self._proxies, self._report = window, proxies, report
        self._current = self._before = _Period(float("-inf"))
        self._ids: dict[int, Id] = {}

    def forget_ids(self) -> None:
        """Forget the ids, because they are made with another key from now on."""
        self._ids = {}

    def id(self, address: str | None, value: str, to_id: ToId) -> Id:
        """Return the id for `value` from `address`, and remember it by a hash of both."""
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
        """Return whether a guest counts: False if the quota of its network is used up.

        `at` is when the guest came, in seconds of any clock.
        """
        # A request that arrived in the period before and ends in this one counts in this one.
        current = self._current
        if not current.since - self._window <= at < current.since + self._window:
            self._turn(current, at)
        known = hash((request.address, guest))
        return known in self._current.guests.first or self._meet(request, guest)

    def _meet(self, request: Request, id: Id) -> bool:
        """Return whether a guest counts who is not among the first of this period."""
        current, before = self._current, self._before
        # With a port or as `::ffff:192.0.2.1`, the address was another text than what is counted.
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
        """Return which quota leaves no room for a new guest, or None."""
        current, before = self._current, self._before
        if before.hosts.all(host) + current.hosts.new(host) >= QUOTA:
            return Crowd.HOST
        if site is not None and before.sites.all(site) + current.sites.new(site) >= SITE_QUOTA:
            return Crowd.SITE
        return None

    def _may_bring_any(self, request: Request) -> bool:
        """Return whether a request comes from a proxy whose clients cannot be told apart."""
        if not isinstance(request.address, str | None):
            return True  # a server's mistake, and nobody can choose it
        if is_silent_proxy(request):
            self._report(Crowd.SILENT_PROXY)
            return True
        return request.address is None or is_unnamed_proxy(request, self._proxies)

    def _turn(self, current: _Period, at: float) -> None:
        """Begin a period; the one before is the one that has just ended, if any has."""
        ended = current.since + self._window
        has_just_ended = ended <= at < ended + self._window
        self._before = current if has_just_ended else _Period(at)
        self._current = _Period(ended if has_just_ended else at)
