"""Who is online, in which room, and when each was last seen: computed by brute force.

The model has no sorted sets, no scripts and no shards. It applies what a process writes, in the
order of the writes, to a dictionary of people.
"""

from dataclasses import dataclass, field

NEVER = float("-inf")


@dataclass
class Person:
    """All that the site knows of an id."""

    score: float | None = None
    """The last-seen time, or a lower one after a goodbye; None if the id left or never came."""
    last_seen: float = NEVER
    """The time that `last_seen` returns."""
    departed: float = NEVER
    goodbye: float = NEVER
    moved: float = NEVER
    room: str = ""


@dataclass
class Waiting:
    """What a process has seen of an id since its last write."""

    seen: float = NEVER
    move: tuple[str, float] | None = None
    logout: float = NEVER


@dataclass
class Model:
    """The site."""

    window: float
    lowered_by: float
    """By how many seconds a goodbye lowers the last-seen time."""
    people: dict[str, Person] = field(default_factory=dict)

    def writes(self, id: str, waiting: Waiting) -> None:
        """A process writes: a logout before those sightings that followed it, else after them."""
        if waiting.logout == NEVER:
            self.sees(id, waiting.seen, waiting.move)
        elif waiting.seen > waiting.logout:
            self.departs(id, waiting.logout, "leave")
            self.sees(id, waiting.seen, waiting.move)
        else:
            self.sees(id, waiting.seen, waiting.move)
            self.departs(id, waiting.logout, "leave")

    def sees(self, id: str, seen: float, move: tuple[str, float] | None) -> None:
        """A process writes that it saw an id, and its last move."""
        person = self.people.setdefault(id, Person())
        if seen <= max(person.departed, person.goodbye):
            return
        person.score = max(person.score or NEVER, seen)
        person.last_seen = max(person.last_seen, seen)
        if move is not None:
            room, moved = move
            if moved > max(person.departed, person.moved):
                person.room, person.moved = room, moved

    def departs(self, id: str, moment: float, manner: str) -> None:
        """An id leaves, is erased, or says goodbye."""
        person = self.people.setdefault(id, Person())
        # Who says goodbye was there at that moment.
        is_seen_later = max(person.score or NEVER, person.goodbye) > moment
        if manner == "bye":
            lowered = moment - self.lowered_by
            is_past = max(person.score or NEVER, person.goodbye) <= moment
            if person.score is not None and is_past and lowered < person.score:
                person.score, person.goodbye = lowered, moment
                person.last_seen = moment
            return
        person.departed = max(person.departed, moment)
        if not is_seen_later:
            person.score, person.goodbye = None, NEVER
            if manner == "forget":
                person.last_seen = NEVER
        if person.moved <= moment:
            person.room = ""

    def sweep(self, now: float) -> None:
        """Whoever reads takes those out of their rooms who are no longer online."""
        for person in self.people.values():
            if person.score is None or person.score <= now - self.window:
                person.room = ""

    def online(self, now: float) -> set[str]:
        """The ids that are online."""
        return {
            id
            for id, person in self.people.items()
            if person.score is not None and person.score > now - self.window
        }

    def in_room(self, room: str) -> list[str]:
        """The ids in a room, sorted; sweep before."""
        return sorted(id for id, person in self.people.items() if person.room == room)
