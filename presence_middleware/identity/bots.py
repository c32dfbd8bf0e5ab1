"""Crawlers, known by their User-Agent: the community's list in the package `crawler-user-agents`.

A look through the list takes 100 µs and more, so a User-Agent is looked up once, and what is
remembered is bounded. New ones have a budget: past it, a flood of made-up User-Agents is not looked
up, and costs a request nothing.
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
USUAL = 256  # characters that one look-up is of
LONGEST = 1024  # characters that are looked at
LONGEST_NAME = 64
# Where a pattern of the list lets through what a client wrote: that is no part of a name.
_GAP = re.compile(r"(?<!\\)[*+.{]|\[\^|\\d")


class Crawlers:
    """Tells a crawler's name from the User-Agent of its request."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        from crawleruseragents import CRAWLER_PATTERNS, CRAWLER_USER_AGENTS_DATA, is_crawler

        self._is_crawler, self._search = is_crawler, CRAWLER_PATTERNS.case_sensitive.search
        patterns = (entry["pattern"] for entry in CRAWLER_USER_AGENTS_DATA)
        self._with_gaps = [
            (re.compile(pattern).fullmatch, _words(pattern))
            for pattern in patterns
            if _GAP.search(pattern)
        ]
        # By hash: a User-Agent itself, which may say anything, is not kept. Crawlers and others
        # apart, so that a flood of others pushes no crawler out.
        self._crawlers: dict[int, str] = {}
        self._others: dict[int, str] = {}
        self._monotonic = monotonic
        self._lookups, self._lookups_from = LOOKUPS, monotonic()
        with suppress(AttributeError):  # compiled now, not in a request: that takes 20 ms
            _ = CRAWLER_PATTERNS._chunks_case_sensitive

    def __call__(self, request: Request) -> str | None:
        """The crawler's name, such as `Googlebot`; nothing for everybody else."""
        user_agent = (request.user_agent or "")[:LONGEST]
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
                return name  # whoever was known before a flood of these stays known
            remembered.clear()
        remembered[hash(user_agent)] = name or ""
        return name

    def _name(self, user_agent: str) -> str | None:
        if not self._is_crawler(user_agent):  # the quick way to most answers
            return None
        found = self._search(user_agent)
        text = found[0] if found else ""
        text = next((words for matches, words in self._with_gaps if matches(text)), text)
        return text.strip(" /;()+-:,")[:LONGEST_NAME] or KIND

    def _may_look(self, user_agent: str) -> bool:
        now = self._monotonic()
        if now - self._lookups_from >= 1:
            self._lookups, self._lookups_from = LOOKUPS, now
        self._lookups -= 1 + len(user_agent) // USUAL  # a long one takes as long as several
        return self._lookups >= 0


def _words(pattern: str) -> str:
    """What a pattern begins with, up to its first gap."""
    match = re.match(r"[\w -]*", pattern)
    return match[0] if match else ""
