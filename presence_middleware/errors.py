"""What this package raises. Everything derives from `PresenceError`."""

from collections.abc import Iterable


class PresenceError(Exception):
    """Root of all errors of this package."""


class SettingsError(PresenceError, ValueError):
    """The settings cannot be used. `problems` holds one text for each thing that is wrong."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class QueryError(PresenceError, ValueError):
    """A question that makes no sense here: an unknown kind, a window that is no duration …"""


class UnsupportedQuery(QueryError):
    """The store of this kind does not keep what the question asks for."""


class PresenceUnavailable(PresenceError):
    """Redis could not answer: it is down, silent, out of memory, loading …"""


class RedisRefused(PresenceUnavailable):
    """Redis answered, and refused: out of memory, read-only, loading, without permission …"""


class ConnectionsBusy(PresenceUnavailable):
    """All connections of this process were in use by others: this process is busy, not Redis."""

    def __init__(self) -> None:
        super().__init__(
            "all connections of this process to Redis were in use for too long; read less often, "
            "or raise max_connections in PRESENCE_REDIS_URL or of your own client"
        )
