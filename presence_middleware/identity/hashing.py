"""Keyed hashes of values that must not be stored: cookies, addresses, User-Agents.

An id is 16 bytes of BLAKE2b with a key, as 32 hexadecimal digits. A state with the key in it is
prepared once and copied for each value, which takes two thirds of the time of a new state.
"""

from collections.abc import Callable
from hashlib import blake2b

SIZE = 16
MAX_VALUE_LENGTH = 4096  # characters of a value that are hashed, which bounds the time


PendingId = bytes
"""The digest of a value. `SharedHasher.finish` makes the id from it when the key is available."""

Id = str | PendingId

Who = tuple[str, Id]
"""A kind and an id."""


Hasher = Callable[[str], Id]
"""Returns the id of a value, as a `PendingId` if the key is not available yet."""


class SecretHasher:
    """Hashes values with `PRESENCE_SECRET`."""

    def __init__(self, secret: str) -> None:
        self._state = blake2b(key=_key(secret.encode()), digest_size=SIZE)

    def __call__(self, value: str) -> str:
        state = self._state.copy()
        state.update(value[:MAX_VALUE_LENGTH].encode("utf-8", "surrogatepass"))
        return state.hexdigest()


class SharedHasher:
    """Hashes values with a random key that the processes of a site share through Redis.

    A value is hashed without a key first, and that digest with the key. So a buffer never holds
    the value itself, also before this process has received the key.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """Create a hasher without a key. It calls `changed` when the key and all ids change."""
        self.key: bytes | None = None
        self._changed = changed
        self._plain = blake2b(digest_size=SIZE)
        self._keyed = self._plain

    def learn(self, key: bytes) -> None:
        """Use the key that all processes share."""
        if key != self.key:
            self._keyed = blake2b(key=_key(key), digest_size=SIZE)
            self.key = key
            self._changed()

    def __call__(self, value: str) -> Id:
        state = self._plain.copy()
        state.update(value[:MAX_VALUE_LENGTH].encode("utf-8", "surrogatepass"))
        digest = state.digest()
        return digest if self.key is None else self.finish(digest)

    def finish(self, digest: PendingId) -> str:
        """Return the id of a value from its digest without a key."""
        state = self._keyed.copy()
        state.update(digest)
        return state.hexdigest()


def _key(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=32).digest()
