"""Warnings about mistakes in a site's setup. Each is logged once per process, with its remedy.

Some visits are inspected when they end, because many frameworks know the user no earlier.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from .. import logs
from ..connections.drivers import Driver
from ..connections.server import eviction_policy, server_facts
from ..errors import PresenceError
from ..identity.addresses import networks, unnamed_proxy
from ..identity.bots import BOT
from ..identity.ids import Who
from ..identity.resolver import IdentityResolver
from ..identity.rules import Chain, Rule, login_kinds, user_kinds
from ..request import USER, Request
from ..settings import Settings
from .guests import QUOTA, SITE_QUOTA
from .verdict import LOGOUTS, Purpose

# Visits that are looked at closely: at most at once, while on average it is one a second.
INSPECTED_REQUESTS, INSPECTED_USERS = 4, 60  # more than FEW_VISITS, and than SHARED_BY
# Visits that show a mistake, before the warning. A single cookie may be stale, so what visits carry
# must be in a few of them, and the first must be some seconds old.
VISITS = 20
FEW_VISITS, SECONDS = 3, 10.0
USERLESS_SIGNALS = 100  # pulses that name no user of a site with users, before the warning
SHARED_BY = 50  # addresses that may have the same id in a window
DISTINCT_IDS = 3  # more of a kind in a window show that its ids distinguish users
EXPLAIN = '. To see why, run presence explain --header "Cookie: …"'

HINTS = {
    "proxy": "requests come through a proxy that PRESENCE_TRUSTED_PROXIES does not name, so people "
    'with the same browser count as one: set PRESENCE_TRUSTED_PROXIES="{1}{2}", or add only the '
    "address of the proxy",
    "credential": "requests carry {}, which no rule of PRESENCE_IDENTITY reads, and no user was "
    "found so far: {}",
    "rule": "the rule {} has never matched: {}: {}",
    "user": f"no {{}} among {VISITS} visits: if some had logged in, PRESENCE_IDENTITY misses them, "
    "so check that the rules match the way your users log in",
    "shared": f"more than {SHARED_BY} addresses have the same id of kind {{0}}, so their users "
    "count as one: put a source with distinct ids first in PRESENCE_IDENTITY, such as "
    "{0}=cookie:NAME or {0}=visitor",
    "pulse": f"no {{}} among {USERLESS_SIGNALS} pulses: if users read pages with the script, the "
    'app does not log them in at PRESENCE_PULSE_PATH, so add data-to="/…" to the script, with a '
    "URL of the site that logs them in and takes POST; in Django, let PresenceMiddleware be last",
    "logout": f"no {{}} among {VISITS} logouts at PRESENCE_LOGOUT, so nobody was taken offline: "
    "call presence.leave(id) in the logout handler, or have the session cookie sent to this path",
    "unreadable": "a request could not be read {}: the server or a middleware passed an invalid "
    "environ or scope",
    "rooms": "visit.enter() does nothing because PRESENCE_ROOMS is empty: set it to the paths that "
    "are rooms, or to named for rooms that only enter() names",
    "template": "a template asks for what is not stored: {1}",
    "django": "the settings of Django contain {}, which is read from the environment only: write "
    "os.environ[…] = … there, or set it for the process",
    "full": "kind {} is full and new ids are not recorded: raise PRESENCE_MAX_MEMBERS, which is {}",
    "pending": "more than {} people waited for a write at once and others were not recorded: raise "
    "PRESENCE_MAX_PENDING",
    "clean-up": "stale entries cannot be removed, so keys keep growing ({}): grant the Redis user "
    "of PRESENCE_REDIS_URL this permission",
    "upkeep": "stale entries may stay, the history may have gaps and leaves may not be announced "
    "({}): allow this command to the Redis user of PRESENCE_REDIS_URL",
    "setting": "{} is {!r} in another process of this site but not in this one, so counts and "
    "events will be wrong: set it to the same value in all processes and apps; another site needs "
    "a PRESENCE_PREFIX of its own",
    "eviction": "the server may evict keys ({}): set maxmemory-policy noeviction",
    "host": f"more than {QUOTA} new guests from one address: the rest is not recorded. If the "
    "address is a proxy, add it to PRESENCE_TRUSTED_PROXIES",
    "site": f"more than {SITE_QUOTA} new guests from one /48 of IPv6: the rest is not recorded. If "
    "its addresses are proxies, add them to PRESENCE_TRUSTED_PROXIES",
    "silent": f"more than {QUOTA} guests come from one private address or unix socket without "
    "X-Forwarded-For: it seems to be a proxy, and people with the same browser count as one. Let "
    "the proxy send that header (nginx: proxy_set_header X-Forwarded-For "
    "$proxy_add_x_forwarded_for;) and add the proxy to PRESENCE_TRUSTED_PROXIES",
}
"""By name, what is wrong, a colon, and what to do. Braces stand for values of the site."""


class Evidence(NamedTuple):
    """What must be seen before a hint about visits is logged."""

    visits: int
    """How many visits must show the mistake."""
    seconds: float = 0.0
    """How long ago the first of them must be."""
    if_users: bool | None = None
    """Whether users must have been found, or none; None if that does not matter."""


EVIDENCE = {
    "proxy": Evidence(FEW_VISITS, SECONDS),
    "credential": Evidence(FEW_VISITS, SECONDS, if_users=False),
    "rule": Evidence(FEW_VISITS, SECONDS, if_users=False),
    "user": Evidence(VISITS, if_users=False),
    "shared": Evidence(1),
    "pulse": Evidence(USERLESS_SIGNALS, if_users=True),
    "logout": Evidence(VISITS, if_users=True),
}
"""By the name of a hint that visits show. All other hints are logged at once."""


class Mistake(NamedTuple):
    """A hint about this site."""

    hint: str
    """Its name."""
    subject: str = ""
    """Distinguishes mistakes with the same hint, and stands for the first braces in its text."""
    values: tuple[object, ...] = ()
    """Stand for the other braces. They may differ with each visit, like the keys of a session."""

    def __str__(self) -> str:
        return HINTS[self.hint].format(self.subject, *self.values)


class Credential(NamedTuple):
    """A login that a framework sends, and what to do if no rule reads it."""

    cookie: str
    """The cookie that carries it; empty if that is the header Authorization."""
    framework: str
    reader: str
    """A source that reads it."""
    source: str
    """The source to use, with its argument; empty if the remedy needs no rule."""
    remedy: str = "set {} and PRESENCE_SESSION_SECRET to the secret of the app"
    """Braces stand for the setting with that source."""

    @property
    def name(self) -> str:
        return f"the cookie {self.cookie}" if self.cookie else "a bearer token"

    def is_in(self, request: Request) -> bool:
        """Return whether a request carries it."""
        if self.cookie:
            return request.cookie(self.cookie) is not None
        return (request.header("authorization") or "").startswith("Bearer ")


CREDENTIALS = (
    Credential("", "a JWT", "bearer", "bearer:sub"),
    Credential("auth_tkt", "Pyramid", "auth-tkt", "auth-tkt"),
    Credential("beaker.session.id", "Beaker", "session", "session:KEY", "set {}"),
    Credential(
        *("session", "Flask", "flask-session", "flask-session:_user_id"),
        "call presence_middleware.flask.init_app(app), or set {} and PRESENCE_SESSION_SECRET to "
        "its SECRET_KEY",
    ),
    Credential("session", "Starlette", "starlette-session", "session:KEY", "set {}"),
    Credential("session", "Pyramid", "pyramid-session", "pyramid-session:auth.userid"),
    Credential(
        *("sessionid", "Django", "django-session", ""),
        "add presence_middleware.django.PresenceMiddleware at the end of MIDDLEWARE",
    ),
)


class SetupHints:
    """What a process notes about its setup, and the mistakes that it has logged."""

    def __init__(self, settings: Settings, resolver: IdentityResolver) -> None:
        self._settings, self._logins = settings, resolver.logins
        self._mistakes = Mistakes(settings)
        self._user = " or ".join(sorted(self._mistakes.users))
        self._hosts: dict[str, dict[object, set[int]]] = {
            kind: defaultdict(set) for kind in login_kinds(settings.identity)
        }
        """By id, of the kinds that are neither reported nor known to have distinct ids."""
        self._period_ends = -math.inf  # of the addresses in it
        self._seen: dict[tuple[str, str], tuple[Mistake, float, int]] = {}
        """What visits showed last, since when, and how many visits."""
        self._written: set[str] = set()  # the kinds of what was written
        # By hint and subject, what was logged, and what need not be.
        self._done = set() if self._mistakes.needs_address else {("silent", "")}
        self.look_at = -math.inf
        """When the next visit is inspected, by the recorder's clock."""
        self.has_asked_server = False
        """True once the server was asked for its eviction policy."""

    def note(self, request: Request, arrival: float, purpose: Purpose, who: Who | None) -> None:
        """Note a visit that ends, unless it was plain. Never raises.

        `arrival` is by the recorder's clock. `who` was seen or logged out, None if nobody was.
        """
        try:
            for mistake in self._shown(request, arrival, purpose, who):
                key = mistake.hint, mistake.subject
                _, first, visits = self._seen.get(key, (mistake, arrival, 0))
                self._seen[key] = mistake, first, visits + 1
        except Exception as error:  # a part that recording does not need
            self.warn("unreadable", f"({type(error).__name__})")

    def _shown(
        self, request: Request, arrival: float, purpose: Purpose, who: Who | None
    ) -> Iterator[Mistake]:
        """Yield the mistakes that a visit shows, also by what others before it have shown."""
        kind = None if who is None else who[0]
        users, named = self._mistakes.users, self._user
        if purpose is not Purpose.PAGE:
            hint = "logout" if purpose in LOGOUTS else "pulse"
            if kind in users:
                self._done.add((hint, named))
            elif kind != BOT:
                yield Mistake(hint, named)
            return
        if arrival < self.look_at:
            return
        # Seconds without a look add up, to one look each.
        most = INSPECTED_USERS if kind in self._hosts else INSPECTED_REQUESTS
        self.look_at = max(self.look_at, arrival - most + 1) + 1
        yield from self._mistakes.shown_by(request, kind)
        if who is not None and self._is_shared(who, request.address, arrival):
            yield Mistake("shared", who[0])
        if kind in users:
            return
        for login in self._logins:
            no, rule = login.why_not(request), login.rule
            better, remedy = login.better(no), no.remedy
            if better:
                remedy = f"set {with_rule(self._settings.identity, better, rule)}"
            if remedy:
                yield Mistake("rule", rule.short, (no.reason, remedy))
        if users and kind not in (None, BOT):
            yield Mistake("user", named)

    def _is_shared(self, who: Who, address: str | None, now: float) -> bool:
        """Note a visit. Return True the first time that many addresses have an id of a kind.

        Everyone may have the same id: some apps give each visitor the same user name.
        """
        kind, id = who
        if now >= self._period_ends:
            self._period_ends = now + self._settings.window
            self._hosts = {undecided: defaultdict(set) for undecided in list(self._hosts)}
        if (ids := self._hosts.get(kind)) is None:
            return False
        ids[id].add(networks(address)[0])  # hashes, because addresses must not be stored
        is_shared = len(ids[id]) > SHARED_BY
        if is_shared or len(ids) > DISTINCT_IDS:
            self._hosts.pop(kind, None)
        return is_shared

    def warn(self, hint: str, subject: str | Exception = "", *values: object) -> None:
        """Log a mistake, unless there was a warning with this hint and subject."""
        self._log(Mistake(hint, str(subject), values))

    def _log(self, mistake: Mistake, after: str = "") -> None:
        key = mistake.hint, mistake.subject
        if key not in self._done:
            self._done.add(key)
            logs.warn("%s%s", mistake, after)

    def note_written(self, kind: str, full: int) -> None:
        """Note that sightings of a kind were written, and `full` of them refused at the cap."""
        self._written.add(kind)
        if full:
            self.warn("full", kind, self._settings.max_members)

    def check(self, now: float, driver: Driver, full: int = 0) -> None:
        """Log the mistakes that enough visits showed by `now`, by the recorder's clock.

        `full` is the number of sightings that were dropped because too many waited. The first call
        also asks the server for its eviction policy. Never raises.
        """
        if full:
            self.warn("pending", str(self._settings.max_pending))
        has_users = not self._mistakes.users.isdisjoint(self._written)
        for mistake, first, visits in list(self._seen.values()):
            enough = EVIDENCE[mistake.hint]
            is_shown = visits >= enough.visits and now - first >= enough.seconds
            if is_shown and enough.if_users in (None, has_users):
                self._log(mistake, EXPLAIN if enough.if_users is False else "")
        if not self.has_asked_server:
            with suppress(PresenceError):  # this Redis user may not ask, or there is an outage
                if policy := eviction_policy(driver.run(server_facts("memory"))):
                    self.warn("eviction", policy)
            self.has_asked_server = True


class Mistakes:
    """The mistakes in a site's setup that a request shows by itself."""

    def __init__(self, settings: Settings) -> None:
        chain, self._proxies = settings.identity, settings.trusted_proxies
        self.users = user_kinds(chain)
        """The kinds of users."""
        self.needs_address = any(rule.source in ("ip", "visitor") for rule in chain)
        """True if a rule distinguishes people by their addresses."""
        # A rule may also name the cookie that it reads.
        read = {name for rule in chain for name in (rule.source, f"the cookie {rule.cookie}")}
        self._asks_session = not read.isdisjoint(("auth", "session"))
        read |= {each.name for each in CREDENTIALS if each.reader in read}
        old = [rule for rule in chain if rule.source == "auth"]
        self._unread: dict[str, list[Credential]] = defaultdict(list)
        """By name, each credential that no rule reads; its remedy is complete."""
        for each in CREDENTIALS if self.users else ():
            if read.isdisjoint((each.name, each.source.partition(":")[0])):
                setting = with_rule(chain, f"{min(self.users)}={each.source}", *old)
                remedy = f"for {each.framework}, {each.remedy.format(setting)}"
                self._unread[each.name].append(each._replace(remedy=remedy))

    def shown_by(self, request: Request, kind: str | None) -> Iterator[Mistake]:
        """Yield the mistakes that a request shows. Rules that find no identity are not named.

        `kind` is that of the identity that was found in it.
        """
        if self.needs_address and (network := unnamed_proxy(request, self._proxies)):
            others = f"{self._proxies}, " if self._proxies else ""
            yield Mistake("proxy", "", (others, network))
        # A layer of ours, or the rule `auth`, asks the framework whatever the cookie is.
        is_asked = request.get(USER) or (self._asks_session and request.session is not None)
        if is_asked or kind in self.users:
            return
        for name, unread in self._unread.items():
            if unread[0].is_in(request):
                used = [each for each in unread if each.framework.lower() in sys.modules]
                remedies = [each.remedy for each in used or unread]
                yield Mistake("credential", name, ("; ".join(remedies),))


def with_rule(chain: Chain, new: str, *old: Rule) -> str:
    """Return the setting of a chain with a rule in place of others."""
    rules = [new, *(rule.short for rule in chain if rule not in old)]
    return f'PRESENCE_IDENTITY="{", ".join(rules)}"'
