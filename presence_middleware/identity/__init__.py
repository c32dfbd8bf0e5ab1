"""Who is asking: from a request to a kind and an id."""

from .chain import Chain, Found, Identity, Reader, Who, as_kept
from .hashing import Hasher, SecretHasher, SharedHasher
from .spec import Link, kinds, known_kind, parse_chain
from .view import View

__all__ = [
    "Chain",
    "Found",
    "Hasher",
    "Identity",
    "Link",
    "Reader",
    "SecretHasher",
    "SharedHasher",
    "View",
    "Who",
    "as_kept",
    "kinds",
    "known_kind",
    "parse_chain",
]
