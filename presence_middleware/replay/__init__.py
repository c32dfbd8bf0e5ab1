"""Who is or was online, from access logs, by the rules of the middleware."""

from .files import Logs, size_of
from .lines import FIELDS
from .site import Replay
from .summary import Series, Summary
from .timeline import Moment

__all__ = ["FIELDS", "Logs", "Moment", "Replay", "Series", "Summary", "size_of"]
