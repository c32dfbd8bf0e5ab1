"""Every way in which Redis can fail, and the invariants that must hold meanwhile."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from presence_middleware.recorder import Recorder
from tests.support.backends import Server
from tests.support.beside import repeated
from tests.support.proxy import Proxy

PASSWORD = "hunter2"
Fault = Callable[["Place"], AbstractContextManager[None]]
"""An outage, as long as the block lasts."""

ROOM = "20mb"
ACL = "ACL SETUSER site"
NEEDS_REPLICAS = "CONFIG SET min-replicas-to-write"


@dataclass
class Place:
    """A server of the test's own; the site reaches it by a proxy and with a password."""

    server: Server
    proxy: Proxy
    admin: Any  # a client of the server itself

    @property
    def url(self) -> str:
        return f"redis://site:{PASSWORD}@127.0.0.1:{self.proxy.port}"

    def let_in(self) -> None:
        self.admin.execute_command("ACL", "SETUSER", "site", "on", f">{PASSWORD}", "~*", "+@all")


@contextmanager
def at_a_place(binary: str, folder: Path, *options: str) -> Iterator[Place]:
    server = Server(binary, folder, "--maxmemory", ROOM, *options)
    place = Place(server, Proxy(server.socket), server.client)
    place.let_in()
    try:
        yield place
    finally:
        place.proxy.refuse()
        os.kill(server.process.pid, signal.SIGCONT)
        server.stop()


def outage(begin: Callable[[Proxy], object], end: Callable[[Proxy], object]) -> Fault:
    """Return an outage that the proxy makes."""

    @contextmanager
    def fault(place: Place) -> Iterator[None]:
        begin(place.proxy)
        yield
        end(place.proxy)

    return fault


refused = outage(Proxy.refuse, Proxy.listen)
unreachable = outage(Proxy.vanish, Proxy.listen)
slow = outage(lambda proxy: setattr(proxy, "delay", 2), lambda proxy: setattr(proxy, "delay", 0))


@contextmanager
def hung(place: Place | Server | int) -> Iterator[None]:
    """Stop a server, or the process with an id, for a while."""
    server = place.server if isinstance(place, Place) else place
    process = server.process.pid if isinstance(server, Server) else server
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextmanager
def restarted(server: Server) -> Iterator[None]:
    server.stop()
    yield
    server.start()


@contextmanager
def killed(place: Place) -> Iterator[None]:
    """The server restarts, and knows the user of the site no more."""
    with restarted(place.server):
        yield
    place.let_in()


@contextmanager
def changed(place: Place, command: str, back: str) -> Iterator[None]:
    place.admin.execute_command(*command.split())
    yield
    place.admin.execute_command(*back.split())


@contextmanager
def with_another_password(place: Place) -> Iterator[None]:
    place.admin.execute_command("ACL", "SETUSER", "site", "resetpass", ">another")
    place.proxy.cut()
    yield
    place.let_in()


@contextmanager
def answered(place: Place, answer: bytes, hangs_up: bool = False) -> Iterator[None]:
    place.proxy.answer, place.proxy.hangs_up = answer, hangs_up
    yield
    place.proxy.answer = None
    place.proxy.cut()


ERRORS = {
    "loading": b"-LOADING Redis is loading the dataset in memory",
    "primary away": b"-MASTERDOWN Link with MASTER is down",
    "busy": b"-BUSY Redis is busy running a script",
    "cluster down": b"-CLUSTERDOWN The cluster is down",
    "no login": b"-NOAUTH Authentication required.",
    "wrong password": b"-WRONGPASS invalid username-password pair or user is disabled.",
    "an error of its own": b"-ERR something else",
    "not Redis": b"HTTP/1.1 400 Bad Request",
    "garbage": b"\x00\xff\x00",
}
OUTAGES: dict[str, Fault] = {
    "refused": refused,
    "hung": hung,
    "killed and restarted": killed,
    "full": partial(changed, command="SETRANGE filler 30000000 x", back="DEL filler"),
    "read-only": partial(changed, command="REPLICAOF 127.0.0.1 1", back="REPLICAOF NO ONE"),
    "without replicas": partial(changed, command=f"{NEEDS_REPLICAS} 1", back=f"{NEEDS_REPLICAS} 0"),
    "another password": with_another_password,
    "no permission": partial(changed, command=f"{ACL} -@all", back=f"{ACL} +@all"),
    "hangs up": partial(answered, answer=b"", hangs_up=True),
    "half an answer": partial(answered, answer=b"$100\r\nhal", hangs_up=True),
    **{name: partial(answered, answer=error + b"\r\n") for name, error in ERRORS.items()},
}
READABLE = {"full", "read-only", "without replicas"}
SLOW_OUTAGES: dict[str, Fault] = {
    "unreachable": unreachable,
    "slow": slow,
    "silent": partial(answered, answer=b""),
    "silent half way": partial(answered, answer=b"$100\r\nhal"),
}


def adds_up(recorder: Recorder) -> bool:
    found = recorder.stats()
    accounted = found.coalesced + found.flushed + found.pending + sum(found.dropped.values())
    return found.recorded == accounted


@contextmanager
def adding_up(recorder: Recorder) -> Iterator[None]:
    """Looks at the counters all along."""

    def look() -> None:
        assert adds_up(recorder), recorder.stats()

    with repeated(look, every=0.001):
        yield
    look()
