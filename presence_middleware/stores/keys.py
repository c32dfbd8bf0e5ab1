"""Every key this package writes, and how long each lives. Pure: no I/O, times in seconds."""

import math

MINUTE = 60
VISITOR_KEY_TTL = 30 * 24 * 3600
# A key outlives what it holds by this much, so that clocks and flushes that are late lose nothing.
SLACK = 2 * MINUTE


def visitor_key(prefix: str) -> str:
    """The random key with which the processes of a site hash visitors, when it sets no secret."""
    return f"{prefix}:visitor-key"


def seen(prefix: str, kind: str) -> str:
    """Sorted set: id by last-seen time."""
    return f"{prefix}:{kind}:seen"


def left(prefix: str, kind: str) -> str:
    """Sorted set: id by the moment it was told to leave."""
    return f"{prefix}:{kind}:left"


def forgotten(prefix: str, kind: str) -> str:
    """Sorted set: SHA-1 of an id by the moment it was erased. It lives no longer than a window."""
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
