"""Over how many shards the keys of a site are spread: all its processes must agree."""

from ..errors import PresenceUnavailable
from . import keys
from .agreement import agree
from .plan import Batch, Plan

TRUSTED = 10.0  # seconds for which one answer is used


class Layout:
    """The number of shards of this process, compared with what is written beside the keys."""

    def __init__(self, prefix: str, shards: int, keep: float) -> None:
        """`keep` is for how many seconds anything is kept: so long the number stands."""
        self._key, self._shards, self._ttl = keys.layout(prefix), shards, keys.ttl(keep)
        self._trusted_from = -TRUSTED - 1
        self.is_agreed = False
        """Whether the last answer was this number, or none."""

    def is_known(self, stamp: float) -> bool:
        """Return whether an answer still holds; `stamp` is of a clock that only goes forward."""
        return stamp - self._trusted_from <= TRUSTED

    def trust(self, stamp: float) -> None:
        """Let the last answer hold for a while, though nobody could be asked."""
        self._trusted_from = stamp

    def check(self, stamp: float) -> Plan[None]:
        """Raise `PresenceUnavailable` if the keys are spread otherwise; where there are none, not.

        Ask in any case.
        """
        (number,) = yield Batch((("GET", self._key),))
        self._compare(number, stamp)

    def claim(self, stamp: float) -> Plan[None]:
        """Note the number where none is, for whoever writes; else as `check`."""
        self._compare((yield from agree(self._key, self._shards, self._ttl)), stamp)

    def _compare(self, number: bytes | str | None, stamp: float) -> None:
        self.is_agreed = number is None or int(number) == self._shards
        if number is not None and not self.is_agreed:
            raise PresenceUnavailable(
                f"PRESENCE_SHARDS={self._shards}, but keys are spread over {int(number)}: give all "
                f"processes one number; for a new one, delete the key {self._key} (last-seen times "
                "of before are lost then)"
            )
        self._trusted_from = stamp
