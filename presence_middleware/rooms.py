"""The rooms of a site: which part of it a request is about. No I/O.

A room has the name of its path, such as `/t/42`, or any name that a handler gives it.
"""

import re
from functools import lru_cache

from .parsers import NAMED_ROOMS
from .request import Request
from .signals import Signal
from .stores import NOWHERE, room_number

MAX_NAME = 200  # characters
# The paths whose room is remembered, because finding it takes longer: about a megabyte.
REMEMBERED_PATHS = 4096


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

    def number_for(self, request: Request, signal: Signal | None = None) -> int | None:
        """Return the number of the room that a request enters; None if it stays where it was.

        A navigation to a page in no room leaves the room: the number is `NOWHERE`. Other requests,
        such as those that the page in the room sends, change nothing. The room of a signal is that
        of its page: the path of the request is no room. Never raises.
        """
        if signal is not None:
            return None if signal.page is None else self.number_at(signal.page) or NOWHERE
        try:
            number = self.number_at(request.app_path)
            if number is not None:
                return number
            return NOWHERE if request.header("sec-fetch-mode") == "navigate" else None
        except Exception:  # an invalid environ or scope
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
