"""The lease of the process that does the upkeep of its site. Plans only, no I/O.

It is no lock: two holders do no harm, because all work that it is for may be done twice. So plain
commands are enough, and a process that finds another name in the key steps down.
"""

import math
import secrets

from . import keys
from .plan import Batch, Plan, text


class UpkeepLease:
    """The lease of a site, as one process sees it."""

    def __init__(self, prefix: str) -> None:
        """Create the lease of a site. `prefix` is `PRESENCE_PREFIX`."""
        self.key = keys.upkeep(prefix)
        self._who = secrets.token_hex(8)

    def take(self, seconds: float) -> Plan[float]:
        """Take the lease for `seconds` if it is free.

        Return 0.0 if this process holds it now, or else after how many seconds it may be free.
        """
        (left,) = yield Batch((("PTTL", self.key),))
        if left > 0:
            return float(left) / 1000
        take = ("SET", self.key, self._who, "NX", "PX", _milliseconds(seconds))
        (is_taken,) = yield Batch((take,))
        return 0.0 if is_taken else seconds

    def renew(self, seconds: float) -> Plan[bool]:
        """Hold the lease for `seconds` from now; return False if this process has lost it."""
        (holder,) = yield Batch((("GETEX", self.key, "PX", _milliseconds(seconds)),))
        return self._is_mine(holder)

    def give_up(self) -> Plan[None]:
        """Let another process take the lease at once. Does nothing if this process has lost it."""
        (holder,) = yield Batch((("GET", self.key),))
        if self._is_mine(holder):
            yield Batch((("DEL", self.key),))

    def _is_mine(self, holder: bytes | str | None) -> bool:
        return holder is not None and text(holder) == self._who


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)
