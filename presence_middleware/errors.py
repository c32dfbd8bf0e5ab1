"""The exceptions of this package. All derive from `PresenceError`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class PresenceError(Exception):
    """Root of all exceptions of this package."""


class SettingsError(PresenceError, ValueError):
    """The settings cannot be used."""

    problems: tuple[str, ...]
    """A text for each invalid setting."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        """Create an error with a problem, or with several."""
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class QueryError(PresenceError, ValueError):
    """An argument of a query is not valid: an unknown kind, a window that is no duration."""


class UnsupportedQuery(QueryError):
    """The store of the kind does not contain the data for this query."""


class EventsLost(PresenceError):
    """Some events were missed: the reader was too slow, or the server lost its data.

    Ask `online` again who is online, and go on reading.
    """


class NotWrapped(PresenceError, LookupError):
    """A request has no visit, because it has not passed the middleware."""


class WouldBlock(PresenceError, RuntimeError):
    """A question in an event loop that cannot wait for it: of a template, or under trio."""


class PresenceUnavailable(PresenceError):
    """Redis did not answer or refused: it is down, silent, out of memory, or still loading."""


class RedisRefused(PresenceUnavailable):
    """Redis answered with a refusal: out of memory, read-only, loading, or without permission."""


def is_silence(error: object) -> bool:
    """Return whether an error says that Redis did not answer: a refusal is an answer."""
    return isinstance(error, PresenceUnavailable) and not isinstance(error, RedisRefused)


_BUSY = (
    "all connections of this process to Redis were in use for too long; read less often, or raise "
    "max_connections in PRESENCE_REDIS_URL or of your own client"
)


class ConnectionsBusy(PresenceUnavailable):
    """All connections of this process are in use. This process is busy, not Redis."""

    def __init__(self, message: str = _BUSY) -> None:  # unpickling passes the message
        super().__init__(message)


@contextmanager
def importing(module: str, extra: str = "", otherwise: str = "") -> Iterator[None]:
    """Name the extra to install if an import in the `with` block fails.

    `module` is what imports, in this package. `extra` has by default the same name, and `otherwise`
    ends the message. Raises `ModuleNotFoundError`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"presence_middleware.{module} needs pip install "
            f"'presence_middleware[{extra or module}]'{otherwise}",
            name=error.name,
        ) from error
