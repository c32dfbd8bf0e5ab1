"""Plans: operations on Redis written without I/O, and the scripts in them.

A plan is a generator. It yields a batch of commands, is sent their replies, and may yield further
batches. The value that it returns is the result of the operation. `connections.drivers` runs any
plan, from threads or from coroutines. Scripts are Lua files beside this module, sent by their hash.
"""

import hashlib
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from ..errors import PresenceError, PresenceUnavailable

# People in one command: one to two milliseconds of server time in a set of a million.
CHUNK = 250
# Commands in one round trip: far below the timeout of a client, also after an outage.
COMMANDS_PER_TRIP = 16
_INCLUDE = re.compile(r"^include '(\w+)'$", re.MULTILINE)

Argument = str | bytes | int | float
Command = tuple[Argument, ...]
T = TypeVar("T")


class ScriptMissing(PresenceUnavailable):
    """The server does not have the script that a command names by its hash."""


class Batch(NamedTuple):
    """Commands that are sent in one round trip."""

    commands: tuple[Command, ...]
    atomic: bool = False
    """True to run the commands in a MULTI, with no command of another client between them.

    On a Cluster, all keys of an atomic batch must share a slot.
    """
    is_tolerant: bool = False
    """True: the error of a failed command is its reply. False: it is thrown into the plan."""


Plan = Generator[Batch, list[Any], T]


def merge_plans(plans: Sequence[Plan[T]], *, atomic: bool = False) -> Plan[list[T]]:
    """Run several plans in the same round trips; return their results in order.

    With `atomic`, a merged batch is atomic if all its parts are, as single commands are. If plans
    raise, the first error is raised after all plans have ended.
    """
    outcomes = yield from run_all(plans, atomic=atomic)
    if error := first_error(outcomes):
        raise error
    return outcomes  # type: ignore[return-value]


def run_all(
    plans: Sequence[Plan[T]], *, atomic: bool = False, reads_last: bool = False
) -> Plan[list[T | Exception]]:
    """Run several plans in the same round trips; return the result or the error of each.

    With `atomic`, a merged batch is atomic if all its parts are. With `reads_last`, the last plan
    reads what the others write: its first batch is sent with each of theirs, and only the replies
    of the last of these count.
    """
    outcomes: list[Any] = [None] * len(plans)
    replies: dict[int, list[Any] | Exception | None] = dict.fromkeys(range(len(plans)))
    batches: dict[int, Batch] = {}
    while replies:
        sent, batches = batches, {}
        for number, reply in replies.items():
            if reads_last and batches and number == len(plans) - 1 and number in sent:
                batches[number] = sent[number]
                continue
            plan = plans[number]
            try:
                # A reply of None starts the plan.
                is_error = isinstance(reply, Exception)
                batches[number] = plan.throw(reply) if is_error else plan.send(reply)  # type: ignore[arg-type]
            except StopIteration as end:
                outcomes[number] = end.value
            except Exception as error:
                outcomes[number] = plan_error(error, reply)
        replies = {}
        if batches:
            commands: list[Command] = []
            is_atomic = atomic
            for batch in batches.values():
                commands += batch.commands
                is_atomic = is_atomic and (batch.atomic or len(batch.commands) == 1)
            remaining = iter((yield Batch(tuple(commands), is_atomic, is_tolerant=True)))
            for number, batch in batches.items():
                part = list(islice(remaining, len(batch.commands)))
                failure = None if batch.is_tolerant else first_error(part)
                replies[number] = part if failure is None else failure
    return outcomes


def plan_error(error: Exception, reply: list[Any] | Exception | None) -> Exception:
    """Return the error of a plan that raised `error` when it received `reply`.

    That is `PresenceUnavailable` if the plan could not parse the reply, because another program
    wrote to its keys.
    """
    if reply is None or error is reply or isinstance(error, PresenceError):
        return error
    failure = PresenceUnavailable(
        "a key holds something that presence_middleware did not write "
        f"({type(error).__name__}); is PRESENCE_PREFIX used by another program?"
    )
    failure.__cause__ = error
    return failure


def first_error(replies: Sequence[Any]) -> Exception | None:
    """Return the first error among the replies, or None."""
    for reply in replies:
        if isinstance(reply, Exception):
            return reply
    return None


class Script:
    """A Lua script."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def run(self, *calls: tuple[Sequence[str], Sequence[Argument]]) -> Plan[list[Any]]:
        """Run the script with the keys and the arguments of each call; return the replies.

        The text is sent once, if the server does not have the script: it is new, or has restarted.
        """
        replies: list[Any] = []
        for start in range(0, len(calls), COMMANDS_PER_TRIP):
            trip = calls[start : start + COMMANDS_PER_TRIP]
            commands = [("EVALSHA", self.digest, len(keys), *keys, *more) for keys, more in trip]
            outcomes = yield Batch(tuple(commands), is_tolerant=True)
            if ScriptMissing in map(type, outcomes):
                commands[0] = "EVAL", self.text, *commands[0][2:]
                outcomes = yield Batch(tuple(commands), is_tolerant=True)
            if error := first_error(outcomes):
                raise error
            replies += outcomes
        return replies


@cache
def load_script(name: str) -> Script:
    """Return the script of the file `name`. A line `include 'other'` stands for the file `other`.

    Comments and indents are left out, because the text is sent to servers.
    """
    text = _INCLUDE.sub(lambda line: _read(line[1]), _read(name))
    lines = [line.partition(" -- ")[0].strip() for line in text.splitlines()]
    return Script("\n".join([line for line in lines if line and not line.startswith("--")]))


def _read(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text("utf-8")


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """Yield the parts of `items` for each command, in order: at most `size` of them."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def decoded(reply: bytes | str) -> str:
    """Return a member as text. Clients with `decode_responses=True` have decoded it already."""
    return reply if isinstance(reply, str) else reply.decode()


def texts(reply: Any) -> list[str]:
    """Return the members of a list or set reply as text."""
    return [decoded(member) for member in reply]


def readable_texts(reply: Any) -> list[str]:
    """Return the members that are valid text. Others, in a key of the site, cannot be ids."""
    members: list[str] = []
    for member in reply:
        with suppress(UnicodeDecodeError):
            members.append(decoded(member))
    return members


def score(reply: Any) -> float | None:
    """Return a score as a number, or None for a missing member."""
    return None if reply is None else float(reply)


def seconds_of(reply: Any) -> float:
    """Return the reply to TIME in seconds since the epoch."""
    seconds, microseconds = reply
    return int(seconds) + int(microseconds) / 1e6


def pairs(reply: list[Any]) -> list[Any]:
    """Return a WITHSCORES reply as pairs (member, score), as the client returned both.

    A RESP3 reply contains pairs; a RESP2 reply is a flat list.
    """
    if reply and isinstance(reply[0], (list, tuple)):
        return reply
    return list(zip(reply[::2], reply[1::2], strict=True))


def members_with_scores(reply: list[Any]) -> list[tuple[str, float]]:
    """Return a WITHSCORES reply as pairs (member, score)."""
    return [(decoded(member), float(value)) for member, value in pairs(reply)]


def to_microseconds(moment: float) -> int:
    """Return a moment in seconds as whole microseconds."""
    return int(moment * 1e6 + 0.5)


def as_seconds(microseconds: int) -> str:
    """Return a moment as Redis parses it, in seconds. This is four times as fast as `repr`."""
    return f"{microseconds}e-6"
