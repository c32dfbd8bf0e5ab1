"""Find the kind and the id of a request: the first rule of the chain that finds an id decides.

This takes a few microseconds, does no I/O and never raises. It happens when the identity is needed,
at the latest when the response is complete, so that a login during the request counts.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from .. import logs
from ..request import Request
from . import rules
from .bots import COUNT, KIND, OFF, Crawlers
from .guests import Guests
from .hashing import MAX_VALUE_LENGTH, Hasher, Id, SecretHasher, SharedHasher, plain_hash
from .reading import Read, SourceOptions
from .sources import FUNCTION, function

MAX_ID_BYTES = 256  # bytes

Who = tuple[str, Id]
"""A kind and an id."""


class Identity(NamedTuple):
    """The kind and the id of a visitor, as `Visit.identity` returns them."""

    kind: str
    id: str


class Matcher(Protocol):
    """A step of the search: a rule, or the look-up of crawlers."""

    kind: str | None
    """The kind of the ids that it finds; None if requests that it matches are not counted."""
    awaits_login: bool
    """True if an inner layer may still give the request another identity."""
    is_checked: bool
    """True if its ids count only where the response accepts the login."""
    place: int
    """Its place in the search, from 0 on."""
    has_quota: bool
    """True if a client can invent ids, so that each address has a quota of them."""

    def find(self, request: Request) -> Id | None:
        """Return the id in a request, or None."""


class RuleMatcher:
    """Finds ids by a rule of `PRESENCE_IDENTITY`."""

    place = 0

    def __init__(
        self,
        rule: rules.Rule,
        hasher: Hasher,
        guests: Guests,
        session_secrets: tuple[str, ...],
        *,
        awaits_login: bool,
    ) -> None:
        self.kind: str | None = rule.kind
        self.awaits_login = awaits_login
        self.is_checked = rule.checked
        self.has_quota = rule.type.forgeable
        self.shows_login = not rule.type.client_supplied
        self._rule = rule
        self._read = _source(rule, SourceOptions(session_secrets, may_remember=not rule.hashed))
        self._to_id: Callable[[str], Id] = partial(_hashed, hasher) if rule.hashed else normalize_id
        self._guests = guests if rule.type.forgeable else None
        self._has_failed = False

    def find(self, request: Request) -> Id | None:
        try:
            value = self._read(request)
            if not value:
                return None
            if self._guests is not None:
                return self._guests.id(request.address, value, self._to_id) or None
            return self._to_id(value) or None
        except Exception as error:  # the site's code, or a framework's
            self._report(error)
            return None

    def _report(self, error: Exception) -> None:
        """Log the first failure, without its message, which may contain data of a client."""
        if self._has_failed:
            return
        self._has_failed = True
        logs.error(
            "PRESENCE_IDENTITY: %s raised %s at %s; "
            "such requests go to the next rule (logged once)",
            *(self._rule, type(error).__name__, logs.place_of(error)),
        )


def _hashed(hasher: Hasher, value: str) -> Id:
    return "" if value.isspace() else hasher(value)


def _source(rule: rules.Rule, options: SourceOptions) -> Read:
    if rule.type is FUNCTION:
        return function(rule.source)
    return rule.type.make(rule.argument, options)


class CrawlerMatcher:
    """Finds crawlers by their User-Agent, except crawlers that are logged in."""

    has_quota = False
    is_checked = False
    place = 0

    def __init__(
        self,
        crawlers: Callable[[Request], str | None],
        logins: list[RuleMatcher],
        *,
        is_counted: bool,
        awaits_login: bool,
    ) -> None:
        """Create a matcher. `logins` are the rules after it that prove a login."""
        self.kind = KIND if is_counted else None
        self.awaits_login = awaits_login
        self._crawlers, self._logins = crawlers, logins

    def find(self, request: Request) -> Id | None:
        try:
            name = self._crawlers(request)
        except Exception:  # a malformed environ or scope
            return None
        if name is None or any(login.find(request) for login in self._logins):
            return None
        return name


class IdentityResolver:
    """The rules of a site, with the key of hashed ids and the guests seen so far."""

    def __init__(
        self,
        chain: rules.Chain,
        *,
        secret: str,
        session_secrets: tuple[str, ...],
        bots: str,
        guests: Guests,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a resolver for the rules of `chain`.

        `secret` is the key of hashed ids; if it is empty, the processes share a key through Redis.
        `session_secrets` verify signed cookies and tokens. `bots` is one of `bots.MODES`. `guests`
        limits the new guests of each network. `monotonic` is the clock, in seconds, of the budget
        for new User-Agents.

        Raises `SettingsError` if a function that a rule names does not exist.
        """
        self.guests = guests
        self.shared_key: SharedHasher | None = None
        """The hasher, if its key is shared through Redis and not `PRESENCE_SECRET`."""
        hasher: Hasher
        if secret or not any(rule.hashed for rule in chain):
            hasher = SecretHasher(secret)
        else:
            hasher = self.shared_key = SharedHasher(guests.forget_ids)
        self.kinds = rules.kinds(chain, bots)
        self.default_kind = next(
            (rule.kind for rule in chain if rule.source == "auth"), self.kinds[0]
        )
        """The kind of the ids that an inner layer passes to `Visit.identify` without a kind."""
        self.needs_account = any(rule.source == "auth" and rule.argument for rule in chain)
        """True if a rule reads an attribute of the user, for which an id is not enough."""
        set_by_app = [rule.type.set_by_app for rule in chain]
        # `Visit.identify` replaces what any rule finds. Until a layer has called it, the user of a
        # request must not be recorded under a kind from which the layer hides them.
        awaits_identify = any(rule.type.reads_nothing for rule in chain)
        matchers = [
            RuleMatcher(
                *(rule, hasher, guests, session_secrets),
                awaits_login=awaits_identify or any(set_by_app[:place]),
            )
            for place, rule in enumerate(chain)
        ]
        self._matchers: list[Matcher] = list(matchers)
        self._unchecked: list[Matcher] = [each for each in matchers if not each.is_checked]
        self.checks_status = len(self._unchecked) < len(matchers)
        """True if identities depend on the status of the response."""
        if bots != OFF:
            self._insert_crawlers(
                Crawlers(monotonic), is_counted=bots == COUNT, awaits_login=any(set_by_app)
            )
        for place, matcher in enumerate(self._matchers):
            matcher.place = place

    def _insert_crawlers(self, crawlers: Crawlers, *, is_counted: bool, awaits_login: bool) -> None:
        """Look for crawlers after the rules that prove a login, before ids that clients choose."""
        for matchers in (self._matchers, self._unchecked):
            rules = [matcher for matcher in matchers if isinstance(matcher, RuleMatcher)]
            place = next(
                (place for place, rule in enumerate(rules) if not rule.shows_login), len(rules)
            )
            logins = [rule for rule in rules[place:] if rule.shows_login]
            matchers.insert(
                place,
                CrawlerMatcher(crawlers, logins, is_counted=is_counted, awaits_login=awaits_login),
            )

    def resolve(self, request: Request, *, is_refused: bool = False) -> tuple[Matcher, Id] | None:
        """Return the first matcher that finds an id in a request, and the id; or None.

        The caller must count the id of a checked matcher only if the response accepts the login.
        With `is_refused`, checked rules find no id.
        """
        for matcher in self._unchecked if is_refused else self._matchers:
            id = matcher.find(request)
            if id is not None:
                return matcher, id
        return None

    def resolve_id(self, id: Id) -> str | None:
        """Return an id as it is stored; None if this process has not received the key yet."""
        if isinstance(id, str):
            return id
        return self.shared_key.finish(id) if self.shared_key and self.shared_key.key else None


def normalize_id(value: str) -> str:
    """Return an id as it is stored: stripped text of at most 256 bytes.

    A longer value is cut to 4,096 characters and hashed. A value that is not valid Unicode is
    hashed as well.
    """
    value = value[:MAX_VALUE_LENGTH].strip()
    if len(value) <= MAX_ID_BYTES and value.isascii():
        return value
    try:
        if len(value.encode()) <= MAX_ID_BYTES:
            return value
    except UnicodeEncodeError:
        pass  # surrogates: undecodable bytes of a header, or half a character of some JSON
    return plain_hash(value.encode("utf-8", "surrogatepass"))
