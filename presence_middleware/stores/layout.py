"""Over how many shards the keys of a site are spread: all its processes must agree."""

from ..errors import PresenceUnavailable
from . import keys
from .agreement import agree
from .plan import Batch, Plan

TRUSTED = 10.0  # seconds for which one answer is used


class Layout:
    """What this process takes for granted, compared with what is written beside the keys."""

    def __init__(self, prefix: str, shards: int, keep: float) -> None:
        """`keep` is for how many seconds anything is kept: so long the number stands."""
        self._key, self._shards, self._ttl = keys.layout(prefix), shards, keys.ttl(keep)
        self._asked = -TRUSTED - 1
        self.is_agreed = False
        """Whether the last answer was this number, or none."""

    def check(self, stamp: float) -> Plan[None]:
        """Raises `PresenceUnavailable` if the keys are spread otherwise; where there are none, not.

        `stamp` is the time by any clock that only goes forward.
        """
        if not self._is_known(stamp):
            (found,) = yield Batch((("GET", self._key),))
            self._compare(found, stamp)

    def claim(self, stamp: float) -> Plan[None]:
        """Notes the number where none is, for whoever writes; else as `check`."""
        if not self._is_known(stamp):
            self._compare((yield from agree(self._key, self._shards, self._ttl)), stamp)

    def _is_known(self, stamp: float) -> bool:
        return stamp - self._asked <= TRUSTED

    def _compare(self, found: bytes | str | None, stamp: float) -> None:
        self.is_agreed = found is None or int(found) == self._shards
        if found is not None and not self.is_agreed:
            raise PresenceUnavailable(
                f"PRESENCE_SHARDS={self._shards}, but keys are spread over {int(found)}: give all "
                f"processes one number; for a new one, delete the key {self._key} (last-seen times "
                "of before are lost then)"
            )
        self._asked = stamp
