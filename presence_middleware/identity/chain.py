"""The chain at work: from a view to who is asking. A few microseconds, no I/O, never raises."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from . import spec
from .hashing import Hasher, plain_hash
from .sources import FUNCTION, function
from .view import View

log = logging.getLogger("presence_middleware")

LONGEST_ID = 256  # bytes

Found = str | bytes
"""An id; as bytes, one that waits for the shared key."""

Who = tuple[str, Found]
"""A kind, and an id of it."""


class Identity(NamedTuple):
    """Who a request comes from."""

    kind: str
    id: str


@dataclass(frozen=True)
class Reader:
    """One link at work: reads an id off a view, in the form in which it is kept."""

    kind: str
    late: bool
    read: Callable[[View], Found | None]


def reader(link: spec.Link, hasher: Hasher) -> Reader:
    """The reader of a link. What its source raises is said once, and finds nobody."""
    is_function = link.type is FUNCTION
    source = function(link.source) if is_function else link.type.make(link.argument)
    keep: Callable[[str], Found] = hasher if link.hashed else as_kept
    failed = False

    def read(view: View) -> Found | None:
        nonlocal failed
        try:
            value = source(view)
            return keep(value) or None if value and not value.isspace() else None
        except Exception:  # the site's or a framework's code
            if not failed:
                failed = True
                log.exception("presence: source %s failed and found nobody", link)
            return None

    return Reader(link.kind, link.type.late, read)


class Chain:
    """The readers in order: those that can be read at arrival, with the late ones before each."""

    def __init__(self, links: spec.Chain, hasher: Hasher) -> None:
        readers = [reader(link, hasher) for link in links]
        self.kinds = spec.kinds(links)
        self.named = next((link.kind for link in links if link.source == "auth"), self.kinds[0])
        self.late = tuple(reader for reader in readers if reader.late)
        """Those that are asked once inner layers have run."""
        self.early = tuple(
            (reader.read, reader.kind, tuple(late for late in readers[:position] if late.late))
            for position, reader in enumerate(readers)
            if not reader.late
        )
        """Those that are asked at arrival: how, the kind, and the late ones that come before."""


def as_kept(value: str) -> str:
    """An id as it is kept: at most 256 bytes of text; anything else is hashed."""
    value = value.strip()
    if len(value) <= LONGEST_ID and value.isascii():
        return value
    try:
        if len(value.encode()) <= LONGEST_ID:
            return value
    except UnicodeEncodeError:
        pass  # surrogates: bytes of a header that are no text, or half a character of some JSON
    return plain_hash(value.encode("utf-8", "surrogatepass"))
