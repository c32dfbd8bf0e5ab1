"""Connections of the sync client that end when the deadline does. Imports redis-py.

The timeouts of redis-py are for each packet: a server that sends a byte now and then would hold a
reader for minutes. Nothing of it bounds how long it waits for a name service.
"""

import socket
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelManagedConnection

from .deadline import remaining
from .names import addresses_of, forget


class TimedSocket:
    """A socket that waits no longer than the deadline; its own timeout may be shorter."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # The library looks for these two before each command; `__getattr__` would be slow.
        self.fileno = sock.fileno
        self.pending = getattr(sock, "pending", _nothing_pending)
        self._timeout = self._set = sock.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = self._set = timeout
        self._sock.settimeout(timeout)

    def recv(self, *arguments: Any) -> bytes:
        self._limit()
        return self._sock.recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self._limit()
        return self._sock.recv_into(*arguments)

    def sendall(self, *arguments: Any) -> None:
        self._limit()
        self._sock.sendall(*arguments)

    def _limit(self) -> None:
        if self._timeout == 0:
            return  # it does not wait
        if (left := remaining()) <= 0:
            raise TimeoutError
        timeout = self._timeout if self._timeout is not None and self._timeout <= left else left
        if timeout != self._set:  # a system call, seldom needed
            self._sock.settimeout(None if timeout == float("inf") else timeout)
            self._set = timeout


def _nothing_pending() -> int:
    """Return how many decrypted bytes wait in a socket without TLS."""
    return 0


class _Timed:
    """Puts a `TimedSocket` into a connection."""

    def _connect(self) -> Any:
        if remaining() <= 0:
            raise TimeoutError
        return TimedSocket(super()._connect())  # type: ignore[misc]


class _Named(Connection):
    """Looks its host up within the deadline."""

    def _connect(self) -> Any:
        name = self.host
        failure = OSError(f"no address for {name}")
        for address in addresses_of(name, self.port, self.socket_type):
            if remaining() <= 0:
                raise TimeoutError
            self.host = address
            try:
                return super()._connect()  # type: ignore[no-untyped-call]
            except OSError as error:
                failure = error
            finally:
                self.host = name  # TLS compares it with the certificate
        forget(name, self.port, self.socket_type)
        raise failure


class TimedConnection(_Timed, _Named):
    """For `redis://`."""


class TimedSSLConnection(_Timed, SSLConnection, _Named):
    """For `rediss://`."""


class TimedUnixConnection(_Timed, UnixDomainSocketConnection):
    """For `unix://`."""


class TimedSentinelConnection(_Timed, SentinelManagedConnection, _Named):
    """For the primary that Sentinels name."""


CLASSES = {
    "redis": TimedConnection,
    "rediss": TimedSSLConnection,
    "unix": TimedUnixConnection,
    "redis+sentinel": TimedSentinelConnection,
    "redis+cluster": TimedConnection,
    "rediss+cluster": TimedSSLConnection,
}
"""By the scheme of an address."""
