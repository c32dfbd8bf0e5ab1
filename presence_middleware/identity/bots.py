"""Crawlers, recognised by their User-Agent with the list of the package `crawler-user-agents`.

A search of the list takes 100 µs and more, so each User-Agent is searched once, and a bounded
number of results is remembered. Searches have a budget per second. Past it, new User-Agents count
as browsers, so that a flood of invented User-Agents costs nothing.
"""

import json
import re
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

from ..request import Request

BOT = "bot"
COUNT, SKIP, OFF = BOT_MODES = ("count", "skip", "off")
LOOKUPS = 50  # a second: about half a per cent of a processor
MOST_AGENTS = 4096  # User-Agents of crawlers, and as many of others
USUAL = 256  # characters; a longer User-Agent counts as several look-ups
MAX_USER_AGENT_LENGTH = 1024  # characters of a User-Agent that are searched
MAX_NAME_LENGTH = 64
PART = 25  # patterns in an expression; one with all of them takes three times as long
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


class CrawlerList:
    """The list of the package. Use `crawler_list()`, because to compile it takes milliseconds."""

    def __init__(self) -> None:
        """Read the list, in UTF-8.

        The package itself reads it in the encoding of the locale. That fails where the locale is C
        and Python does not replace it, as under mod_wsgi. Raises `ImportError` without the package.
        """
        package = find_spec("crawleruseragents")
        if package is None or package.origin is None:
            raise ModuleNotFoundError("No module named 'crawleruseragents'")
        # Its loader finds it in a zip file, too.
        reader = package.loader.get_resource_reader(package.name)  # type: ignore[union-attr]
        text = reader.files().joinpath("crawler-user-agents.json").read_bytes()
        patterns = [entry["pattern"] for entry in json.loads(text)]
        parts = [patterns[start : start + PART] for start in range(0, len(patterns), PART)]
        self._searches = [re.compile("|".join(part)).search for part in parts]
        self._with_gaps = [
            (re.compile(pattern).fullmatch, _WORDS.findall(pattern)[0])
            for pattern in patterns
            if _GAP.search(pattern)
        ]

    def name_of(self, user_agent: str) -> str | None:
        """Return the name of a crawler; None for all other clients."""
        found = [match for search in self._searches if (match := search(user_agent))]
        if not found:
            return None
        text = min(found, key=re.Match.start)[0]  # of several, as one expression would find it
        text = next((words for matches, words in self._with_gaps if matches(text)), text)
        return text.strip(" /;()+-:,")[:MAX_NAME_LENGTH] or BOT


crawler_list = cache(CrawlerList)
"""Returns the list, read once in a process."""


class Crawlers:
    """Finds the names of crawlers by their User-Agent."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._name_of = crawler_list().name_of
        # By hash: a User-Agent may contain anything and is not stored. Crawlers and others are
        # stored separately, so that a flood of others pushes no crawler out.
        self._crawlers: dict[int, str] = {}
        self._others: set[int] = set()
        self._monotonic = monotonic
        self._lookups, self._lookups_from = LOOKUPS, monotonic()

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
        name = self._name_of(user_agent)
        if name is None:
            if len(self._others) >= MOST_AGENTS:
                self._others.clear()
            self._others.add(known)
            return None
        if len(self._crawlers) < MOST_AGENTS:  # a flood of crawlers does not displace the first
            self._crawlers[known] = name
        return name
