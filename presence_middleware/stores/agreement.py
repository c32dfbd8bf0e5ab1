"""What the processes of a site agree on through Redis: whoever comes first says it."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from . import keys
from .plan import Argument, Batch, Plan, scored, text


def agree(key: str, proposal: Argument, ttl: int) -> Plan[str]:
    """Proposes a text for a key; returns the one that all use. It lasts `ttl` seconds from now.

    Processes propose what they know, so that it survives a Redis that restarts empty.
    """
    propose = ("SET", key, proposal, "NX", "EX", ttl)
    *_, agreed = yield Batch((propose, ("EXPIRE", key, ttl), ("GET", key)), atomic=True)
    return text(agreed)


class InForce(NamedTuple):
    """What the processes of a site have in force, by what they wrote of it."""

    others: Mapping[str, str]
    """Settings that another process has otherwise by now: name by its value there."""
    keeps: Mapping[str, float]
    """The longest that any process lately kept a kind, in seconds."""


class SharedSettings:
    """The settings that all processes of a site must have alike, written beside the keys.

    A sorted set: `NAME=value` by the moment it was last in force. Values are shown in logs, so
    secrets are there as fingerprints only.
    """

    FRESH = 30.0  # seconds: whoever wrote since is running
    KEPT = 3600.0  # seconds: a process may be idle for so long

    def __init__(
        self, prefix: str, settings: Mapping[str, str], keeps: Mapping[str, float]
    ) -> None:
        """`keeps` has for how many seconds each kind is kept here."""
        self._key = keys.settings(prefix)
        self._settings, self._keeps = settings, keeps

    def publish(self, now: float) -> Plan[InForce]:
        """Write what is in force here; return what is elsewhere."""
        mine = [f"{name}={value}" for name, value in self._settings.items()]
        mine += [f"keep {kind}={seconds!r}" for kind, seconds in self._keeps.items()]
        added = tuple(word for member in mine for word in (now, member))
        *_, members = yield Batch(
            (
                ("ZADD", self._key, *added),
                ("EXPIRE", self._key, math.ceil(self.KEPT)),
                ("ZRANGE", self._key, 0, -1, "WITHSCORES"),
            ),
        )
        found = scored(members)
        stale = [member for member, moment in found if moment <= now - self.KEPT]
        if stale:
            yield Batch((("ZREM", self._key, *stale),))
        return self._compared(found, now)

    def look(self, now: float) -> Plan[InForce]:
        """Return what is in force elsewhere; write nothing."""
        (members,) = yield Batch((("ZRANGE", self._key, 0, -1, "WITHSCORES"),))
        return self._compared(scored(members), now)

    def _compared(self, members: list[tuple[str, float]], now: float) -> InForce:
        others: dict[str, str] = {}
        keeps = dict(self._keeps)
        for member, moment in members:
            name, _, value = member.partition("=")
            kind = name.removeprefix("keep ")
            if kind != name:
                if kind in keeps and moment > now - self.KEPT:
                    keeps[kind] = max(keeps[kind], float(value))
            elif moment > now - self.FRESH and self._settings.get(name, value) != value:
                others[name] = value
        return InForce(others, keeps)
