"""Plans: an operation on Redis written without I/O.

A plan is a generator. It yields batches of commands and is sent their replies, as many times as it
needs; what it returns is the answer. `connections.drivers` runs any plan, sync or async.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
T = TypeVar("T")


class Batch(NamedTuple):
    """Commands for one round trip; `atomic` ones run in a MULTI, with no other client between."""

    commands: tuple[Command, ...]
    atomic: bool = False


Plan = Generator[Batch, list[Any], T]


def text(reply: bytes | str) -> str:
    """A member as text; clients with `decode_responses=True` have decoded it already."""
    return reply if isinstance(reply, str) else reply.decode()


def texts(reply: Any) -> list[str]:
    """The members of a list or set reply."""
    return [text(member) for member in reply]


def score(reply: Any) -> float | None:
    """A score, or None for a missing member."""
    return None if reply is None else float(reply)


def scored(reply: list[Any]) -> list[tuple[str, float]]:
    """A WITHSCORES reply as (member, score): RESP3 sends pairs, RESP2 a flat list."""
    if reply and isinstance(reply[0], (list, tuple)):
        pairs = reply
    else:
        pairs = list(zip(reply[::2], reply[1::2], strict=True))
    return [(text(member), float(value)) for member, value in pairs]
