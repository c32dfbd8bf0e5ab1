"""Warnings about mistakes in a site's setup. Each is logged once per process, with its remedy.

Some visits are inspected when they end, because many frameworks know the user no earlier.
"""

import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from .. import logs
from ..connections.drivers import Driver
from ..connections.server import eviction_policy, server_facts
from ..errors import PresenceError
from ..identity.addresses import hidden_clients, networks
from ..identity.bots import BOT
from ..identity.ids import Who
from ..identity.resolver import IdentityResolver
from ..identity.rules import Chain, Rule, login_kinds, user_kinds
from ..request import USER, Request
from ..settings import Settings
from .guests import QUOTA, SITE_QUOTA
from .verdict import LOGOUTS, Purpose

# Visits that are looked at closely: at most at once, while on average it is one a second.
INSPECTED_REQUESTS, INSPECTED_USERS = 25, 60  # more than VISITS, and than SHARED_BY
MAX_COOKIE_CHARACTERS = 8192  # of a Cookie header that are inspected
VISITS = 20  # that show a mistake, before the warning
FEW_VISITS, SECONDS = 3, 10.0  # or as many, if the first of them is so long ago
MOST_HINTS = 64  # whose text is kept
USERLESS_SIGNALS = 100  # pulses that name no user of a site with users, before the warning
SHARED_BY = 50  # addresses that may have the same id in a window
DISTINCT_IDS = 3  # more of a kind in a window show that its ids distinguish users
EXPLAIN = '. To see why, run presence explain --header "Cookie: …"'

_COOKIE_NAME = re.compile(r"(?:^|;)[ \t]*+([^=; \t]++)[ \t]*+=")


class Hint(NamedTuple):
    """A mistake in the setup, and when it is logged. Braces stand for values of the site."""

    message: str
    """What is wrong."""
    remedy: str
    """What to do."""
    visits: int = 1
    seconds: float = math.inf
    """How long after the first visit that showed it, it is logged after `FEW_VISITS`."""
    if_users: bool | None = None
    """Whether users were found on a site with this mistake; None if that does not matter."""

    @lru_cache(MOST_HINTS)  # noqa: B019 - of a tuple
    def of(self, *values: object) -> "Hint":
        """Return this hint with values in place of the braces."""
        message, remedy = self.message.format(*values), self.remedy.format(*values)
        return self._replace(message=message, remedy=remedy)


HINTS = {
    "proxy": Hint(
        "requests come through a proxy that PRESENCE_TRUSTED_PROXIES does not name, so people with "
        "the same browser count as one",
        'set PRESENCE_TRUSTED_PROXIES="{0}", or add only the address of the proxy',
        *(VISITS, SECONDS),
    ),
    "credential": Hint(
        "requests carry {0}, which no rule of PRESENCE_IDENTITY reads, and no user was found so "
        "far",
        "{1}",
        *(VISITS, SECONDS, False),
    ),
    "rule": Hint(
        "the rule {0} has never matched",
        "{1}: {2}",
        *(VISITS, SECONDS, False),
    ),
    "user": Hint(
        f"no {{}} among {VISITS} visits, so PRESENCE_IDENTITY seems to miss logins",
        "check that the rules match the way your users log in",
        *(VISITS, math.inf, False),
    ),
    "shared": Hint(
        f"more than {SHARED_BY} addresses have the same id of kind {{0}}, so their users count as "
        "one",
        "put a source with distinct ids first in PRESENCE_IDENTITY, such as {0}=cookie:NAME or "
        "{0}=visitor",
    ),
    "pulse": Hint(
        f"no {{}} among {USERLESS_SIGNALS} pulses",
        'the app does not log users in at PRESENCE_PULSE_PATH. Add data-to="/…" to the script, '
        "with a URL of the site that logs them in and takes POST",
        visits=USERLESS_SIGNALS,
        if_users=True,
    ),
    "logout": Hint(
        f"no {{}} among {VISITS} logouts at PRESENCE_LOGOUT, so nobody was taken offline",
        "call presence.leave(id) in the logout handler, or have the session cookie sent to this "
        "path",
        *(VISITS, math.inf, True),
    ),
    "unreadable": Hint(
        "a request could not be read ({}){}",
        "the server or a middleware passed an invalid environ or scope",
    ),
    "rooms": Hint(
        "visit.enter() does nothing because PRESENCE_ROOMS is empty",
        "set it to the paths that are rooms, or to named for rooms that only enter() names",
    ),
    "full": Hint(
        "kind {0} is full and new ids are not recorded",
        "raise PRESENCE_MAX_MEMBERS, which is {1}",
    ),
    "clean-up": Hint(
        "stale entries cannot be removed, so keys keep growing ({})",
        "grant the Redis user of PRESENCE_REDIS_URL this permission",
    ),
    "upkeep": Hint(
        "stale entries may stay, the history may have gaps and leaves may not be announced ({})",
        "allow this command to the Redis user of PRESENCE_REDIS_URL",
    ),
    "setting": Hint(
        "{} is {!r} in another process of this site but not in this one, so counts and events will "
        "be wrong",
        "set it to the same value in all processes",
    ),
    "eviction": Hint("the server may evict keys ({})", "set maxmemory-policy noeviction"),
    "host": Hint(
        f"more than {QUOTA} new guests from one address",
        "the rest is not recorded. If the address is a proxy, add it to PRESENCE_TRUSTED_PROXIES",
    ),
    "site": Hint(
        f"more than {SITE_QUOTA} new guests from one /48 of IPv6",
        "the rest is not recorded. If its addresses are proxies, add them to "
        "PRESENCE_TRUSTED_PROXIES",
    ),
    "silent": Hint(
        f"more than {QUOTA} guests come from one private address or unix socket without "
        "X-Forwarded-For",
        "it seems to be a proxy, and people with the same browser count as one. Let the proxy send "
        "that header (nginx: proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;) and add "
        "the proxy to PRESENCE_TRUSTED_PROXIES",
    ),
}


class Credential(NamedTuple):
    """A login that a framework sends, and what to do if no rule reads it."""

    name: str
    framework: str
    reader: str
    """A source that reads it."""
    source: str
    """The source to use, with its argument; empty if the remedy needs no rule."""
    remedy: str = "set {} and PRESENCE_SESSION_SECRET to the secret of the app"
    """Braces stand for the setting with that source."""


_SESSION = "the cookie session"
CREDENTIALS = (
    Credential(
        *("the cookie sessionid", "Django", "django-session", ""),
        "add presence_middleware.django.PresenceMiddleware at the end of MIDDLEWARE",
    ),
    Credential(
        *(_SESSION, "Flask", "flask-session", "flask-session:_user_id"),
        "call presence_middleware.flask.init_app(app), or set {} and PRESENCE_SESSION_SECRET to "
        "its SECRET_KEY",
    ),
    Credential(_SESSION, "Starlette", "starlette-session", "session:KEY", "set {}"),
    Credential(_SESSION, "Pyramid", "pyramid-session", "pyramid-session:auth.userid"),
    Credential("the cookie auth_tkt", "Pyramid", "auth-tkt", "auth-tkt"),
    Credential("the cookie beaker.session.id", "Beaker", "session", "session:KEY", "set {}"),
    Credential("a bearer token", "a JWT", "bearer", "bearer:sub"),
)


class SetupHints:
    """What a process notes about its setup, and the mistakes that it has logged."""

    def __init__(self, settings: Settings, resolver: IdentityResolver) -> None:
        self._settings, self._logins = settings, resolver.logins
        self._mistakes = Mistakes(settings)
        names = " or ".join(sorted(self._mistakes.users))
        self._no_user, self._no_login, self._no_logout = (
            HINTS[name].of(names) for name in ("user", "pulse", "logout")
        )
        self._hosts: dict[str, dict[object, set[int]]] = {
            kind: defaultdict(set) for kind in login_kinds(settings.identity)
        }
        """By id, of the kinds that are neither reported nor known to have distinct ids."""
        self._period_ends = -math.inf  # of the addresses in it
        self._seen: dict[str, tuple[Hint, float, int]] = {}
        """By message, what visits showed last, since when, and how many visits.

        A remedy may contain what differs with each visit, such as the keys of its session.
        """
        self._writes: Counter[str] = Counter()  # by kind
        self._writes_before_failure = math.inf
        # What was logged, and what need not be.
        self._done = set() if self._mistakes.needs_address else {HINTS["silent"].message}
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
                _, first, visits = self._seen.get(mistake.message, (mistake, arrival, 0))
                self._seen[mistake.message] = mistake, first, visits + 1
        except Exception as error:  # a part that recording does not need
            self.warn("unreadable", type(error).__name__, "")

    def _shown(
        self, request: Request, arrival: float, purpose: Purpose, who: Who | None
    ) -> Iterator[Hint]:
        """Yield the mistakes that a visit shows, also by what others before it have shown."""
        kind = None if who is None else who[0]
        if purpose is not Purpose.PAGE:
            hint = self._no_logout if purpose in LOGOUTS else self._no_login
            if kind in self._mistakes.users:
                self._done.add(hint.message)
            elif kind != BOT:
                yield hint
            return
        if arrival < self.look_at:
            return
        # Seconds without a look add up, to one look each.
        most = INSPECTED_USERS if kind in self._hosts else INSPECTED_REQUESTS
        self.look_at = max(self.look_at, arrival - most) + 1
        yield from self._mistakes.shown_by(request, kind)
        if who is not None and self._is_shared(who, request.address, arrival):
            yield HINTS["shared"].of(kind)
        if kind in self._mistakes.users:
            return
        for login in self._logins:
            no, rule = login.why_not(request), login.rule
            better, remedy = login.better(no), no.remedy
            if better:
                remedy = f"set {with_rule(self._settings.identity, better, rule)}"
            if remedy:
                yield HINTS["rule"].of(rule.short, no.reason, remedy)
        if self._mistakes.users and kind not in (None, BOT):
            yield self._no_user

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

    def warn(self, hint: str, *values: object, topic: str = "") -> None:
        """Log a mistake, unless there was a warning with its topic, by default the message."""
        self._log(HINTS[hint].of(*values), topic)

    def _log(self, mistake: Hint, topic: str = "") -> None:
        topic = topic or mistake.message
        if topic not in self._done:
            self._done.add(topic)
            see = EXPLAIN if mistake.if_users is False else ""
            logs.warn("%s: %s%s", mistake.message, mistake.remedy, see)

    def note_written(self, kind: str, full: int) -> None:
        """Note that sightings of a kind were written, and `full` of them refused at the cap."""
        self._writes[kind] += 1
        if full:
            self.warn("full", kind, self._settings.max_members)

    def cleaning_ended(self, error: PresenceError | None) -> None:
        """Note the end of a clean-up. Warn if it failed twice in a row although writes succeed."""
        writes = self._writes.total() if error else math.inf
        if error and writes > self._writes_before_failure:
            self.warn("clean-up", error)
        self._writes_before_failure = writes

    def check(self, now: float, driver: Driver) -> None:
        """Log the mistakes that enough visits showed by `now`, by the recorder's clock.

        The first call also asks the server for its eviction policy. Never raises.
        """
        has_users = not self._mistakes.users.isdisjoint(self._writes)
        for hint, first, visits in list(self._seen.values()):
            is_old = visits >= FEW_VISITS and now - first >= hint.seconds
            if hint.if_users in (None, has_users) and (is_old or visits >= hint.visits):
                self._log(hint)
        if not self.has_asked_server:
            with suppress(PresenceError):  # this Redis user may not ask, or there is an outage
                if policy := eviction_policy(driver.run(server_facts("memory"))):
                    self.warn("eviction", policy)
            self.has_asked_server = True


class Mistakes:
    """The mistakes in a site's setup that a request shows by itself."""

    def __init__(self, settings: Settings) -> None:
        chain, self._proxies = settings.identity, settings.trusted_proxies
        self._named = f"{self._proxies}, " if self._proxies else ""
        self.users = user_kinds(chain)
        """The kinds of users."""
        self.needs_address = any(rule.source in ("ip", "visitor") for rule in chain)
        """True if a rule distinguishes people by their addresses."""
        # A rule may also name the cookie that it reads.
        read = {name for rule in chain for name in (rule.source, f"the cookie {rule.cookie}")}
        self._asks_session = not read.isdisjoint(("auth", "session"))
        read |= {each.name for each in CREDENTIALS if each.reader in read}
        old = [rule for rule in chain if rule.source == "auth"]
        self._remedies: dict[str, dict[str, str]] = {}
        """By framework, for each credential that no rule reads."""
        for each in CREDENTIALS if self.users else ():
            if read.isdisjoint((each.name, each.source.partition(":")[0])):
                setting = with_rule(chain, f"{min(self.users)}={each.source}", *old)
                remedy = f"for {each.framework}, {each.remedy.format(setting)}"
                self._remedies.setdefault(each.name, {})[each.framework.lower()] = remedy

    def shown_by(self, request: Request, kind: str | None) -> Iterator[Hint]:
        """Yield the mistakes that a request shows. Rules that find no identity are not named.

        `kind` is that of the identity that was found in it.
        """
        if self.needs_address:
            reason, network = hidden_clients(request, self._proxies)
            if reason == "unnamed":
                yield HINTS["proxy"].of(f"{self._named}{network}")
        # A layer of ours, or the rule `auth`, asks the framework whatever the cookie is.
        is_asked = request.get(USER) or (self._asks_session and request.session is not None)
        if is_asked or kind in self.users:
            return
        for name in sorted(self._remedies.keys() & credentials_of(request)):
            remedies = self._remedies[name]
            used = [remedies[framework] for framework in remedies if framework in sys.modules]
            yield HINTS["credential"].of(name, "; ".join(used or remedies.values()))


def with_rule(chain: Chain, new: str, *old: Rule) -> str:
    """Return the setting of a chain with a rule in place of others."""
    rules = [new, *(rule.short for rule in chain if rule not in old)]
    return f'PRESENCE_IDENTITY="{", ".join(rules)}"'


def credentials_of(request: Request) -> set[str]:
    """Return the credentials that a request carries, named as in `CREDENTIALS`."""
    cookies = (request.header("cookie") or "")[:MAX_COOKIE_CHARACTERS]
    names = {f"the cookie {name}" for name in _COOKIE_NAME.findall(cookies)}
    if (request.header("authorization") or "").startswith("Bearer "):
        names.add("a bearer token")
    return names
