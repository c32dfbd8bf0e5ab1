"""Who left and who was erased, and when: two sorted sets beside a store, consulted by each record."""

import hashlib

from . import keys
from .plan import Command


class Departures:
    """Commands on the `left` and `forgotten` keys of a kind, to go in a store's own batches."""

    def __init__(self, prefix: str, kind: str, window: float, keep: float) -> None:
        self._left = keys.left(prefix, kind)
        self._forgotten = keys.forgotten(prefix, kind)
        self._window, self._keep = window, keep

    def leave(self, id: str, now: float) -> tuple[Command, ...]:
        """Notes that `id` left at `now`."""
        return _note(self._left, id, now, self._keep)

    def forget(self, id: str, now: float) -> tuple[Command, ...]:
        """Notes that `id` was erased at `now`.

        The id itself must not stay; its hash does, until no buffer can hold a sighting of it.
        """
        digest = hashlib.sha1(id.encode(), usedforsecurity=False).hexdigest()
        return (("ZREM", self._left, id), *_note(self._forgotten, digest, now, self._window))

    def moment(self, id: str) -> Command:
        """Asks when `id` left."""
        return ("ZSCORE", self._left, id)

    def undo(self, id: str) -> Command:
        """Lets `id` be recorded again."""
        return ("ZREM", self._left, id)


def _note(key: str, member: str, now: float, keep: float) -> tuple[Command, ...]:
    return (
        ("ZADD", key, "GT", now, member),
        ("ZREMRANGEBYSCORE", key, "-inf", now - keep - keys.SLACK),
        ("EXPIRE", key, keys.ttl(keep)),
    )
