"""Who left and who was erased, and when: two sorted sets that each record consults."""

import hashlib

from . import keys
from .plan import Command


class Departures:
    """Commands on the `left` and `forgotten` keys of a kind, to go in a store's own batches."""

    def __init__(self, prefix: str, kind: str, window: float, keep: float) -> None:
        self._left = keys.left(prefix, kind)
        self._forgotten = keys.forgotten(prefix, kind)
        self.keys = (self._left, self._forgotten)
        self._window, self._keep = window, keep

    def leave(self, id: str, now: float) -> tuple[Command, ...]:
        """Notes that `id` left at `now`."""
        return _note(self._left, id, now, self._keep)

    def forget(self, id: str, now: float) -> tuple[Command, ...]:
        """Notes that `id` was erased at `now`.

        The id itself must not stay; its hash does, until no buffer can hold a sighting of it.
        """
        return (("ZREM", self._left, id), *_note(self._forgotten, digest(id), now, self._window))

    def moment(self, id: str) -> Command:
        """Asks when `id` left."""
        return ("ZSCORE", self._left, id)

    def undo(self, id: str) -> Command:
        """Lets `id` be recorded again."""
        return ("ZREM", self._left, id)


def digest(id: str) -> str:
    """Return what stands for an id among the forgotten, as the record scripts compute it."""
    return hashlib.sha1(id.encode(), usedforsecurity=False).hexdigest()


def _note(key: str, member: str, now: float, keep: float) -> tuple[Command, ...]:
    return (
        ("ZADD", key, "GT", now, member),
        ("ZREMRANGEBYSCORE", key, "-inf", now - keep - keys.SLACK),
        ("EXPIRE", key, keys.ttl(keep)),
    )
