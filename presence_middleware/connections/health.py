"""The health of Redis: the state that the readers and the writer of a process share.

Failures are counted by *target*: the name of a node of a Cluster, or of a shard. The empty name is
the server itself, or the whole Cluster.
"""

import random
import threading
import time
from dataclasses import dataclass

from .. import logs
from ..errors import ConnectionsBusy, PresenceUnavailable, RedisRefused
from ..parsers import format_duration

MAX_PAUSE_SECONDS = 5.0  # seconds between two attempts
# How long a write may take before a warning. The timeouts of the built-in clients are shorter.
STUCK_SECONDS = 30.0
OUTAGE_SECONDS = 10.0  # after which iterators over events report an outage, and between two reports

jitter = random.SystemRandom()
"""Random pauses: they leave the site's random numbers alone, and forked processes differ."""


@dataclass(frozen=True)
class Failure:
    """The attempts on a target that failed in a row."""

    count: int
    next_attempt: float
    """When to try again, as a time of `time.monotonic()`."""
    is_refusal: bool
    """True if the server answered, but refused a command."""


class RedisHealth:
    """Records which targets fail, when to try again, and when an outage begins and ends."""

    def __init__(self, pause: float = 1.0) -> None:
        """Create the health of a server that works.

        `pause` is the time between the first failure and the second attempt, in seconds.
        """
        self._first_pause = pause
        self.generation = 0
        """A number that rises with each lost connection.

        Afterwards another server may answer, and its clock may differ.
        """
        self.begin()

    def begin(self) -> None:
        """Reset the state. In a forked child, a thread that held the lock may not exist."""
        self._lock = threading.Lock()
        self.failing: dict[str, Failure] = {}
        """The targets whose last attempt failed."""
        self.is_outage = False
        """True while sightings wait because a write failed."""
        self.last_error: str | None = None
        """The text of the last failure, or None."""
        self._outage_began = 0.0
        self._dropped_before = 0
        self._waiting_since: float | None = None
        self._is_stuck = False

    def lost_connection(self) -> None:
        """Note that a connection was lost, or that a server refused a command."""
        self.generation += 1

    def is_well(self, target: str) -> bool:
        """Return whether neither the target nor the whole server failed at the last attempt."""
        return target not in self.failing and "" not in self.failing

    def resting(self) -> set[str]:
        """Return the targets that are not to be tried now, because their pause is not over."""
        now = time.monotonic()
        failing = self.failing.copy()  # another thread may remove a failure at any time
        return {target for target, failure in failing.items() if now < failure.next_attempt}

    def is_silent(self, target: str) -> bool:
        """Return whether a target did not answer the last attempt, and is not to be tried now."""
        failure = self.failing.get(target)
        return failure is not None and not failure.is_refusal and target in self.resting()

    def is_refusing(self) -> bool:
        """Return whether any target answered, but refused the last attempt."""
        return any(failure.is_refusal for failure in list(self.failing.values()))

    def failed(self, target: str, error: Exception | None = None) -> None:
        """Note that an attempt failed, with `error` if it is known."""
        known = self.failing.get(target)
        count = known.count + 1 if known else 1
        next_attempt = time.monotonic() + self.pause(count)
        self.failing[target] = Failure(count, next_attempt, isinstance(error, RedisRefused))

    def pause(self, failures: int) -> float:
        """Return the seconds until the next attempt, after that many failures in a row.

        Pauses grow with the failures. They are random, so processes do not try in step.
        """
        growing = min(self._first_pause * 2.0 ** min(failures, 16), MAX_PAUSE_SECONDS)
        return max(self._first_pause, growing) * jitter.uniform(0.8, 1.0)

    def succeeded(self, target: str) -> None:
        """Note that an attempt to write succeeded."""
        self.failing.pop(target, None)
        self.failing.pop("", None)

    def outage(self, error: Exception, pending: int) -> None:
        """Note that a write failed with `error`, and log the beginning of an outage.

        `pending` is the number of sightings that wait. If this process uses all its connections,
        that is no outage of Redis.
        """
        self.last_error = str(error)
        if isinstance(error, ConnectionsBusy):
            return
        # Another thread may report the same outage at the same time.
        with self._lock:
            is_first, self.is_outage = not self.is_outage, True
        if is_first:
            self._outage_began = time.monotonic()
            # Log the text, because the error itself refers to the data that was not written.
            logs.warn(
                "cannot record who is online, keeping %d sightings for later: %s",
                pending,
                self.last_error,
            )

    def all_written(self, written: int, dropped: int) -> None:
        """Note that no sighting waits any longer, and log the end of an outage if Redis answered.

        `written` is the number of sightings that had waited. `dropped` is the number of sightings
        dropped since the process began.
        """
        has_failed = bool(self.failing)
        self.failing.clear()
        if has_failed and not written:
            return  # all may have expired: the upkeep asks the server
        with self._lock:
            is_last, self.is_outage = self.is_outage, False
        if is_last:
            lasted = format_duration(round(time.monotonic() - self._outage_began))
            logs.warn(
                "recording again after %s: wrote %d sightings that had waited, dropped %d",
                lasted,
                written,
                dropped - self._dropped_before,
            )
        self._dropped_before = dropped

    def waits(self, pending: int, pause: float) -> None:
        """Note that `pending` sightings wait, and log once if no write ends for long.

        `pause` is the normal time between two writes, in seconds. Requests call this, so it takes
        no lock.
        """
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        elif now - self._waiting_since > STUCK_SECONDS + pause and not self._is_stuck:
            self._is_stuck = True
            logs.warn(
                "no write to Redis has completed for %d s and %d sightings are waiting; if you "
                "passed your own client, set its socket_timeout",
                now - self._waiting_since,
                pending,
            )

    def attempt_ended(self) -> None:
        """Note that an attempt to write has ended, with or without an error."""
        self._waiting_since, self._is_stuck = None, False


class Outage:
    """How long Redis has not answered those who follow events, and what they must report."""

    report: PresenceUnavailable | None = None
    """What iterators have to raise once; None if there is nothing to report."""
    since: float | None = None
    """When Redis began not to answer, or was last reported; None while it answers."""

    def note(self, failure: Exception) -> bool:
        """Note a failure; return True if it is to be reported: every `OUTAGE_SECONDS`."""
        now = time.monotonic()
        if self.since is None:
            self.since = now
        if now - self.since < OUTAGE_SECONDS:
            return False
        self.since = now
        self.report = PresenceUnavailable(f"no events can be read: {failure}")
        return True

    def end(self) -> None:
        """Note that Redis answers."""
        self.since = self.report = None
