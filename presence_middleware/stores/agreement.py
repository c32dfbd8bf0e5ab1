"""What the processes of a site agree on through Redis: whoever comes first says it."""

from .plan import Argument, Batch, Plan, text


def agree(key: str, proposal: Argument, ttl: int) -> Plan[str]:
    """Proposes a text for a key; returns the one that all use. It lasts `ttl` seconds from now.

    Processes propose what they know, so that it survives a Redis that restarts empty.
    """
    propose = ("SET", key, proposal, "NX", "EX", ttl)
    *_, agreed = yield Batch((propose, ("EXPIRE", key, ttl), ("GET", key)), atomic=True)
    return text(agreed)
