"""Recording many sightings: chunks, minutes, and the one write that needs a decision on the server.

A sighting may wait in a worker's buffer while its user logs out on another. No command can refuse
it by the moment in a second key, and between a look and a write of ours the logout could come; so
the look and the write are one script. It is sent whole each time (EVAL): a server that restarted
or failed over needs no reloading, and it compiles a script once.
"""

from collections.abc import Iterator
from itertools import groupby, islice

from . import keys
from .departures import digest
from .plan import Argument, Batch, Command, Plan

CHUNK = 500  # members a command: about a millisecond of server time
COMMANDS = 8  # commands a round trip: far below a client's timeout, also after an outage

Stamped = tuple[str, float]  # an id and the moment it was seen, in seconds since the epoch

# KEYS: where to record, left, forgotten. ARGV: time to live, then moment, id and digest, in turn.
_SCRIPT = """
local refusals = {}
for _, key in ipairs({KEYS[2], KEYS[3]}) do
  if redis.call('EXISTS', key) == 1 then refusals[#refusals + 1] = key end
end
local function refused(moment, id, digest)
  for _, key in ipairs(refusals) do
    local since = redis.call('ZSCORE', key, key == KEYS[3] and digest or id)
    if since and tonumber(since) >= tonumber(moment) then return true end
  end
end
local fresh, size = {}, 0
for i = 2, #ARGV, 3 do
  if not refused(ARGV[i], ARGV[i + 1], ARGV[i + 2]) then
    %(take)s
    size = size + 1
  end
end
if size > 0 then
  redis.call(%(write)s, unpack(fresh))
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return (#ARGV - 1) / 3 - size
"""
SCORED = _SCRIPT % {
    "take": "fresh[#fresh + 1] = ARGV[i]; fresh[#fresh + 1] = ARGV[i + 1]",
    "write": "'ZADD', KEYS[1], 'GT'",
}
UNSCORED = _SCRIPT % {"take": "fresh[#fresh + 1] = ARGV[i + 1]", "write": "'SADD', KEYS[1]"}


class Recording:
    """The recording commands of one kind."""

    def __init__(self, script: str, prefix: str, kind: str, keep: float) -> None:
        self._script = script
        self._refusals = (keys.left(prefix, kind), keys.forgotten(prefix, kind))
        self._ttl = keys.ttl(keep)

    def at(self, key: str, sightings: list[Stamped]) -> list[Command]:
        """The commands that record `sightings` at `key`; each replies how many it refused."""
        return [
            ("EVAL", self._script, 3, key, *self._refusals, self._ttl, *_arguments(chunk))
            for chunk in chunks(sightings)
        ]


def chunks(sightings: list[Stamped]) -> Iterator[list[Stamped]]:
    """Sightings in runs that one command takes."""
    rest = iter(sightings)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def by_minute(sightings: list[Stamped]) -> Iterator[tuple[int, list[Stamped]]]:
    """Sightings by the minute since the epoch in which they were."""
    for minute, seen in groupby(sorted(sightings, key=_minute), key=_minute):
        yield minute, list(seen)


def send(commands: list[Command]) -> Plan[list[int]]:
    """Sends recording commands, some a round trip; returns their replies."""
    replies: list[int] = []
    for start in range(0, len(commands), COMMANDS):
        replies += yield Batch(tuple(commands[start : start + COMMANDS]))
    return replies


def _arguments(chunk: list[Stamped]) -> Iterator[Argument]:
    for id, moment in chunk:
        yield from (repr(moment), id, digest(id))


def _minute(sighting: Stamped) -> int:
    return keys.minute_of(sighting[1])
