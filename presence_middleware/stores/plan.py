"""Plans: an operation on Redis written without I/O.

A plan is a generator. It yields batches of commands and is sent their replies, as many times as it
needs; what it returns is the answer. `connections.drivers` runs any plan, sync or async.
"""

from collections.abc import Generator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
T = TypeVar("T")


class Batch(NamedTuple):
    """Commands for one round trip; `atomic` ones run in a MULTI, with no other client between.

    On a Cluster, the keys of an atomic batch share a slot.
    """

    commands: tuple[Command, ...]
    atomic: bool = False


Plan = Generator[Batch, list[Any], T]


def together(plans: Sequence[Plan[T]], *, atomic: bool) -> Plan[list[T]]:
    """Runs plans in step: what all want to ask next is one batch; returns what each returns.

    `atomic` says whether a batch may be one, if all that are in it are.
    """
    returned: dict[int, T] = {}
    replies: dict[int, list[Any] | None] = dict.fromkeys(range(len(plans)))
    while replies:
        asked: dict[int, Batch] = {}
        for number, reply in replies.items():
            try:
                asked[number] = plans[number].send(reply)  # type: ignore[arg-type]
            except StopIteration as end:
                returned[number] = end.value
        replies = {}
        if asked:
            rest = iter((yield _joined(list(asked.values()), atomic)))
            replies = {n: list(islice(rest, len(batch.commands))) for n, batch in asked.items()}
    return [returned[number] for number in range(len(plans))]


def _joined(batches: list[Batch], atomic: bool) -> Batch:
    commands = tuple(command for batch in batches for command in batch.commands)
    return Batch(commands, atomic and all(batch.atomic for batch in batches))


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
