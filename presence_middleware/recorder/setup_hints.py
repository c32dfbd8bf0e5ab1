"""The mistakes of a site's first hour, each said once and by name."""

import re
import sys
from collections.abc import Mapping

from .. import logs
from ..connections import Driver, eviction_policy, facts
from ..errors import PresenceError
from ..identity import BOT, QUOTA, SITE_QUOTA, Crowd, Rule, is_unnamed_proxy
from ..request import Request
from ..settings import Settings
from .shared_ids import SHARED_BY, SharedIds
from .visit import Visit

LOOKED_AT = 1000  # requests; later one a second
LONGEST = 8192  # characters of a Cookie header that are looked at
UNREAD = 20  # requests with a session that nothing reads, before it is said
USERLESS = 100  # sightings of people without a user, before that is said


_SIGNED = "with PRESENCE_SESSION_SECRET"
# What frameworks send: the sources that read it, and what a site would add for whom.
_SESSIONS = {
    "cookie sessionid": (
        {"django-session"},
        "Django wants presence_middleware.django.identify_user at the end of MIDDLEWARE",
    ),
    "cookie session": (
        {"flask-session", "starlette-session", "pyramid-session"},
        f"Flask wants user=flask-session:_user_id {_SIGNED}, Pyramid user=pyramid-session:KEY "
        "likewise, Starlette user=session:KEY",
    ),
    "cookie auth_tkt": ({"auth-tkt"}, f"Pyramid wants user=auth-tkt {_SIGNED}"),
    "cookie beaker.session.id": ({"session"}, "Beaker wants user=session:KEY"),
    "a bearer token": ({"bearer"}, f"a JWT wants user=bearer:sub {_SIGNED}"),
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
        f"more than {QUOTA} guests come from one private address or unix socket, with no "
        "X-Forwarded-For: it seems to be a proxy, and people with the same browser count as one. "
        "Let the proxy send that header (nginx: proxy_set_header X-Forwarded-For "
        "$proxy_add_x_forwarded_for;) and add the proxy to PRESENCE_TRUSTED_PROXIES"
    ),
}
_COOKIE_NAME = re.compile(r"(?:^|;)[ \t]*+([^=; \t]++)[ \t]*+=")


class SetupHints:
    """What a process has found so far. Only `look` and `crowd` are on the path of requests."""

    def __init__(self, settings: Settings) -> None:
        chain = settings.identity
        self._reads = {rule.source for rule in chain} | {_cookie_of(rule) for rule in chain}
        # The kinds that a login makes; where only claims are read, all but the last, the guests'.
        logins = {rule.kind for rule in chain if not rule.type.client_supplied}
        self._users = logins or set(settings.kinds) - {chain[-1].kind, BOT}
        self._has_users = False
        self._shared_ids = SharedIds(logins, settings.window)
        self._needs_address = not self._reads.isdisjoint({"ip", "visitor"})
        self._proxies = settings.trusted_proxies
        self._question = (
            "; is PRESENCE_SESSION_SECRET that of the framework?"
            if any(rule.type.signed for rule in chain)
            else ""
        )
        self._people = self._sightings = 0
        self._wrote_people = False
        self._most = settings.max_members
        self.look_at = float("-inf")
        """When to `look` again, by the recorder's clock."""
        self._looks = LOOKED_AT
        self._unread: dict[str, int] = {}
        self._is_behind_proxy = False
        self._said: set[str] = set()
        self._disagreed: set[str] = set()
        self._is_unclean = self._goes_on = False

    def look(self, request: Request, now: float) -> None:
        """Look in an arriving request for what nothing reads; `now` is the recorder's time."""
        self._looks -= 1
        if self._looks < 0:
            self.look_at = now + 1
        if self._needs_address and is_unnamed_proxy(request, self._proxies):
            self._is_behind_proxy = True
        if isinstance(request, Visit):
            self._shared_ids.note(request, now)
        for sent in _sent(request) & _SESSIONS.keys() - self._reads:
            if self._reads.isdisjoint(_SESSIONS[sent][0]):
                self._unread[sent] = self._unread.get(sent, 0) + 1

    def wrote(self, kind: str, full: int) -> None:
        """Note that a kind was recorded, and how many of it found no room."""
        self._goes_on = True
        self._has_users = self._has_users or kind in self._users
        self._wrote_people = self._wrote_people or kind != BOT
        if full:
            self._say(
                f"no room for more of kind {kind}, new ones are not recorded: PRESENCE_MAX_MEMBERS "
                f"is {self._most}"
            )

    def cleaned(self, error: PresenceError | None) -> None:
        """Hears whether the stale could be removed; says if not twice, though recording goes on."""
        if error and self._goes_on and self._is_unclean:
            self._say(f"cannot remove those who are long gone: {error}")
        self._is_unclean, self._goes_on = error is not None, False

    def disagree(self, others: Mapping[str, str]) -> None:
        """Note the settings that another process of the site has otherwise, by their values."""
        for name, value in others.items():
            if name not in self._disagreed:
                self._disagreed.add(name)
                logs.warn(
                    "%s is %r in another process of this site and not here: numbers will differ "
                    "until all processes have it alike",
                    *(name, value),
                )

    def crowd(self, crowd: Crowd) -> None:
        """Log that one place brings more guests than its quota."""
        if crowd is not Crowd.SILENT_PROXY or self._needs_address:
            self._say(_CROWDS[crowd])

    def unreadable(self, error: Exception) -> None:
        """Hears of a request that its server put together wrongly."""
        self._say(f"a request could not be read ({type(error).__name__}), and is not recorded")

    def tick(self, sightings: int, driver: Driver) -> None:
        """Says what there is to say, now and then; after the first write, also of the server.

        `sightings` is how many there have been so far: those of bots alone are no matter.
        """
        if self._wrote_people:
            self._people += sightings - self._sightings
        self._sightings, self._wrote_people = sightings, False
        if self._is_behind_proxy:
            self._say(
                "requests come through a proxy, which PRESENCE_TRUSTED_PROXIES does not name: "
                "people with one browser count as one"
            )
        for kind in self._shared_ids.find():
            self._say(
                f"more than {SHARED_BY} addresses have the same id of kind {kind}: their people "
                "count as one. Put a source that tells people apart first in PRESENCE_IDENTITY, "
                f"such as {kind}=cookie:NAME or {kind}=visitor"
            )
        if self._users and not self._has_users:
            self._say_what_is_unread()
        self._ask_server(driver)

    def _say_what_is_unread(self) -> None:
        for sent, requests in list(self._unread.items()):
            if requests >= UNREAD and not _is_seen_to(sent):
                self._say(
                    f"{sent} arrives, no user was found so far, and nothing in PRESENCE_IDENTITY "
                    f"reads it: {_SESSIONS[sent][1]}"
                )
        if self._people >= USERLESS:
            self._say(
                f"no {' nor '.join(sorted(self._users))} among {USERLESS} visits: what "
                f"PRESENCE_IDENTITY names has found nobody logged in{self._question}"
            )

    def _ask_server(self, driver: Driver) -> None:
        if "server" in self._said:
            return
        self._said.add("server")
        try:
            policy = eviction_policy(driver.run(facts("memory")))
        except PresenceError:
            return  # a user that may not ask; or an outage, which others tell of
        if policy:
            self._say(f"the server may evict keys ({policy}): maxmemory-policy noeviction")

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logs.warn("presence: %s", what)


def _sent(request: Request) -> set[str]:
    """What a request carries, in the words of `_SESSIONS`."""
    sent = {
        f"cookie {name}"
        for name in _COOKIE_NAME.findall((request.header("cookie") or "")[:LONGEST])
    }
    if (request.header("authorization") or "").startswith("Bearer "):
        sent.add("a bearer token")
    return sent


def _cookie_of(rule: Rule) -> str:
    """The cookie that a rule reads by a name of the site's, in the words of `_SESSIONS`."""
    is_name = rule.source == "cookie" or rule.type.argument == "[COOKIE]"
    return f"cookie {rule.argument if is_name else rule.argument.partition('@')[2]}"


def _is_seen_to(sent: str) -> bool:
    """Whether Django's own layer is there, which tells of those for whom a page asked."""
    return sent == "cookie sessionid" and "presence_middleware.django" in sys.modules
