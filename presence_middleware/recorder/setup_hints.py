"""Warnings about mistakes in a site's setup. Each is logged once per process, with its remedy."""

import math
import re
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from .. import logs
from ..connections.drivers import Driver
from ..connections.server import eviction_policy, facts
from ..errors import PresenceError
from ..identity.addresses import hidden_clients, networks
from ..identity.bots import BOT
from ..identity.guests import QUOTA, SITE_QUOTA, Crowd
from ..identity.resolver import Identity
from ..identity.rules import login_kinds, user_kinds
from ..request import Request
from ..settings import Settings
from .visit import Visit

INSPECTED_REQUESTS = 60  # at most at once; on average, one a second
MAX_COOKIE_CHARACTERS = 8192  # of a Cookie header that are inspected
UNREAD_SESSIONS = 20  # requests with a session that no rule reads, before the warning
USERLESS_SIGHTINGS = 100  # sightings of people who are no users, before the warning
USERLESS_SIGNALS = 100  # pulses that name no user of a site with users, before the warning
USERLESS_LOGOUTS = 20  # logouts that name no user of a site with users, before the warning
SHARED_BY = 50  # addresses that may have the same id in a window
DISTINCT_IDS = 3  # more of a kind in a window show that its ids distinguish users
REMEMBERED_VISITS = 200  # that wait until they are over

_COOKIE_NAME = re.compile(r"(?:^|;)[ \t]*+([^=; \t]++)[ \t]*+=")
_DJANGO = "presence_middleware.django.middleware"
_SIGNED = "with PRESENCE_SESSION_SECRET"
# Credentials that frameworks send: the sources that read them, and the remedy if no rule does.
_SESSIONS = {
    "the cookie sessionid": (
        {"django-session"},
        "for Django, add presence_middleware.django.PresenceMiddleware at the end of MIDDLEWARE",
    ),
    "the cookie session": (
        {"flask-session", "starlette-session", "pyramid-session"},
        f"for Flask, add the rule user=flask-session:_user_id {_SIGNED}; for Pyramid, "
        f"user=pyramid-session:KEY {_SIGNED}; for Starlette, user=session:KEY",
    ),
    "the cookie auth_tkt": ({"auth-tkt"}, f"for Pyramid, add the rule user=auth-tkt {_SIGNED}"),
    "the cookie beaker.session.id": ({"session"}, "for Beaker, add the rule user=session:KEY"),
    "a bearer token": ({"bearer"}, f"for a JWT, add the rule user=bearer:sub {_SIGNED}"),
}
_CROWDS = {
    Crowd.HOST: (
        f"more than {QUOTA} new guests from one address",
        "the rest is not recorded. If the address is a proxy, add it to PRESENCE_TRUSTED_PROXIES",
    ),
    Crowd.SITE: (
        f"more than {SITE_QUOTA} new guests from one /48 of IPv6",
        "the rest is not recorded. If its addresses are proxies, add them to "
        "PRESENCE_TRUSTED_PROXIES",
    ),
    Crowd.SILENT_PROXY: (
        f"more than {QUOTA} guests come from one private address or unix socket without "
        "X-Forwarded-For",
        "it seems to be a proxy, and people with the same browser count as one. Let the proxy send "
        "that header (nginx: proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;) and add "
        "the proxy to PRESENCE_TRUSTED_PROXIES",
    ),
}


class SetupHints:
    """What a process notes about its setup, and the mistakes that it has logged."""

    def __init__(self, settings: Settings) -> None:
        self._settings, rules = settings, settings.identity
        logins = login_kinds(rules)
        self._user_kinds = user_kinds(rules)
        sources = {rule.source for rule in rules}
        self._needs_address = not sources.isdisjoint({"ip", "visitor"})
        for rule in rules:  # a rule may also name the cookie that it reads
            is_name = rule.source == "cookie" or rule.type.argument == "[COOKIE]"
            cookie = rule.argument if is_name else rule.argument.partition("@")[2]
            sources.add(f"the cookie {cookie}")
        self._unread = {
            name for name, (readers, _) in _SESSIONS.items() if sources.isdisjoint({name, *readers})
        }
        self._shared_ids = SharedIds(logins, settings.window)
        self._noted: Counter[str] = Counter()
        self._signals: Counter[str | None] = Counter()  # by the kind that they named
        self._logouts: Counter[str | None] = Counter()  # by the kind that they named
        self._writes: Counter[str] = Counter()  # by kind
        self._logged: set[str] = set()
        self._writes_before_failure = math.inf
        self.look_at = -math.inf
        """The next time to `look` at a request, by the recorder's clock."""
        self.has_asked_server = False
        """True once the server was asked for its eviction policy."""

    def look(self, visit: Visit, now: float) -> None:
        """Note the credentials and proxies of a request. `now` is by the recorder's clock."""
        # Seconds without an inspection add up, to one inspection each.
        self.look_at = max(self.look_at, now - INSPECTED_REQUESTS) + 1
        proxies = self._settings.trusted_proxies
        if self._needs_address and hidden_clients(visit, proxies) == "unnamed":
            self._noted["unnamed proxies"] += 1
        self._shared_ids.add(visit, now)
        self._noted.update(credentials_of(visit) & self._unread)

    def note_signal(self, kind: str | None) -> None:
        """Note the kind that a pulse or goodbye named; None if it named nobody."""
        self._signals[kind] += 1

    def note_logout(self, kind: str | None) -> None:
        """Note the kind that a logout named; None if it named nobody."""
        self._logouts[kind] += 1

    def unreadable(self, error: Exception) -> None:
        """Warn that a request cannot be read. `error` is logged by its type only."""
        self._warn_once(
            f"a request could not be read ({type(error).__name__}) and is not recorded",
            "the server or a middleware passed an invalid environ or scope",
        )

    def warn_of_crowd(self, crowd: Crowd) -> None:
        """Warn that an address or network has reached its quota of guests."""
        if crowd is not Crowd.SILENT_PROXY or self._needs_address:
            self._warn_once(*_CROWDS[crowd])

    def warn_of_missing_rooms(self) -> None:
        """Warn that a handler enters a room although the site has none."""
        self._warn_once(
            "visit.enter() does nothing because PRESENCE_ROOMS is empty",
            "set it to the paths that are rooms, or to named for rooms that only enter() names",
        )

    def note_written(self, kind: str, full: int) -> None:
        """Note that sightings of a kind were written, and `full` of them refused at the cap."""
        self._writes[kind] += 1
        if full:
            self._warn_once(
                f"kind {kind} is full and new ids are not recorded",
                f"raise PRESENCE_MAX_MEMBERS, which is {self._settings.max_members}",
            )

    def cleaning_ended(self, error: PresenceError | None) -> None:
        """Note the end of a clean-up. Warn if it failed twice in a row although writes succeed."""
        writes = self._writes.total()
        if error and writes > self._writes_before_failure:
            self._warn_once(
                f"stale entries cannot be removed, so keys keep growing ({error})",
                "grant the Redis user of PRESENCE_REDIS_URL this permission",
            )
        self._writes_before_failure = writes if error else math.inf

    def warn_of_forbidden_upkeep(self, error: PresenceError) -> None:
        """Warn that the server never runs a command without which nobody does the upkeep."""
        self._warn_once(
            "stale entries may stay, the history may have gaps and leaves may not be announced "
            f"({error})",
            "allow this command to the Redis user of PRESENCE_REDIS_URL",
        )

    def warn_of_differences(self, others: Mapping[str, str]) -> None:
        """Warn of settings, by name, that have another value in another process."""
        for name, value in others.items():
            self._warn_once(
                f"{name} is {value!r} in another process of this site but not in this one, so "
                "counts and events will be wrong",
                "set it to the same value in all processes",
                topic=name,
            )

    def check(self, sightings: int, driver: Driver) -> None:
        """Log new warnings. The first call also asks the server for its eviction policy.

        `sightings` is the number of sightings since the process began. Never raises.
        """
        noted, writes = self._noted, self._writes.total() - self._writes[BOT]
        # Sightings count as those of people unless only bots were written since the last call.
        if writes > noted["writes of people"]:
            noted["people"] += sightings - noted["sightings"]
        noted["writes of people"], noted["sightings"] = writes, sightings
        users = " or ".join(sorted(self._user_kinds))
        if noted["unnamed proxies"]:
            self._warn_once(
                "requests come through a proxy that PRESENCE_TRUSTED_PROXIES does not name, so "
                "people with the same browser count as one",
                "add its address",
            )
        for kind in self._shared_ids.find():
            self._warn_once(
                f"more than {SHARED_BY} addresses have the same id of kind {kind}, so their users "
                "count as one",
                "put a source with distinct ids first in PRESENCE_IDENTITY, such as "
                f"{kind}=cookie:NAME or {kind}=visitor",
            )
        has_users = not self._user_kinds.isdisjoint(self._writes)
        misses_users = bool(users) and not has_users
        for name, (_, remedy) in _SESSIONS.items():
            # Where our Django middleware reads the session, pages may load users lazily.
            is_read = name == "the cookie sessionid" and _DJANGO in sys.modules
            if misses_users and noted[name] >= UNREAD_SESSIONS and not is_read:
                self._warn_once(
                    f"requests carry {name}, which no rule of PRESENCE_IDENTITY reads, and no user "
                    "was found so far",
                    remedy,
                )
        if misses_users and noted["people"] >= USERLESS_SIGHTINGS:
            self._warn_once(
                f"no {users} among {USERLESS_SIGHTINGS} visits, so PRESENCE_IDENTITY seems to miss "
                "logins",
                "check that PRESENCE_SESSION_SECRET is the secret of the framework"
                if any(rule.type.signed for rule in self._settings.identity)
                else "check that the rules match the way your users log in",
            )
        signals = dict(self._signals)
        userless = sum(signals[kind] for kind in signals.keys() - self._user_kinds - {BOT})
        # Where guests send pulses, perhaps no user has logged in so far.
        may_work = signals.keys() - {None} and not (
            has_users and self._user_kinds.isdisjoint(signals)
        )
        if userless >= USERLESS_SIGNALS and not may_work:
            self._warn_once(
                f"no {users} among {USERLESS_SIGNALS} pulses",
                'the app does not log users in at PRESENCE_PULSE_PATH. Add data-to="/…" to the '
                "script, with a URL of the site that logs them in and takes POST",
            )
        userless = self._logouts.total() - self._logouts[BOT]
        is_unnamed = self._user_kinds.isdisjoint(self._logouts)
        if has_users and is_unnamed and userless >= USERLESS_LOGOUTS:
            self._warn_once(
                f"no {users} among {USERLESS_LOGOUTS} logouts at PRESENCE_LOGOUT, so nobody was "
                "taken offline",
                "call presence.leave(id) in the logout handler, or have the session cookie sent to "
                "this path",
            )
        if not self.has_asked_server:
            with suppress(PresenceError):  # this Redis user may not ask, or there is an outage
                if policy := eviction_policy(driver.run(facts("memory"))):
                    self._warn_once(
                        f"the server may evict keys ({policy})", "set maxmemory-policy noeviction"
                    )
            self.has_asked_server = True

    def _warn_once(self, message: str, remedy: str, topic: str = "") -> None:
        """Warn, unless there was a warning with the same topic, by default the message."""
        if (topic or message) not in self._logged:
            self._logged.add(topic or message)
            logs.warn("%s: %s", message, remedy)


class SharedIds:
    """Finds an id that everyone has, such as a user name that an app gives to each visitor.

    Compares the ids of some visits with the addresses that they came from in the current window.
    """

    def __init__(self, kinds: Iterable[str], window: float) -> None:
        """Compare visits of `kinds`, over periods of `window` seconds."""
        self._undecided = set(kinds)
        """The kinds that are neither reported nor known to have distinct ids."""
        self._window, self._period_ends = window, -math.inf
        self._visits: deque[tuple[float, int, Visit]] = deque(maxlen=REMEMBERED_VISITS)
        self._hosts: dict[Identity, set[int]] = {}

    def add(self, visit: Visit, now: float) -> None:
        """Remember a visit until it is over and its user is resolved."""
        if self._undecided:
            # Hashes, because addresses must not be stored.
            self._visits.append((now, networks(visit.address)[0], visit))

    def find(self) -> Iterator[str]:
        """Yield the kinds of which many addresses have the same id, each kind only once."""
        for _ in range(len(self._visits)):
            arrived, host, visit = self._visits.popleft()
            if not visit.is_over:
                self._visits.append((arrived, host, visit))
                continue
            who = visit.identity
            if who is None or who.kind not in self._undecided:
                continue
            if arrived >= self._period_ends:
                self._period_ends, self._hosts = arrived + self._window, {}
            hosts = self._hosts.setdefault(who, set())
            hosts.add(host)
            if len(hosts) > SHARED_BY:
                yield who.kind
            ids = sum(each.kind == who.kind for each in self._hosts)
            if len(hosts) > SHARED_BY or ids > DISTINCT_IDS:
                self._undecided.discard(who.kind)


def credentials_of(request: Request) -> set[str]:
    """Return the credentials that a request carries, named like the keys of `_SESSIONS`."""
    cookies = (request.header("cookie") or "")[:MAX_COOKIE_CHARACTERS]
    names = {f"the cookie {name}" for name in _COOKIE_NAME.findall(cookies)}
    if (request.header("authorization") or "").startswith("Bearer "):
        names.add("a bearer token")
    return names
