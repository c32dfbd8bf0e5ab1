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
from concurrent.futures import Future
from contextlib import suppress
from ipaddress import ip_address
from threading import Thread, main_thread
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelManagedConnection

from .limits import TimedSocket, remaining

# By process id, host, port and address family: the look-ups whose result nobody has used yet. All
# connections to the same host wait for the same look-up. One that ends after their deadline still
# serves the next connection.
_look_ups: dict[tuple[int, str, int, int], Future[list[str]]] = {}
# What the last look-up of each found.
_found: dict[tuple[int, str, int, int], list[str]] = {}


def addresses_of(host: str, port: int, family: int) -> list[str]:
    """Return the addresses of a host, the preferred first.

    `family` is an address family of `socket`, or 0. Raises `OSError` if the host has no address,
    and `TimeoutError` at the deadline.
    """
    with suppress(ValueError):
        ip_address(host)
        return [host]
    name = os.getpid(), host, port, family
    look_up = _look_ups.get(name)
    if look_up is None:
        begun: Future[list[str]] = Future()
        look_up = _look_ups[name] = begun

        def work() -> None:
            try:
                results = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(address[0]) for *_, address in results))
                _found[name] = found
                begun.set_result(found)
            except Exception as error:
                begun.set_exception(error)

        try:
            # The look-up of the system cannot be interrupted, so a thread of its own waits for it.
            Thread(target=work, name="presence-names", daemon=True).start()
        except RuntimeError:
            # This process can start no more threads, for example while the interpreter exits. A
            # look-up could hold up the exit, which takes what is known.
            if name in _found and not main_thread().is_alive():
                begun.set_result(_found[name])
            else:
                work()
    seconds = remaining()
    try:
        return look_up.result(None if seconds == math.inf else max(seconds, 0.0))
    finally:
        if look_up.done():
            _look_ups.pop(name, None)


class _Timed:
    """A connection with a `TimedSocket`."""

    def _connect(self) -> Any:
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
}
"""The connection class of each URL scheme."""
