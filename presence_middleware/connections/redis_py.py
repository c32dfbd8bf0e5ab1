"""The classes that redis-py is given: connections and credentials. Imports redis-py.

A sync connection respects the deadline of a read. The timeouts of redis-py are for each packet: a
server that sends a byte now and then would hold a reader for minutes. They do not bound the look-up
of host names either.

An async connection closes its socket at once. redis-py does not wait for the end of a connection
that has failed. Over TLS, asyncio then keeps the socket open until the server confirms the end, for
up to 30 seconds. A server that hangs confirms nothing. So each failed read would hold a socket that
no pool counts, and an event loop that ends would leave it to the garbage collector.
"""

import asyncio

# The first two are used by the look-up of a host and by the first connection of redis-py. If they
# were imported only then, a process that forks meanwhile would have children that cannot do either.
import email.parser  # noqa: F401
import encodings.idna  # noqa: F401
import math
import os
import socket
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from threading import Thread, main_thread
from typing import Any

from redis import AuthenticationError, CredentialProvider, exceptions, utils
from redis.asyncio import connection, sentinel
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelManagedConnection

from .limits import TimedSocket, remaining
from .loops import in_thread

# From Python 3.13 on, the first call imports more, and the first connection makes it.
utils.get_lib_version()  # type: ignore[no-untyped-call]

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


# When a new connection is checked first; redis-py sets the next time with each reply. The check, a
# PING, connects again if it fails: without end while a login waits for it, if the server hangs up.
NOT_IN_A_LOGIN = math.inf


class _Timed:
    """A connection with a `TimedSocket`."""

    next_health_check: Any

    def _connect(self) -> Any:
        self.next_health_check = NOT_IN_A_LOGIN
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


class OnDemandConnection(TimedUnixConnection):
    """A connection to the server of the directory `path`."""

    may_start = True

    def _connect(self) -> Any:
        from .. import embedded  # this needs a POSIX system

        directory = self.path
        self.path = str(embedded.serve(Path(directory), start=self.may_start))
        try:
            return super()._connect()
        finally:
            self.path = directory


class JoiningConnection(OnDemandConnection):
    """A connection to a server that another process has started."""

    may_start = False


CLASSES = {
    "redis": TimedConnection,
    "rediss": TimedSSLConnection,
    "unix": TimedUnixConnection,
    "redis+sentinel": TimedSentinelConnection,
    "embedded": OnDemandConnection,
}
"""The connection class of each URL scheme."""


class _Prompt(connection.AbstractConnection):
    """A connection of redis-py that a cancelled reader leaves, and that closes at once."""

    async def _connect(self) -> None:
        self.next_health_check = NOT_IN_A_LOGIN
        await super()._connect()  # type: ignore[no-untyped-call, safe-super]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command, with the arguments of redis-py.

        redis-py limits the time by `asyncio.wait_for`. Before Python 3.12, that loses the
        cancellation of a reader whose command has just been sent, and the reader would go on.
        """
        if not self.is_connected:
            await self.connect()  # type: ignore[no-untyped-call]
        if check_health:
            await self.check_health()  # type: ignore[no-untyped-call]
        seconds, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(seconds):
                await super().send_packed_command(command, check_health=False)
        finally:
            self.socket_timeout = seconds

    async def disconnect(self, *arguments: Any, **options: Any) -> None:
        """Disconnect from the server, with the arguments of redis-py.

        If the server does not confirm the end within the connection's timeout, the socket is closed
        nevertheless, and no error is raised.
        """
        writer = self._writer
        try:
            with suppress(exceptions.TimeoutError):
                await super().disconnect(*arguments, **options)
        finally:
            if writer is not None:
                writer.transport.abort()


ASYNC_CLASSES = {
    scheme: type(connection_class.__name__, (_Prompt, connection_class), {})
    for scheme, connection_class in {
        "redis": connection.Connection,
        "rediss": connection.SSLConnection,
        "unix": connection.UnixDomainSocketConnection,
        "redis+sentinel": sentinel.SentinelManagedConnection,
    }.items()
}
"""The connection class of each URL scheme, for coroutines."""


# That of redis-py calls `get_credentials`, which may wait for a service, in the event loop.
_INHERITED = getattr(CredentialProvider, "get_credentials_async", None)


class ImportedCredentials(CredentialProvider):
    """The credentials of an object that the site has; each new connection asks it again.

    The object has the methods of redis-py's `CredentialProvider`, or is a class or function that
    returns such an object. It is imported when the first connection opens. Whatever goes wrong is
    raised as `redis.AuthenticationError`, without the text of other errors: it may show a token.
    """

    def __init__(self, path: str) -> None:
        """Take `path`, such as `shop.iam:provider`. Imports nothing."""
        self._path = path
        self._provider: Any = None

    def get_credentials(self) -> Any:
        """Return the password, or the user and the password, in a tuple."""
        try:
            return self._found().get_credentials()
        except Exception as error:
            raise self._failure(error) from None

    async def get_credentials_async(self) -> Any:
        """Return the same without blocking the event loop."""
        try:
            provider = await in_thread(self._found)
            if getattr(type(provider), "get_credentials_async", _INHERITED) is not _INHERITED:
                return await provider.get_credentials_async()
            return await in_thread(provider.get_credentials)
        except Exception as error:
            raise self._failure(error) from None

    def _found(self) -> Any:
        if self._provider is None:
            module, _, name = self._path.partition(":")
            provider = getattr(import_module(module), name)
            is_made = isinstance(provider, type) or not hasattr(provider, "get_credentials")
            self._provider = provider() if is_made else provider
        return self._provider

    def _failure(self, error: Exception) -> AuthenticationError:
        return AuthenticationError(
            f"credential_provider={self._path} of PRESENCE_REDIS_URL raised {type(error).__name__}"
        )
