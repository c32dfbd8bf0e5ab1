"""Crawlers, recognised by their User-Agent with the list of the package `crawler-user-agents`.

A search of the list takes 100 µs and more, so each User-Agent is searched once, and a bounded
number of results is remembered. Searches have a budget per second. Past it, new User-Agents count
as browsers, so that a flood of invented User-Agents costs nothing.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress

from ..request import Request

KIND = "bot"
COUNT, SKIP, OFF = MODES = ("count", "skip", "off")
LOOKUPS = 50  # a second: about half a per cent of a processor
REMEMBERED = 4096  # User-Agents of crawlers, and as many of others
USUAL = 256  # characters; a longer User-Agent counts as several look-ups
MAX_USER_AGENT_LENGTH = 1024  # characters of a User-Agent that are searched
MAX_NAME_LENGTH = 64
# Where a pattern of the list matches any text. The text of the client there is no part of a name.
_GAP = re.compile(r"(?<!\\)[*+.{]|\[\^|\\d")


class Crawlers:
    """Finds the names of crawlers by their User-Agent."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        from crawleruseragents import CRAWLER_PATTERNS, CRAWLER_USER_AGENTS_DATA, is_crawler

        self._is_crawler, self._search = is_crawler, CRAWLER_PATTERNS.case_sensitive.search
        patterns = (entry["pattern"] for entry in CRAWLER_USER_AGENTS_DATA)
        self._with_gaps = [
            (re.compile(pattern).fullmatch, _words(pattern))
            for pattern in patterns
            if _GAP.search(pattern)
        ]
        # By hash: a User-Agent may contain anything and is not stored. Crawlers and others are
        # stored separately, so that a flood of others pushes no crawler out.
        self._crawlers: dict[int, str] = {}
        self._others: dict[int, str] = {}
        self._monotonic = monotonic
        self._lookups, self._lookups_from = LOOKUPS, monotonic()
        with suppress(AttributeError):  # compiled now, not in a request: that takes 20 ms
            _ = CRAWLER_PATTERNS._chunks_case_sensitive

    def __call__(self, request: Request) -> str | None:
        """Return the name of a crawler, such as `Googlebot`; None for all other clients."""
        user_agent = (request.user_agent or "")[:MAX_USER_AGENT_LENGTH]
        if not user_agent:
            return None
        known = hash(user_agent)
        if known in self._others:
            return None
        return self._crawlers.get(known) or self._look_up(user_agent)

    def _look_up(self, user_agent: str) -> str | None:
        if not self._may_look(user_agent):
            return None
        name = self._name(user_agent)
        remembered = self._crawlers if name else self._others
        if len(remembered) >= REMEMBERED:
            if name:
                return name  # a flood of crawlers does not displace the first
            remembered.clear()
        remembered[hash(user_agent)] = name or ""
        return name

    def _name(self, user_agent: str) -> str | None:
        if not self._is_crawler(user_agent):  # fast for most clients
            return None
        match = self._search(user_agent)
        text = match[0] if match else ""
        text = next((words for matches, words in self._with_gaps if matches(text)), text)
        return text.strip(" /;()+-:,")[:MAX_NAME_LENGTH] or KIND

    def _may_look(self, user_agent: str) -> bool:
        now = self._monotonic()
        if now - self._lookups_from >= 1:
            self._lookups, self._lookups_from = LOOKUPS, now
        self._lookups -= 1 + len(user_agent) // USUAL
        return self._lookups >= 0


def _words(pattern: str) -> str:
    """Return the words with which a pattern begins."""
    match = re.match(r"[\w -]*", pattern)
    return match[0] if match else ""
