"""Questions about the server itself, as plans."""

from typing import Any

from ..stores.plan import Batch, Plan, text

Facts = dict[str, Any]
"""What INFO says, by name."""


def facts(section: str) -> Plan[Facts]:
    """A section of INFO, such as `memory`. A user of the server may not be allowed to ask."""
    (found,) = yield Batch((("INFO", section),))
    return {text(name): value for name, value in found.items()}


def eviction_policy(memory: Facts) -> str | None:
    """By which rule a server evicts keys when its memory is full; None if it evicts none."""
    policy = str(memory["maxmemory_policy"])
    return policy if int(memory["maxmemory"]) and policy != "noeviction" else None
