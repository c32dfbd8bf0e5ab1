"""The names of all keys in Redis, and their lifetimes. Pure functions: no I/O, times in seconds."""

import math
from binascii import crc_hqx
from functools import cache
from itertools import count

MINUTE = 60
# The slots of a Redis Cluster. All keys of a slot are on one node.
SLOTS = 16384
VISITOR_KEY_TTL = 30 * 24 * 3600
# A key outlives its data by this much, so that a clock or a flush that is late loses nothing.
SLACK = 2 * MINUTE


def shard_prefixes(prefix: str, shards: int, *, is_cluster: bool) -> list[str]:
    """Return the prefix of the keys of each shard.

    `prefix` is `PRESENCE_PREFIX`. On a Cluster, the tag in braces puts all keys of a shard into
    one slot. With a single shard, a key of the site with the same tag is in that slot too, such as
    `user:42:friends:{presence}`.
    """
    if shards > 1:
        return [f"{prefix}:{{{tag}}}" for tag in tags(shards)]
    return [f"{prefix}:{{{prefix}}}"] if is_cluster else [prefix]


@cache
def tags(shards: int) -> tuple[str, ...]:
    """Return a tag for each shard.

    The slots are divided into as many equal ranges as there are shards, and the slot of each tag
    is near the middle of its range. Nodes own ranges of slots too, so each node gets its share of
    the shards.
    """
    tag_of_shard: dict[int, str] = {}
    for number in count():
        position, shard = math.modf(slot_of(str(number)) * shards / SLOTS)
        if 0.25 <= position < 0.75:
            tag_of_shard.setdefault(int(shard), str(number))
        if len(tag_of_shard) == shards:
            break
    return tuple(tag_of_shard[shard] for shard in range(shards))


def slot_of(key: str) -> int:
    """Return the slot of a key: that of the text between its first braces, if there is any."""
    tag = key.partition("{")[2].partition("}")
    hashed = tag[0] if tag[0] and tag[1] else key
    return crc_hqx(hashed.encode(), 0) % SLOTS


def layout(prefix: str) -> str:
    """String: the number of shards of the site."""
    return f"{prefix}:meta"


def settings(prefix: str) -> str:
    """Sorted set: a setting such as `PRESENCE_WINDOW=10m` by the last moment a process had it."""
    return f"{prefix}:settings"


def history(prefix: str, kind: str, day: int) -> str:
    """Hash: the number online by minute of the day, for one day since the epoch."""
    return f"{prefix}:{kind}:history:{day}"


def peak(prefix: str, kind: str) -> str:
    """Hash: the highest number ever online, and its minute since the epoch."""
    return f"{prefix}:{kind}:peak"


def visitor_key(prefix: str) -> str:
    """String: the random key that hashes visitors if the site sets no secret."""
    return f"{prefix}:visitor-key"


class ShardKeys:
    """The keys of a kind in one shard."""

    def __init__(self, prefix: str, kind: str) -> None:
        """Name the keys of `kind` in the shard whose keys begin with `prefix`."""
        name = f"{prefix}:{kind}"
        self.seen = f"{name}:seen"
        """Sorted set: id by last-seen time."""
        self.bye = f"{name}:bye"
        """Sorted set: id by its true last-seen time, of those who said goodbye lately."""
        self.gone = f"{name}:gone"
        """Sorted set: id that left by its last-seen time."""
        self.left = f"{name}:left"
        """Sorted set: id, or a space and the SHA-1 of an erased id, by the moment it left."""
        self.writers = f"{name}:writers"
        """Sorted set: process by the moment of its last write.

        If a process reads another moment than that of its own last write, the server has lost data.
        """
        self.rooms = f"{name}:at"
        """Sorted set: id by the number of the room it was last in, while it is online."""
        self.moves = f"{name}:moved"
        """Sorted set: id by the moment of its last move between rooms, while it is online."""
        self.progress = f"{name}:progress"
        """Hash: up to which moments rooms were swept and leaves announced; the last entry."""
        self.changes = f"{name}:changes"
        """Stream: who came online and who went offline, of the last five minutes."""
        self.minute_set = f"{name}:m:"
        """Set, with the minute since the epoch behind it: the ids seen in that minute."""
        self.minute_log = f"{name}:h:"
        """HyperLogLog, with the minute since the epoch behind it: the ids seen in that minute."""


def reader(prefix: str, kind: str, name: str) -> str:
    """String: which process reads events under a name. In the first shard. Lives for its lease."""
    return f"{prefix}:{kind}:reader:{name}"


def handled(reader: str) -> str:
    """String: up to which place those who read events under a name have handled them.

    `reader` is the key of the name. Lives for an hour after the last process that reads.
    """
    return f"{reader}/handled"


def upkeep(prefix: str) -> str:
    """String: the process that samples, sweeps and cleans up for the site. Lives for its lease."""
    return f"{prefix}:upkeep"


def minute_of(moment: float) -> int:
    """Return the minute since the epoch of a moment in seconds."""
    return math.floor(moment / MINUTE)


def minutes_of(now: float, window: float) -> range:
    """Return the minutes that cover every sighting since `now - window`, both in seconds.

    There are `ceil(window / 60) + 1` at most. The minute after `now` is included if it is less
    than a second away, because a sighting may be stamped slightly ahead of this reader.
    """
    return range(minute_of(now - window), minute_of(now + 1) + 1)


def ttl(keep_seconds: float) -> int:
    """Return the lifetime of a key whose members are stored for `keep_seconds`, in seconds."""
    return math.ceil(keep_seconds) + SLACK
