"""An outage of Redis, said once when it starts and once when it ends."""

import logging

log = logging.getLogger("presence_middleware")


class Outage:
    """Whether Redis takes our writes."""

    def __init__(self) -> None:
        self._is_on = False
        self.last_error: str | None = None

    def failed(self, error: Exception, pending: int) -> None:
        """Notes an attempt that failed."""
        self.last_error = str(error)
        if not self._is_on:
            log.warning(
                "presence: cannot record who is online, keeping %d for later: %s", pending, error
            )
        self._is_on = True

    def ended(self, written: int) -> None:
        """Notes that all is written."""
        if self._is_on:
            log.warning("presence: recording again, wrote %d that had waited", written)
        self._is_on = False
