"""What the processes of a site agree on through Redis. Plans only, no I/O.

These are values that all must share, and which of them does the upkeep.
"""

import math
import secrets
import threading
import time
from collections.abc import Mapping
from os import getpid
from typing import NamedTuple

from ..errors import PresenceUnavailable
from . import keys
from .plan import Argument, Batch, Plan, decoded, members_with_scores

LAYOUT_TRUSTED_SECONDS = 10.0  # how long one answer about the number of shards is used


def agree(key: str, proposal: Argument, ttl: int) -> Plan[str]:
    """Propose a value for `key` and return the value that all processes use.

    The first proposal wins. The key expires `ttl` seconds after the last call. Each process
    proposes the value that it has, so that the value survives a Redis that restarts empty.
    """
    propose = ("SET", key, proposal, "NX", "EX", ttl)
    *_, agreed = yield Batch((propose, ("EXPIRE", key, ttl), ("GET", key)), atomic=True)
    return decoded(agreed)


class Layout:
    """The number of shards of this process, compared with the number stored beside the keys."""

    def __init__(self, prefix: str, shards: int, keep_seconds: float) -> None:
        """Create the layout of a site.

        `prefix` is `PRESENCE_PREFIX`, and `shards` is `PRESENCE_SHARDS` of this process. The
        stored number lives as long as the longest-lived data, which is `keep_seconds`.
        """
        self._key, self._shards, self._ttl = keys.layout(prefix), shards, keys.ttl(keep_seconds)
        self.known_until = -math.inf
        """The stamp until which the last answer is used."""
        self.is_agreed = False
        """True if the last answer was the number of this process, or no number."""

    def check(self, stamp: float) -> Plan[None]:
        """Compare the stored number with that of this process, and write nothing.

        `stamp` is the current time in seconds, of a clock that never goes back. A missing number is
        accepted. Raises `PresenceUnavailable` if the numbers differ. If the node with the number is
        away, the last answer remains valid.
        """
        try:
            (number,) = yield Batch((("GET", self._key),))
        except Exception:
            if not self.is_agreed:
                raise
            number = self._shards
        self._compare(number, stamp)

    def claim(self, stamp: float) -> Plan[None]:
        """Store the number of this process if none is stored, and otherwise compare them.

        `stamp` is the current time in seconds, of a clock that never goes back. Raises
        `PresenceUnavailable` if the numbers differ.
        """
        self._compare((yield from agree(self._key, self._shards, self._ttl)), stamp)

    def _compare(self, number: bytes | str | int | None, stamp: float) -> None:
        self.is_agreed = number is None or int(number) == self._shards
        if number is not None and not self.is_agreed:
            raise PresenceUnavailable(
                f"PRESENCE_SHARDS={self._shards}, but keys are spread over {int(number)}: set "
                "PRESENCE_SHARDS to the same number in all processes; to change it, delete the "
                f"key {self._key}, which loses the last-seen times"
            )
        self.known_until = stamp + LAYOUT_TRUSTED_SECONDS


class OtherSettings(NamedTuple):
    """The settings of a site's other processes, as far as they matter here."""

    differing: Mapping[str, str]
    """Settings that differ in another process: the value there, by name."""
    keep_seconds: Mapping[str, float]
    """The longest retention of each kind in any process, in seconds."""


class SharedSettings:
    """The settings that must be equal in all processes, published beside the keys.

    They are the members `NAME=value` of a sorted set. The score of each is the last moment at
    which a process had that value. Values appear in logs, so secrets are published as
    fingerprints only.
    """

    FRESH_SECONDS = 30.0
    """A value published more recently than this belongs to a running process."""
    EXPIRY_SECONDS = 3600.0
    """Older values are removed: a running process may be idle for an hour."""

    def __init__(
        self, prefix: str, settings: Mapping[str, str], keep_seconds: Mapping[str, float]
    ) -> None:
        """Create the shared settings of a site.

        `prefix` is `PRESENCE_PREFIX`. `settings` has the values of this process by name, and
        `keep_seconds` its retention of each kind in seconds.
        """
        self._key = keys.settings(prefix)
        self._settings, self._keep_seconds = settings, keep_seconds

    def publish(self, now: float) -> Plan[OtherSettings]:
        """Write the settings of this process; return the settings of the others.

        `now` is the server's time in seconds since the epoch.
        """
        mine = [f"{name}={value}" for name, value in self._settings.items()]
        mine += [f"keep {kind}={seconds!r}" for kind, seconds in self._keep_seconds.items()]
        scored = tuple(word for member in mine for word in (now, member))
        *_, reply = yield Batch(
            (
                ("ZADD", self._key, *scored),
                ("EXPIRE", self._key, math.ceil(self.EXPIRY_SECONDS)),
                ("ZREMRANGEBYSCORE", self._key, "-inf", now - self.EXPIRY_SECONDS),
                ("ZRANGE", self._key, 0, -1, "WITHSCORES"),
            ),
        )
        return self._compare(members_with_scores(reply), now)

    def read(self, now: float) -> Plan[OtherSettings]:
        """Return the settings of the other processes, and write nothing.

        `now` is the server's time in seconds since the epoch.
        """
        (reply,) = yield Batch((("ZRANGE", self._key, 0, -1, "WITHSCORES"),))
        return self._compare(members_with_scores(reply), now)

    def _compare(self, members: list[tuple[str, float]], now: float) -> OtherSettings:
        differing: dict[str, str] = {}
        keep_seconds = dict(self._keep_seconds)
        for member, moment in members:
            name, _, value = member.partition("=")
            kind = name.removeprefix("keep ")
            if kind != name:
                if kind in keep_seconds:
                    keep_seconds[kind] = max(keep_seconds[kind], float(value))
            elif moment > now - self.FRESH_SECONDS and self._settings.get(name, value) != value:
                differing[name] = value
        return OtherSettings(differing, keep_seconds)


class Lease:
    """The lease of whoever does some work, such as the upkeep. A forked child needs its own.

    It is no lock: two holders do no harm, because all work that it is for may be done twice. So
    plain commands are enough, and a holder that finds another name in the key steps down.
    """

    def __init__(self, key: str, most_seconds: float) -> None:
        """Create a lease in `key` that is not held yet. None is longer than `most_seconds`."""
        self.key, self._most_seconds = key, most_seconds
        self.pid, self.lock = getpid(), threading.Lock()
        """The process, and a lock of its thread that does the work."""
        self._who = secrets.token_hex(8)
        self.ends_at = -math.inf
        """When the lease ends, by `time.monotonic`: the clock of tests may stop."""

    @property
    def is_held(self) -> bool:
        """True if the lease is held, as far as this process knows."""
        return time.monotonic() < self.ends_at

    def take(self, seconds: float) -> Plan[float]:
        """Take the lease for `seconds` if it is free.

        Return 0.0 if this process holds it now, or else after how many seconds it may be free.
        """
        if self.ends_at > -math.inf:
            # The key may still have the name of this lease: its process could not be sure of that.
            yield from self.renew(seconds)
            if self.is_held:
                return 0.0
        ends_at = time.monotonic() + seconds
        (left,) = yield Batch((("PTTL", self.key),))
        # A lease that lasts longer than any was taken before the server's clock was set back.
        is_stale = left > 1000 * self._most_seconds
        if left > 0 and not is_stale:
            return float(left) / 1000
        milliseconds = math.ceil(seconds * 1000)
        take = ("SET", self.key, self._who, "PX", milliseconds, *(() if is_stale else ("NX",)))
        self.ends_at = time.monotonic()  # the reply may get lost
        (is_taken,) = yield Batch((take,))
        if not is_taken:
            return seconds
        self.ends_at = ends_at
        return 0.0

    def renew(self, seconds: float) -> Plan[None]:
        """Hold the lease for `seconds` from now, unless this process has lost it."""
        ends_at = time.monotonic() + seconds
        (holder,) = yield Batch((("GETEX", self.key, "PX", math.ceil(seconds * 1000)),))
        is_mine = holder is not None and decoded(holder) == self._who
        self.ends_at = ends_at if is_mine else -math.inf

    def give_up(self) -> Plan[None]:
        """Let another process take the lease at once, unless this process has lost it."""
        self.ends_at = -math.inf
        (holder,) = yield Batch((("GET", self.key),))
        if holder is not None and decoded(holder) == self._who:
            yield Batch((("DEL", self.key),))
