"""The lease of the process that does the upkeep of its site. Plans only, no I/O.

It is no lock: two holders do no harm, because all work that it is for may be done twice. So plain
commands are enough, and a process that finds another name in the key steps down.
"""

import math
import secrets
import threading
import time
from os import getpid

from . import keys
from .plan import Batch, Plan, text


class UpkeepLease:
    """The lease of a site, as one process sees it. A forked child needs its own."""

    def __init__(self, prefix: str) -> None:
        """Create the lease of a site. `prefix` is `PRESENCE_PREFIX`."""
        self.key, self.prefix = keys.upkeep(prefix), prefix
        self.pid, self.lock = getpid(), threading.Lock()
        """The process, and the lock of its thread that does the upkeep."""
        self._who = secrets.token_hex(8)
        self._ends_at = -math.inf  # by `time.monotonic`: the clock of tests may stop

    @property
    def is_held(self) -> bool:
        """True if this process holds the lease, as far as it knows."""
        return time.monotonic() < self._ends_at

    def take(self, seconds: float) -> Plan[float]:
        """Take the lease for `seconds` if it is free.

        Return 0.0 if this process holds it now, or else after how many seconds it may be free.
        """
        if self._ends_at > -math.inf:
            # The key may still have the name of this process, which could not be sure of that.
            yield from self.renew(seconds)
            if self.is_held:
                return 0.0
        ends_at = time.monotonic() + seconds
        (left,) = yield Batch((("PTTL", self.key),))
        if left > 0:
            return float(left) / 1000
        command = ("SET", self.key, self._who, "NX", "PX", math.ceil(seconds * 1000))
        (is_taken,) = yield Batch((command,))
        if not is_taken:
            return seconds
        self._ends_at = ends_at
        return 0.0

    def renew(self, seconds: float) -> Plan[None]:
        """Hold the lease for `seconds` from now, unless this process has lost it."""
        ends_at = time.monotonic() + seconds
        (holder,) = yield Batch((("GETEX", self.key, "PX", math.ceil(seconds * 1000)),))
        is_mine = holder is not None and text(holder) == self._who
        self._ends_at = ends_at if is_mine else -math.inf

    def give_up(self) -> Plan[None]:
        """Let another process take the lease at once, unless this process has lost it."""
        self._ends_at = -math.inf
        (holder,) = yield Batch((("GET", self.key),))
        if holder is not None and text(holder) == self._who:
            yield Batch((("DEL", self.key),))
