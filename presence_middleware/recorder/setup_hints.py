"""Warnings about mistakes in a site's setup. Each is logged once per process, with its remedy.

Some visits are inspected when they end, because many frameworks know the user no earlier.
"""

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from .. import logs
from ..connections.drivers import Driver
from ..connections.server import eviction_policy, facts
from ..errors import PresenceError
from ..identity.addresses import hidden_clients, networks, trusting
from ..identity.bots import BOT
from ..identity.guests import QUOTA, SITE_QUOTA, Crowd
from ..identity.hashing import Who
from ..identity.resolver import IdentityResolver, RuleMatcher
from ..identity.rules import Rule, login_kinds, user_kinds
from ..request import USER, Request
from ..settings import Settings
from .verdict import LOGOUTS, Purpose

INSPECTED_REQUESTS = 60  # at most at once, more than SHARED_BY; on average, one a second
MAX_COOKIE_CHARACTERS = 8192  # of a Cookie header that are inspected
VISITS = 20  # that show a mistake, before the warning
FEW_VISITS, SECONDS = 3, 10.0  # or as many, if the first of them is so long ago
USERLESS_SIGNALS = 100  # pulses that name no user of a site with users, before the warning
SHARED_BY = 50  # addresses that may have the same id in a window
DISTINCT_IDS = 3  # more of a kind in a window show that its ids distinguish users
EXPLAIN = '. To see why, run presence explain --header "Cookie: …"'

_COOKIE_NAME = re.compile(r"(?:^|;)[ \t]*+([^=; \t]++)[ \t]*+=")


class Hint(NamedTuple):
    """A mistake, and when it is logged. Braces stand for the values of a `Mistake`."""

    message: str
    remedy: str
    visits: int = 1
    seconds: float = math.inf
    """How long after the first visit that showed it, it is logged after `FEW_VISITS`."""
    if_users: bool | None = None
    """Whether users were found on a site with this mistake; None if that does not matter."""


_PULSES = Hint(
    f"no {{}} among {USERLESS_SIGNALS} pulses",
    'the app does not log users in at PRESENCE_PULSE_PATH. Add data-to="/…" to the script, with a '
    "URL of the site that logs them in and takes POST",
    visits=USERLESS_SIGNALS,
)
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
        "the rule {0} has never matched: {1}",
        "{2}",
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
    "pulse": _PULSES,
    # Where guests send pulses, perhaps no user has logged in so far.
    "guest's pulse": _PULSES._replace(if_users=True),
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
    Crowd.HOST.name: Hint(
        f"more than {QUOTA} new guests from one address",
        "the rest is not recorded. If the address is a proxy, add it to PRESENCE_TRUSTED_PROXIES",
    ),
    Crowd.SITE.name: Hint(
        f"more than {SITE_QUOTA} new guests from one /48 of IPv6",
        "the rest is not recorded. If its addresses are proxies, add them to "
        "PRESENCE_TRUSTED_PROXIES",
    ),
    Crowd.SILENT_PROXY.name: Hint(
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


class Mistake(NamedTuple):
    """A mistake in the setup of this site: the name of its hint, and the values of its text."""

    hint: str
    values: tuple[object, ...] = ()

    @property
    def message(self) -> str:
        """What is wrong."""
        return HINTS[self.hint].message.format(*self.values)

    @property
    def remedy(self) -> str:
        """What to do."""
        return HINTS[self.hint].remedy.format(*self.values)


class SetupHints:
    """What a process notes about its setup, and the mistakes that it has logged."""

    def __init__(self, settings: Settings, resolver: IdentityResolver) -> None:
        self._settings, self._users = settings, user_kinds(settings.identity)
        self._logins = [
            each
            for each in resolver.matchers
            if isinstance(each, RuleMatcher) and each.shows_login and each.kind in self._users
        ]
        read = {rule.source for rule in settings.identity}
        self._needs_address = not read.isdisjoint({"ip", "visitor"})
        for rule in settings.identity:  # a rule may also name the cookie that it reads
            is_name = rule.source == "cookie" or rule.type.argument == "[COOKIE]"
            cookie = rule.argument if is_name else rule.argument.partition("@")[2]
            read.add(f"the cookie {cookie}")
        self._sources = frozenset(read)
        read |= {each.name for each in CREDENTIALS if each.reader in read}
        self._unread = {each.name for each in CREDENTIALS} - read
        self._reads_session = not read.isdisjoint({"auth", "session"})
        self._shared_ids = SharedIds(login_kinds(settings.identity), settings.window)
        self._seen: dict[str, tuple[Mistake, float, int]] = {}
        """The mistakes that visits showed, since when, and how many visits; by topic."""
        self._writes: Counter[str] = Counter()  # by kind
        self._writes_before_failure = math.inf
        self._done: set[str] = set()  # messages that were logged, and topics that need none
        self.look_at = -math.inf
        """When the next visit is inspected, by the recorder's clock."""
        self.has_asked_server = False
        """True once the server was asked for its eviction policy."""

    def note(self, request: Request, arrival: float, purpose: Purpose, who: Who | None) -> None:
        """Note a visit that ends, unless it was plain. Never raises.

        `arrival` is by the recorder's clock. `who` was seen or logged out, None if nobody was.
        """
        kind = None if who is None else who[0]
        if purpose is Purpose.PAGE:
            if arrival >= self.look_at:
                # Seconds without an inspection add up, to one inspection each.
                self.look_at = max(self.look_at, arrival - INSPECTED_REQUESTS) + 1
                try:
                    self._inspect(request, arrival, who)
                except Exception as error:  # a part that recording does not need
                    self.warn("unreadable", type(error).__name__, "")
            return
        topics = {"logout"} if purpose in LOGOUTS else {"pulse", "guest's pulse"}
        if kind in self._users:
            self._done |= topics
        elif kind != BOT:
            self._done |= topics & {"pulse"} if kind else set()
            for topic in topics:
                self._add(topic, Mistake(topic, (self._user_names,)), arrival)

    def _inspect(self, request: Request, now: float, who: Who | None) -> None:
        for topic, mistake in self.mistakes(request, who):
            self._add(topic, mistake, now)
        if who is None or who[0] == BOT:
            return
        if self._shared_ids.is_shared(who, request.address, now):
            self._add(f"shared {who[0]}", Mistake("shared", (who[0],)), now)
        if self._users and who[0] not in self._users:
            self._add("user", Mistake("user", (self._user_names,)), now)

    def _add(self, topic: str, mistake: Mistake, now: float) -> None:
        _, first, visits = self._seen.get(topic, (mistake, now, 0))
        self._seen[topic] = mistake, first, visits + 1

    @property
    def _user_names(self) -> str:
        return " or ".join(sorted(self._users))

    def mistakes(self, request: Request, who: Who | None) -> Iterator[tuple[str, Mistake]]:
        """Yield the mistakes that a request shows, each with its topic.

        `who` is the identity that was found in it.
        """
        proxies = self._settings.trusted_proxies
        # Addresses take longer than all the rest.
        has_enough = self._seen.get("proxy", (0, 0, 0))[2] >= VISITS or not self._needs_address
        if not has_enough and hidden_clients(request, proxies) == "unnamed":
            yield "proxy", Mistake("proxy", (trusting(request.peer, proxies),))
        if not self._users or (who is not None and who[0] in self._users):
            return
        for login in self._logins:
            no, rule = login.why_not(request), login.rule
            if no.key or no.remedy:
                remedy = f"set {self._chain(login.better(no), rule)}" if no.key else no.remedy
                yield rule.short, Mistake("rule", (rule.short, no.reason, remedy))
        # A layer of ours, or the rule `auth`, asks the framework whatever the cookie is.
        if request.get(USER) or (self._reads_session and request.session is not None):
            return
        for name in sorted(credentials_of(request) & self._unread):
            rows = [
                each
                for each in CREDENTIALS
                if each.name == name and each.source.partition(":")[0] not in self._sources
            ]
            used = [each for each in rows if each.framework.lower() in sys.modules] or rows
            remedies = [
                f"for {each.framework}, "
                + each.remedy.format(self._chain(f"{min(self._users)}={each.source}"))
                for each in used
            ]
            yield name, Mistake("credential", (name, "; ".join(remedies)))

    def _chain(self, new: str, old: Rule | None = None) -> str:
        """Return the setting with a new rule in place of an old one, by default of `auth`."""
        rules = self._settings.identity
        others = [each for each in rules if (each.source != "auth" if old is None else each != old)]
        return f'PRESENCE_IDENTITY="{", ".join([new, *(each.short for each in others)])}"'

    def warn(self, hint: str, *values: object, topic: str = "") -> None:
        """Log a mistake, unless there was a warning with its topic, by default the message."""
        mistake = Mistake(hint, values)
        message = mistake.message
        if self._done.isdisjoint({message, topic or message}):
            self._done |= {message, topic or message}
            see = EXPLAIN if HINTS[hint].if_users is False else ""
            logs.warn("%s: %s%s", message, mistake.remedy, see)

    def warn_of_crowd(self, crowd: Crowd) -> None:
        """Warn that an address or network has reached its quota of guests."""
        if crowd is not Crowd.SILENT_PROXY or self._needs_address:
            self.warn(crowd.name)

    def note_written(self, kind: str, full: int) -> None:
        """Note that sightings of a kind were written, and `full` of them refused at the cap."""
        self._writes[kind] += 1
        if full:
            self.warn("full", kind, self._settings.max_members)

    def cleaning_ended(self, error: PresenceError | None) -> None:
        """Note the end of a clean-up. Warn if it failed twice in a row although writes succeed."""
        writes = self._writes.total()
        if error and writes > self._writes_before_failure:
            self.warn("clean-up", error)
        self._writes_before_failure = writes if error else math.inf

    def check(self, now: float, driver: Driver) -> None:
        """Log the mistakes that enough visits showed by `now`, by the recorder's clock.

        The first call also asks the server for its eviction policy. Never raises.
        """
        has_users = not self._users.isdisjoint(self._writes)
        for topic, (mistake, first, visits) in list(self._seen.items()):
            hint = HINTS[mistake.hint]
            is_old = visits >= FEW_VISITS and now - first >= hint.seconds
            if hint.if_users in (None, has_users) and (is_old or visits >= hint.visits):
                self.warn(mistake.hint, *mistake.values, topic=topic)
        if not self.has_asked_server:
            with suppress(PresenceError):  # this Redis user may not ask, or there is an outage
                if policy := eviction_policy(driver.run(facts("memory"))):
                    self.warn("eviction", policy)
            self.has_asked_server = True


class SharedIds:
    """Finds an id that everyone has, such as a user name that an app gives to each visitor.

    Compares the ids of some visits with the addresses that they came from in the current window.
    """

    def __init__(self, kinds: Iterable[str], window: float) -> None:
        """Compare visits of `kinds`, over periods of `window` seconds."""
        self._undecided = set(kinds)
        """The kinds that are neither reported nor known to have distinct ids."""
        self._window, self._period_ends = window, -math.inf
        self._hosts: dict[Who, set[int]] = {}

    def is_shared(self, who: Who, address: str | None, now: float) -> bool:
        """Note a visit. Return True the first time that many addresses have an id of a kind."""
        kind = who[0]
        if kind not in self._undecided:
            return False
        if now >= self._period_ends:
            self._period_ends, self._hosts = now + self._window, {}
        hosts = self._hosts.setdefault(who, set())
        hosts.add(networks(address)[0])  # hashes, because addresses must not be stored
        is_shared = len(hosts) > SHARED_BY
        if is_shared or sum(each[0] == kind for each in list(self._hosts)) > DISTINCT_IDS:
            self._undecided.discard(kind)
        return is_shared


def credentials_of(request: Request) -> set[str]:
    """Return the credentials that a request carries, named as in `CREDENTIALS`."""
    cookies = (request.header("cookie") or "")[:MAX_COOKIE_CHARACTERS]
    names = {f"the cookie {name}" for name in _COOKIE_NAME.findall(cookies)}
    if (request.header("authorization") or "").startswith("Bearer "):
        names.add("a bearer token")
    return names
