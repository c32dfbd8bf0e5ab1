"""The classes that redis-py is given: connections and credentials. Imports redis-py.

A connection respects the deadline of a read. The timeouts of redis-py are for each packet: a server
that sends a byte now and then would hold a reader for minutes. They do not bound the look-up of
host names either.
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
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from threading import Thread, main_thread
from typing import Any

from redis import AuthenticationError, CredentialProvider, utils
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelManagedConnection

from .limits import TimedSocket, remaining

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


class _Timed:
    """A connection with a `TimedSocket`."""

    next_health_check: Any

    def _connect(self) -> Any:
        # Not during the login; redis-py sets the next time with each reply. The check, a PING,
        # connects again if it fails. Before redis-py 6, that has no end if the server hangs up.
        self.next_health_check = math.inf
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
            if self._provider is None:
                module, _, name = self._path.partition(":")
                provider = getattr(import_module(module), name)
                is_made = isinstance(provider, type) or not hasattr(provider, "get_credentials")
                self._provider = provider() if is_made else provider
            return self._provider.get_credentials()
        except Exception as error:
            raise AuthenticationError(
                f"credential_provider={self._path} of PRESENCE_REDIS_URL raised "
                f"{type(error).__name__}"
            ) from None
