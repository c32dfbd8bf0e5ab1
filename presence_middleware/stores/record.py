"""Recording many sightings: chunks, minutes, and the one write that needs a decision on the server.

A sighting may wait in a worker's buffer while its user logs out on another. No command can refuse
it by the moment in a second key, and between a look and a write of ours the logout could come; so
the look and the write are one script. It is sent whole each time (EVAL): a server that restarted
or failed over needs no reloading, and it compiles a script once.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

from . import keys
from .departures import digest
from .plan import Argument, Batch, Command, Plan, texts

CHUNK = 500  # members a command: about a millisecond of server time
COMMANDS = 8  # commands a round trip: far below a client's timeout, also after an outage

Stamped = tuple[str, float, float]
"""An id, the moment it was seen, and the one it arrived, in seconds since the epoch.

They differ for a connection that stays open: it is seen again and again, but arrived only once.
"""

# KEYS: where to record, left, forgotten, then where else the known are. ARGV: time to live, the
# most members, then moment, id and mark, in turn: the digest of the id, and behind it the moment
# of arrival if that is another. Returns who had left, and how many had no room.
_SCRIPT = """
local refusals = {}
for _, key in ipairs({KEYS[2], KEYS[3]}) do
  if redis.call('EXISTS', key) == 1 then refusals[#refusals + 1] = key end
end
local function refused(moment, id, mark)
  for _, key in ipairs(refusals) do
    local since = redis.call('ZSCORE', key, key == KEYS[3] and mark:sub(1, 20) or id)
    local arrived = since and (tonumber(mark:sub(21)) or tonumber(moment))
    if since and tonumber(since) >= arrived then return true end
  end
end
local function size()
  %(size)s
end
local function known(id)
  %(known)s
end
local room = tonumber(ARGV[2]) - size()
local is_tight = room < (#ARGV - 2) / 3
local function fits(id)
  if not is_tight or known(id) then return true end
  room = room - 1
  return room >= 0
end
local fresh, left, full = {}, {}, 0
for i = 3, #ARGV, 3 do
  if refused(ARGV[i], ARGV[i + 1], ARGV[i + 2]) then
    left[#left + 1] = ARGV[i + 1]
  elseif fits(ARGV[i + 1]) then
    %(take)s
  else
    full = full + 1
  end
end
if #fresh > 0 then
  redis.call(%(write)s, unpack(fresh))
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return {left, full}
"""
SCORED = _SCRIPT % {
    "size": "return redis.call('ZCARD', KEYS[1])",
    "known": "return redis.call('ZSCORE', KEYS[1], id)",
    "take": "fresh[#fresh + 1] = ARGV[i]; fresh[#fresh + 1] = ARGV[i + 1]",
    "write": "'ZADD', KEYS[1], 'GT'",
}
UNSCORED = _SCRIPT % {
    "size": """
  local all = redis.call('SCARD', KEYS[1])
  for i = 4, #KEYS do all = all + redis.call('SCARD', KEYS[i]) end
  return all""",
    "known": """
  if redis.call('SISMEMBER', KEYS[1], id) == 1 then return true end
  for i = 4, #KEYS do
    if redis.call('SISMEMBER', KEYS[i], id) == 1 then return true end
  end""",
    "take": "fresh[#fresh + 1] = ARGV[i + 1]",
    "write": "'SADD', KEYS[1]",
}


class Refused(NamedTuple):
    """What was not recorded, and why."""

    left: frozenset[str] = frozenset()
    """The ids that had left, or were forgotten, since they arrived."""
    full: int = 0
    """How many were new, and the kind has all the members it may have."""


class Recording:
    """The recording commands of one kind."""

    def __init__(self, script: str, prefix: str, kind: str, keep: float, most: int) -> None:
        """`most` is how many members a key may have; past it, only the known are recorded."""
        self._script, self._most = script, most
        self._refusals = (keys.left(prefix, kind), keys.forgotten(prefix, kind))
        self._ttl = keys.ttl(keep)

    def at(self, key: str, sightings: list[Stamped], others: Sequence[str] = ()) -> list[Command]:
        """The commands that record `sightings` at `key`; `others` hold members that are known."""
        named = (key, *self._refusals, *others)
        head: Command = ("EVAL", self._script, len(named), *named, self._ttl, self._most)
        return [(*head, *_arguments(chunk)) for chunk in chunks(sightings)]


def chunks(sightings: list[Stamped]) -> Iterator[list[Stamped]]:
    """Sightings in runs that one command takes."""
    rest = iter(sightings)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def by_minute(sightings: list[Stamped]) -> Iterator[tuple[int, list[Stamped]]]:
    """Sightings by the minute since the epoch in which they were."""
    for minute, seen in groupby(sorted(sightings, key=_minute), key=_minute):
        yield minute, list(seen)


def send(commands: list[Command]) -> Plan[list[Any]]:
    """Sends recording commands, some a round trip; returns their replies."""
    replies: list[Any] = []
    for start in range(0, len(commands), COMMANDS):
        replies += yield Batch(tuple(commands[start : start + COMMANDS]))
    return replies


def total(replies: list[Any]) -> Refused:
    """What the commands of a `Recording` refused, all in all."""
    left = frozenset(id for ids, _ in replies for id in texts(ids))
    return Refused(left, sum(int(full) for _, full in replies))


def _arguments(chunk: list[Stamped]) -> Iterator[Argument]:
    for id, moment, arrived in chunk:
        mark = digest(id) if arrived == moment else digest(id) + repr(arrived).encode()
        yield from (repr(moment), id, mark)


def _minute(sighting: Stamped) -> int:
    return keys.minute_of(sighting[1])
