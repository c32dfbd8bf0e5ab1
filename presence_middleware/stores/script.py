"""Lua scripts: files beside this module, sent to a server by their hash."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from .plan import Argument, Batch, Command, Plan, ScriptMissing, first_error

# People in one command: one to two milliseconds of server time in a set of a million.
CHUNK = 250
# Commands in one round trip: far below the timeout of a client, also after an outage.
COMMANDS_PER_TRIP = 16
_HOOKS = "local hooks = {}\n"

T = TypeVar("T")


class Script(NamedTuple):
    """A Lua script."""

    text: str
    digest: str

    def command(self, keys: Sequence[str], *arguments: Argument) -> Command:
        """Return the command that runs the script, if the server has it."""
        return ("EVALSHA", self.digest, len(keys), *keys, *arguments)

    def send(self, *commands: Command) -> Plan[list[Any]]:
        """Send commands, the first of which runs the script; return their replies.

        The text is sent once, if the server does not have the script: it is new, or has restarted.
        """
        replies: list[Any] = []
        for trip in chunks(commands, COMMANDS_PER_TRIP):
            outcomes = yield Batch(tuple(trip), is_tolerant=True)
            if any(isinstance(outcome, ScriptMissing) for outcome in outcomes):
                again: Command = ("EVAL", self.text, *trip[0][2:])
                outcomes = yield Batch((again, *trip[1:]), is_tolerant=True)
            if error := first_error(outcomes):
                raise error
            replies += outcomes
        return replies


@cache
def load_script(name: str, *hooks: str) -> Script:
    """Return the script of the file `name`, with the files `hooks` where it declares its hooks.

    Comments and indents are left out, because the text is sent to servers.
    """
    text = _read(name).replace(_HOOKS, _HOOKS + "".join(map(_read, hooks)))
    lines = [line.partition(" -- ")[0].strip() for line in text.splitlines()]
    text = "\n".join([line for line in lines if line and not line.startswith("--")])
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _read(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text("utf-8")


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """Yield the parts of `items` for each command, in order: at most `size` of them."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
