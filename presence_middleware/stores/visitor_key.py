"""The random key with which the processes of a site hash visitors, when it sets no secret."""

from . import keys
from .plan import Batch, Plan, text


def agree(prefix: str, proposal: str) -> Plan[str]:
    """Proposes a key; returns the one that all use: whoever came first named it.

    Processes propose the key they have, so that one survives a Redis that restarts empty.
    """
    name = keys.visitor_key(prefix)
    propose = ("SET", name, proposal, "NX", "EX", keys.VISITOR_KEY_TTL)
    renew = ("EXPIRE", name, keys.VISITOR_KEY_TTL)
    *_, agreed = yield Batch((propose, renew, ("GET", name)), atomic=True)
    return text(agreed)
