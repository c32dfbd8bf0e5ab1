"""Connections of the sync client that respect the deadline of a read. Imports redis-py.

The timeouts of redis-py are for each packet: a server that sends a byte now and then would hold a
reader for minutes. They do not bound the look-up of host names either.
"""

# The first two are used by the look-up of a host and by the first connection of redis-py. If they
# were imported only then, a process that forks meanwhile would have children that cannot do either.
import email.parser  # noqa: F401
import encodings.idna  # noqa: F401
import math
import os
import socket
import time
from contextlib import suppress
from ipaddress import ip_address
from threading import Event, Thread
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelManagedConnection

from .limits import remaining

# How long the addresses of a host are used, in seconds. A look-up that ends after the deadline
# still serves the next connection.
ADDRESS_SECONDS = 10.0

Name = tuple[int, str, int, int]
"""A process id, a host, a port and an address family."""


class _Lookup:
    """A look-up of the addresses of a host, in a thread of its own.

    The look-up of the system cannot be interrupted. All connections to the same host wait for the
    same look-up.
    """

    def __init__(self, host: str, port: int, family: int) -> None:
        self._arguments = host, port, family
        self._has_ended = Event()
        self._ended_at = math.inf
        self._error: Exception | None = None
        self._addresses: list[str] = []

    def start(self) -> None:
        try:
            Thread(target=self._run, name="presence-names", daemon=True).start()
        except RuntimeError:
            # This process can start no more threads, for example while the interpreter exits.
            self._run()

    def _run(self) -> None:
        try:
            results = socket.getaddrinfo(*self._arguments, socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in results))
        except Exception as error:
            self._error = error
        self._ended_at = time.monotonic()
        self._has_ended.set()

    def is_usable(self) -> bool:
        """Return whether the look-up is running, or ended lately without an error."""
        return self._error is None and time.monotonic() - self._ended_at < ADDRESS_SECONDS

    def addresses(self) -> list[str]:
        """Wait for the addresses. Raises `TimeoutError` at the deadline."""
        seconds = remaining()
        if not self._has_ended.wait(None if seconds == math.inf else max(seconds, 0.0)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._addresses


_lookups: dict[Name, _Lookup] = {}


def addresses_of(host: str, port: int, family: int) -> list[str]:
    """Return the addresses of a host, the preferred first.

    `family` is an address family of `socket`, or 0. Raises `OSError` if the host has no address,
    and `TimeoutError` at the deadline.
    """
    with suppress(ValueError):
        ip_address(host)
        return [host]
    name = os.getpid(), host, port, family
    lookup = _lookups.get(name)
    if lookup is None or not lookup.is_usable():
        lookup = _lookups[name] = _Lookup(host, port, family)
        lookup.start()
    return lookup.addresses()


class TimedSocket:
    """A socket that waits until the deadline at most; its own timeout may be shorter."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # redis-py reads these two before each command, and `__getattr__` would be slow.
        self.fileno = sock.fileno
        self.pending = getattr(sock, "pending", _nothing_pending)
        self._timeout = self._applied_timeout = sock.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = self._applied_timeout = timeout
        self._sock.settimeout(timeout)

    def recv(self, *arguments: Any) -> bytes:
        self._apply_deadline()
        return self._sock.recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self._apply_deadline()
        return self._sock.recv_into(*arguments)

    def sendall(self, *arguments: Any) -> None:
        self._apply_deadline()
        self._sock.sendall(*arguments)

    def _apply_deadline(self) -> None:
        if self._timeout == 0:
            return  # A socket that never waits needs no deadline.
        seconds = remaining()
        if seconds <= 0:
            raise TimeoutError
        timeout = self._timeout
        if timeout is None or timeout > seconds:
            timeout = seconds
        # Setting a timeout is a system call, so do it only for a change.
        if timeout != self._applied_timeout:
            self._sock.settimeout(None if timeout == math.inf else timeout)
            self._applied_timeout = timeout


def _nothing_pending() -> int:
    """Return the number of decrypted bytes that wait in a socket without TLS."""
    return 0


class _Timed:
    """A connection with a `TimedSocket`."""

    def _connect(self) -> Any:
        if remaining() <= 0:
            raise TimeoutError
        return TimedSocket(super()._connect())  # type: ignore[misc]


class _Named(Connection):
    """A connection that looks up its host within the deadline."""

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
                self.host = name  # TLS compares the name with the certificate.
        # No address accepts connections, so look the name up again next time.
        _lookups.pop((os.getpid(), name, self.port, self.socket_type), None)
        raise failure


class TimedConnection(_Timed, _Named):
    """The connection of `redis://`."""


class TimedSSLConnection(_Timed, SSLConnection, _Named):
    """The connection of `rediss://`."""


class TimedUnixConnection(_Timed, UnixDomainSocketConnection):
    """The connection of `unix://`."""


class TimedSentinelConnection(_Timed, SentinelManagedConnection, _Named):
    """The connection to the primary that Sentinels name."""


CLASSES = {
    "redis": TimedConnection,
    "rediss": TimedSSLConnection,
    "unix": TimedUnixConnection,
    "redis+sentinel": TimedSentinelConnection,
    "redis+cluster": TimedConnection,
    "rediss+cluster": TimedSSLConnection,
}
"""The connection class of each URL scheme."""
