"""A visit: an open request or connection, with its arrival and its identity."""

import math
from collections.abc import Container, Mapping
from functools import cached_property
from typing import Any, TypeVar

from ..connections.limits import Patience
from ..errors import QueryError
from ..identity.ids import Id, Who
from ..identity.resolver import BY_LAYER, NOBODY, Found, Identity
from ..request import OVER, StateRequest
from ..rooms import Room, Signal
from ..stores import NOWHERE, Act, Plan
from .recorder import Recorder
from .verdict import (
    ENDS_LOGIN,
    LOGOUTS,
    REFUSES,
    REFUSES_AT_THE_END,
    UNCOUNTED,
    Answer,
    Purpose,
    answer_of,
    earlier_login,
    shown,
    verdict,
)

LOGIN_PATIENCE = 5.0  # seconds for which a slow request may still log a user in, at most
T = TypeVar("T")
SEEN, LEFT, NO_VISIT = Act.SEEN, Act.LEFT, Purpose.NO_VISIT  # constants are read faster


class Visit(StateRequest):
    """A request that may be recorded.

    Handlers and inner layers find it in the environ or scope as `presence_middleware.visit`. What
    is the same for nearly all visits is an attribute of the class.
    """

    purpose = Purpose.PAGE

    is_usual = False
    """True if it is a page, and nothing but the request shows who came."""

    signal: Signal | None = None
    """What a page said with this request; None for most requests."""

    room: Room | None = None
    """The room that it entered or left; None if its user stays where they were."""

    answer = Answer.NONE
    """What the response says about a login, if the visit depends on it."""

    _answered_at = 0.0
    _is_long = False
    _identified = NOBODY
    """The user whom a layer has named."""
    _noted: Who | None = None
    """Who was recorded last."""
    _login = NOBODY
    """The user to log out."""

    def __init_subclass__(cls) -> None:
        # What one of the first instances has is stored compactly in all: 400 bytes less for each
        # open connection.
        first: Any = object.__new__(cls)
        first.is_usual = first.room = first._is_long = first._noted = None

    def __init__(
        self, recorder: Recorder, state: Mapping[str, Any], signal: Signal | None = None
    ) -> None:
        """Begin a visit when its request arrives. The caller must call `end` later.

        `recorder` decides what the request is, and records the visit. `state` is the environ or
        scope, and `signal` what a page said with the request.
        """
        self.recorder, self.backend = recorder, recorder.backend
        # By the recorder's clock: when it arrived, and when its user was last seen.
        self.arrival = self.stamp = recorder.stamp()
        self._noted = None  # `end` reads an attribute of the class more slowly
        is_plain = self.arrive(state, recorder.resolver.locate, recorder.filter.special_paths)
        if is_plain and signal is None and self.arrival < recorder.usual_until:
            self.is_usual = True
            recorder.open_visits[self] = None
        else:
            self.signal = signal
            self.purpose = recorder.filter.purpose_of(self, signal)
            recorder.admit(self, self.purpose)
            self.note_login()
        rooms = self.backend.rooms
        self.room = None if rooms is None else rooms.entered(self, self.arrival, signal)

    @property
    def age(self) -> float:  # type: ignore[override]
        """For how many seconds it has been open."""
        return self.recorder.stamp() - self.arrival

    @property
    def needs_status(self) -> bool:
        """True if what is recorded depends on the status of the response."""
        return self.is_logout or self.recorder.resolver.checks_status

    @property
    def is_logout(self) -> bool:
        """True if the request logs its user out, unless its response is an error."""
        return self.purpose in LOGOUTS

    @property
    def is_over(self) -> bool:
        """True if the visit has ended."""
        return self.state is OVER

    @property
    def is_counting(self) -> bool:
        """True while the visit keeps online whom it shows.

        False after its end, and for a request that may log its user out: whether that is recorded
        depends on the response.
        """
        return self.purpose in (Purpose.PAGE, Purpose.PULSE) and self.state is not OVER

    def identify(self, id: Id | None, kind: str | None = None) -> None:
        """Set the identity of this visit. It replaces the identity that the request itself shows.

        `id` is the id of the user: text, a number, bytes or a UUID. None or an empty text undoes
        earlier calls. `kind` is by default the kind of the `auth` rule, else the first kind of
        `PRESENCE_IDENTITY`.

        On a connection that has been open for some seconds, this counts as a login: the user counts
        again, also after a logout. Raises `QueryError` for an unknown kind or an invalid id.
        """
        who, _ = self._identified = self.recorder.resolver.named(id, kind)
        self.is_usual = False
        self.note_login()
        if self._is_long and who is not None and self.is_counting:
            self._noted = None
            self._conclude(self._identified, self.recorder.stamp())

    @property
    def identity(self) -> Identity | None:
        """The kind and the id of this visit at this moment, or None.

        It is None for a hashed guest until this process has read the key of hashes from Redis. It
        is None until the response accepts the login if a `checked` rule finds the user.
        """
        who = shown(self._resolve(), self.answer)
        return None if who is None else self.recorder.resolver.identity_of(who)

    def enter(self, room: str) -> None:
        """Enter a room, with any name such as `chat:7`, or leave the room with an empty name.

        For rooms that the path does not show. It replaces the room of `PRESENCE_ROOMS`; if that
        setting is empty, nobody is in a room, and this only logs a warning once. `room` may also be
        a path in a room. Raises `QueryError` if it is no text.
        """
        if not isinstance(room, str):
            raise QueryError(f"room is a {type(room).__name__}: pass text such as 'chat:7'")
        rooms, stamp = self.backend.rooms, self.recorder.stamp()
        if rooms is None:
            self.recorder.hints.warn("rooms")
            return
        self.room = Room(rooms.number_of(room) if room else NOWHERE, stamp)
        if self._noted is not None and self.is_counting:
            self._conclude(self._resolve(), stamp, 0.0)

    def note_login(self) -> None:
        """Remember the user who is logged in now, if this request may log them out.

        On other requests, this does nothing. Call it in a layer that has just loaded the user,
        before the app clears the login. If several calls find a user, the earliest rule of
        `PRESENCE_IDENTITY` decides, and for the same rule the first call. A guest is no user.
        """
        if self.is_logout:
            users = self.recorder.resolver.user_kinds
            self._login = earlier_login(self._login, self._resolve(), users)

    def log_out(self) -> None:
        """Log out the user who is logged in now, unless the response is an error.

        Call it in a handler or layer before the app clears the login; no path of `PRESENCE_LOGOUT`
        is needed. The layer must also call `answered`.
        """
        is_uncounted = self.purpose in UNCOUNTED
        self.purpose = Purpose.EXCLUDED_LOGOUT if is_uncounted else Purpose.LOGOUT
        self.is_usual = False
        users = self.recorder.resolver.user_kinds
        # The server may have named another user when the request arrived.
        now = earlier_login(NOBODY, self._resolve(), users)
        self._login = earlier_login(now, self._login, users)

    def answered(self, status: int | None) -> None:
        """Set the status of the response, before any of it is sent; None if it is not a number.

        A later call replaces the status. If this is never called, no response has begun, and the
        login that the request shows is not accepted.
        """
        self.note_login()
        self.answer = answer_of(status, self.method)
        self._answered_at = self.recorder.stamp()

    @cached_property
    def asking(self) -> Patience:
        """A context manager in which the request asks Redis. It waits for an outage only once."""
        return Patience()

    def read(self, plan: Plan[T]) -> T:
        """Write the sightings of this process, including this visit, and return a plan's result.

        Raises `PresenceUnavailable` if Redis does not answer.
        """
        self.note()
        with self.asking:
            return self.recorder.read(plan)

    def note(self) -> None:
        """Record the current identity, once for each identity that this visit has.

        This does nothing unless the visit is counting.
        """
        if self.is_counting:
            self._conclude(self._resolve(), self.recorder.stamp())

    def refresh(self, now: float, interval: float) -> None:
        """Record a connection that is still open, at most once per `interval` seconds.

        `now` is the time by the recorder's clock, in seconds.
        """
        if not self.is_counting:  # another thread may have ended it meanwhile
            return
        found = self._resolve()
        is_long = self._is_long or now - self.arrival >= min(LOGIN_PATIENCE, interval)
        # Until then, a layer may still log a user in, who must not count as a guest.
        if is_long or not found[1].awaits_login:
            self._conclude(found, now, interval)
        self._is_long, self.is_usual = is_long, False

    def end(self) -> None:
        """End the visit after its request, also after an error. A second call does nothing."""
        if self.state is OVER:
            return
        recorder = self.recorder
        recorder.open_visits.pop(self, None)
        if self.is_usual:
            who, matcher = recorder.resolver.find(self)
            if who is not None and who != self._noted:
                inventor = self if matcher.has_quota else None
                recorder.record(who, self.stamp, self.arrival, SEEN, self.room, inventor)
                self._noted = who  # not before: after an interrupt, `end` is called again
        elif self.purpose is NO_VISIT:
            # An outer layer may ask who that was.
            self._noted, _ = self._resolve(REFUSES_AT_THE_END)
        else:
            found = self._resolve(REFUSES_AT_THE_END)
            who = self._conclude(found, recorder.stamp(), 0.0 if self._is_long else math.inf)
            if not self.is_logout or self.answer in ENDS_LOGIN:
                recorder.hints.note(self, self.arrival, self.purpose, who)
        # The environ refers to the visit. Released, both are freed with the last reference.
        self.release()

    def abandon(self) -> None:
        """Let the flush thread end a visit whose response was dropped unclosed. Takes no lock."""
        if self.purpose is not NO_VISIT and not self.is_over:
            self.recorder.open_visits.abandoned.append(self)

    def _resolve(self, refusing: Container[Answer] = REFUSES) -> Found:
        """Return the kind and id of this visit, and the matcher that found them.

        `refusing` are the answers after which the request shows no login.
        """
        if self._identified is NOBODY:
            found = self.recorder.resolver.resolve(self, is_refused=self.answer in refusing)
            # Another thread may meanwhile have named the user, or ended the visit.
            if self._identified is NOBODY:
                return (self._noted, BY_LAYER) if self.state is OVER else found
        return self._identified

    def _conclude(self, found: Found, now: float, interval: float = math.inf) -> Who | None:
        """Record what the visit comes to, given what it shows; return whose act that is, or None.

        A sighting is recorded once for each identity, and again if the last is `interval` seconds
        old. `now` is by the recorder's clock.
        """
        ruling = verdict(self.purpose, self.answer, self._login, found)
        if ruling is None:
            return None
        act, who, matcher = ruling
        at, noted = self._answered_at, self._noted
        if act is not LEFT:
            if who == self._noted:
                if now - self.stamp < interval:
                    return who
                self.stamp = now
            elif self._is_long:
                # The connection has a new user, who has been here only since the login.
                self.stamp = self.arrival = now
            at, noted = self.stamp, who
        inventor = self if matcher.has_quota else None
        self.recorder.record(who, at, self.arrival, act, self.room, inventor)
        self._noted = noted  # not before: after an interrupt, `end` must record
        return who


class Unrecorded(Visit):
    """The visit of a site with `PRESENCE_ENABLED=0`: shows who asks, and does nothing else."""

    purpose = NO_VISIT
    arrival = stamp = age = 0.0

    def __init__(
        self, recorder: Recorder, state: Mapping[str, Any], signal: Signal | None = None
    ) -> None:
        self.recorder, self.backend, self.signal = recorder, recorder.backend, signal
        self.is_usual = not recorder.resolver.checks_status  # so that none asks for its status
        self.arrive(state, recorder.resolver.locate)

    def log_out(self) -> None:
        pass

    end = StateRequest.release
