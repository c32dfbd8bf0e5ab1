"""The chain at work: from a view to who is asking. A few microseconds, no I/O, never raises."""

import logging
from typing import NamedTuple

from . import spec
from .hashing import Hasher, plain_hash
from .sources import FUNCTION, Read, function
from .view import View

log = logging.getLogger("presence_middleware")

LONGEST_ID = 256  # bytes

Found = str | bytes
"""An id; as bytes, one that waits for the shared key."""


class Identity(NamedTuple):
    """Who a request comes from."""

    kind: str
    id: str


class Reader:
    """One link at work: reads an id, in the form in which it is kept."""

    def __init__(self, link: spec.Link, hasher: Hasher) -> None:
        self.kind, self.late = link.kind, link.type.late
        make = link.type.make
        self._read: Read = function(link.source) if link.type is FUNCTION else make(link.argument)
        self._keep = hasher if link.hashed else as_kept
        self._link, self._failed = link, False

    def __call__(self, view: View) -> Found | None:
        try:
            value = self._read(view)
            return (self._keep(value) or None) if value else None
        except Exception:
            # A source is the site's or a framework's code: its failure is nobody, said once.
            self._complain()
            return None

    def _complain(self) -> None:
        if not self._failed:
            self._failed = True
            log.exception("presence: source %s failed and found nobody", self._link)


class Chain:
    """The readers in order: those that can be read at arrival, each with the late ones before it."""

    def __init__(self, links: spec.Chain, hasher: Hasher) -> None:
        readers = [Reader(link, hasher) for link in links]
        self.kinds = spec.kinds(links)
        self.named = next((link.kind for link in links if link.source == "auth"), self.kinds[0])
        self._late = tuple(reader for reader in readers if reader.late)
        self._early = tuple(
            (reader, reader.kind, tuple(late for late in readers[:position] if late.late))
            for position, reader in enumerate(readers)
            if not reader.late
        )

    def arrive(self, view: View) -> tuple[str, Found | None, tuple[Reader, ...]]:
        """Reads what an arriving request says.

        Returns the kind and id of the first source that answers, and the late readers that come
        before it and may still find somebody else.
        """
        for read, kind, late in self._early:
            found = read(view)
            if found is not None:
                return kind, found, late
        return "", None, self._late


def as_kept(value: str) -> str:
    """An id as it is kept: at most 256 bytes of text; anything else is hashed."""
    value = value.strip()
    if value.isascii() and len(value) <= LONGEST_ID:
        return value
    raw = value.encode("utf-8", "surrogateescape")
    try:
        raw.decode()
    except UnicodeDecodeError:
        return plain_hash(raw)
    return value if len(raw) <= LONGEST_ID else plain_hash(raw)
