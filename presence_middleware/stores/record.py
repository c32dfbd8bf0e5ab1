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

CHUNK = 250  # members a command: one to two milliseconds of server time where there are a million
LOOKS = 6000  # at most, in the keys that a command looks into for those who are known
COMMANDS = 16  # a round trip: far below a client's timeout, also after an outage

Stamped = tuple[str, float, float]
"""An id, the moment it was seen, and the one it arrived, in seconds since the epoch.

They differ for a connection that stays open: it is seen again and again, but arrived only once.
"""

# KEYS: where to record, left, forgotten, then where else the known are. ARGV: time to live, the
# most members, then moment, id and mark, in turn: the digest of the id, and behind it the moment
# of arrival if that is another. Returns who had left, and how many had no room.
_SCRIPT = """
local function each(first)
  local found = {}
  for i = first, #ARGV, 3 do found[#found + 1] = ARGV[i] end
  return found
end
local moments, ids, marks = each(3), each(4), each(5)
local departures = {}
if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then
  local digests = {}
  for n, mark in ipairs(marks) do digests[n] = mark:sub(1, 20) end
  departures[1] = redis.call('ZMSCORE', KEYS[2], unpack(ids))
  departures[2] = redis.call('ZMSCORE', KEYS[3], unpack(digests))
end
local function refused(n)
  for _, since in ipairs(departures) do
    local arrived = since[n] and (tonumber(marks[n]:sub(21)) or tonumber(moments[n]))
    if arrived and tonumber(since[n]) >= arrived then return true end
  end
end
local function size()
  %(size)s
end
local room = tonumber(ARGV[2]) - size()
local is_tight = room < #ids
local known = {}
local function find_known(key)
  for n, found in ipairs(redis.call(%(look)s, key, unpack(ids))) do
    if found and found ~= 0 then known[n] = true end
  end
end
if is_tight then
  find_known(KEYS[1])
  for i = 4, #KEYS do find_known(KEYS[i]) end
end
local function fits(n)
  if not is_tight or known[n] then return true end
  room = room - 1
  return room >= 0
end
local fresh, left, full = {}, {}, 0
for n, id in ipairs(ids) do
  if refused(n) then
    left[#left + 1] = id
  elseif fits(n) then
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
    "look": "'ZMSCORE'",
    "take": "fresh[#fresh + 1] = moments[n]; fresh[#fresh + 1] = id",
    "write": "'ZADD', KEYS[1], 'GT'",
}
UNSCORED = _SCRIPT % {
    "size": """
  local all = redis.call('SCARD', KEYS[1])
  for i = 4, #KEYS do all = all + redis.call('SCARD', KEYS[i]) end
  return all""",
    "look": "'SMISMEMBER'",
    "take": "fresh[#fresh + 1] = id",
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
        size = min(CHUNK, LOOKS // (1 + len(others)))
        return [(*head, *_arguments(chunk)) for chunk in chunks(sightings, size)]


def chunks(sightings: list[Stamped], size: int = CHUNK) -> Iterator[list[Stamped]]:
    """Sightings in runs that one command takes."""
    rest = iter(sightings)
    while chunk := list(islice(rest, size)):
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
