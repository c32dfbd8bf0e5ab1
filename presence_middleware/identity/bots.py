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

BOT = "bot"
COUNT, SKIP, OFF = BOT_MODES = ("count", "skip", "off")
LOOKUPS = 50  # a second: about half a per cent of a processor
MOST_AGENTS = 4096  # User-Agents of crawlers, and as many of others
USUAL = 256  # characters; a longer User-Agent counts as several look-ups
MAX_USER_AGENT_LENGTH = 1024  # characters of a User-Agent that are searched
MAX_NAME_LENGTH = 64
_WORDS = re.compile(r"[\w -]*")
"""Finds first the words with which a pattern of the list begins."""
# Where a pattern of the list matches any text. The text of the client there is no part of a name.
_GAP = re.compile(r"(?<!\\)[*+.{]|\[\^|\\d")


def parse_mode(value: object) -> str:
    """Return a mode in lower case. Raises `ValueError` with the accepted form."""
    mode = str(value).strip().lower()
    if mode not in BOT_MODES:
        raise ValueError(f"one of {', '.join(BOT_MODES)}")
    return mode


class Crawlers:
    """Finds the names of crawlers by their User-Agent."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        from crawleruseragents import CRAWLER_PATTERNS, CRAWLER_USER_AGENTS_DATA, is_crawler

        self._is_crawler, self._search = is_crawler, CRAWLER_PATTERNS.case_sensitive.search
        patterns = (entry["pattern"] for entry in CRAWLER_USER_AGENTS_DATA)
        self._with_gaps = [
            (re.compile(pattern).fullmatch, _WORDS.findall(pattern)[0])
            for pattern in patterns
            if _GAP.search(pattern)
        ]
        # By hash: a User-Agent may contain anything and is not stored. Crawlers and others are
        # stored separately, so that a flood of others pushes no crawler out.
        self._crawlers: dict[int, str] = {}
        self._others: set[int] = set()
        self._monotonic = monotonic
        self._lookups, self._lookups_from = LOOKUPS, monotonic()
        with suppress(AttributeError):  # compiled now, not in a request: that takes 20 ms
            _ = CRAWLER_PATTERNS._chunks_case_sensitive

    def __call__(self, request: Request) -> str | None:
        """Return the name of a crawler, such as `Googlebot`; None for all other clients."""
        user_agent = (request.user_agent or "")[:MAX_USER_AGENT_LENGTH]
        known = hash(user_agent)
        if not user_agent or known in self._others:
            return None
        if name := self._crawlers.get(known):
            return name
        now = self._monotonic()
        if now - self._lookups_from >= 1:
            self._lookups, self._lookups_from = LOOKUPS, now
        self._lookups -= 1 + len(user_agent) // USUAL
        if self._lookups < 0:
            request.holds_until = min(request.holds_until, time.time() + 1)
            return None
        if not self._is_crawler(user_agent):  # fast for most clients
            if len(self._others) >= MOST_AGENTS:
                self._others.clear()
            self._others.add(known)
            return None
        text = self._search(user_agent)[0]
        text = next((words for matches, words in self._with_gaps if matches(text)), text)
        name = text.strip(" /;()+-:,")[:MAX_NAME_LENGTH] or BOT
        if len(self._crawlers) < MOST_AGENTS:  # a flood of crawlers does not displace the first
            self._crawlers[known] = name
        return name
