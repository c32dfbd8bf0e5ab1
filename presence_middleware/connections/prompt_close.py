"""Connections of the async client that close their socket at once. Imports redis-py.

redis-py does not wait for the end of a connection that has failed. Over TLS, asyncio then keeps the
socket open until the server confirms the end, for up to 30 seconds. A server that hangs confirms
nothing. So each failed read would hold a socket that no pool counts, and an event loop that ends
would leave it to the garbage collector.
"""

from contextlib import suppress
from typing import Any

from redis import exceptions
from redis.asyncio import connection, sentinel


class _ClosesPromptly:
    """A connection of redis-py whose socket closes when `disconnect` returns."""

    _writer: Any

    async def disconnect(self, *arguments: Any, **options: Any) -> None:
        """Disconnect from the server, with the arguments of redis-py.

        If the server does not confirm the end within the connection's timeout, the socket is closed
        nevertheless, and no error is raised.
        """
        writer = self._writer
        try:
            with suppress(exceptions.TimeoutError):
                await super().disconnect(*arguments, **options)  # type: ignore[misc]
        finally:
            if writer is not None:
                writer.transport.abort()


CLASSES = {
    scheme: type(connection_class.__name__, (_ClosesPromptly, connection_class), {})
    for scheme, connection_class in {
        "redis": connection.Connection,
        "rediss": connection.SSLConnection,
        "unix": connection.UnixDomainSocketConnection,
        "redis+sentinel": sentinel.SentinelManagedConnection,
    }.items()
}
"""The connection class of each URL scheme."""
