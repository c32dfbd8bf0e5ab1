"""Over how many shards the keys of a site are spread: all its processes must agree."""

from collections.abc import Callable

from ..errors import PresenceUnavailable
from . import keys
from .agreement import agree
from .plan import Batch, Plan

TRUSTED = 10.0  # seconds for which one answer is used


class Layout:
    """The number of shards of this process, compared with what is written beside the keys."""

    def __init__(
        self, prefix: str, shards: int, keep: float, generation: Callable[[], int]
    ) -> None:
        """`keep` is for how many seconds anything is kept: so long the number stands.

        `generation` returns a number that changes as another server may answer.
        """
        self._key, self._shards, self._ttl = keys.layout(prefix), shards, keys.ttl(keep)
        self._generation = generation
        self._asked, self._asked_generation = 0.0, -1
        self.is_agreed = False
        """Whether the last answer was this number, or none."""

    def is_known(self, stamp: float) -> bool:
        """Return whether an answer still holds; `stamp` is of a clock that only goes forward."""
        is_same_server = self._asked_generation == self._generation()
        return is_same_server and stamp - self._asked <= TRUSTED

    def check(self, stamp: float) -> Plan[None]:
        """Raise `PresenceUnavailable` if the keys are spread otherwise; where there are none, not.

        Ask in any case.
        """
        generation = self._generation()
        (number,) = yield Batch((("GET", self._key),))
        self._compare(number, stamp, generation)

    def claim(self, stamp: float) -> Plan[None]:
        """Note the number where none is, for whoever writes; else as `check`."""
        generation = self._generation()
        number = yield from agree(self._key, self._shards, self._ttl)
        self._compare(number, stamp, generation)

    def _compare(self, number: bytes | str | None, stamp: float, generation: int) -> None:
        self.is_agreed = number is None or int(number) == self._shards
        if number is not None and not self.is_agreed:
            raise PresenceUnavailable(
                f"PRESENCE_SHARDS={self._shards}, but keys are spread over {int(number)}: give all "
                f"processes one number; for a new one, delete the key {self._key} (last-seen times "
                "of before are lost then)"
            )
        self._asked, self._asked_generation = stamp, generation
