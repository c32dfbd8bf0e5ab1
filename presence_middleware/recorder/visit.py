"""One open request or connection: when it arrived, and who it comes from."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..backend import Backend
from ..identity import (
    BOT,
    Id,
    Identity,
    IdentityResolver,
    Matcher,
    Who,
    known_kind,
    normalize_id,
)
from ..request import OVER, Request

PATIENCE = 5.0  # seconds at most, in which a slow request may log somebody in
REFUSED = frozenset({401, 403})
"""The statuses with which a site refuses the login of a request."""
ACCEPTED = frozenset({*range(200, 300), 101, 304})
"""The statuses with which a site accepts the login of a request.

Many sites redirect, or answer 404, before they look at a password. Such a status shows nothing.
"""
FIRST_ERROR = 400
"""The lowest status with which a request for a path of `PRESENCE_LOGOUT` logs no user out."""


class Sink(Protocol):
    """The recorder of a visit, as far as every visit needs it."""

    backend: Backend
    resolver: IdentityResolver
    open_visits: dict["Visit", None]

    @property
    def stamp(self) -> Callable[[], float]: ...
    def admit(self, visit: "Visit") -> bool: ...
    def record(self, who: Who, stamp: float, arrival: float) -> None: ...
    def admit_guest(self, request: Request, guest: Id, stamp: float) -> bool: ...
    def write_for_reader(self) -> None: ...
    def log_out(self, who: Who, stamp: float) -> None: ...
    def is_leaving(self, who: Who, arrival: float) -> bool: ...
    def abandoned(self, visit: "Visit") -> None: ...


class Visit(Request):
    """In the environ or scope as `presence_middleware.visit`, for handlers and inner layers."""

    state: Mapping[str, Any]
    """The WSGI environ or the ASGI scope."""

    is_logout = False
    """Whether it logs out whoever it comes from, if it is answered without an error."""

    status: int | None = None
    """The status of the response, where that matters; None until it is known."""

    _is_refused = False
    """Whether the response refuses the login that the request shows."""

    _login: tuple[Who, Matcher | None] | None = None
    """Who is to be logged out, and the matcher that found them; None if a layer named them."""

    _answered_at = 0.0
    """When the status was known, by the recorder's clock."""

    def __init__(self, recorder: Sink) -> None:
        """Begin the visit as its request arrives; `end` must follow."""
        self.recorder = recorder
        self.backend = recorder.backend
        # By the recorder's clock: when it arrived, and when its user was last seen.
        self.arrival = self.stamp = recorder.stamp()
        self._identified: Who | None = None
        self._recorded: Who | None = None
        self._dismissed: tuple[Who, float] | None = None
        """Who has left since this visit arrived, and that arrival."""
        self._is_long = False
        self.is_counted = recorder.admit(self)
        """Whether it is recorded: health checks, prefetches and the like are not."""
        if self.is_logout:
            self.note_login()

    def identify(self, id: str | int | None, kind: str | None = None) -> None:
        """Set who this is, from any inner layer; it wins over what the request itself shows.

        `kind` is by default that of the `auth` rule, else the first of `PRESENCE_IDENTITY`. An
        `id` that is None or empty takes back what was set. On a connection that has been open for
        some seconds this is a login: who left before it counts again. Raises `QueryError` for an
        unknown kind.
        """
        resolver = self.recorder.resolver
        kind = known_kind(resolver.default_kind if kind is None else kind, resolver.kinds)
        stored = normalize_id(str(id)) if id is not None else ""
        self._identified = (kind, stored) if stored else None
        if self.is_logout:
            self.note_login()
        if stored and self._is_long and not self.is_over:
            self.stamp = self.arrival = self.recorder.stamp()
            self._put((kind, stored), None)

    @property
    def identity(self) -> Identity | None:
        """Who this is as far as is known now.

        None also for a hashed guest as long as this process never reached Redis, where the key is;
        and where a `checked` rule finds somebody, until the response has a status: an app that is
        still to look at a password has not accepted the name beside it.
        """
        who, _ = self._resolve()
        if who is None:
            return None
        id = self.recorder.resolver.resolve_id(who[1])
        return None if id is None else Identity(who[0], id)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state is OVER

    def note_login(self) -> None:
        """Note who is logged in by now, on a request that may log them out; else do nothing.

        Call it in a layer that has just learnt who is logged in, before the app forgets them. What
        the rule that comes first in `PRESENCE_IDENTITY` found first is kept.
        """
        if not self.is_logout or self.state is OVER:
            return
        who, matcher = self._resolve(is_provisional=True)
        if who is None or who[0] == BOT:
            return
        if self._login is None or _place(matcher) < _place(self._login[1]):
            self._login = who, matcher

    def answered(self, status: int | None) -> None:
        """Take the status of the response, before any of it is sent; None if it is no status.

        A later call replaces it. Where no wrapper calls this, no response has begun, and the login
        that the request shows is not accepted.
        """
        self.note_login()
        self.status = status
        self._is_refused = status in REFUSED
        self._answered_at = self.recorder.stamp()

    def flush(self) -> None:
        """Record this visit as it is now and write what the process holds."""
        self.record()
        self.recorder.write_for_reader()

    def record(self) -> None:
        """Record who this visit turned out to be, once each; nobody once it is over.

        On a request that may log them out, only its end shows whether to record them.
        """
        if self.state is not OVER and not self.is_logout:
            self._record(*self._resolve())

    def refresh(self, now: float, interval: float) -> None:
        """Record a connection that is still open, at most once per `interval` seconds."""
        if self.state is OVER or self.is_logout:  # another thread may have ended it meanwhile
            return
        who, matcher = self._resolve()
        is_long = self._is_long or now - self.arrival >= min(PATIENCE, interval)
        if not is_long and matcher is not None and matcher.awaits_login:
            return  # a layer may still log somebody in: until then, nobody is taken for a guest
        if who is None or who != self._recorded:
            self._record(who, matcher)
        elif now - self.stamp >= interval:
            self.stamp = now
            if self.recorder.is_leaving(who, self.arrival):
                self._dismissed = who, self.arrival
            self._put(who, matcher)
        self._is_long = is_long

    def dismiss(self, left: Mapping[Who, float]) -> None:
        """Keep nobody online any longer who left after this visit arrived.

        `left` holds who was refused, and when the newest of their visits arrived.
        """
        who, arrival = self._recorded, self.arrival
        if who is not None and who in left and arrival <= left[who]:
            self._dismissed = who, arrival

    def end(self) -> None:
        """End the visit: the request is over, however it ended. A second call does nothing."""
        if self.state is OVER:
            return
        recorder = self.recorder
        recorder.open_visits.pop(self, None)
        if self.status is None:
            self._is_refused = True
        if self.is_logout and self._log_out():
            pass
        elif self._is_long:
            self.refresh(recorder.stamp(), 0)
        else:
            self._record(*self._resolve())
        # The environ holds the visit: once it does not hold that, both go with the last reference.
        self.release()

    def release(self) -> None:
        """Let go of the environ or scope, and of all that was read from it."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Let the flush thread end a visit whose response was dropped unclosed. Takes no lock."""
        if self.is_counted and not self.is_over:
            self.recorder.abandoned(self)

    def _log_out(self) -> bool:
        """Take offline whoever has logged out in this request; return whether anybody has."""
        if self._login is None or self.status is None or self.status >= FIRST_ERROR:
            return False
        who, matcher = self._login
        # As with sightings: nobody makes up any number of guests to have them leave.
        if matcher is None or not matcher.has_quota or self._is_within_quota(who):
            self.recorder.log_out(who, self._answered_at)
        return True

    def _is_within_quota(self, who: Who) -> bool:
        return self.recorder.admit_guest(self, who[1], self.stamp)

    def _resolve(self, *, is_provisional: bool = False) -> tuple[Who | None, Matcher | None]:
        """Return who this is, and the matcher that found it; None if an inner layer set it.

        The id of a checked matcher counts only once the response has accepted the login, unless
        `is_provisional`.
        """
        if self._identified is not None:
            return self._identified, None
        if self.state is OVER:
            return self._recorded, None
        match = self.recorder.resolver.resolve(self, is_refused=self._is_refused)
        if match is None or self.state is OVER:  # another thread may have ended it meanwhile
            return self._recorded if self.state is OVER else None, None
        matcher, id = match
        if matcher.is_checked and self.status not in ACCEPTED and not is_provisional:
            return None, None
        return (None if matcher.kind is None else (matcher.kind, id)), matcher

    def _record(self, who: Who | None, matcher: Matcher | None) -> None:
        if who is None or who == self._recorded:
            return
        if self._is_long:
            self.stamp = self.arrival = self.recorder.stamp()  # the login's: they were not here
        self._put(who, matcher)

    def _put(self, who: Who, matcher: Matcher | None) -> None:
        self._recorded = who
        if not self.is_counted:
            return
        if self._dismissed is not None and self._dismissed == (who, self.arrival):
            return
        if matcher is not None and matcher.has_quota and not self._is_within_quota(who):
            return
        self.recorder.record(who, self.stamp, self.arrival)


def _place(matcher: Matcher | None) -> int:
    """Return the place of a matcher in the chain; before all is whom a layer named."""
    return -1 if matcher is None else matcher.place
