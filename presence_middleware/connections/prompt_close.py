"""Connections of the async client that close their socket at once. Imports redis-py.

redis-py does not wait for the end of a connection that has failed. Over TLS, asyncio then keeps the
socket open until the server confirms the end, for up to 30 seconds. A server that hangs confirms
nothing. So each failed read would hold a socket that no pool counts, and an event loop that ends
would leave it to the garbage collector.
"""

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
            await super().disconnect(*arguments, **options)  # type: ignore[misc]
        except exceptions.TimeoutError:
            pass
        finally:
            if writer is not None:
                writer.transport.abort()


def prompt_close(connection_class: type[Any]) -> type[Any]:
    """Return a subclass of an async connection class of redis-py that closes sockets at once."""
    return type(connection_class.__name__, (_ClosesPromptly, connection_class), {})


CLASSES = {
    "redis": prompt_close(connection.Connection),
    "rediss": prompt_close(connection.SSLConnection),
    "unix": prompt_close(connection.UnixDomainSocketConnection),
    "redis+sentinel": prompt_close(sentinel.SentinelManagedConnection),
}
"""The connection class of each URL scheme."""
