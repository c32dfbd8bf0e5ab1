"""What lies in the time to come: it was written before the server's clock was set back."""

from collections.abc import Sequence
from itertools import chain

from . import keys
from .plan import Batch, Plan

AHEAD = keys.SLACK  # seconds that clocks may differ by
PAGE = 1000  # members at a time


def clamp_future_scores(names: Sequence[str], now: float) -> Plan[bool]:
    """Give members with a score ahead of `now` the score `now`; return whether there may be more.

    So nobody drops out, nobody stays for longer than a window, and who left may come again.
    """
    ahead = (f"({now + AHEAD!r}", "BYSCORE", "REV", "LIMIT", 0, PAGE)
    pages = yield Batch(tuple(("ZRANGE", name, "+inf", *ahead) for name in names))
    moves = tuple(
        ("ZADD", name, "XX", *chain.from_iterable((now, member) for member in page))
        for name, page in zip(names, pages, strict=True)
        if page
    )
    if moves:
        yield Batch(moves)
    return any(len(page) == PAGE for page in pages)
