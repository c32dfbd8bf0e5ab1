"""An outage of Redis, said once when it starts and once when it ends."""

import logging
import threading
import time

from ..values import spoken

log = logging.getLogger("presence_middleware")


class Outage:
    """Whether Redis takes our writes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_on = False
        self._began = 0.0
        self._dropped_before = 0
        self.last_error: str | None = None

    def failed(self, error: Exception, pending: int) -> None:
        """Notes an attempt that failed."""
        self.last_error = str(error)
        with self._lock:  # a handler that flushes may meet with the same outage
            is_first, self.is_on = not self.is_on, True
        if is_first:
            self._began = time.monotonic()
            log.warning(  # not the error itself: it holds all that was to be written
                "presence: cannot record who is online, keeping %d for later: %s",
                *(pending, self.last_error),
            )

    def ended(self, written: int, dropped: int) -> None:
        """Notes that all is written, and how many sightings could not wait for it so far."""
        if self.is_on:
            lasted = spoken(round(time.monotonic() - self._began))
            log.warning(
                "presence: recording again after %s: wrote %d that had waited, dropped %d",
                *(lasted, written, dropped - self._dropped_before),
            )
        self.is_on, self._dropped_before = False, dropped
