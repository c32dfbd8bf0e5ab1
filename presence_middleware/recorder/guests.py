"""The quota of new guests of each network.

A client can make up any number of cookies and User-Agents. So the new guests of each network are
counted in periods as long as the window, and those beyond its quota are refused. Guests seen before
are always refreshed.
"""

from collections import Counter
from collections.abc import Callable

from ..identity.addresses import WHOLE, Proxies, is_silent, locator, networks, unnamed_proxy
from ..identity.ids import Who
from ..people import People
from ..request import StateRequest

# New guests of a host in a window. A host is an IPv4 address or, because a host may use any number
# of IPv6 addresses, a /64.
QUOTA = 100
# New guests of an IPv6 site, a /48, in a window. A customer gets a /56 or a /48 (RFC 6177), so
# a forger has 256 to 65,536 quotas of a host. A campus is a /48 as well, and a carrier gives each
# phone in it a /64. A process that answers 200 requests a second has at most some 20,000 guests in
# a window of ten minutes; a tenth of them never comes from a single campus or region of a carrier.
# IPv4 has no such quota: a carrier puts thousands of people behind each address of a /24.
SITE_QUOTA = 2_000
# Networks of a period that have a counter of their own. Further networks share these counters. It
# takes a million guests to fill them, which is the default of PRESENCE_MAX_MEMBERS.
COUNTED = 10_000


Report = Callable[[str], None]
"""Receives the name of a hint about a crowd: `host`, `site` or `silent`.

More guests than a quota allows came from an address or from an IPv6 site, and the rest is refused.
Or they came from a proxy that sends no client addresses, and nobody is refused.
"""


class Guests:
    """Counts the guests of each network in the current period, and in the period before.

    Threads may race for a count, so a few guests more than the quota may be admitted.
    """

    def __init__(
        self, people: People, window: float, proxies: Proxies, report: Report = lambda _: None
    ) -> None:
        """Count the guests that are not among `people`; call `report` when a quota is reached.

        `window` is in seconds. The peer of a request has no quota if it seems to be a proxy with
        unknown clients, because `proxies` does not contain it or because it sends no header with
        their addresses.
        """
        self._people, self._window = people, window
        self._proxies, self._report = proxies, report
        # With `PRESENCE_IP_PREFIX`, the address of a request is that of many people.
        self._locate = locator(proxies, WHOLE)
        self._before: Counter[int] = Counter()
        self._current: Counter[int] = Counter()
        self._new: Counter[int] = Counter()
        """The guests of the current period that the period before did not have."""

    def admit(self, request: StateRequest, guest: Who, at: float) -> bool:
        """Return whether a guest counts: False if it is new and a quota is used up.

        `at` is the time of the request, in seconds. The caller remembers a guest that counts.
        """
        people = self._people
        if at >= people.period_ends:
            self.turn(at)
        if guest in people.recent:
            return True
        is_new = not people.knows(guest)
        # An address with a port or in the form `::ffff:192.0.2.1` is counted in its normal form.
        address = self._locate(request) if self._locate else request.peer
        counters = map(self._counter, networks(address))
        limits = list(zip(counters, (QUOTA, SITE_QUOTA), ("host", "site"), strict=False))
        for counter, quota, crowd in limits:
            is_full = is_new and self._before[counter] + self._new[counter] >= quota
            if is_full and not self._may_bring_any(request):
                self._report(crowd)
                return False
        for counter, _, _ in limits:
            self._current[counter] += 1
            self._new[counter] += is_new
        return True

    def turn(self, now: float) -> None:
        """Begin a period: the current one becomes the one before, unless it ended long ago.

        Does nothing before the end of the current one: another thread may have just begun it.
        """
        has_just_ended = now < self._people.period_ends + self._window
        if self._people.turn(now):
            self._before = self._current if has_just_ended else Counter()
            self._current, self._new = Counter(), Counter()

    def _counter(self, network: int) -> int:
        has_its_own = network in self._current or len(self._current) < COUNTED
        return network if has_its_own else network % COUNTED

    def _may_bring_any(self, request: StateRequest) -> bool:
        """Return whether a request comes from a proxy with clients that cannot be distinguished."""
        if not isinstance(request.address, str | None):
            return True  # a mistake of the server, which no client can cause
        if is_silent(request):
            self._report("silent")
            return True
        return unnamed_proxy(request, self._proxies) is not None
