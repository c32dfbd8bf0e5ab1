"""Who is or was online, from access logs, by the rules of the middleware."""

from .combined import FIELDS
from .files import Logs, size_of
from .follower import Follower
from .growing import GrowingLog, Pipe, Source
from .lines import Parser
from .site import Replay
from .summary import Series, Summary
from .timeline import Moment

__all__ = [
    "FIELDS",
    "Follower",
    "GrowingLog",
    "Logs",
    "Moment",
    "Parser",
    "Pipe",
    "Replay",
    "Series",
    "Source",
    "Summary",
    "size_of",
]
