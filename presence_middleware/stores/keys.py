"""Every key this package writes, and how long each lives. Pure: no I/O, times in seconds."""

import math
from binascii import crc_hqx
from functools import cache
from itertools import count

MINUTE = 60
SLOTS = 16384  # of a Cluster; the node that has a slot has all its keys
VISITOR_KEY_TTL = 30 * 24 * 3600
# A key outlives what it holds by this much, so that clocks and flushes that are late lose nothing.
SLACK = 2 * MINUTE


def spread(prefix: str, shards: int, *, is_cluster: bool) -> list[str]:
    """What the keys of each shard begin with.

    On a Cluster, those of one shard share a slot by the tag in braces, and so does whatever else
    is named with that tag: a site's `user:42:friends:{presence}`, where there is one shard.
    """
    if shards > 1:
        return [f"{prefix}:{{{tag}}}" for tag in tags(shards)]
    return [f"{prefix}:{{{prefix}}}"] if is_cluster else [prefix]


@cache
def tags(shards: int) -> tuple[str, ...]:
    """A tag for each shard, one near the middle of each of as many equal ranges of slots.

    The nodes of a Cluster have ranges of slots: so each has its share of the shards.
    """
    found: dict[int, str] = {}
    numbers = map(str, count())
    while len(found) < shards:
        tag = next(numbers)
        within, shard = math.modf(slot_of(tag) * shards / SLOTS)
        if 0.25 <= within < 0.75:
            found.setdefault(int(shard), tag)
    return tuple(found[shard] for shard in range(shards))


def slot_of(key: str) -> int:
    """The slot of a key: of what is between its first braces, if anything is (Cluster spec)."""
    tag = key.partition("{")[2].partition("}")
    hashed = tag[0] if tag[0] and tag[1] else key
    return crc_hqx(hashed.encode(), 0) % SLOTS


def layout(prefix: str) -> str:
    """How many shards the keys of a site are spread over."""
    return f"{prefix}:meta"


def settings(prefix: str) -> str:
    """Sorted set: what processes have in force, such as `PRESENCE_WINDOW=10m`, by moment."""
    return f"{prefix}:settings"


def sampled(prefix: str, minute: int) -> str:
    """Says that a process samples that minute since the epoch."""
    return f"{prefix}:sampled:{minute}"


def history(prefix: str, kind: str, day: int) -> str:
    """Hash: how many were online by minute, of a day since the epoch."""
    return f"{prefix}:{kind}:history:{day}"


def peak(prefix: str, kind: str) -> str:
    """Hash: the most that were ever online, and the minute since the epoch."""
    return f"{prefix}:{kind}:peak"


def visitor_key(prefix: str) -> str:
    """The random key with which the processes of a site hash visitors, when it sets no secret."""
    return f"{prefix}:visitor-key"


def writers(prefix: str, kind: str) -> str:
    """Sorted set: process by the moment of its last write.

    A process that finds another moment there than its own knows that the server lost data.
    """
    return f"{prefix}:{kind}:writers"


def seen(prefix: str, kind: str) -> str:
    """Sorted set: id by last-seen time."""
    return f"{prefix}:{kind}:seen"


def left(prefix: str, kind: str) -> str:
    """Sorted set: id by the moment it was told to leave."""
    return f"{prefix}:{kind}:left"


def gone(prefix: str, kind: str) -> str:
    """Sorted set: id of somebody who left, by last-seen time."""
    return f"{prefix}:{kind}:gone"


def forgotten(prefix: str, kind: str) -> str:
    """Sorted set: hexadecimal SHA-1 of an id by the moment it was erased. It lives for a window."""
    return f"{prefix}:{kind}:forgotten"


def minute_set(prefix: str, kind: str, minute: int) -> str:
    """Set: the ids seen in that minute since the epoch."""
    return f"{prefix}:{kind}:m:{minute}"


def minute_log(prefix: str, kind: str, minute: int) -> str:
    """HyperLogLog: the ids seen in that minute since the epoch."""
    return f"{prefix}:{kind}:h:{minute}"


def minute_of(moment: float) -> int:
    """The number of a moment's minute since the epoch."""
    return math.floor(moment / MINUTE)


def minutes_of(now: float, window: float) -> range:
    """The minutes that cover everyone seen since `now - window`: `ceil(window / 60) + 1` at most.

    A minute later than `now` is in it too, for sightings stamped a moment ahead of this reader.
    """
    return range(minute_of(now - window), minute_of(now + 1) + 1)


def ttl(keep: float) -> int:
    """The lifetime of a key whose members are kept for `keep` seconds after their last sighting."""
    return math.ceil(keep) + SLACK
