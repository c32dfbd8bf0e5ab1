"""Who is asking: from a request to a kind and an id."""

from .chain import Chain, Found, Identity, Reader, as_kept
from .hashing import Hasher, SecretHasher, SharedHasher
from .spec import Link, kinds, parse_chain
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
    "as_kept",
    "kinds",
    "parse_chain",
]
