"""What people did, as the script record.lua applies it to a sorted set. Plans only, no I/O."""

from collections.abc import Sequence

from .changes import Departure, Seen, Write, Written, as_seconds, to_microseconds, words_of
from .events import EventStream
from .plan import Argument, Command, Plan, score
from .script import CHUNK, Script


class Record:
    """The script record.lua of a kind in one shard: its arguments and its reply."""

    def __init__(
        self,
        script: Script,
        keys: Sequence[str],
        window: float,
        limits: Sequence[float],
        *,
        has_rooms: bool,
        events: EventStream | None,
    ) -> None:
        """`limits` are the arguments `window`, … `is_server_time` of the script."""
        self._script, self._keys, self._limits = script, keys, limits
        self._window = to_microseconds(window)
        self._has_rooms, self._events = has_rooms, events

    def write(
        self,
        lifetime: int,
        seen: Sequence[Seen],
        departures: Sequence[Departure],
        write: Write | None,
    ) -> Plan[Written]:
        """Write sightings and departures, as `Store` describes, `CHUNK` people in a command."""
        commands: list[Command] = []
        for start in range(0, len(seen) + len(departures), CHUNK):
            first, last = max(0, start - len(seen)), max(0, start + CHUNK - len(seen))
            part, departing = seen[start : start + CHUNK], departures[first:last]
            commands.append(self._command(lifetime, part, departing, write))
        refused: list[int] = []
        full = came = went = 0
        is_shortened = False
        replies = yield from self._script.send(*commands)
        for number, (positions, unwritten, _, *announced) in enumerate(replies):
            refused += [number * CHUNK + int(position) - 1 for position in positions]
            full += unwritten
            if self._events:
                came, went = came + announced[0], went + announced[1]
                is_shortened = is_shortened or bool(announced[2])
        if self._events and is_shortened:
            self._events.warn_of_size()
        wrote_before = score(replies[0][2]) if write and replies else None
        return Written(refused, full, wrote_before, came, went)

    def _command(
        self,
        lifetime: int,
        seen: Sequence[Seen],
        departures: Sequence[Departure],
        write: Write | None,
    ) -> Command:
        sightings = [word for id, moment, _, _ in seen for word in (f"{moment}e-6", id)]
        arrivals = [arrival for _, _, arrival, _ in seen]
        moments = [moment for _, moment, _, _ in seen]
        now = write.moment if write else max([*moments, *(each[2] for each in departures)])
        earliest = min(arrivals, default=now)
        moves: list[Argument] = []
        if self._has_rooms:
            for position, (_, _, _, move) in enumerate(seen, 1):
                if move is not None:
                    moves += position, move[0], as_seconds(move[1])
                    earliest = min(earliest, move[1])
        return self._script.command(
            self._keys,
            lifetime,
            *self._limits,
            write.process if write else "",
            as_seconds(now),
            as_seconds(now - self._window),
            as_seconds(earliest),
            "" if arrivals == moments else " ".join(map(as_seconds, arrivals)),
            len(seen),
            len(departures),
            *sightings,
            *words_of(departures),
            *moves,
        )
