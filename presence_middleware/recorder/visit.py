"""A visit: an open request or connection, with its arrival and its identity."""

import math
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from ..backend import Backend
from ..errors import PresenceUnavailable, QueryError, RedisRefused
from ..identity.hashing import Who
from ..identity.resolver import Identity, IdentityResolver, Matcher, normalize_id
from ..identity.rules import known_kind
from ..people import People, Room
from ..request import OVER, Request, StateRequest
from ..rooms import Rooms
from ..settings import Settings
from ..signals import Signal
from ..stores import Act
from .setup_hints import SetupHints
from .verdict import ENDS_LOGIN, LOGOUTS, Answer, Login, Purpose, answer_of, verdict

NOBODY = (None, None)
PATIENCE = 5.0  # seconds for which a slow request may still log a user in, at most
OUTAGE_SECONDS = 5.0  # for which a visit that Redis did not answer asks nothing
SEEN, LEFT, NO_VISIT = Act.SEEN, Act.LEFT, Purpose.NO_VISIT  # constants are read faster


class Recording(Protocol):
    """The part of the recorder that a visit uses."""

    backend: Backend
    settings: Settings
    resolver: IdentityResolver
    open_visits: dict["Visit", None]
    hints: SetupHints
    people: People
    rooms: Rooms | None
    usual_until: float
    special_paths: Container[str]

    @property
    def stamp(self) -> Callable[[], float]: ...
    def admit(self, visit: "Visit", signal: Signal | None) -> None: ...
    def admit_guest(self, request: Request, who: Who, at: float) -> bool: ...
    def record(
        self, who: Who, at: float, arrival: float, act: Act = SEEN, room: Room | None = None
    ) -> None: ...
    def room_number(self, room: str) -> int | None: ...
    def write_for_reader(self) -> None: ...
    def abandoned(self, visit: "Visit") -> None: ...


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

    may_be_user = False
    """True if the request may show a user who cannot be found yet. Then it counts as no guest."""

    status: int | None = None
    """The status of the response if the visit depends on it; None before the response begins."""

    _asks_after = -math.inf
    """Until when it asks Redis nothing, as a time of `time.monotonic()`."""
    _answered_at = 0.0
    _is_long = False
    _identified: Who | None = None
    _noted: Who | None = None
    """Who was recorded last."""
    _login: tuple[Who, Matcher | None] | None = None
    """The user to log out, and the matcher that found them; None if a layer identified them."""

    def __init_subclass__(cls) -> None:
        # What one of the first instances has is stored compactly in all: 400 bytes less for each
        # open connection.
        first = object.__new__(cls)
        for name in ("is_usual", "room", "_is_long", "_noted"):
            setattr(first, name, None)

    def __init__(
        self, recorder: Recording, state: Mapping[str, Any], signal: Signal | None = None
    ) -> None:
        """Begin a visit when its request arrives. The caller must call `end` later.

        `recorder` decides what the request is, and records the visit. `state` is the environ or
        scope, and `signal` what a page said with the request.
        """
        self.recorder, self.locate = recorder, recorder.resolver.locate
        self.backend = recorder.backend
        # By the recorder's clock: when it arrived, and when its user was last seen.
        self.arrival = self.stamp = recorder.stamp()
        try:
            is_plain = self.arrive(state, recorder.special_paths)
        except Exception:  # an invalid environ or scope, of which the filter warns
            is_plain = False
        if is_plain and signal is None and self.arrival < recorder.usual_until:
            self.is_usual = True
            recorder.open_visits[self] = None
            if recorder.rooms is not None:
                self.enter_number(recorder.rooms.number_for(self))
        else:
            recorder.admit(self, signal)
            self.note_login()

    @property
    def needs_status(self) -> bool:
        """True if what is recorded depends on the status of the response."""
        return self.is_logout or self.recorder.resolver.checks_status

    @property
    def is_counted(self) -> bool:
        """True if it may be recorded: health checks, prefetches and the like are not."""
        return self.purpose not in (Purpose.NO_VISIT, Purpose.EXCLUDED_LOGOUT)

    @property
    def is_logout(self) -> bool:
        """True if the request logs its user out, unless its response is an error."""
        return self.purpose in LOGOUTS

    @property
    def is_over(self) -> bool:
        """True if the visit has ended."""
        return self.state is OVER

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
        self._identified = resolver.claimed((kind, stored)) if stored else None
        self.is_usual = False
        self.note_login()
        if self._identified is not None and self._is_long and not self.is_over:
            self.stamp = self.arrival = self.recorder.stamp()
            self._record(self._identified, None)

    @property
    def identity(self) -> Identity | None:
        """The kind and the id of this visit at this moment, or None.

        It is None for a hashed guest until this process has read the key of hashes from Redis. It
        is None until the response accepts the login if a `checked` rule finds the user.
        """
        who, matcher = self._resolve()
        is_refused = _login(who, matcher) is Login.CHECKED and not self._is_accepted
        if who is None or is_refused:
            return None
        id = self.recorder.resolver.resolve_id(who[1])
        return None if id is None else Identity(who[0], id)

    @property
    def _is_accepted(self) -> bool:
        return answer_of(self.status) is Answer.ACCEPTED

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
        self.room = Room(number, stamp)
        if self._noted is not None and self.state is not OVER:
            self.stamp = stamp
            self._record(self._noted, None)

    def enter_number(self, number: int | None) -> None:
        """Enter the room that the request is about; None if it is about none."""
        if number is not None:
            self.room = Room(number, self.arrival)

    def note_login(self) -> None:
        """Remember the user who is logged in now, if this request may log them out.

        On other requests, this does nothing. Call it in a layer that has just loaded the user,
        before the app clears the login. If several calls find a user, the earliest rule of
        `PRESENCE_IDENTITY` decides, and for the same rule the first call. A guest is no user.
        """
        if not self.is_logout or self.state is OVER:
            return
        who, matcher = self._resolve()
        if who is None or who[0] not in self.recorder.resolver.user_kinds:
            return
        if self._login is None or _place(matcher) < _place(self._login[1]):
            self._login = who, matcher

    def log_out(self) -> None:
        """Log out the user who is logged in now, unless the response is an error.

        Call it in a handler or layer before the app clears the login; no path of `PRESENCE_LOGOUT`
        is needed. The layer must also call `answered`.
        """
        if self.recorder.settings.enabled and not self.is_over:
            self.purpose = Purpose.LOGOUT if self.is_counted else Purpose.EXCLUDED_LOGOUT
            self.is_usual = False
            self.note_login()

    def answered(self, status: int | None) -> None:
        """Set the status of the response, before any of it is sent; None if it is not a number.

        A later call replaces the status. If this is never called, no response has begun, and the
        login that the request shows is not accepted.
        """
        self.note_login()
        self.status = status
        self._answered_at = self.recorder.stamp()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask Redis in the block. So a request waits for an outage once, however often it asks.

        Raises `PresenceUnavailable` at once if Redis did not answer this visit a moment ago. A
        refusal is an answer.
        """
        if time.monotonic() < self._asks_after:
            raise PresenceUnavailable("Redis did not answer this request a moment ago")
        try:
            yield
        except RedisRefused:
            raise
        except PresenceUnavailable:
            self._asks_after = time.monotonic() + OUTAGE_SECONDS
            raise

    def flush(self) -> None:
        """Record this visit with its current identity, and write all sightings of this process.

        This waits for Redis, but not in an outage.
        """
        self.note()
        self.recorder.write_for_reader()

    def note(self) -> None:
        """Record the current identity, once for each identity that this visit has.

        This does nothing after the end of the visit, and nothing on a request that may log its user
        out: whether that is recorded depends on the response.
        """
        if self.state is not OVER and self.purpose in (Purpose.PAGE, Purpose.PULSE):
            self._conclude(*self._resolve())

    def refresh(self, now: float, interval: float) -> None:
        """Record a connection that is still open, at most once per `interval` seconds.

        `now` is the time by the recorder's clock, in seconds.
        """
        # Another thread may have ended it meanwhile.
        if self.state is OVER or self.purpose not in (Purpose.PAGE, Purpose.PULSE):
            return
        who, matcher = self._resolve()
        is_long = self._is_long or now - self.arrival >= min(PATIENCE, interval)
        if not is_long and matcher is not None and matcher.awaits_login:
            return  # a layer may still log a user in, who must not count as a guest until then
        is_due = who == self._noted and now - self.stamp >= interval
        if is_due:
            self.stamp = now
        self._conclude(who, matcher, again=is_due)
        self._is_long, self.is_usual = is_long, self.is_usual and not is_long

    def end(self) -> None:
        """End the visit after its request, also after an error. A second call does nothing."""
        if self.state is OVER:
            return
        recorder = self.recorder
        recorder.open_visits.pop(self, None)
        if self.is_usual:
            who, matcher = recorder.resolver.find(self) or NOBODY
            if who is not None and who != self._noted:
                self._record(who, matcher)
        elif self.purpose is NO_VISIT:
            self._noted, _ = self._resolve(is_ending=True)  # an outer layer may ask who that was
        else:
            who, matcher = self._resolve(is_ending=True)
            if self._is_long and who == self._noted:
                self.stamp = recorder.stamp()
            act = self._conclude(who, matcher, again=self._is_long)
            if not self.is_logout or answer_of(self.status) in ENDS_LOGIN:
                shown = None if act is None else who if self._login is None else self._login[0]
                recorder.hints.note(self, self.arrival, self.purpose, shown)
        # The environ refers to the visit. Released, both are freed with the last reference.
        self.release()

    def abandon(self) -> None:
        """Let the flush thread end a visit whose response was dropped unclosed. Takes no lock."""
        if self.purpose is not Purpose.NO_VISIT and not self.is_over:
            self.recorder.abandoned(self)

    def _resolve(self, *, is_ending: bool = False) -> tuple[Who | None, Matcher | None]:
        """Return the kind and id of this visit, and the matcher that found them.

        The matcher is None if an inner layer set the identity. At its end, a request without a
        response shows no login.
        """
        if self._identified is not None:
            return self._identified, None
        answer = answer_of(self.status)
        is_refused = answer is Answer.REFUSED or (is_ending and answer is Answer.NONE)
        found = self.recorder.resolver.resolve(self, is_refused=is_refused)
        if self.state is OVER:  # also if another thread has ended it meanwhile
            return self._noted, None
        who, matcher = found or NOBODY
        if who and self.may_be_user and who[0] not in self.recorder.resolver.user_kinds:
            return NOBODY
        return who, matcher

    def _conclude(
        self, who: Who | None, matcher: Matcher | None, *, again: bool = False
    ) -> Act | None:
        """Record what the visit comes to, given the identity that it shows now; return the act.

        A sighting is recorded once for each identity, unless `again` is true.
        """
        before = Login.NONE if self._login is None else Login.SHOWN
        act = verdict(self.purpose, answer_of(self.status), before, _login(who, matcher))
        if act is Act.LEFT and self._login is not None:
            self._record(*self._login, act, self._answered_at)
        elif act is Act.GOODBYE:
            self._record(who, matcher, act, self.arrival)
        elif act is SEEN and (again or who != self._noted):
            if self._is_long and who != self._noted:
                # The connection has a new user, who has been here only since the login.
                self.stamp = self.arrival = self.recorder.stamp()
            self._record(who, matcher)
        return act

    def _record(
        self, who: Who | None, matcher: Matcher | None, act: Act = SEEN, at: float | None = None
    ) -> None:
        """Record an act of somebody, by default that they were seen at `stamp`."""
        if act is not LEFT:
            self._noted = who
        if who is None or self.purpose is NO_VISIT:
            return
        # The quota bounds the number of guests that a client can invent, also to log them out. Most
        # people are known, and then no quota applies.
        recorder, has_quota = self.recorder, matcher is not None and matcher.has_quota
        if (
            not has_quota
            or who in recorder.people.recent
            or recorder.admit_guest(self, who, self.stamp)
        ):
            at = self.stamp if at is None else at
            recorder.record(who, at, self.arrival, act, self.room)


def _login(who: Who | None, matcher: Matcher | None) -> Login:
    """Return what an identity shows about its user."""
    if who is None:
        return Login.NONE
    return Login.CHECKED if matcher is not None and matcher.is_checked else Login.SHOWN


def _place(matcher: Matcher | None) -> int:
    """Return the place of a matcher in the chain; -1 for an identity that a layer set."""
    return -1 if matcher is None else matcher.place
