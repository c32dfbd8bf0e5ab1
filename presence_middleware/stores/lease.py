"""The lease of those who read events under a name: one of them at a time. Plans only, no I/O.

The lease is in a single key, in the first shard of the kind. It also stores up to which place the
holder has handled events, so that another process goes on from there.
"""

from typing import NamedTuple

from . import keys
from .plan import Plan, text
from .script import load_script

NAME_SECONDS = 3600  # for which a name is remembered that nobody reads under


class Held(NamedTuple):
    """The lease of a process that holds it."""

    is_renewed: bool
    """True if the process held it before, False if it took it now."""
    place: str
    """The place at which to go on."""


class Lease:
    """The lease of a name."""

    def __init__(self, prefix: str, kind: str, name: str) -> None:
        """Create the lease of `name` for the events of `kind`.

        `prefix` is the beginning of the keys of the first shard.
        """
        self._key = keys.reader(prefix, kind, name)
        self._script = load_script("lease")

    def take(self, who: str, seconds: float, handled: str, start: str) -> Plan[Held | None]:
        """Take or renew the lease for `seconds`; return None if another reader holds it.

        `who` identifies the reader. `handled` is the place up to which it has handled events,
        which is stored if it held the lease before; empty if it has not begun. `start` is the
        place at which to begin if the name is not known yet. With 0 seconds, give the lease up, so
        that another reader takes it at once, and return None.
        """
        arguments = who, seconds, handled, start, NAME_SECONDS
        (reply,) = yield from self._script.send(self._script.command([self._key], *arguments))
        return Held(bool(reply[0]), text(reply[1])) if reply else None
