"""What a site would have seen: an access log, through the chain that the middleware uses."""

from .files import Logs, size_of
from .site import Replay
from .summary import Series, Summary
from .svg import drawn
from .timeline import Moment

__all__ = ["Logs", "Moment", "Replay", "Series", "Summary", "drawn", "size_of"]
