"""A visit: an open request or connection, with its arrival and its identity."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..backend import Backend
from ..errors import QueryError
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
from ..signals import Signal
from .buffer import Entrance

PATIENCE = 5.0  # seconds for which a slow request may still log a user in, at most
REFUSED = frozenset({401, 403})
"""The statuses with which a site refuses the login of a request."""
ACCEPTED = frozenset({*range(200, 300), 101, 304})
"""The statuses with which a site accepts the login of a request.

Redirects and 404 are not among them: many sites send those before they check a password.
"""
FIRST_ERROR = 400
"""The lowest status with which a request for a path of `PRESENCE_LOGOUT` logs no user out."""


class Sink(Protocol):
    """The part of the recorder that a visit uses."""

    backend: Backend
    resolver: IdentityResolver
    open_visits: dict["Visit", None]

    @property
    def stamp(self) -> Callable[[], float]: ...
    def admit(self, visit: "Visit") -> bool: ...
    def room_number(self, room: str) -> int | None: ...
    def admit_signal(self, visit: "Visit", signal: Signal) -> bool: ...
    def note_signal(self, who: Who | None) -> None: ...
    def record(self, who: Who, stamp: float, arrival: float, entrance: Entrance | None) -> None: ...
    def say_goodbye(self, who: Who, stamp: float) -> None: ...
    def admit_guest(self, request: Request, guest: Id, stamp: float) -> bool: ...
    def write_for_reader(self) -> None: ...
    def log_out(self, who: Who, stamp: float) -> None: ...
    def is_leaving(self, who: Who, arrival: float) -> bool: ...
    def abandoned(self, visit: "Visit") -> None: ...


class Visit(Request):
    """A request that may be recorded.

    Handlers and inner layers find it in the environ or scope as `presence_middleware.visit`.
    """

    state: Mapping[str, Any]
    """The WSGI environ or the ASGI scope."""

    is_logout = False
    """True if its path is in `PRESENCE_LOGOUT`: it logs its user out unless it fails."""

    is_counted: bool
    """True if it is recorded: health checks, prefetches and the like are not."""

    is_goodbye = False
    """True if the page of its user was closed: it ends the user's window soon."""

    signal: Signal | None = None
    """What a page said with this request; None for most requests."""

    entrance: Entrance | None = None
    """The room that it entered or left; None if its user stays where they were."""

    status: int | None = None
    """The status of the response if the visit depends on it; None before the response begins."""

    _is_refused = False
    """True if the response refuses the login that the request shows."""

    _login: tuple[Who, Matcher | None] | None = None
    """The user to log out, and the matcher that found them; None if a layer identified them."""

    _answered_at = 0.0
    """The time at which the response began, by the recorder's clock."""

    def __init__(self, recorder: Sink, signal: Signal | None = None) -> None:
        """Begin a visit when its request arrives. The caller must call `end` later.

        `recorder` decides whether the visit counts, and records it. `signal` is what a page said
        with the request.
        """
        self.recorder = recorder
        self.backend = recorder.backend
        # By the recorder's clock: when it arrived, and when its user was last seen.
        self.arrival = self.stamp = recorder.stamp()
        self._identified: Who | None = None
        self._recorded: Who | None = None
        self._dismissed: tuple[Who, float] | None = None
        """The user who has left since this visit arrived, and that arrival."""
        self._is_long = False
        if signal is None:
            self.is_counted = recorder.admit(self)
        else:
            self.signal, self.is_goodbye = signal, signal.is_goodbye
            self.is_counted = recorder.admit_signal(self, signal)
        if self.is_logout:
            self.note_login()

    def identify(self, id: str | int | None, kind: str | None = None) -> None:
        """Set the identity of this visit. It replaces the identity that the request itself shows.

        `id` is the id of the user. None or an empty text undoes earlier calls. `kind` is by default
        the kind of the `auth` rule, else the first kind of `PRESENCE_IDENTITY`.

        On a connection that has been open for some seconds, this counts as a login: the user counts
        again, also after a logout. Raises `QueryError` for an unknown kind.
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
        """The kind and the id of this visit at this moment, or None.

        It is None for a hashed guest until this process has read the key of hashes from Redis. It
        is None until the response accepts the login if a `checked` rule finds the user.
        """
        who, _ = self._resolve()
        if who is None:
            return None
        id = self.recorder.resolver.resolve_id(who[1])
        return None if id is None else Identity(who[0], id)

    @property
    def is_over(self) -> bool:
        """True if the visit has ended."""
        return self.state is OVER

    def enter(self, room: str) -> None:
        """Enter a room, with any name such as `chat:7`, or leave the room with an empty name.

        For rooms that the path does not show. It replaces the room of `PRESENCE_ROOMS`; if that
        setting is empty, nobody is in a room, and this only logs a warning once. `room` may also be
        a path in a room. Raises `QueryError` if it is no text.
        """
        if not isinstance(room, str):
            raise QueryError(f"room is a {type(room).__name__}: pass text such as 'chat:7'")
        number = self.recorder.room_number(room)
        if number is None:
            return
        stamp = self.recorder.stamp()
        self.entrance = number, stamp
        if self._recorded is not None and self.state is not OVER:
            self.stamp = stamp
            self._put(self._recorded, None)

    def note_login(self) -> None:
        """Remember the user who is logged in now, if this request may log them out.

        On other requests, this does nothing. Call it in a layer that has just loaded the user,
        before the app clears the login. If several calls find a user, the earliest rule of
        `PRESENCE_IDENTITY` decides, and for the same rule the first call.
        """
        if not self.is_logout or self.state is OVER:
            return
        who, matcher = self._resolve(is_provisional=True)
        if who is None or who[0] == BOT:
            return
        if self._login is None or _place(matcher) < _place(self._login[1]):
            self._login = who, matcher

    def answered(self, status: int | None) -> None:
        """Set the status of the response, before any of it is sent; None if it is not a number.

        A later call replaces the status. If this is never called, no response has begun, and the
        login that the request shows is not accepted.
        """
        self.note_login()
        self.status = status
        self._is_refused = status in REFUSED
        self._answered_at = self.recorder.stamp()

    def flush(self) -> None:
        """Record this visit with its current identity, and write all sightings of this process.

        This waits for Redis, but not in an outage.
        """
        self.record()
        self.recorder.write_for_reader()

    def record(self) -> None:
        """Record the current identity, once for each identity that this visit has.

        This does nothing after the end of the visit, and nothing on a request that may log its user
        out: whether that is recorded depends on the response.
        """
        if self.state is not OVER and not (self.is_logout or self.is_goodbye):
            self._record(*self._resolve())

    def refresh(self, now: float, interval: float) -> None:
        """Record a connection that is still open, at most once per `interval` seconds.

        `now` is the time by the recorder's clock, in seconds.
        """
        # Another thread may have ended it meanwhile.
        if self.state is OVER or self.is_logout or self.is_goodbye:
            return
        who, matcher = self._resolve()
        is_long = self._is_long or now - self.arrival >= min(PATIENCE, interval)
        if not is_long and matcher is not None and matcher.awaits_login:
            return  # a layer may still log a user in, who must not count as a guest until then
        if who is None or who != self._recorded:
            self._record(who, matcher)
        elif now - self.stamp >= interval:
            self.stamp = now
            if self.recorder.is_leaving(who, self.arrival):
                self._dismissed = who, self.arrival
            self._put(who, matcher)
        self._is_long = is_long

    def dismiss(self, left: Mapping[Who, float]) -> None:
        """Stop recording this visit if its user left after it arrived.

        `left` maps each user who has left to the arrival of the newest of their refused visits.
        """
        who, arrival = self._recorded, self.arrival
        if who is not None and who in left and arrival <= left[who]:
            self._dismissed = who, arrival

    def end(self) -> None:
        """End the visit after its request, also after an error. A second call does nothing."""
        if self.state is OVER:
            return
        recorder = self.recorder
        recorder.open_visits.pop(self, None)
        if self.status is None:
            self._is_refused = True
        if self.signal is not None:
            self._end_signal()
        elif self.is_logout and self._log_out():
            pass
        elif self._is_long:
            self.refresh(recorder.stamp(), 0)
        else:
            self._record(*self._resolve())
        # The environ refers to the visit. Released, both are freed with the last reference.
        self.release()

    def release(self) -> None:
        """Drop the environ or scope and all values that were read from it."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Let the flush thread end a visit whose response was dropped unclosed. Takes no lock."""
        if self.is_counted and not self.is_over:
            self.recorder.abandoned(self)

    def _log_out(self) -> bool:
        """Take the user offline who logged out in this request. Return False if no user did."""
        if self._login is None or self.status is None or self.status >= FIRST_ERROR:
            return False
        who, matcher = self._login
        # As with sightings, the quota bounds the number of guests that a client can invent.
        if matcher is None or not matcher.has_quota or self._is_within_quota(who):
            self.recorder.log_out(who, self._answered_at)
        return True

    def _end_signal(self) -> None:
        """Record a pulse like any visit, or say goodbye."""
        who, matcher = self._resolve()
        if not self.is_counted:
            return
        self.recorder.note_signal(who)
        if not self.is_goodbye:
            self._record(who, matcher)
            return
        has_quota = matcher is not None and matcher.has_quota
        if who is not None and (not has_quota or self._is_within_quota(who)):
            self.recorder.say_goodbye(who, self.arrival)

    def _is_within_quota(self, who: Who) -> bool:
        return self.recorder.admit_guest(self, who[1], self.stamp)

    def _resolve(self, *, is_provisional: bool = False) -> tuple[Who | None, Matcher | None]:
        """Return the kind and id of this visit, and the matcher that found them.

        The matcher is None if an inner layer set the identity. The id of a checked matcher counts
        only after the response has accepted the login, unless `is_provisional`.
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
            # The connection has a new user, who has been here only since the login.
            self.stamp = self.arrival = self.recorder.stamp()
        self._put(who, matcher)

    def _put(self, who: Who, matcher: Matcher | None) -> None:
        self._recorded = who
        if not self.is_counted:
            return
        if self._dismissed is not None and self._dismissed == (who, self.arrival):
            return
        if matcher is not None and matcher.has_quota and not self._is_within_quota(who):
            return
        self.recorder.record(who, self.stamp, self.arrival, self.entrance)


def _place(matcher: Matcher | None) -> int:
    """Return the place of a matcher in the chain; -1 for an identity that a layer set."""
    return -1 if matcher is None else matcher.place
