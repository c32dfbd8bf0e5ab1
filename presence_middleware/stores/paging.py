"""Pages of a sorted set of ids by time, the newest first. Plans only, no I/O."""

from typing import Any

from .plan import Batch, Plan, pairs

# Members in one reply: about 1 ms of server time.
PAGE = 1000

Ranked = tuple[bytes | str, Any]
"""An id and its last-seen time as a client returned them; None for the time if there is none."""


def rank(ranked: Ranked) -> tuple[float, bytes]:
    """Return the rank of an id with a time: the newer is greater, of equal times the greater id."""
    member, time = ranked
    return float(time), member if isinstance(member, bytes) else member.encode()


def newest(key: str, cut: float, limit: int | None, before: Ranked | None) -> Plan[list[Ranked]]:
    """Return the members of `key` later than `cut`, the newest first, and at most `limit`.

    `before` is the last member of the previous page, with its time rounded to microseconds.
    """
    members = yield from _pages(key, cut, limit, before)
    if members and before is not None:
        time, member = rank(members[-1])
        if (round(time, 6), member) == rank(before):
            # Another program wrote a time that is no whole microsecond. The caller cannot represent
            # it, and would read the same page for ever.
            return []
    if limit is None and len(members) > PAGE:
        # An id that was seen again between two pages has moved up, out of the pages that were still
        # to be read. So read once more the members newer than the first page.
        listed = {member for member, _ in members}
        newer = yield from _pages(key, float(members[0][1]), None, None)
        members = [ranked for ranked in newer if ranked[0] not in listed] + members
    return members


def _pages(key: str, cut: float, limit: int | None, before: Ranked | None) -> Plan[list[Ranked]]:
    """Return the members of as many pages as it takes, each in a round trip."""
    members: list[Ranked] = []
    offset = 0
    while limit is None or len(members) < limit:
        size = PAGE if limit is None else min(PAGE, limit - len(members))
        # A page that begins within equal times contains members that have been returned before.
        last = None if before is None else rank(before)
        count, start = (size, "+inf") if last is None else (PAGE, repr(last[0]))
        order = ("BYSCORE", "REV", "LIMIT", offset, count, "WITHSCORES")
        (reply,) = yield Batch((("ZRANGE", key, start, f"({cut!r}", *order),))
        page = pairs(reply)
        new = page if last is None else [ranked for ranked in page if rank(ranked) < last]
        members += new[:size]
        if len(page) < count:
            break
        before, offset = (members[-1], 0) if new else (before, offset + count)
    return members
