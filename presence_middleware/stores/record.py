"""Recording many sightings: the commands of the record scripts, their chunks and their replies.

No single command refuses a sighting of an id that has left since, so a Lua script checks and
writes. The whole script is sent each time (EVAL). A server that restarted or failed over then needs
no reloading, and a server compiles each script once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from ..errors import PresenceUnavailable
from . import keys
from .changes import Move, Write
from .departures import digest, load_script
from .plan import Argument, Batch, Command, Plan, score, texts

T = TypeVar("T")

# Members in one command: one to two milliseconds of server time in a set of a million.
CHUNK = 250
# Look-ups in one command: its members times the keys in which the script looks for them.
MAX_LOOKUPS = 6000
# Commands in one round trip: far below the timeout of a client, also after an outage.
COMMANDS_PER_TRIP = 16
# The position of the hashes in ARGV of both record scripts, counted from 0.
HASHES_ARGUMENT = 6
MINUTE = keys.MINUTE * 1_000_000  # microseconds

Stamped = tuple[str, int, int]
"""An id, the time it was seen, and the time it arrived, in microseconds since the epoch.

The times differ for a connection that stays open: it is seen repeatedly but arrived once.
"""

NO_MOVES: Mapping[str, Move] = MappingProxyType({})


class Recorded(NamedTuple):
    """The outcome of recording sightings."""

    left: frozenset[str] = frozenset()
    """Ids that were refused because they left, or were erased, after they arrived."""
    full: int = 0
    """The number of new ids refused because the kind has its maximum number of members."""
    wrote_before: float | None = None
    """The previous write of this process in Redis, in seconds since the epoch, or None."""
    came: int = 0
    """The number of ids that came online, where this is announced."""
    went: int = 0
    """The number of ids that went offline, where this is announced."""


class RecordScript:
    """The recording commands of one kind in one shard. The Lua files describe the arguments."""

    def __init__(
        self,
        names: Sequence[str],
        prefix: str,
        kind: str,
        *,
        window: float,
        keep_seconds: float,
        max_members: int,
    ) -> None:
        """Load the Lua files `names`, which come after recording.lua.

        `window` and `keep_seconds` are in seconds. A kind with `max_members` accepts no new ids;
        the ids it has are still refreshed.
        """
        self._window = to_microseconds(window)
        self._source = load_script("recording", *names)
        self._keys = (
            keys.left(prefix, kind),
            keys.forgotten(prefix, kind),
            keys.writers(prefix, kind),
        )
        self._max_members = max_members
        self.lifetime = keys.ttl(keep_seconds)
        """The lifetime of a key after a write, in seconds."""

    def commands_with_times(
        self, key: str, sightings: Sequence[Stamped], write: Write | None
    ) -> list[Command]:
        """Return the commands that record ids and their times in the sorted set `key`.

        They contain no hashes; `send_record_commands` adds hashes if the server asks for them.
        """
        commands: list[Command] = []
        for chunk in chunks(sightings):
            members = [word for id, moment, _ in chunk for word in (f"{moment}e-6", id)]
            commands.append((*self._head((key, *self._keys), chunk, write), *members))
        return commands

    def commands_with_moves(
        self,
        key: str,
        other_keys: Sequence[str],
        sightings: Sequence[Stamped],
        write: Write | None,
        moves: Mapping[str, Move],
    ) -> list[Command]:
        """Return the commands that record ids, their times and the rooms that they entered.

        `other_keys` are the further keys of the script. There are no hashes, as in
        `commands_with_times`.
        """
        commands: list[Command] = []
        for chunk in chunks(sightings):
            earliest = min(
                min(arrival, moves[id][1]) if id in moves else arrival for id, _, arrival in chunk
            )
            head = self._head((key, *self._keys, *other_keys), chunk, write, earliest)
            members = [word for id, moment, _ in chunk for word in (f"{moment}e-6", id)]
            moved: list[Argument] = []
            for position, (id, _, _) in enumerate(chunk, 1):
                if id in moves:
                    number, moved_at = moves[id]
                    moved += position, number, as_seconds(moved_at)
            commands.append((*head, len(chunk), as_seconds(self._window), *members, *moved))
        return commands

    def _head(
        self,
        keys: Sequence[str],
        chunk: Sequence[Stamped],
        write: Write | None,
        earliest: int | None = None,
    ) -> Command:
        """Return the beginning of a command for ids with times, up to the sightings.

        Departures since `earliest`, in microseconds, are looked for, by default those since the
        first arrival.
        """
        arrivals = [arrival for _, _, arrival in chunk]
        moments = [moment for _, moment, _ in chunk]
        return (
            "EVAL",
            self._source,
            len(keys),
            *keys,
            self.lifetime,
            self._max_members,
            as_seconds(min(arrivals) if earliest is None else earliest),
            "" if arrivals == moments else _join_moments(arrivals),
            *_write_arguments(write),
            "",
            as_seconds(max(moments) - self._window),
        )

    def commands_with_ids(
        self,
        key: str,
        other_keys: Sequence[str],
        sightings: Sequence[Stamped],
        write: Write | None,
    ) -> list[Command]:
        """Return the commands that record ids alone in the set `key`.

        The members of `other_keys` count as known ids.
        """
        all_keys = (key, *self._keys, *other_keys)
        head: Command = ("EVAL", self._source, len(all_keys), *all_keys, self.lifetime)
        write_arguments = _write_arguments(write)
        commands: list[Command] = []
        for chunk in chunks(sightings, min(CHUNK, MAX_LOOKUPS // (1 + len(other_keys)))):
            ids = [id for id, _, _ in chunk]
            arrivals = [arrival for _, _, arrival in chunk]
            commands.append(
                (
                    *head,
                    self._max_members,
                    as_seconds(min(arrivals)),
                    _join_moments(arrivals),
                    *write_arguments,
                    "",
                    *ids,
                )
            )
        return commands


def as_seconds(microseconds: int) -> str:
    """Return a moment as Redis parses it, in seconds. This is four times as fast as `repr`."""
    return f"{microseconds}e-6"


def to_microseconds(moment: float) -> int:
    """Return a moment in seconds as whole microseconds."""
    return int(moment * 1e6 + 0.5)


def _join_moments(moments: Iterable[int]) -> str:
    return " ".join([f"{moment}e-6" for moment in moments])


def _write_arguments(write: Write | None) -> tuple[str, str]:
    return ("", "") if write is None else (write.process, as_seconds(write.moment))


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """Yield the sightings or ids of each command: at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def by_minute(sightings: Iterable[Stamped]) -> Iterator[tuple[int, list[Stamped]]]:
    """Yield each minute since the epoch with the sightings in it, the earliest minute first."""
    for minute, seen in groupby(sorted(sightings, key=_minute), key=_minute):
        yield minute, list(seen)


def _minute(sighting: Stamped) -> int:
    return sighting[1] // MINUTE


def send_record_commands(
    commands: Sequence[Command], ids_in: Callable[[Command], Iterable[str]]
) -> Plan[list[Any]]:
    """Send record commands; return their replies.

    `ids_in` returns the ids in a command. If ids were erased lately, a script replies with nothing
    and expects the command again, with the hashes of all its ids.
    """
    replies = yield from send_in_trips(commands)
    unsure = [number for number, reply in enumerate(replies) if reply is None]
    if unsure:
        again = [with_hashes(commands[number], ids_in(commands[number])) for number in unsure]
        for number, reply in zip(unsure, (yield from send_in_trips(again)), strict=True):
            replies[number] = reply
    return replies


def send_in_trips(commands: Sequence[Command]) -> Plan[list[Any]]:
    """Send commands, `COMMANDS_PER_TRIP` in each round trip; return their replies."""
    replies: list[Any] = []
    for start in range(0, len(commands), COMMANDS_PER_TRIP):
        replies += yield Batch(tuple(commands[start : start + COMMANDS_PER_TRIP]))
    return replies


def with_hashes(command: Command, ids: Iterable[str]) -> Command:
    """Return a record command with the hashes of its ids."""
    position = _first_argument(command) + HASHES_ARGUMENT
    return (*command[:position], " ".join(map(digest, ids)), *command[position + 1 :])


def ids_with_times(command: Command) -> Iterable[str]:
    """Return the ids in a command of `RecordScript.commands_with_times`."""
    return map(str, command[_first_argument(command) + HASHES_ARGUMENT + 3 :: 2])


def ids_with_moves(command: Command) -> Iterable[str]:
    """Return the ids in a command of `RecordScript.commands_with_moves`."""
    count = _first_argument(command) + HASHES_ARGUMENT + 2
    first = count + 3
    return map(str, command[first : first + 2 * int(command[count]) : 2])


def ids_alone(command: Command) -> Iterable[str]:
    """Return the ids in a command of `RecordScript.commands_with_ids`."""
    return map(str, command[_first_argument(command) + HASHES_ARGUMENT + 1 :])


def _first_argument(command: Command) -> int:
    """Return the index of ARGV[1], after EVAL, the script, the number of keys and the keys."""
    return 3 + int(command[2])


def combine_replies(replies: Sequence[Any]) -> Recorded:
    """Return the outcome of several commands of a `RecordScript`."""
    left = frozenset(chain.from_iterable(texts(ids) for ids, *_ in replies))
    wrote_before = score(replies[0][2]) if replies else None
    full, came, went = (_total(replies, position) for position in (1, 3, 4))
    return Recorded(left, full, wrote_before, came, went)


def _total(replies: Sequence[Any], position: int) -> int:
    return sum(int(reply[position]) for reply in replies if len(reply) > position)


def raise_if_full(name: str, full: int) -> None:
    """Raise `PresenceUnavailable` if `full` ids found no room in the shard `name`."""
    if full:
        raise PresenceUnavailable(
            f"{name} has all the members that PRESENCE_MAX_MEMBERS allows, and all are online: "
            "raise PRESENCE_MAX_MEMBERS"
        )
