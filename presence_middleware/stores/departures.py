"""Who left and who was erased, and when: sorted sets that each record consults."""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from . import keys
from .plan import Argument, Command


@cache
def text_of(script: str) -> str:
    """Return the text of one of the scripts beside this file."""
    return files(__package__).joinpath(f"{script}.lua").read_text("utf-8")


class Departures:
    """Commands on the `left`, `forgotten` and `gone` keys of a kind."""

    def __init__(self, prefix: str, kind: str, window: float, keep: float, most: int) -> None:
        """Last-seen times are kept for `keep` seconds; each key has at most `most` members."""
        self.left = keys.left(prefix, kind)
        self.forgotten = keys.forgotten(prefix, kind)
        self.gone = keys.gone(prefix, kind)
        # No buffer holds a sighting that counts for longer than a window.
        self._limits: tuple[Argument, ...] = (window + keys.SLACK, keys.ttl(keep), max(1, most))

    def depart(
        self,
        script: str,
        names: Sequence[str],
        id: str,
        moment: float,
        *,
        is_server_time: bool,
        erase: bool = False,
        more: Sequence[float] = (),
    ) -> Command:
        """Return the command that takes an id offline at `moment`, or erases it.

        The id of somebody erased must not stay; its hash does, until no buffer can hold a sighting
        of it. `names` are the keys of the script, `more` what it takes besides.
        """
        hash = digest(id) if erase else ""
        given: tuple[Argument, ...] = (
            id,
            repr(moment),
            int(is_server_time),
            *self._limits,
            hash,
            *more,
        )
        return ("EVAL", text_of("departing") + text_of(script), len(names), *names, *given)

    def last_seen(self, id: str) -> Command:
        """Return the command that asks when somebody who left was seen before."""
        return ("ZSCORE", self.gone, id)

    def undo(self, id: str) -> Command:
        """Return the command that lets an id be recorded again."""
        return ("ZREM", self.left, id)


def digest(id: str) -> str:
    """Return what stands for an id among the forgotten, as the record scripts are sent it."""
    return hashlib.sha1(id.encode(), usedforsecurity=False).hexdigest()
