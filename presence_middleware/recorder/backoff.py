"""When to try again what failed: later each time, and never in step with other processes."""

import random
import time

LONGEST_PAUSE = 5.0  # seconds between two attempts


class Backoff:
    """What failed, by name, and the moment of its next attempt."""

    def __init__(self, first_pause: float) -> None:
        self._first_pause = first_pause
        self._failing: dict[str, tuple[int, float]] = {}

    def failed(self, name: str) -> None:
        """Notes an attempt that failed."""
        failures = self._failing.get(name, (0, 0.0))[0] + 1
        self._failing[name] = failures, time.monotonic() + self.pause(failures)

    def pause(self, failures: int) -> float:
        """Seconds until the next attempt, after so many failures in a row."""
        growing = min(self._first_pause * 2.0 ** min(failures, 16), LONGEST_PAUSE)
        return max(self._first_pause, growing) * random.uniform(0.8, 1.0)

    def succeeded(self, name: str) -> None:
        """Notes an attempt that did not fail."""
        self._failing.pop(name, None)

    def is_well(self, name: str) -> bool:
        """Whether its last attempt did not fail."""
        return name not in self._failing

    def is_due(self, name: str) -> bool:
        """Whether to try: its last attempt did not fail, or did long enough ago."""
        return self.is_well(name) or time.monotonic() >= self._failing[name][1]

    def clear(self) -> None:
        """Forgets all failures: nothing is left that could not be written."""
        self._failing.clear()
