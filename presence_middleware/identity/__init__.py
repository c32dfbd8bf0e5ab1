"""Identity: from a request to a kind and an id."""

from .addresses import (
    Bits,
    Locate,
    Proxies,
    is_unnamed_proxy,
    locator,
    networks,
    parse_prefix,
    parse_proxies,
)
from .bots import KIND as BOT
from .bots import MODES as BOT_MODES
from .guests import QUOTA, SITE_QUOTA, Crowd, Guests
from .hashing import Who
from .resolver import Identity, IdentityResolver, Matcher, normalize_id
from .rules import Rule, kinds, known_kind, login_kinds, parse_chain, user_kinds

__all__ = [
    "BOT",
    "BOT_MODES",
    "QUOTA",
    "SITE_QUOTA",
    "Bits",
    "Crowd",
    "Guests",
    "Identity",
    "IdentityResolver",
    "Locate",
    "Matcher",
    "Proxies",
    "Rule",
    "Who",
    "is_unnamed_proxy",
    "kinds",
    "known_kind",
    "locator",
    "login_kinds",
    "networks",
    "normalize_id",
    "parse_chain",
    "parse_prefix",
    "parse_proxies",
    "user_kinds",
]
