"""Logouts and erasures in Redis: sorted sets that every record script consults."""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from . import keys
from .plan import Argument, Command


@cache
def load_script(*names: str) -> str:
    """Return the code of a Lua script: the files `names` beside this module, one after the other.

    Comments are left out, because a script is sent to the server each time.
    """
    folder = files(__package__)
    sources = [folder.joinpath(f"{name}.lua").read_text("utf-8") for name in names]
    lines = [line for source in sources for line in source.splitlines()]
    code = [line for line in lines if line.strip() and not line.lstrip().startswith("--")]
    return "\n".join(code) + "\n"


class Departures:
    """Commands on the `left`, `forgotten` and `gone` keys of a kind."""

    def __init__(
        self, prefix: str, kind: str, window: float, keep_seconds: float, max_members: int
    ) -> None:
        """Create the departures of a kind in one shard.

        Last-seen times of departed ids live for `keep_seconds`. Each of the three keys has at
        most `max_members` members.
        """
        self.left_key = keys.left(prefix, kind)
        self.forgotten_key = keys.forgotten(prefix, kind)
        self.gone_key = keys.gone(prefix, kind)
        # A departure matters while a buffer may hold a sighting from before it: for one window.
        matters_seconds = window + keys.SLACK
        self._limits: tuple[Argument, ...] = (
            matters_seconds,
            keys.ttl(keep_seconds),
            max(1, max_members),
        )

    def depart(
        self,
        scripts: Sequence[str],
        script_keys: Sequence[str],
        id: str,
        moment: float,
        *,
        is_server_time: bool,
        erase: bool = False,
        extra: Sequence[float] = (),
    ) -> Command:
        """Return the command that takes `id` offline, or erases it.

        `scripts` are the files of the Lua script after departing.lua, `script_keys` its keys and
        `extra` its additional arguments. `moment` is the departure in seconds since the epoch.
        With `is_server_time`, the script lowers it to the server's clock. Of an erased id only a
        hash stays, until no buffer can hold a sighting of it.
        """
        source = load_script("clock", "departing", *scripts)
        hash = digest(id) if erase else ""
        arguments: tuple[Argument, ...] = (id, repr(moment), int(is_server_time), *self._limits)
        return ("EVAL", source, len(script_keys), *script_keys, *arguments, hash, *extra)

    def undo(self, id: str) -> Command:
        """Return the command that allows a departed id to be recorded again."""
        return ("ZREM", self.left_key, id)


def digest(id: str) -> str:
    """Return the hexadecimal SHA-1 that stands for an erased id."""
    return hashlib.sha1(id.encode(), usedforsecurity=False).hexdigest()
