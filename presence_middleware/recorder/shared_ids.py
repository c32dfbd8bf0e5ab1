"""Finds an id that everybody has, such as one user name that an app gives to each visitor."""

import math
from collections import deque
from collections.abc import Iterable

from ..identity import networks
from .visit import Visit

SHARED_BY = 50  # addresses that one id may come from in a window
FEW = 3  # ids of a kind in a window; where there are more, people are told apart
REMEMBERED = 200  # visits that wait until they are over


class SharedIds:
    """The ids of some visits, and the addresses that each came from in the current window."""

    def __init__(self, kinds: Iterable[str], window: float) -> None:
        """Look at these `kinds`, for `window` seconds at a time."""
        self._kinds = set(kinds)
        """Those for which it is open whether their ids tell people apart."""
        self._window = window
        self._since = -math.inf
        self._visits: deque[tuple[float, int, Visit]] = deque(maxlen=REMEMBERED)
        self._addresses: dict[str, dict[str, set[int]]] = {}
        """By kind and id, the hashes of addresses."""

    def note(self, visit: Visit, now: float) -> None:
        """Remember a visit that arrives, until it is over and its user is known."""
        if self._kinds:
            host, _ = networks(visit.address)
            self._visits.append((now, host, visit))

    def find(self) -> list[str]:
        """Return the kinds of which many addresses have the same id, each kind once."""
        found = []
        for _ in range(len(self._visits)):
            at, host, visit = self._visits.popleft()
            if not visit.is_over:
                self._visits.append((at, host, visit))
            elif (who := visit.identity) is not None and who.kind in self._kinds:
                if at >= self._since + self._window:
                    self._since, self._addresses = at, {}
                if self._is_shared(*who, host):
                    found.append(who.kind)
        return found

    def _is_shared(self, kind: str, id: str, host: int) -> bool:
        """Add a sighting; return whether too many addresses have its id."""
        ids = self._addresses.setdefault(kind, {})
        hosts = ids.setdefault(id, set())
        hosts.add(host)
        is_shared = len(hosts) > SHARED_BY
        if is_shared or len(ids) > FEW:
            self._kinds.discard(kind)
            del self._addresses[kind]
        return is_shared
