"""Who is asking: from a request to a kind and an id."""

from .addresses import Bits, Proxies, is_unnamed_proxy, locator, parse_prefix, parse_proxies
from .bots import KIND as BOT
from .bots import MODES as BOT_MODES
from .chain import Chain, Identity, Reader, Who, as_kept
from .guests import Found, Guests
from .hashing import Hasher, SecretHasher, SharedHasher
from .reading import user_id
from .spec import Link, kinds, known_kind, parse_chain
from .view import View

__all__ = [
    "BOT",
    "BOT_MODES",
    "Bits",
    "Chain",
    "Found",
    "Guests",
    "Hasher",
    "Identity",
    "Link",
    "Proxies",
    "Reader",
    "SecretHasher",
    "SharedHasher",
    "View",
    "Who",
    "as_kept",
    "is_unnamed_proxy",
    "kinds",
    "known_kind",
    "locator",
    "parse_chain",
    "parse_prefix",
    "parse_proxies",
    "user_id",
]
