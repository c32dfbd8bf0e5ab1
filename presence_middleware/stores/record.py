"""Stores whose writes are a script that includes people.lua. Plans only, no I/O."""

from abc import ABC
from collections.abc import Sequence
from typing import NamedTuple

from . import keys
from .changes import Departure, Seen, Write, Written, as_seconds, to_microseconds
from .plan import Argument, Command, Plan, score
from .script import Script
from .store import Store


class Part(NamedTuple):
    """A part of a write, in one command."""

    positions: Sequence[int]
    """The positions of its sightings among those of the write."""
    command: Command


class ScriptedStore(Store, ABC):
    """A store with a script that compares sightings with departures, and writes both."""

    _script: Script
    _has_rooms = False

    def _part(
        self,
        positions: Sequence[int],
        seen: Sequence[Seen],
        departures: Sequence[Departure],
        write: Write | None,
        *,
        names: Sequence[str],
        max_members: int,
    ) -> Part:
        """Return the part with departures and sightings, which have these positions in all."""
        ids, moments, arrivals, moves = zip(*seen, strict=True) if seen else ((), (), (), ())
        now = write.moment if write else max([*moments, *(each[2] for each in departures)])
        words: list[Argument] = []
        for id, moment in zip(ids, moments, strict=True):
            words += f"{moment}e-6", id
        for act, id, moment, last_seen in departures:
            known = "" if last_seen is None else as_seconds(last_seen)
            words += int(act), id, as_seconds(moment), known
        earliest = min(arrivals, default=now)
        for number, move in enumerate(moves if self._has_rooms else (), 1):
            if move is not None:
                words += number, move[0], as_seconds(move[1])
                earliest = min(earliest, move[1])
        command = self._script.command(
            names,
            self.ttl,
            self.window,
            self.lowered_by,
            self.window + keys.SLACK,
            int(self.is_server_time),
            max_members,
            write.process if write else "",
            as_seconds(now),
            as_seconds(now - to_microseconds(self.window)),
            as_seconds(earliest),
            "" if arrivals == moments else " ".join(map(as_seconds, arrivals)),
            len(seen),
            len(departures),
            *words,
        )
        return Part(positions, command)

    def _send(self, parts: Sequence[Part]) -> Plan[Written]:
        """Send all parts of a write; return its outcome."""
        replies = yield from self._script.send(*[part.command for part in parts])
        if not parts:
            return Written((), 0, None, 0, 0)
        refused, full, before, came, went, cuts = zip(*replies, strict=True)
        positions = [
            part.positions[int(position) - 1]
            for part, of_part in zip(parts, refused, strict=True)
            for position in of_part
        ]
        return Written(positions, sum(full), score(before[0]), sum(came), sum(went), any(cuts))
