"""An outage of Redis, said once when it starts and once when it ends."""

import logging
import random
import time

from ..values import spoken

log = logging.getLogger("presence_middleware")

LONGEST_PAUSE = 5.0  # seconds between two attempts


class Outage:
    """Whether Redis takes our writes, and how long to wait before the next attempt."""

    def __init__(self, pause: float) -> None:
        self._first_pause = pause
        self._failures = 0
        self._began = 0.0
        self._dropped_before = 0
        self.last_error: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether the last attempt failed."""
        return self._failures > 0

    def failed(self, error: Exception, pending: int) -> None:
        """Notes an attempt that failed."""
        self.last_error = str(error)
        if not self._failures:
            self._began = time.monotonic()
            log.warning(  # not the error itself: it holds all that was to be written
                "presence: cannot record who is online, keeping %d for later: %s",
                *(pending, self.last_error),
            )
        self._failures += 1

    def ended(self, written: int, dropped: int) -> None:
        """Notes an attempt that succeeded, and how many sightings could not wait for it so far."""
        if self._failures:
            lasted = spoken(round(time.monotonic() - self._began))
            log.warning(
                "presence: recording again after %s: wrote %d that had waited, dropped %d",
                *(lasted, written, dropped - self._dropped_before),
            )
        self._failures, self._dropped_before = 0, dropped

    def pause(self) -> float:
        """Seconds until the next attempt: longer while Redis is away, never in step with others."""
        growing = self._first_pause * 2.0 ** min(self._failures, 16)
        return max(self._first_pause, min(growing, LONGEST_PAUSE)) * random.uniform(0.8, 1.0)
