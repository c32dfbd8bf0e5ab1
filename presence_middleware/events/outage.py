"""An outage, as iterators over events report it."""

import time

OUTAGE_SECONDS = 10.0  # after which iterators report an outage, and between two reports


class Outage:
    """How long Redis has not answered."""

    def __init__(self) -> None:
        self.reports = 0
        """How often this outage and those before it were to be reported."""
        self.failure = ""
        """The error that is to be reported; empty if there is none."""
        self.since: float | None = None
        """When Redis began not to answer, or was last reported; None while it answers."""

    def note(self, failure: Exception) -> bool:
        """Note a failure; return True if it is to be reported: every `OUTAGE_SECONDS`."""
        now = time.monotonic()
        if self.since is None:
            self.since = now
        if now - self.since < OUTAGE_SECONDS:
            return False
        self.since = now
        self.reports += 1
        self.failure = f"no events can be read: {failure}"
        return True

    def end(self) -> bool:
        """Note that Redis answers; return whether it did not answer before."""
        was_on, self.since, self.failure = self.since is not None, None, ""
        return was_on
