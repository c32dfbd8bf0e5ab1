"""Warnings about mistakes in a site's setup. Each is logged once per process, with its remedy."""

import math
import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping

from .. import logs
from ..connections import Driver, eviction_policy, facts
from ..errors import PresenceError
from ..identity import BOT, QUOTA, SITE_QUOTA, Crowd, Rule, is_unnamed_proxy, networks
from ..request import Request
from ..settings import Settings
from .visit import Visit

INSPECTED_REQUESTS = 1000  # all of the first; later, one a second
MAX_COOKIE_CHARACTERS = 8192  # of a Cookie header that are inspected
UNREAD_SESSIONS = 20  # requests with a session that no rule reads, before the warning
USERLESS_SIGHTINGS = 100  # sightings of people who are no users, before the warning

USERLESS_SIGNALS = 100  # pulses that name no user of a site with users, before the warning

SHARED_BY = 50  # addresses that may have the same id in a window
DISTINCT_IDS = 3  # more of a kind in a window show that its ids distinguish users
REMEMBERED_VISITS = 200  # that wait until they are over


_SIGNED = "with PRESENCE_SESSION_SECRET"
# Credentials that frameworks send: the sources that read them, and the remedy if no rule does.
_SESSIONS = {
    "the cookie sessionid": (
        {"django-session"},
        "for Django, add presence_middleware.django.identify_user at the end of MIDDLEWARE",
    ),
    "the cookie session": (
        {"flask-session", "starlette-session", "pyramid-session"},
        f"for Flask, add the rule user=flask-session:_user_id {_SIGNED}; for Pyramid, "
        f"user=pyramid-session:KEY {_SIGNED}; for Starlette, user=session:KEY",
    ),
    "the cookie auth_tkt": (
        {"auth-tkt"},
        f"for Pyramid, add the rule user=auth-tkt {_SIGNED}",
    ),
    "the cookie beaker.session.id": (
        {"session"},
        "for Beaker, add the rule user=session:KEY",
    ),
    "a bearer token": (
        {"bearer"},
        f"for a JWT, add the rule user=bearer:sub {_SIGNED}",
    ),
}
_CROWDS = {
    Crowd.HOST: (
        f"more than {QUOTA} new guests from one address: the rest is not recorded. If the address "
        "is a proxy, add it to PRESENCE_TRUSTED_PROXIES"
    ),
    Crowd.SITE: (
        f"more than {SITE_QUOTA} new guests from one /48 of IPv6: the rest is not recorded. If its "
        "addresses are proxies, add them to PRESENCE_TRUSTED_PROXIES"
    ),
    Crowd.SILENT_PROXY: (
        f"more than {QUOTA} guests come from one private address or unix socket without "
        "X-Forwarded-For: it seems to be a proxy, and people with the same browser count as one. "
        "Let the proxy send that header (nginx: proxy_set_header X-Forwarded-For "
        "$proxy_add_x_forwarded_for;) and add the proxy to PRESENCE_TRUSTED_PROXIES"
    ),
}
_COOKIE_NAME = re.compile(r"(?:^|;)[ \t]*+([^=; \t]++)[ \t]*+=")


class SetupHints:
    """The mistakes that a process has found. Requests call only `look` and `warn_of_crowd`."""

    def __init__(self, settings: Settings) -> None:
        rules = settings.identity
        self._sources = {rule.source for rule in rules} | {_cookie_of(rule) for rule in rules}
        # The kinds of logged-in users. If clients supply all ids, all kinds but the guests'.
        logins = {rule.kind for rule in rules if not rule.type.client_supplied}
        self._user_kinds = logins or set(settings.kinds) - {rules[-1].kind, BOT}
        self._has_users = False
        self._shared_ids = SharedIds(logins, settings.window)
        self._needs_address = not self._sources.isdisjoint({"ip", "visitor"})
        self._proxies = settings.trusted_proxies
        self._has_signed_rule = any(rule.type.signed for rule in rules)
        self._people = self._sightings = 0
        self._wrote_people = False
        self._userless_signals = 0
        self._signalled_kinds: set[str] = set()
        self._max_members = settings.max_members
        self.look_at = -math.inf
        """The next time to `look` at a request, by the recorder's clock."""
        self._remaining_looks = INSPECTED_REQUESTS
        self._unread: dict[str, int] = {}
        self._is_behind_proxy = False
        self._logged: set[str] = set()
        self._differing: set[str] = set()
        self._cleaning_failed = self._has_written = False
        self.has_asked_server = False
        """True once the server was asked for its eviction policy."""

    def look(self, request: Request, now: float) -> None:
        """Note the credentials and proxies of a request. `now` is by the recorder's clock."""
        self._remaining_looks -= 1
        if self._remaining_looks < 0:
            self.look_at = now + 1
        if self._needs_address and is_unnamed_proxy(request, self._proxies):
            self._is_behind_proxy = True
        if isinstance(request, Visit):
            self._shared_ids.add(request, now)
        for name in _credentials_of(request) & _SESSIONS.keys() - self._sources:
            if self._sources.isdisjoint(_SESSIONS[name][0]):
                self._unread[name] = self._unread.get(name, 0) + 1

    def note_signal(self, kind: str | None) -> None:
        """Note the kind that a pulse or goodbye named; None if it named nobody."""
        if kind is not None:
            self._signalled_kinds.add(kind)
        if kind not in self._user_kinds and kind != BOT:
            self._userless_signals += 1

    def unreadable(self, error: Exception) -> None:
        """Warn that a request cannot be read. `error` is logged by its type only."""
        self._warn_once(
            f"a request could not be read ({type(error).__name__}) and is not recorded: the server "
            "or a middleware passed an invalid environ or scope"
        )

    def warn_of_crowd(self, crowd: Crowd) -> None:
        """Warn that an address or network has reached its quota of guests."""
        if crowd is not Crowd.SILENT_PROXY or self._needs_address:
            self._warn_once(_CROWDS[crowd])

    def warn_of_missing_rooms(self) -> None:
        """Warn that a handler enters a room although the site has none."""
        self._warn_once(
            "visit.enter() does nothing because PRESENCE_ROOMS is empty: set it to the paths that "
            "are rooms, or to named for rooms that only enter() names"
        )

    def note_written(self, kind: str, full: int) -> None:
        """Note that sightings of a kind were written, and `full` of them refused at the cap."""
        self._has_written = True
        self._has_users = self._has_users or kind in self._user_kinds
        self._wrote_people = self._wrote_people or kind != BOT
        if full:
            self._warn_once(
                f"kind {kind} is full and new ids are not recorded: raise PRESENCE_MAX_MEMBERS, "
                f"which is {self._max_members}"
            )

    def cleaning_ended(self, error: PresenceError | None) -> None:
        """Note the end of a clean-up. Warn if it failed twice in a row although writes succeed."""
        if error and self._has_written and self._cleaning_failed:
            self._warn_once(
                f"stale entries cannot be removed, so keys keep growing ({error}): grant the "
                "Redis user of PRESENCE_REDIS_URL this permission"
            )
        self._cleaning_failed, self._has_written = error is not None, False

    def warn_of_differences(self, others: Mapping[str, str]) -> None:
        """Warn of settings, by name, that have another value in another process."""
        for name, value in others.items():
            if name not in self._differing:
                self._differing.add(name)
                logs.warn(
                    "%s is %r in another process of this site but not in this one, so counts and "
                    "events will be wrong: set it to the same value in all processes",
                    *(name, value),
                )

    def check(self, sightings: int, driver: Driver) -> None:
        """Log new warnings. The first call also asks the server for its eviction policy.

        `sightings` is the number of sightings since the process began. Never raises.
        """
        # Sightings count as those of people unless only bots were written since the last call.
        if self._wrote_people:
            self._people += sightings - self._sightings
        self._sightings, self._wrote_people = sightings, False
        if self._is_behind_proxy:
            self._warn_once(
                "requests come through a proxy that PRESENCE_TRUSTED_PROXIES does not name, so "
                "people with the same browser count as one: add its address"
            )
        for kind in self._shared_ids.find():
            self._warn_once(
                f"more than {SHARED_BY} addresses have the same id of kind {kind}, so their users "
                "count as one: put a source with distinct ids first in PRESENCE_IDENTITY, such as "
                f"{kind}=cookie:NAME or {kind}=visitor"
            )
        if self._user_kinds and not self._has_users:
            self._warn_of_missing_users()
        if self._userless_signals >= USERLESS_SIGNALS:
            self._warn_of_userless_signals()
        if not self.has_asked_server:
            self._check_eviction(driver)

    def _warn_of_missing_users(self) -> None:
        for name, requests in list(self._unread.items()):
            if requests >= UNREAD_SESSIONS and not _has_django_middleware(name):
                self._warn_once(
                    f"requests carry {name}, which no rule of PRESENCE_IDENTITY reads, and no user "
                    f"was found so far: {_SESSIONS[name][1]}"
                )
        if self._people >= USERLESS_SIGHTINGS:
            remedy = "check that the rules match the way your users log in"
            if self._has_signed_rule:
                remedy = "check that PRESENCE_SESSION_SECRET is the secret of the framework"
            self._warn_once(
                f"no {' or '.join(sorted(self._user_kinds))} among {USERLESS_SIGHTINGS} visits, so "
                f"PRESENCE_IDENTITY seems to miss logins: {remedy}"
            )

    def _warn_of_userless_signals(self) -> None:
        # Where guests send pulses, perhaps no user has logged in so far.
        named = self._signalled_kinds
        if not named or (self._has_users and named.isdisjoint(self._user_kinds)):
            kinds = " or ".join(sorted(self._user_kinds))
            self._warn_once(
                f"no {kinds} among {USERLESS_SIGNALS} pulses: the app does not log users in at "
                'PRESENCE_PULSE_PATH. Add data-to="/…" to the script, with a URL of the site '
                "that logs them in and takes POST"
            )

    def _check_eviction(self, driver: Driver) -> None:
        try:
            policy = eviction_policy(driver.run(facts("memory")))
        except PresenceError:
            return  # this Redis user may not ask, or an outage, which is logged elsewhere
        finally:
            self.has_asked_server = True
        if policy:
            self._warn_once(
                f"the server may evict keys ({policy}): set maxmemory-policy noeviction"
            )

    def _warn_once(self, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            logs.warn("%s", message)


class SharedIds:
    """Finds an id that everyone has, such as a user name that an app gives to each visitor.

    Compares the ids of some visits with the addresses that they came from in the current window.
    """

    def __init__(self, kinds: Iterable[str], window: float) -> None:
        """Compare visits of `kinds`, over periods of `window` seconds."""
        self._undecided = set(kinds)
        """The kinds that are neither reported nor known to have distinct ids."""
        self._window = window
        self._period_began = -math.inf
        self._visits: deque[tuple[float, int, Visit]] = deque(maxlen=REMEMBERED_VISITS)
        self._addresses: dict[str, dict[str, set[int]]] = {}
        """Hashes of addresses, by kind and id."""

    def add(self, visit: Visit, now: float) -> None:
        """Remember a visit until it is over and its user is resolved."""
        if self._undecided:
            host, _ = networks(visit.address)
            self._visits.append((now, host, visit))

    def find(self) -> list[str]:
        """Return the kinds of which many addresses have the same id, each kind only once."""
        shared_kinds = []
        for _ in range(len(self._visits)):
            arrived, host, visit = self._visits.popleft()
            if not visit.is_over:
                self._visits.append((arrived, host, visit))
                continue
            who = visit.identity
            if who is None or who.kind not in self._undecided:
                continue
            if arrived >= self._period_began + self._window:
                self._period_began, self._addresses = arrived, {}
            if self._is_shared(*who, host):
                shared_kinds.append(who.kind)
        return shared_kinds

    def _is_shared(self, kind: str, id: str, host: int) -> bool:
        """Add the address of an id. Return whether too many addresses have that id."""
        ids = self._addresses.setdefault(kind, {})
        hosts = ids.setdefault(id, set())
        hosts.add(host)
        is_shared = len(hosts) > SHARED_BY
        if is_shared or len(ids) > DISTINCT_IDS:
            self._undecided.discard(kind)
            del self._addresses[kind]
        return is_shared


def _credentials_of(request: Request) -> set[str]:
    """Return the credentials that a request carries, named like the keys of `_SESSIONS`."""
    cookies = (request.header("cookie") or "")[:MAX_COOKIE_CHARACTERS]
    names = {f"the cookie {name}" for name in _COOKIE_NAME.findall(cookies)}
    if (request.header("authorization") or "").startswith("Bearer "):
        names.add("a bearer token")
    return names


def _cookie_of(rule: Rule) -> str:
    """Return the cookie that a rule reads, if the site named it, like a key of `_SESSIONS`."""
    is_name = rule.source == "cookie" or rule.type.argument == "[COOKIE]"
    return f"the cookie {rule.argument if is_name else rule.argument.partition('@')[2]}"


def _has_django_middleware(name: str) -> bool:
    """Return whether our Django middleware reads this session: pages may load users lazily."""
    return name == "the cookie sessionid" and "presence_middleware.django.identify" in sys.modules
