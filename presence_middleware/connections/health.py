"""Whether Redis answers: the one place that knows, for a site's readers and its writer.

A *place* is a node of a Cluster or a shard, by name. The empty name is the server itself, or all
of a Cluster.
"""

import random
import threading
import time

from .. import logs
from ..errors import ConnectionsBusy
from ..parsers import format_duration

LONGEST_PAUSE = 5.0  # seconds between two attempts
STUCK_SECONDS = 30.0  # no client of ours takes so long: its timeouts are shorter


_jitter = random.SystemRandom()  # nothing of the site's own, and forks are not in step


class RedisHealth:
    """What failed, when to try it again, and when an outage of writing began and ended."""

    def __init__(self, pause: float = 1.0) -> None:
        """`pause` is the seconds between the first failure and the second attempt."""
        self._first_pause = pause
        self.generation = 0
        """Rises with each lost connection: another server, with another clock, may answer next."""
        self.begin()

    def begin(self) -> None:
        """Start afresh: in a forked child, nobody may be left to release the lock."""
        self._lock = threading.Lock()
        self._failing: dict[str, tuple[int, float]] = {}
        self.is_outage = False
        """Whether something could not be written."""
        self.last_error: str | None = None
        self._outage_began = 0.0
        self._dropped_before = 0
        self._waiting_since: float | None = None
        self._is_stuck = False

    # Asked by readers and the writer.

    def lost_connection(self) -> None:
        """Note that a connection was lost, or that a server refuses what it should take."""
        self.generation += 1

    def is_well(self, place: str) -> bool:
        """Return whether the last attempt did not fail, neither there nor everywhere."""
        return "" not in self._failing and place not in self._failing

    def is_due(self, place: str) -> bool:
        """Return whether to try: the last attempt did not fail, or did so long enough ago."""
        now = time.monotonic()
        return all(now >= self._failing.get(name, (0, now))[1] for name in ("", place))

    def failures(self, place: str) -> int:
        """Return how many attempts in a row have failed there."""
        return self._failing.get(place, (0, 0.0))[0]

    # Told by the writer.

    def failed(self, place: str) -> None:
        """Note that an attempt to write there failed."""
        failures = self.failures(place) + 1
        self._failing[place] = failures, time.monotonic() + self.pause(failures)

    def pause(self, failures: int) -> float:
        """Return the seconds until the next attempt, after so many failures in a row.

        They grow, and no two processes wait equally long.
        """
        growing = min(self._first_pause * 2.0 ** min(failures, 16), LONGEST_PAUSE)
        return max(self._first_pause, growing) * _jitter.uniform(0.8, 1.0)

    def succeeded(self, place: str) -> None:
        """Note that an attempt to write there succeeded."""
        self._failing.pop(place, None)
        self._failing.pop("", None)

    def all_written(self) -> None:
        """Note that nothing is left that could not be written."""
        self._failing.clear()

    def outage(self, error: Exception, pending: int) -> None:
        """Note that `pending` sightings could not be written; log it as an outage begins.

        That this process uses all its connections is no outage of Redis.
        """
        self.last_error = str(error)
        if isinstance(error, ConnectionsBusy):
            return
        with self._lock:  # a handler that writes may meet with the same outage
            is_first, self.is_outage = not self.is_outage, True
        if is_first:
            self._outage_began = time.monotonic()
            # Not the error itself: its frames hold all that was to be written.
            logs.warn(
                "cannot record who is online, keeping %d sightings for later: %s",
                *(pending, self.last_error),
            )

    def outage_over(self, written: int, dropped: int) -> None:
        """Note that all is written; log it as an outage ends.

        `dropped` is how many sightings could not wait for Redis, since the process began.
        """
        with self._lock:
            is_last, self.is_outage = self.is_outage, False
        if is_last:
            lasted = format_duration(round(time.monotonic() - self._outage_began))
            logs.warn(
                "recording again after %s: wrote %d sightings that had waited, dropped %d",
                *(lasted, written, dropped - self._dropped_before),
            )
        self._dropped_before = dropped

    def waits(self, pending: int, pause: float) -> None:
        """Note that sightings wait for a write; log it once if no attempt has ended for long.

        `pause` is the seconds that may lie between two writes. Takes no lock: requests call it.
        """
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        elif now - self._waiting_since > STUCK_SECONDS + pause and not self._is_stuck:
            self._is_stuck = True
            logs.warn(
                "no write to Redis has completed for %d s and %d sightings are waiting; if you "
                "passed your own client, set its socket_timeout",
                *(now - self._waiting_since, pending),
            )

    def attempt_ended(self) -> None:
        """Note the end of an attempt to write, however it went."""
        self._waiting_since, self._is_stuck = None, False
