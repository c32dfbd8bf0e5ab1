"""Turns host names into addresses, for no longer than the deadline.

The system's look-up cannot be interrupted. So it runs in a thread of its own; whoever asks for the
same name meanwhile waits for the same answer.
"""

import math
import os
import socket
import time
from contextlib import suppress
from ipaddress import ip_address
from threading import Event, Thread

from .deadline import remaining

REMEMBERED = 10.0
"""Seconds for which an answer is used: else no connection is made while names take too long."""

Name = tuple[int, str, int, int]
"""A process id, a host, a port and an address family."""


class _Lookup:
    """A question to the name service, and its answer."""

    def __init__(self, host: str, port: int, family: int) -> None:
        self._question = host, port, family
        self._has_ended = Event()
        self._ended = math.inf
        self._error: Exception | None = None
        self._addresses: list[str] = []

    def start(self) -> None:
        try:
            Thread(target=self._ask, name="presence-names", daemon=True).start()
        except RuntimeError:  # no thread can be had, as while the interpreter exits
            self._ask()

    def _ask(self) -> None:
        try:
            found = socket.getaddrinfo(*self._question, socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        except Exception as error:
            self._error = error
        self._ended = time.monotonic()
        self._has_ended.set()

    def is_usable(self) -> bool:
        """Return whether the answer is new enough, or still to come."""
        return self._error is None and time.monotonic() - self._ended < REMEMBERED

    def addresses(self) -> list[str]:
        """Wait for the answer. Raises `TimeoutError` if the deadline comes first."""
        left = remaining()
        if not self._has_ended.wait(None if left == math.inf else max(left, 0.0)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._addresses


_lookups: dict[Name, _Lookup] = {}


def addresses_of(host: str, port: int, family: int) -> list[str]:
    """Return the addresses of a host, the preferred first.

    Raises `OSError` if it has none, `TimeoutError` if the deadline comes before the answer.
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


def forget(host: str, port: int, family: int) -> None:
    """Ask for a name again at its next use: nobody answers at its addresses."""
    _lookups.pop((os.getpid(), host, port, family), None)
