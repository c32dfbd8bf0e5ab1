"""The chain at work: from a view to who is asking. A few microseconds, no I/O, never raises."""

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from . import spec
from .bots import COUNT, KIND, OFF, Crawlers
from .guests import Found, Guests
from .hashing import LONGEST, Hasher, plain_hash
from .reading import Read, Signing
from .sources import FUNCTION, function
from .view import View

log = logging.getLogger("presence_middleware")

LONGEST_ID = 256  # bytes

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


def reader(link: spec.Link, hasher: Hasher, signing: Signing, guests: Guests) -> Reader:
    """The reader of a link. What its source raises is said once, and finds nobody."""
    is_function = link.type is FUNCTION
    source = function(link.source) if is_function else link.type.make(link.argument, signing)
    keep: Callable[[str], Found] = hasher if link.hashed else as_kept
    id_of = guests.id if link.type.minted else lambda _, value, keep: keep(value)
    failed = False

    def read(view: View) -> Found | None:
        nonlocal failed
        try:
            value = source(view)
            if not value or value.isspace():
                return None
            return id_of(view, value, keep) or None
        except Exception as error:  # the site's or a framework's code
            if not failed:
                failed = True
                # Not what it says, which may be what a client said.
                where = "".join(traceback.format_tb(error.__traceback__))
                name = type(error).__name__
                log.error(  # noqa: TRY400
                    "presence: source %s failed (%s), found nobody\n%s", link, name, where
                )
            return None

    return Reader(link.kind, link.type.late, read)


class Early(NamedTuple):
    """A link that is asked at arrival."""

    read: Callable[[View], Found | None]
    kind: str | None
    """None if those whom it finds are nobody."""
    late: tuple[Reader, ...]
    """Those that come before it."""
    minted: bool = False
    """Whether an address has a quota of those it finds."""


class Chain:
    """The readers in order: those that can be read at arrival, with the late ones before each."""

    def __init__(
        self,
        links: spec.Chain,
        hasher: Hasher,
        secrets: tuple[str, ...],
        bots: str,
        guests: Guests,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        readers = [
            reader(link, hasher, Signing(secrets, not link.hashed), guests) for link in links
        ]
        self.kinds = spec.kinds(links, bots)
        self.named = next((link.kind for link in links if link.source == "auth"), self.kinds[0])
        self.late = tuple(reader for reader in readers if reader.late)
        """Those that are asked once inner layers have run."""
        early = [
            Early(
                reader.read,
                reader.kind,
                tuple(late for late in readers[:place] if late.late),
                links[place].type.minted,
            )
            for place, reader in enumerate(readers)
            if not reader.late
        ]
        if bots != OFF:
            claims = [link.type.claimed for link in links if not link.type.late]
            first = claims.index(True) if True in claims else len(claims)
            logins = [one.read for one, claimed in zip(early, claims, strict=True) if not claimed]
            read = _crawler(Crawlers(monotonic), logins[first:])
            early.insert(first, Early(read, KIND if bots == COUNT else None, self.late))
        self.early = tuple(early)
        """Those that are asked at arrival."""


def _crawler(name: Read, logins: list[Callable[[View], Found | None]]) -> Read:
    """Tells a crawler before what a client can make up, unless it is logged in all the same."""

    def read(view: View) -> str | None:
        try:
            found = name(view)
        except Exception:  # a request that is none
            return None
        return None if found and any(login(view) for login in logins) else found

    return read


def as_kept(value: str) -> str:
    """An id as it is kept: at most 256 bytes of text; anything else is cut, and hashed."""
    value = value[:LONGEST].strip()
    if len(value) <= LONGEST_ID and value.isascii():
        return value
    try:
        if len(value.encode()) <= LONGEST_ID:
            return value
    except UnicodeEncodeError:
        pass  # surrogates: bytes of a header that are no text, or half a character of some JSON
    return plain_hash(value.encode("utf-8", "surrogatepass"))
