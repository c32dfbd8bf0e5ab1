"""A thread that is stuck, noticed by the requests that wait for it."""

import logging
import math
import time

STUCK_SECONDS = 30.0  # no client of ours takes so long: its timeouts are shorter

log = logging.getLogger("presence_middleware")


class Watch:
    """Whether somebody has been waiting for too long. No locks: requests look at it."""

    def __init__(self, pause: float) -> None:
        """`pause` is how long the thread may rest between two writes."""
        self._pause = pause
        self._since: float | None = None

    def waits(self, pending: int) -> None:
        """Notes that somebody waits; says so once if nothing has come back for long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since > STUCK_SECONDS + self._pause:
            log.warning(
                "presence: stuck, %d wait and no write has come back for %d seconds; a client of "
                "the site's own wants a socket_timeout",
                pending,
                now - self._since,
            )
            self._since = math.inf

    def came_back(self) -> None:
        """Notes the end of an attempt to write, however it went."""
        self._since = None
