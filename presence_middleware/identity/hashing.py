"""Keyed hashes of what must not be stored: cookies, addresses, User-Agents.

BLAKE2b with a key, 16 bytes, as 32 hexadecimal digits. A state with the key in it is prepared
once and copied for each value, which takes two thirds of making one anew.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol

SIZE = 16
LONGEST = 4096  # characters of a value that are looked at: nothing a client sends costs more


PendingId = bytes
"""The digest of a value, until the key is known that makes an id of it."""

Id = str | PendingId


class Hasher(Protocol):
    """Hashes values into ids."""

    def __call__(self, value: str) -> Id:
        """The id of a value; as bytes, an id that `finish` can complete once the key is known."""


class SecretHasher:
    """With the site's own `PRESENCE_SECRET`."""

    def __init__(self, secret: str) -> None:
        self._state = blake2b(key=_key(secret.encode()), digest_size=SIZE)

    def __call__(self, value: str) -> str:
        state = self._state.copy()
        state.update(value[:LONGEST].encode("utf-8", "surrogatepass"))
        return state.hexdigest()


class SharedHasher:
    """With a random key that the processes of a site share through Redis.

    Until this process has it, a value is hashed without; the keyed hash is one of that hash, so
    what waits in a buffer is never the value itself.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` hears when ids are made with another key than before."""
        self.key: bytes | None = None
        self._changed = changed
        self._plain = blake2b(digest_size=SIZE)
        self._keyed = self._plain

    def learn(self, key: bytes) -> None:
        """Takes the key that all processes use."""
        if key != self.key:
            self._keyed = blake2b(key=_key(key), digest_size=SIZE)
            self.key = key
            self._changed()

    def __call__(self, value: str) -> Id:
        state = self._plain.copy()
        state.update(value[:LONGEST].encode("utf-8", "surrogatepass"))
        digest = state.digest()
        return digest if self.key is None else self.finish(digest)

    def finish(self, digest: PendingId) -> str:
        """The id of a value hashed before the key was known."""
        state = self._keyed.copy()
        state.update(digest)
        return state.hexdigest()


def plain_hash(value: bytes) -> str:
    """An id for text that is too long to be one, and no secret."""
    return blake2b(value, digest_size=SIZE).hexdigest()


def _key(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=32).digest()
