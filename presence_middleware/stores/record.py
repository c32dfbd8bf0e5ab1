"""Recording many sightings: in chunks, by minute, and with a script where a decision is needed.

No single command refuses a sighting of somebody who has left since, so a script looks and writes.
It is sent whole each time (EVAL): a server that restarted or failed over needs no reloading, and
it compiles a script once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

from ..errors import PresenceUnavailable
from . import keys
from .departures import digest, text_of
from .plan import Batch, Command, Plan, score, texts

CHUNK = 250  # members a command: one to two milliseconds of server time where there are a million
LOOKS = 6000  # at most, in the keys that a command looks into for those who are known
COMMANDS = 16  # a round trip: far below a client's timeout, also after an outage
HASHES = 6  # the place of the hashes among the arguments, from 0
MINUTE = keys.MINUTE * 1_000_000  # in microseconds

Stamped = tuple[str, int, int]
"""An id, when it was seen and when it arrived, in whole microseconds since the epoch.

The two differ for a connection that stays open: it is seen again and again, but arrived only once.
"""


class Write(NamedTuple):
    """Which process writes, and when: so that it notices if the server loses what it wrote."""

    process: str
    moment: int
    """Microseconds since the epoch."""


class Recorded(NamedTuple):
    """What a server answered to sightings."""

    left: frozenset[str] = frozenset()
    """The ids that were refused: they left, or were forgotten, since they arrived."""
    full: int = 0
    """How many were refused: they are new, and the kind has all the members it may have."""
    wrote_before: float | None = None
    """When the process last wrote here, by what the server has of it."""


class RecordScript:
    """The recording commands of one kind; `sorted_set.lua` describes their arguments."""

    def __init__(
        self, name: str, prefix: str, kind: str, *, window: float, keep: float, most: int
    ) -> None:
        """`most` is how many members there may be; past it, only those that are there refresh."""
        self._window = microseconds(window)
        self._script = text_of(name)
        self._keys = (
            keys.left(prefix, kind),
            keys.forgotten(prefix, kind),
            keys.writers(prefix, kind),
        )
        self._most = most
        self.lifetime = keys.ttl(keep)
        """For how many seconds a key lives after a write."""

    def scored(self, key: str, sightings: Sequence[Stamped], write: Write | None) -> list[Command]:
        """Return the commands that record each id with the moment of its sighting.

        No hashes are among their arguments: `send` adds them where they are asked for.
        """
        head: Command = ("EVAL", self._script, 4, key, *self._keys, self.lifetime, self._most)
        commands: list[Command] = []
        for chunk in chunks(sightings):
            members = [word for id, moment, _ in chunk for word in (f"{moment}e-6", id)]
            arrivals = [arrival for _, _, arrival in chunk]
            moments = [moment for _, moment, _ in chunk]
            commands.append(
                (
                    *head,
                    seconds(min(arrivals)),
                    "" if arrivals == moments else _joined(arrivals),
                    *_noted(write),
                    "",
                    seconds(max(moments) - self._window),
                    *members,
                )
            )
        return commands

    def unscored(
        self, key: str, others: Sequence[str], sightings: Sequence[Stamped], write: Write | None
    ) -> list[Command]:
        """Return the commands that record ids alone; `others` hold members that are known."""
        count = 4 + len(others)
        head: Command = (
            "EVAL",
            self._script,
            count,
            key,
            *self._keys,
            *others,
            self.lifetime,
            self._most,
        )
        commands: list[Command] = []
        for chunk in chunks(sightings, min(CHUNK, LOOKS // (1 + len(others)))):
            ids = [id for id, _, _ in chunk]
            arrivals = [arrival for _, _, arrival in chunk]
            noted = _noted(write)
            commands.append((*head, seconds(min(arrivals)), _joined(arrivals), *noted, "", *ids))
        return commands


def seconds(microseconds: int) -> str:
    """Return a moment in seconds, as Redis reads it: this takes a quarter of the time of `repr`."""
    return f"{microseconds}e-6"


def microseconds(moment: float) -> int:
    """Return a moment in whole microseconds."""
    return int(moment * 1e6 + 0.5)


def _joined(moments: Iterable[int]) -> str:
    return " ".join([f"{moment}e-6" for moment in moments])


def _noted(write: Write | None) -> tuple[str, str]:
    return ("", "") if write is None else (write.process, seconds(write.moment))


def chunks(sightings: Sequence[Stamped], size: int = CHUNK) -> Iterator[Sequence[Stamped]]:
    """Yield sightings in runs that one command takes."""
    for start in range(0, len(sightings), size):
        yield sightings[start : start + size]


def by_minute(sightings: Iterable[Stamped]) -> Iterator[tuple[int, list[Stamped]]]:
    """Yield the number of each minute since the epoch, and the sightings in it."""
    for minute, seen in groupby(sorted(sightings, key=_minute), key=_minute):
        yield minute, list(seen)


def _minute(sighting: Stamped) -> int:
    return sighting[1] // MINUTE


def send(commands: Sequence[Command], ids: Callable[[Command], Iterable[str]]) -> Plan[list[Any]]:
    """Send record commands, some a round trip; return their replies.

    Where somebody was erased a moment ago, a script asks for hashes of the `ids` in its command.
    """
    replies = yield from send_all(commands)
    unsure = [number for number, reply in enumerate(replies) if reply is None]
    if unsure:
        again = yield from send_all([with_hashes(commands[n], ids(commands[n])) for n in unsure])
        for number, reply in zip(unsure, again, strict=True):
            replies[number] = reply
    return replies


def send_all(commands: Sequence[Command]) -> Plan[list[Any]]:
    """Send commands, some a round trip; return their replies."""
    replies: list[Any] = []
    for start in range(0, len(commands), COMMANDS):
        replies += yield Batch(tuple(commands[start : start + COMMANDS]))
    return replies


def with_hashes(command: Command, ids: Iterable[str]) -> Command:
    """Return a record command with the hashes of its ids."""
    place = _first_argument(command) + HASHES
    return (*command[:place], " ".join(map(digest, ids)), *command[place + 1 :])


def scored_ids(command: Command) -> Iterable[str]:
    """Return the ids in a command that records moments and ids in turn."""
    return map(str, command[_first_argument(command) + HASHES + 3 :: 2])


def unscored_ids(command: Command) -> Iterable[str]:
    """Return the ids in a command that records ids alone."""
    return map(str, command[_first_argument(command) + HASHES + 1 :])


def _first_argument(command: Command) -> int:
    """Return the place of ARGV[1], behind EVAL, the script, the number of keys and the keys."""
    return 3 + int(command[2])


def total(replies: Sequence[Any]) -> Recorded:
    """Return what the commands of a `RecordScript` answered, all in all."""
    left = frozenset(chain.from_iterable(texts(ids) for ids, *_ in replies))
    wrote_before = score(replies[0][2]) if replies else None
    return Recorded(left, sum(int(full) for _, full, _ in replies), wrote_before)


def refuse_if_full(name: str, full: int) -> None:
    """Raise `PresenceUnavailable` if somebody who was to be recorded found no room."""
    if full:
        raise PresenceUnavailable(
            f"{name} has all the members that PRESENCE_MAX_MEMBERS allows, and all are online"
        )
