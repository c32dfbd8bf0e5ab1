"""Plans: an operation on Redis written without I/O.

A plan is a generator. It yields batches of commands and is sent their replies, as many times as it
needs; what it returns is the answer. `connections.drivers` runs any plan, sync or async.
"""

from collections.abc import Generator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from ..errors import PresenceError, PresenceUnavailable

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
T = TypeVar("T")


class Batch(NamedTuple):
    """Commands for one round trip; `atomic` ones run in a MULTI, with no other client between.

    On a Cluster, the keys of an atomic batch share a slot.
    """

    commands: tuple[Command, ...]
    atomic: bool = False
    is_tolerant: bool = False
    """Whether a command that fails has its error as its reply; else the plan is thrown it."""


Plan = Generator[Batch, list[Any], T]


def merge_plans(plans: Sequence[Plan[T]], *, atomic: bool = False) -> Plan[list[T]]:
    """Run plans in step: their next commands are one batch. Return what each returns.

    `atomic` is whether a batch may be atomic, if all that are in it are. What a plan raises is
    raised once the others are done.
    """
    outcomes = yield from run_all(plans, atomic=atomic)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes  # type: ignore[return-value]


def run_all(plans: Sequence[Plan[T]], *, atomic: bool = False) -> Plan[list[T | Exception]]:
    """Run plans in step, as `merge_plans`; return what each returns, or the error it raises."""
    outcomes: dict[int, T | Exception] = {}
    replies: dict[int, list[Any] | Exception | None] = dict.fromkeys(range(len(plans)))
    while replies:
        asked: dict[int, Batch] = {}
        for number, reply in replies.items():
            try:
                asked[number] = next_batch(plans[number], reply)
            except StopIteration as end:
                outcomes[number] = end.value
            except Exception as raised:
                outcomes[number] = raised
        replies = {}
        if asked:
            rest = iter((yield _joined(list(asked.values()), atomic)))
            for number, batch in asked.items():
                part = list(islice(rest, len(batch.commands)))
                error = None if batch.is_tolerant else first_error(part)
                replies[number] = part if error is None else error
    return [outcomes[number] for number in range(len(plans))]


def next_batch(plan: Plan[Any], reply: list[Any] | Exception | None) -> Batch:
    """Send a plan the replies to its last batch, or throw it their error; return its next batch.

    Raises `StopIteration` at its end, and `PresenceUnavailable` if it cannot read the replies:
    somebody else wrote to its keys.
    """
    try:
        return plan.throw(reply) if isinstance(reply, Exception) else plan.send(reply)  # type: ignore[arg-type]
    except (StopIteration, PresenceError):
        raise
    except Exception as error:
        if reply is None or error is reply:
            raise
        raise PresenceUnavailable(
            "a key holds something that presence_middleware did not write "
            f"({type(error).__name__}); is PRESENCE_PREFIX used by another program?"
        ) from error


def first_error(replies: Sequence[Any]) -> Exception | None:
    """Return the first of the replies that is an error, if any is."""
    return next((reply for reply in replies if isinstance(reply, Exception)), None)


def _joined(batches: list[Batch], atomic: bool) -> Batch:
    commands = tuple(command for batch in batches for command in batch.commands)
    return Batch(commands, atomic and all(batch.atomic for batch in batches), is_tolerant=True)


def text(reply: bytes | str) -> str:
    """A member as text; clients with `decode_responses=True` have decoded it already."""
    return reply if isinstance(reply, str) else reply.decode()


def texts(reply: Any) -> list[str]:
    """The members of a list or set reply."""
    return [text(member) for member in reply]


def readable_texts(reply: Any) -> list[str]:
    """Return the members of a key of the site's own that are text: no other is an id."""
    found: list[str] = []
    for member in reply:
        with suppress(UnicodeDecodeError):
            found.append(text(member))
    return found


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
