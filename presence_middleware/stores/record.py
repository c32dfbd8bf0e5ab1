"""What people did, as the script record.lua applies it to a sorted set. Plans only, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from .changes import Departure, Seen, Write, Written, as_seconds, to_microseconds, words_of
from .events import EventStream
from .plan import Argument, Command, Plan, score
from .script import CHUNK, Script


@dataclass(frozen=True)
class Record:
    """The script record.lua of a kind in one shard: its arguments and its reply."""

    script: Script
    names: Sequence[str]
    """The keys of the script."""
    limits: Sequence[float]
    """The arguments `window`, … `is_server_time` of the script."""
    has_rooms: bool
    events: EventStream | None

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
            ids, moments, arrivals, moves = zip(*part, strict=True) if part else ((), (), (), ())
            sightings: list[str] = []
            for id, moment in zip(ids, moments, strict=True):
                sightings += f"{moment}e-6", id
            now = write.moment if write else max([*moments, *(each[2] for each in departing)])
            earliest = min(arrivals, default=now)
            moved: list[Argument] = []
            for position, move in enumerate(moves if self.has_rooms else (), 1):
                if move is not None:
                    moved += position, move[0], as_seconds(move[1])
                    earliest = min(earliest, move[1])
            command = self.script.command(
                self.names,
                lifetime,
                *self.limits,
                write.process if write else "",
                as_seconds(now),
                as_seconds(now - to_microseconds(self.limits[0])),
                as_seconds(earliest),
                "" if arrivals == moments else " ".join(map(as_seconds, arrivals)),
                len(part),
                len(departing),
                *sightings,
                *words_of(departing),
                *moved,
            )
            commands.append(command)
        refused: list[int] = []
        full = came = went = 0
        is_shortened = False
        replies = yield from self.script.send(*commands)
        for number, (positions, unwritten, _, *announced) in enumerate(replies):
            refused += [number * CHUNK + int(position) - 1 for position in positions]
            full += unwritten
            if self.events:
                came, went = came + announced[0], went + announced[1]
                is_shortened = is_shortened or bool(announced[2])
        if self.events and is_shortened:
            self.events.warn_of_size()
        wrote_before = score(replies[0][2]) if write and replies else None
        return Written(refused, full, wrote_before, came, went)
