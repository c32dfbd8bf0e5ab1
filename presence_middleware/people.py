"""The people that a process saw or took offline lately: what waits to be written, and the rest.

A person is all that this process remembers of an identity, and there is no second memory. All times
are by the recorder's clock.
"""

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from .identity.ids import Who
from .rooms import Room
from .stores import NOWHERE, Act, Store

NEVER = float("-inf")
TIGHT = 0.5  # of the limit: above it, sightings from before the window are dropped

SEEN, GOODBYE, LEFT, ERASED = Act

Reason = Literal["expired", "full", "left", "members", "quota"]
"""Why a sighting was dropped.

`expired`: it left the window before Redis answered. `full`: the memory was at its limit. `left`:
the user had left after it. `members`: `PRESENCE_MAX_MEMBERS` was reached. `quota`: its address
had brought too many guests.
"""

Sightings = list[tuple[Who, float, float]]
"""Identities with their last-seen and arrival times."""


class Departed:
    """A goodbye, a logout or an erasure, until it is sent and for a window after."""

    __slots__ = ("act", "at", "is_sent", "least", "moment", "refused")

    def __init__(self, act: Act, at: float, *, is_sent: bool = False, least: int = 0) -> None:
        self.act, self.at, self.is_sent = act, at, is_sent
        self.least = least
        """The least time that was sent of a return which it ends; 0 if it may be any."""
        self.refused = NEVER
        """The newest arrival whose sightings it has refused."""
        self.moment: int | None = None
        """The moment that was sent, in microseconds since the epoch; None if none was."""

    def least_time(self, since: float) -> int:
        """Return the least time to send for what happened at `since`; 0 if it may be any."""
        return 0 if self.moment is None or self.at >= since else self.moment + 1


NOT_DEPARTED = Departed(SEEN, NEVER, is_sent=True)
"""In place of the departure of whoever has not departed."""


@dataclass(slots=True, eq=False, repr=False)
class Person:
    """All that this process remembers of an identity.

    A sighting waits if it is newer than the last that was sent, so there is no state to keep in
    step.
    """

    who: Who
    seen: float = NEVER
    sent: float = NEVER
    arrival: float = NEVER
    sent_arrival: float = NEVER
    """The arrival that was sent with the last sighting."""
    goodbye: Departed = NOT_DEPARTED
    """The last goodbye."""
    left: Departed = NOT_DEPARTED
    """The last logout or erasure."""
    erased: Departed = NOT_DEPARTED
    """The last erasure before that."""
    room: Room | None = None
    """The room that was entered or left last. None if there was none."""
    is_moving: bool = False
    """True until the room is written."""
    is_queued: bool = False
    id: str = ""
    """The id as it is stored, once the writer has resolved it."""
    shard: Store | None = None
    """The shard that holds the id. None until the writer has resolved it."""
    key: bytes | None = None
    """The key of hashed ids with which it was resolved."""

    def enter(self, room: Room | None, at: float, window: float, grace: float) -> bool:
        """Note the room of a sighting, or None. Return whether it must be written.

        Not if another was entered since, or if nothing changes. Whoever was offline before a
        sighting without a room is in none; a move that waits still ends the stay before it.
        """
        known, goodbye = self.room, self.goodbye.at
        if room is None:
            if at - self.seen >= window or self.seen <= goodbye <= at - grace:
                self.room = Room(NOWHERE, known.since) if known and self.is_moving else None
            return False
        if known is not None and (room.since < known.since or room == known):
            return False
        self.room, self.is_moving = room, True
        return True

    def depart(self, act: Act, at: float, arrival: float) -> None:
        """Merge a goodbye, a logout or an erasure, unless a later one is known.

        `arrival` is that of the request. If it has erased its user, its logout is no other act.
        """
        if act is GOODBYE:
            if self.goodbye.at < at:
                self.goodbye = Departed(act, at)
            return
        if self.arrival <= at < self.seen:
            at = self.seen  # a connection from before the logout was seen after it
        known = self.left
        if act > known.act or at > known.at:
            if known.act is ERASED:
                self.erased = known
                act = ERASED if arrival < known.at else act
            least = known.least_time(self.seen) or known.least
            self.left = Departed(act, max(at, known.at), least=least)

    def has_acted(self, since: float) -> bool:
        """Return whether the person was seen, said goodbye or may be refused after `since`.

        Whoever left may have a connection open, of which no later sighting must count.
        """
        return max(self.seen, self.goodbye.at) > since or self.left.at > NEVER

    def departures_due(self) -> Sequence[Departed]:
        """Return the departures to send, the oldest first.

        A goodbye that a later sighting undoes is not sent. It is sent again with a sighting from
        before it: who was offline has nothing to say it to.
        """
        goodbye = self.goodbye
        due = [each for each in (self.erased, self.left) if not each.is_sent]
        is_waiting = self.seen > self.sent
        if goodbye.at >= self.seen and (is_waiting or not goodbye.is_sent):
            due.append(goodbye)
        return sorted(due, key=attrgetter("at")) if len(due) > 1 else due

    def refused(self, taken: "Taken") -> None:
        """Note that the server refused a sighting: the person had left after that arrival."""
        if self.left.at < taken.arrival:
            self.left = Departed(LEFT, taken.arrival, is_sent=True)
            self.left.refused = taken.arrival
        # Otherwise a newer one waits, or after a loss it is sent with its departure again.
        if self.seen == self.sent == taken.seen and self.left.moment is None:
            is_newer = taken.before > taken.arrival  # a visit with a new login
            self.seen = self.sent = self.arrival = taken.before if is_newer else NEVER
            self.sent_arrival = self.arrival

    def restore(self, taken: "Taken") -> bool:
        """Let what was taken wait again. Return whether a newer sighting waits in its place."""
        if taken.seen is None:
            return False
        self.sent_arrival = taken.before
        if self.seen > self.sent:
            self.arrival = max(self.arrival, taken.arrival)
            return True
        self.seen, self.sent = max(self.seen, taken.seen), NEVER  # an erasure may have dropped it
        return False

    def lose(self, since: float, *, has_room: bool) -> bool:
        """Let wait again what happened after `since` and the server has lost.

        A sighting needs room to wait. Return whether it waits again.
        """
        for departure in (self.erased, self.left, self.goodbye):
            if departure.moment is not None and departure.at > since:
                departure.is_sent, departure.moment = False, None
        if not since < self.seen:
            return False
        self.is_moving = self.room is not None
        if not has_room or self.seen > self.sent:  # it waits already
            return False
        self.sent = NEVER
        return True


class Taken(NamedTuple):
    """What is to be sent of a person, as it was when the writer took it."""

    person: Person
    seen: float | None
    """The last-seen time; None if that is sent already."""
    before: float
    """The arrival that was sent before."""
    arrival: float
    room: Room | None
    """The room that was entered; None if there is nothing new."""
    departures: Sequence[Departed]


class Memory:
    """Everybody whom a process knows: the people of the current period and of the one before.

    A period is a window, or longer if nobody comes. Beyond the limit, as many others are known by a
    hash alone.
    """

    def __init__(self, limit: int, window: float) -> None:
        """Remember at most `limit` people, for at least `window` seconds."""
        self._limit, self._window = limit, window
        self.recent: dict[Who, Person] = {}
        """The people of the current period."""
        self.period_ends = NEVER
        """When the next period must begin."""
        self._earlier: dict[Who, Person] = {}
        self._forgotten, self._forgotten_earlier = set[int](), set[int]()

    def knows(self, who: Who) -> bool:
        """Return whether somebody was seen in this period or in the one before.

        If there are too many people to know, return True.
        """
        if who in self.recent or who in self._earlier:
            return True
        hashes = self._forgotten, self._forgotten_earlier
        return any(hash(who) in each or len(each) >= self._limit for each in hashes)

    def remember(self, who: Who) -> Person:
        """Return somebody who is not among the recent people, and remember them if there is room.

        Beyond the limit, a person is written and then forgotten.
        """
        person = self._earlier.pop(who, None) or Person(who)
        forgotten = None
        if len(self.recent) + len(self._earlier) < self._limit:
            self.recent[who] = person
        elif self._earlier:
            forgotten, _ = self._earlier.popitem()
            self.recent[who] = person
        else:
            forgotten = who
        if forgotten is not None and len(self._forgotten) < self._limit:
            self._forgotten.add(hash(forgotten))
        return person

    def begin_period(self, now: float, waiting: Iterable[Person]) -> bool:
        """Begin a period: forget those who did nothing in the period that ends, except who wait.

        Return False, and do nothing, if the period has not ended.
        """
        if now < self.period_ends:
            return False
        has_just_ended = now < self.period_ends + self._window
        ending = self.recent
        if not has_just_ended:  # those who ended a long silence are among the people from before it
            since = now - self._window
            ending = {who: each for who, each in ending.items() if each.has_acted(since)}
        self._earlier, self.recent = ending, {}
        for person in waiting:
            self.recent[person.who] = person
            self._earlier.pop(person.who, None)
        self._forgotten_earlier, self._forgotten = self._forgotten, set()
        # From now: whoever has just come was noted in the period that ends, however late that is.
        self.period_ends = now + self._window
        return True


class People(Memory):
    """The people of one process. Bounded.

    Each sighting is counted once: recorded = coalesced + flushed + pending + dropped.
    """

    def __init__(self, limit: int, window: float, grace: float) -> None:
        """Remember people for `window` seconds at least.

        At most `limit` sightings wait, and at most twice as many people are remembered. Whoever
        says goodbye stays online for `grace` seconds.
        """
        super().__init__(2 * limit, window)
        self._most_pending, self._grace = limit, grace
        self.lock = threading.Lock()
        """Held by each method for a moment, never across I/O."""
        self._queue: deque[Person] = deque()
        self._in_flight: dict[Person, Taken] = {}
        self._seen_again = 0
        """The number of people in flight of whom a newer sighting waits."""
        self.coalesced = self.flushed = self.pending = 0
        self.dropped: Counter[Reason] = Counter()

    # Called by requests.

    def note(
        self, who: Who, at: float, arrival: float, act: Act = SEEN, room: Room | None = None
    ) -> None:
        """Merge what somebody did into what is known of them. At the limit, drop and count it.

        `at` is the moment of the act, and `arrival` that of the request or connection. A sighting
        of a connection that is older than the logout of its user is refused.
        """
        with self.lock:  # it takes twice as long, but an interrupt never leaves the lock held
            person = self.recent.get(who) or self.remember(who)
            if act is not SEEN:
                self._depart(person, act, at, arrival)
            elif arrival <= person.left.at:
                left = person.left
                self.dropped["left"] += arrival > left.refused  # once for each open connection
                left.refused = max(left.refused, arrival)
            else:
                is_move = room is not person.room and person.enter(
                    room, at, self._window, self._grace
                )
                if person.seen > person.sent:
                    self.coalesced += 1
                    # Each maximum counts: a departure between two arrivals refuses only the older.
                    if at > person.seen:  # noqa: PLR1730 - a call of `max` takes four times as long
                        person.seen = at
                    if arrival > person.arrival:  # noqa: PLR1730
                        person.arrival = arrival
                elif at < person.seen and arrival <= person.arrival and not is_move:
                    self.coalesced += 1  # it is older than what is written
                elif (
                    self.pending - self._seen_again >= self._most_pending
                    and person not in self._in_flight  # or else they wait already
                ):
                    self.dropped["full"] += 1
                else:
                    self._enqueue(person)  # first: an interrupt must not leave out who waits
                    self._seen_again += person in self._in_flight
                    self.pending += 1
                    if at > person.seen:
                        person.seen = at
                    else:
                        person.sent = NEVER  # the room or the arrival is new
                    person.arrival = arrival

    def refuse(self, reason: Reason) -> None:
        """Count a sighting that is dropped before it waits."""
        with self.lock:
            self.dropped[reason] += 1

    def _depart(self, person: Person, act: Act, at: float, arrival: float) -> None:
        """Merge a departure. The caller holds the lock."""
        person.depart(act, at, arrival)
        if person.left.act is ERASED and person.sent < person.seen <= person.left.at:
            person.seen = person.sent
            self.pending -= 1
            self.dropped["left"] += 1
        self._enqueue_due(person)

    def _enqueue_due(self, person: Person) -> None:
        """Let a person wait of whom there is something to send.

        Departures alone are bounded here; sightings are before they come here.
        """
        if person.seen > person.sent or (
            len(self._queue) < self._limit and person.departures_due()
        ):
            self._enqueue(person)

    def _enqueue(self, person: Person) -> None:
        if not person.is_queued:
            person.is_queued = True
            self._queue.append(person)

    # Called by the writer, one write at a time.

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits."""
        return not (self._queue or self._in_flight)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def dropped_in_outages(self) -> int:
        """The number of sightings that were dropped because Redis did not answer in time."""
        return self.dropped["expired"] + self.dropped["full"]

    def counters(self) -> dict[str, Any]:
        """Return all counters at the same moment, so that they add up."""
        with self.lock:
            return {
                "recorded": self.coalesced + self.flushed + self.pending + self.dropped.total(),
                "coalesced": self.coalesced,
                "flushed": self.flushed,
                "pending": self.pending,
                "dropped": dict(+self.dropped),
            }

    def waiting(self) -> Sightings:
        """Return the sightings that wait.

        Takes no lock: in a forked child, it may be held for ever.
        """
        queued = list(self._queue)
        return [(each.who, each.seen, each.arrival) for each in queued if each.seen > each.sent]

    def take(self, limit: int) -> list[Taken]:
        """Take what up to `limit` people did, the oldest first.

        The caller must call `written` for what the server answered, then `restore`.
        """
        queue, taken = self._queue, list[Taken]()
        with self.lock:
            for _ in range(min(limit, len(queue))):
                person = queue[0]
                seen = person.seen if person.seen > person.sent else None
                has_departed = person.left is not person.goodbye  # usually, both are `NOT_DEPARTED`
                due = person.departures_due() if has_departed else ()
                if seen is not None or due:
                    room = person.room if person.is_moving else None
                    each = Taken(person, seen, person.sent_arrival, person.arrival, room, due)
                    taken.append(each)
                    self._in_flight[person] = each
                    person.sent, person.sent_arrival = person.seen, person.arrival
                person.is_queued = False
                queue.popleft()  # not before: an interrupt would lose the person
        return taken

    def written(self, taken: Sequence[Taken], refused: Collection[str], full: int) -> None:
        """Note that the server answered.

        `refused` are the ids of people who had left after they arrived, and `full` is the number of
        new ids that found no room.
        """
        with self.lock:
            for each in taken:
                person = each.person
                del self._in_flight[person]
                for departure in each.departures:
                    departure.is_sent = True
                if each.seen is None:
                    continue
                self.pending -= 1
                if person.id in refused:
                    person.refused(each)
                    self.dropped["left"] += 1
                else:
                    person.is_moving = person.is_moving and each.room is not person.room
                    self.flushed += 1
            self.flushed -= full
            self.dropped["members"] += full

    def restore(self) -> bool:
        """Let those wait again for whom the server did not answer. Return whether there are any."""
        with self.lock:
            has_left = bool(self._in_flight)
            for person, taken in self._in_flight.items():
                if person.restore(taken):
                    self.pending -= 1
                    self.coalesced += 1
                self._enqueue_due(person)
            self._in_flight, self._seen_again = {}, 0
        return has_left

    def departed(self, who: Who, act: Act, at: float, moment: int) -> None:
        """Note a departure that a reader of this process has written.

        `at` is its moment, and `moment` the same in microseconds since the epoch. It is sent again
        in a write of this process, for only the loss of such a write shows.
        """
        with self.lock:
            person = self.recent.get(who) or self.remember(who)
            self._depart(person, act, at, at)
            if (person.left.act, person.left.at) == (act, at):  # no later one is known
                person.left.moment = moment

    def touched(self, who: Who) -> None:
        """Note that a reader of this process has undone who left last: that is not sent again."""
        with self.lock:
            self.recent.get(who, Person(who)).left.is_sent = True

    def share_departure(self, person: Person) -> None:
        """Let a person of a hashed id share the departure of whoever has that id.

        A reader names people by their ids as they are stored.
        """
        with self.lock:
            named = self.recent.get((person.who[0], person.id), person)
            person.left = max(person.left, named.left, key=attrgetter("at"))

    def lost(self, shard: Store, since: float) -> None:
        """Let everything wait again that happened after `since` and that `shard` has lost."""
        with self.lock:
            for person in chain(self._earlier.values(), self.recent.values()):
                if person.shard in (shard, None):  # a reader may have named it before any write
                    self.pending += person.lose(since, has_room=self.pending < self._most_pending)
                    self._enqueue_due(person)

    def drop_expired(self, window_began: float, retained_since: Mapping[str, float]) -> None:
        """Drop waiting sightings that are too old to be of use.

        A sighting from before `window_began` no longer makes a user online, but may still set a
        last-seen time: it waits if it is newer than `retained_since` of its kind, and if at most
        half of the limit waits.
        """
        with self.lock:
            is_tight = self.pending > TIGHT * self._most_pending
            for person in self._queue:
                since = window_began
                if not is_tight:
                    since = min(since, retained_since[person.who[0]])
                if person.sent < person.seen <= since:
                    person.seen = person.sent
                    self.pending -= 1
                    self.dropped["expired"] += 1

    def turn(self, now: float) -> bool:
        """Begin a period, in which those are known who wait or who were seen in the last one.

        Return False if the period has not ended: another thread may have just begun it.
        """
        with self.lock:
            return self.begin_period(now, chain(self._queue, self._in_flight))
