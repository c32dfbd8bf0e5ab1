"""Identity: from a request to a kind and an id."""

from .addresses import Bits as Bits
from .addresses import Locate as Locate
from .addresses import Proxies as Proxies
from .addresses import hidden_clients as hidden_clients
from .addresses import locator as locator
from .addresses import networks as networks
from .addresses import parse_prefix as parse_prefix
from .addresses import parse_proxies as parse_proxies
from .bots import BOT as BOT
from .bots import BOT_MODES as BOT_MODES
from .guests import QUOTA as QUOTA
from .guests import SITE_QUOTA as SITE_QUOTA
from .guests import Crowd as Crowd
from .guests import Guests as Guests
from .hashing import Who as Who
from .resolver import Identity as Identity
from .resolver import IdentityResolver as IdentityResolver
from .resolver import Matcher as Matcher
from .resolver import normalize_id as normalize_id
from .rules import Rule as Rule
from .rules import kinds as kinds
from .rules import known_kind as known_kind
from .rules import login_kinds as login_kinds
from .rules import parse_chain as parse_chain
from .rules import user_kinds as user_kinds
