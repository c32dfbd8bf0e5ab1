"""Names of today's recorder."""

# until the recorder writes changes: delete this module.

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .changes import Move, to_microseconds
from .script import CHUNK

__all__ = ["CHUNK", "NO_MOVES", "Move", "Recorded", "Stamped", "to_microseconds"]

Stamped = tuple[str, int, int]
NO_MOVES: Mapping[str, Move] = MappingProxyType({})


class Recorded(NamedTuple):
    """The outcome of recording sightings."""

    left: frozenset[str] = frozenset()
    full: int = 0
    wrote_before: float | None = None
    came: int = 0
    went: int = 0
