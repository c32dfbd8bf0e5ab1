"""Which page a request is about: the rooms of a site, and what pulse.js says. No I/O.

A room has the name of its path, such as `/t/42`, or any name that a handler gives it.

A page sends `POST …?presence=here:/its/path` while somebody reads it, and `POST …?presence=bye`
when it is closed. Everything after `here:` is the path of the page below the mount point of the
app, as its URL has it.
"""

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from .parsers import NAMED_ROOMS
from .request import Request, query_of
from .stores import NOWHERE, room_number

MAX_NAME = 200  # characters
# The paths whose room is remembered, because finding it takes longer: about a megabyte.
REMEMBERED_PATHS = 4096
MAX_SIGNAL = 4096
"""Longer queries are no signals: a path in them would be longer than any room's name."""
# A path may contain a `&`, so the parameter is the last of the query.
_SIGNAL = re.compile(r"(?:^|&)presence=(?:(bye)|here(?::(.*))?)\Z", re.DOTALL)


class Signal(NamedTuple):
    """What a page says about its reader."""

    is_goodbye: bool
    """True if the page was closed, False if somebody reads it."""
    page: str | None
    """The decoded path of the page below the mount point of the app. None if it is not said."""
    is_same_origin: bool
    """True if a page of this site sent it, and not a page of another site."""
    is_own: bool
    """True if it was sent to `PRESENCE_PULSE_PATH`, whose response is always empty."""


def read_signal(request: Request, *, is_own: bool) -> Signal | None:
    """Return the signal in a request, or None. Never raises.

    `is_own` is True for a POST to `PRESENCE_PULSE_PATH`: without a readable query, that is a pulse
    from an unknown page. Other requests are signals if their method is POST and their query ends
    with the parameter `presence`. A form is none: its URL may be that of a link on another site.
    """
    try:
        query, type = query_of(request.state), request.header("content-type") or ""
        match = None if "form" in type or len(query) > MAX_SIGNAL else _SIGNAL.search(query)
        if request.method != "POST" or (match is None and not is_own):
            return None
        is_same = is_same_origin(request)
    except Exception:  # a malformed environ or scope, of which the filter of visits warns
        return None
    bye, page = match.groups() if match else (None, None)
    decoded = None if page is None else unquote(page, errors="surrogateescape")
    return Signal(bye is not None, decoded, is_same, is_own)


def is_same_origin(request: Request) -> bool:
    """Return whether a page of this site sent a request.

    Browsers say so in Sec-Fetch-Site, but not over plain HTTP. There, the Origin must have the host
    of this request. A request without both headers has not come from a page.
    """
    site = request.header("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = (request.header("host") or "").lower()
    return host != "" and urlsplit(request.header("origin") or "").netloc.lower() == host


class Room(NamedTuple):
    """A room, and since when somebody is in it."""

    number: int
    """The number of the room, or `NOWHERE`."""
    since: float


class Rooms:
    """The rules of `PRESENCE_ROOMS`."""

    def __init__(self, rules: tuple[str, ...]) -> None:
        """Create the rules. `{name}` in a rule matches one segment, `*` at its end anything.

        The word `named` instead of rules puts no path in a room.
        """
        patterns = [_pattern(rule) for rule in rules if rule != NAMED_ROOMS]
        never = "(?!)"
        self._match = re.compile("|".join(patterns) or never, re.DOTALL).fullmatch
        self._number_at = lru_cache(REMEMBERED_PATHS)(self._find_number)

    def name_of(self, path: str) -> str | None:
        """Return the name of the room that a path is in, or None. The first rule that fits wins."""
        match = self._match(path)
        if match is None or len(name := match[match.lastindex or 0] or "/") > MAX_NAME:
            return None
        return name

    def number_of(self, name_or_path: str) -> int:
        """Return the number of a room, given its name or a path in it."""
        return room_number(self.name_of(name_or_path) or name_or_path)

    def entered(self, request: Request, at: float, signal: Signal | None = None) -> Room | None:
        """Return the room that a request enters; None if its user stays where they were.

        `at` is when it arrived. A navigation to a page in no room leaves the room: the number is
        `NOWHERE`. Other requests, such as those that the page in the room sends, change nothing.
        The room of a signal is that of its page: the path of the request is no room. Never raises.
        """
        if signal is not None:
            return None if signal.page is None else Room(self.number_at(signal.page) or NOWHERE, at)
        try:
            number = self.number_at(request.app_path)
            if number or request.header("sec-fetch-mode") == "navigate":
                return Room(number or NOWHERE, at)
        except Exception:  # an invalid environ or scope
            return None
        return None

    def number_at(self, path: str) -> int | None:
        """Return the number of the room that a path is in, or None."""
        return self._number_at(path) if len(path) <= MAX_NAME else self._find_number(path)

    def _find_number(self, path: str) -> int | None:
        name = self.name_of(path)
        return None if name is None else room_number(name)


def _pattern(rule: str) -> str:
    """Return a pattern whose only group is the name of the room. It cannot backtrack."""
    name, below = (rule[:-2], True) if rule.endswith("/*") else (rule.rstrip("/"), False)
    segments = [
        "[^/]++" if segment.startswith("{") else re.escape(segment) for segment in name.split("/")
    ]
    return f"({'/'.join(segments)}){'(?:/.*)?' if below else '/?'}"
