"""Find the kind and the id of a request: the first rule of the chain that finds an id decides.

This takes a few microseconds, does no I/O and never raises. It happens when the identity is needed,
at the latest when the response is complete, so that a login during the request counts.
"""

import math
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from .. import logs
from ..request import HeaderNames, Locate, Request, text
from . import rules
from .bots import BOT, COUNT, OFF, Crawlers
from .ids import SIZE, FoundId, Hasher, Id, No, Who, missing, normalize_id, stored_id
from .sources import FUNCTION, UnusableId, site_function

REMEMBERED = 20_000  # requests whose identity need not be looked up again
REMEMBERED_SECONDS = 60.0


class Identity(NamedTuple):
    """The kind and the id of a visitor, as `Visit.identity` returns them."""

    kind: str
    id: str


class Matcher:
    """A step of the search: a rule, or the look-up of crawlers."""

    kind: str | None
    """The kind of the ids that it finds; None if requests that it matches are not counted."""
    awaits_login = False
    """True if an inner layer may still give the request another identity."""
    headers: frozenset[str] | None
    """The headers that decide what it finds, with the client's address; None if others may."""
    is_checked = False
    """True if its ids count only where the response accepts the login."""
    has_quota = False
    """True if a client can invent ids, so that each address has a quota of them."""
    reads_user = False
    """True if it finds no id in a request that is anonymous."""
    place: float = math.inf
    """Its place in the search, from 0 on."""

    def find(self, request: Request) -> FoundId | None:
        """Return the id in a request; else a `No`, None or an empty text. Never raises.

        If that holds for less than a minute, lower `holds_until` of the request.
        """
        raise NotImplementedError

    is_visible = True
    """False if only the app puts what it finds into a request."""

    def why_not(self, request: Request) -> No:
        """Return why `find` finds no id in a request."""
        raise NotImplementedError


Found = tuple[Who | None, Matcher]
"""Who a request is from, and the matcher that found them. None if such requests do not count."""
NOBODY: Found = None, Matcher()
"""What is found if no matcher finds an id."""
UNREMEMBERED = NOBODY, 0.0
"""What is remembered of a request that is new, and until when."""
BY_LAYER = Matcher()
"""Finds whom an inner layer names, before all rules."""
BY_LAYER.place = -1


class RuleMatcher(Matcher):
    """Finds ids by a rule of `PRESENCE_IDENTITY`."""

    def __init__(self, rule: rules.Rule, hasher: Hasher, session_secrets: tuple[str, ...]) -> None:
        self.rule, self.kind = rule, rule.kind
        self.is_checked = rule.checked
        self.has_quota = rule.type.client_supplied
        self.headers = frozenset([rule.header]) if rule.header else None
        is_header = bool(rule.front_header)
        self.is_visible = not rule.type.set_by_app or rule.type is FUNCTION or is_header
        self.reads_user = rule.source == "auth"
        argument = rule.source if rule.type is FUNCTION else rule.argument
        self._read = rule.type.make(argument, rule.secrets_among(session_secrets))
        self.has_claims = rule.type.reads_nothing and bool(rule.argument)
        """True if its kind claims some of the ids that are found under other kinds."""
        self._claims = site_function(rule.argument, "an id") if self.has_claims else bool
        self._to_id: Callable[[str], FoundId] = normalize_id
        if rule.hashed:
            # What a client chooses, such as a cookie, must not have the hash of a login.
            is_chosen = rule.type.client_supplied or rule.front_header
            place = f"{rule.source}:{rule.argument}\n" if is_chosen else ""
            self._to_id = lambda value: "" if value.isspace() else hasher(place + value)
        self._has_failed = False

    def find(self, request: Request) -> FoundId | None:
        try:
            value = self._read(request)
            return self._to_id(value) if value else value
        except Exception as error:  # the site's code, or a framework's
            self._report(error, "requests go to the next rule")
            return No(f"it raised {type(error).__name__}")

    def claims(self, id: str | None) -> bool:
        """Return whether an id that another rule found is of the kind of this rule. Never raises.

        If the function of the rule fails, it is: whoever must not be seen stays unseen.
        """
        try:
            # A hash may not have its key yet, and no site knows it.
            return id is not None and bool(self._claims(id))
        except Exception as error:
            self._report(error, f"ids count as {self.kind}")
            return True

    def _report(self, error: Exception, result: str) -> None:
        """Log the first failure, without its message, which may contain data of a client."""
        if not self._has_failed:
            self._has_failed = True
            raised = f"raised {type(error).__name__} at {logs.place_of(error)}"
            problem = error if isinstance(error, UnusableId) else raised
            name = self.rule.function or self.rule
            logs.error("PRESENCE_IDENTITY: %s %s; such %s (logged once)", name, problem, result)

    def why_not(self, request: Request) -> No:
        no, rule = self.find(request), self.rule
        if isinstance(no, No):
            return no
        if not no and rule.source in ("auth", "session") and request.session is not None:
            return missing("the session", request.session, rule.argument)
        return No(rule.type.absent)

    def __str__(self) -> str:
        return self.rule.short

    def better(self, no: No) -> str:
        """Return the rule to write in place of this one; empty if `no` names no key."""
        rule, cookie = self.rule, self.rule.argument.partition("@")[2]
        source = "session" if rule.source == "auth" else rule.source
        return f"{rule.kind}={source}:{no.key}{cookie and f'@{cookie}'}" if no.key else ""


class CrawlerMatcher(Matcher):
    """Finds crawlers by their User-Agent, except crawlers that are logged in."""

    def __init__(self, kind: str | None, crawlers: Crawlers, logins: list[RuleMatcher]) -> None:
        """Create a matcher. `logins` are the rules after it that prove a login."""
        self.kind = kind
        given = [login.headers for login in logins]
        union = frozenset(["user-agent"]).union(*(headers or () for headers in given))
        self.headers = None if None in given else union
        self._crawlers, self._logins = crawlers, logins

    def find(self, request: Request) -> FoundId | None:
        try:
            name = self._crawlers(request)
        except Exception:  # a malformed environ or scope
            return None
        is_login = name and any(login.find(request) for login in self._logins)
        return None if is_login else name

    def __str__(self) -> str:
        return f"{self.kind or 'skipped'}=crawler"

    def why_not(self, request: Request) -> No:
        is_crawler = self._crawlers(request)
        return No("a crawler, but logged in" if is_crawler else "it is in no list of crawlers")


class Search:
    """Matchers in their order. What the last of them find is remembered for a minute.

    These depend on nothing but some headers and the client's address, which never change during a
    request. They are remembered by a hash: nothing that a client sent is stored.
    """

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self.matchers = matchers
        last = len(matchers)
        while last and matchers[last - 1].headers is not None:
            last -= 1
        self._first, self._last = matchers[:last], matchers[last:]
        self._names = HeaderNames(name for each in self._last for name in each.headers or ())
        # Most requests have no user, and most sites ask for nothing else before the rest.
        self._asks_user = all(each.reads_user for each in self._first)
        self._known: dict[object, tuple[Found, float]] = {}

    def find(self, request: Request) -> Found:
        """Return who a request is from, and the matcher that found them."""
        if self._first and not (self._asks_user and request.is_anonymous):
            found = _first_match(self._first, request)
            if found is not NOBODY:
                return found
        known, now = self._known, time.time()
        try:
            key: object = request.fingerprint(self._names)
            place = key
            found, until = known.get(key, UNREMEMBERED)
            # What has expired since it arrived counts on, for it alone: of all requests that have
            # been open for so long, each has another id.
            if until <= now and request.age > REMEMBERED_SECONDS:
                key = place, id(request)
                found, until = known.get(key, UNREMEMBERED)
            if now < until <= now + REMEMBERED_SECONDS:
                return found
        except Exception:  # a malformed environ or scope
            return _first_match(self._last, request)
        found = _first_match(self._last, request)
        # Another thread may have ended the request, and its headers with it.
        if request.fingerprint(self._names) == place:
            if len(known) >= REMEMBERED:
                known.clear()
            until = request.holds_until if key == place else math.inf
            known[key] = found, min(until, time.time() + REMEMBERED_SECONDS)
        return found


def _first_match(matchers: Sequence[Matcher], request: Request) -> Found:
    """Return who the first of the matchers that finds an id finds."""
    for matcher in matchers:
        if id := matcher.find(request):
            return (None if matcher.kind is None else (matcher.kind, id)), matcher
    return NOBODY


class IdentityResolver:
    """The rules of a site, with the key of hashed ids."""

    def __init__(
        self,
        chain: rules.Chain,
        *,
        secret: str,
        session_secrets: tuple[str, ...],
        bots: str,
        locate: Locate | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a resolver for the rules of `chain`.

        `secret` is the key of hashed ids; if it is empty, the processes share a key through Redis.
        `session_secrets` verify signed cookies and tokens. `bots` is one of `bots.BOT_MODES`.
        `locate` finds the client's address of a request; None if it is always the peer's.
        `monotonic` is the clock, in seconds, of the budget for new User-Agents.

        Raises `SettingsError` if a function that a rule names does not exist.
        """
        self.locate = locate
        self.hasher = Hasher(secret)
        self.shared_kinds = set() if secret else {rule.kind for rule in chain if rule.hashed}
        """The kinds with ids that are hashed with a key in Redis, and not `PRESENCE_SECRET`."""
        self.kinds = rules.kinds(chain, bots)
        auth = next((rule.kind for rule in chain if rule.source == "auth"), None)
        self.default_kind = auth or self.kinds[0]
        """The kind of the ids that an inner layer passes to `Visit.identify` without a kind."""
        self.user_kinds = rules.user_kinds(chain) or set(rules.kinds(chain))
        """The kinds that a logout takes offline: guests only where there are no users."""
        self.reads_user = auth is not None
        """True if a rule reads the user whom a layer has logged in."""
        set_by_app = [rule.type.set_by_app for rule in chain]
        # `Visit.identify` replaces what any rule finds. Until a layer has called it, the user of a
        # request must not be recorded under a kind from which the layer hides them.
        awaits_identify = any(rule.type.reads_nothing for rule in chain)
        matchers = [RuleMatcher(rule, self.hasher, session_secrets) for rule in chain]
        for place, matcher in enumerate(matchers):
            matcher.awaits_login = awaits_identify or any(set_by_app[:place])
        self.logins = [each for each in matchers if not each.has_quota]
        """The rules whose ids no client can choose."""
        unchecked = [each for each in matchers if not each.is_checked]
        self.checks_status = len(unchecked) < len(matchers)
        """True if identities depend on the status of the response."""
        self.needs_app = self.checks_status or any(set_by_app)
        """True if only layers of the app may know who sent a request, so that it must run."""
        crawlers = None if bots == OFF else Crawlers(monotonic)

        def search(matchers: list[RuleMatcher]) -> Search:
            """Look for crawlers after rules that prove a login, before ids that clients choose."""
            if crawlers is None:
                return Search(matchers)
            first = list(takewhile(lambda each: not each.has_quota, matchers))
            others = matchers[len(first) :]
            logins = [each for each in others if not each.has_quota]
            crawler = CrawlerMatcher(BOT if bots == COUNT else None, crawlers, logins)
            crawler.awaits_login = any(set_by_app)
            return Search([*first, crawler, *others])

        self.search = search(matchers)
        """The search of a request that was not refused, with all steps."""
        self._unchecked = search(unchecked) if self.checks_status else self.search
        for place, step in enumerate(self.search.matchers):
            step.place = place
        self._claims = [each for each in matchers if each.has_claims]
        self.find = self.resolve if self._claims else self.search.find
        """Return who a request is from, as `resolve` does."""

    def resolve(self, request: Request, *, is_refused: bool = False) -> Found:
        """Return who a request is from, and the matcher that found them.

        The caller must count the id of a checked matcher only if the response accepts the login.
        With `is_refused`, checked rules find no id.
        """
        who, matcher = (self._unchecked if is_refused else self.search).find(request)
        if self._claims and who and who[0] in self.user_kinds:
            who = self.claimed(who)
        if request.may_be_user and who and who[0] not in self.user_kinds:
            return NOBODY
        return who, matcher

    def named(self, id: Id | None, kind: str | None) -> Found:
        """Return who a layer names by an id, by default of `default_kind`; nobody without an id.

        Raises `QueryError` for an unknown kind or an invalid id.
        """
        kind = rules.known_kind(self.default_kind if kind is None else kind, self.kinds)
        if id is None:
            return NOBODY
        given = text(id) if isinstance(id, bytes) else id
        stored = normalize_id(given) if isinstance(given, str) else stored_id(given)
        return (self.claimed((kind, stored)), BY_LAYER) if stored else NOBODY

    def claimed(self, who: Who) -> Who:
        """Return who somebody counts as: another kind may claim the id of a user."""
        id = self.resolve_id(who[1])
        for claim in self._claims:
            if (who[0] in self.user_kinds or who[0] == self.default_kind) and claim.claims(id):
                return claim.rule.kind, who[1]
        return who

    def identity_of(self, who: Who) -> Identity | None:
        """Return a kind with the id as it is stored; None if that is not known yet."""
        id = self.resolve_id(who[1])
        return None if id is None else Identity(who[0], id)

    def resolve_id(self, id: FoundId) -> str | None:
        """Return an id as it is stored; None if this process has not received the key yet."""
        if isinstance(id, str):
            return id
        return self.hasher.finish(id.to_bytes(SIZE)) if self.hasher.key else None
